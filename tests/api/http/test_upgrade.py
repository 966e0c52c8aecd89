"""A request for a WebSocket is handed over with its socket and all that came behind its head."""

from typing import Any

import pytest
import trio

from tests.api.http.requests import GET, post
from tests.api.raw_http import Serving, hello, serving

FIELDS = {
    "Connection": "keep-alive, Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}


def asking(path: str = "/live", **changed: str | None) -> str:
    fields = {**FIELDS, **{name.replace("_", "-"): value for name, value in changed.items()}}
    lines = [f"{name}: {value}" for name, value in fields.items() if value is not None]
    return "\r\n".join([f"GET {path}?a=b HTTP/1.1", "Host: a.test", *lines, "", ""])


class Owner:
    """An upgrade handler that returns each octet it receives, until the client sends no more."""

    def __init__(self) -> None:
        self.scopes: list[dict[str, object]] = []
        self.ended = trio.Event()

    async def __call__(self, scope, wire, early):
        self.scopes.append(scope)
        try:
            await wire.send_all(b"HTTP/1.1 101 \r\n\r\n" + early)
            async for octets in wire:
                await wire.send_all(octets)
            await wire.send_all(b"bye")
        finally:
            self.ended.set()


@pytest.mark.parametrize("early", ["", "\x81\x05", "GET / HTTP/1.1\r\n\r\n"])
@pytest.mark.parametrize("drip", [False, True])
async def test_octets_that_came_with_the_head_reach_the_new_owner(early, drip):
    owner = Owner()
    async with serving(hello, upgrade=owner) as server, server.connect() as raw:
        octets = (asking() + early).encode("latin-1")
        for piece in [octets[i : i + 9] for i in range(0, len(octets), 9)] if drip else [octets]:
            await raw.send(piece)
        status, _ = await raw.head()
        assert status == 101
        await raw.send("more")
        expected = early.encode("latin-1") + b"more"
        while len(raw.received) < len(expected):
            assert await raw.more()
        assert raw.received == expected
        await raw.stream.send_eof()
        assert (await raw.rest()).endswith(b"bye")
    (scope,) = owner.scopes
    assert (scope["path"], scope["query_string"]) == ("/live", b"a=b")
    headers = scope["headers"]
    assert isinstance(headers, list)
    assert (b"upgrade", b"websocket") in headers
    assert (b"sec-websocket-key", b"dGhlIHNhbXBsZSBub25jZQ==") in headers


async def test_a_request_behind_others_is_handed_over_after_their_answers():
    async with serving(hello, upgrade=Owner()) as server, server.connect() as raw:
        await raw.send(GET + asking() + "x")
        assert (await raw.answer()).body == b"ok"
        assert (await raw.head())[0] == 101


OTHERS = {
    "another protocol": asking(Upgrade="h2c"),
    "two protocols": asking(Upgrade="websocket, h2c"),
    "two fields": asking(X="y\r\nUpgrade: websocket"),
    "no Connection": asking(Connection="keep-alive"),
    "no key": asking(Sec_WebSocket_Key=None),
    "no version": asking(Sec_WebSocket_Version=None),
    "another version": asking(Sec_WebSocket_Version="8"),
    "an older HTTP": asking().replace("HTTP/1.1", "HTTP/1.0"),
    "a POST": asking().replace("GET", "POST"),
    "a body": asking(Content_Length="1") + "x",
    "no upgrade": post("Content-Length: 0"),
}


@pytest.mark.parametrize("asked", OTHERS.values(), ids=OTHERS)
async def test_any_other_request_is_the_applications(asked):
    owner = Owner()
    async with serving(hello, upgrade=owner) as server, server.connect() as raw:
        assert (await raw.request(asked)).body == b"ok"
    assert not owner.scopes


async def test_without_a_handler_the_field_is_passed_over():
    async with serving(hello) as server, server.connect() as raw:
        for _ in range(2):
            assert (await raw.request(asking())).body == b"ok"


async def test_an_upgrade_with_an_empty_body_holds_no_place_of_a_request():
    """A stranger needs no key for it: as many as there are places would stop the service."""
    asked = asking(Transfer_Encoding="chunked") + "0\r\n\r\n"
    async with serving(hello, upgrade=Owner(), in_flight_max=1) as server:
        for _ in range(2):
            async with server.connect() as raw:
                await raw.send(asked)
                await raw.more()
        async with server.connect() as other:
            assert (await other.request(GET)).body == b"ok"


async def test_the_deadlines_of_requests_end_with_the_handing_over(idle_clock):
    limits: dict[str, Any] = {
        "head_s": 0.1,
        "body_s": 0.1,
        "keep_alive_s": 0.1,
        "connections_max": 1,
    }
    async with serving(hello, upgrade=Owner(), **limits) as server, server.connect() as raw:
        asked = asking()
        await raw.send(asked[:9])
        await raw.send(asked[9:])
        await raw.head()
        await trio.sleep(0.3)
        async with server.connect() as other:
            await other.send(GET)  # finds no capacity, and takes none from the new owner
            await trio.sleep(0.1)
            await raw.send("x")
            assert await raw.more()
            await raw.stream.aclose()
            assert (await other.answer()).body == b"ok"


async def test_a_drain_gives_the_owner_its_time_and_then_cancels_it(idle_clock):
    owner = Owner()
    async with serving(hello, upgrade=owner, drain_s=0.3) as server, server.connect() as raw:
        await raw.send(asking())
        await raw.head()
        server.drain.set()
        await trio.sleep(0.1)
        await raw.send("x")
        assert await raw.more()
        await server.assert_ends(within_s=2.0)
        assert owner.ended.is_set()


async def test_a_crash_of_the_owner_ends_its_connection_alone(caplog):
    async def crash(scope, wire, early):
        raise ZeroDivisionError

    async with serving(hello, upgrade=crash) as server:
        async with server.connect() as raw:
            await raw.send(asking())
            await raw.assert_closed()
        await assert_alive(server)
    assert "ZeroDivisionError" in caplog.text


async def assert_alive(server: Serving) -> None:
    assert (await server.request(GET)).status == 200
