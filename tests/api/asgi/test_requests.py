"""One request of another ASGI server, without a server: what the application gets, and what leaves."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from mailprobe.api.asgi.requests import SETTLE_S, serve_request, with_one_cookie

PART = b"x" * (1 << 19)


class Peer:
    """The server below: `put` is what the client sends, `sent` what it gets."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self._put, self._received = trio.open_memory_channel[Any](1)

    async def receive(self) -> Any:
        return await self._received.receive()

    async def send(self, message: Any) -> None:
        await trio.lowlevel.checkpoint()
        self.sent.append(message)

    async def body(self, octets: bytes, *, more: bool) -> None:
        await self._put.send({"type": "http.request", "body": octets, "more_body": more})

    async def hang_up(self) -> None:
        await self._put.send({"type": "http.disconnect"})

    @property
    def has_ended(self) -> bool:
        return bool(self.sent) and not self.sent[-1].get(
            "more_body", self.sent[-1]["type"] == START
        )

    @property
    def octets(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


START = "http.response.start"


@asynccontextmanager
async def serving(app: Any, version: str = "1.1", **scope: Any) -> AsyncIterator[Peer]:
    peer = Peer()
    common = {"type": "http", "http_version": version, "raw_path": b"/", "path": "/", "headers": []}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            serve_request, app, {**common, **scope}, peer.receive, peer.send, str.encode
        )
        yield peer


async def respond(send: Any, status: int = 200, body: bytes = b"ok", *headers: Any) -> None:
    await send({"type": START, "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})


async def test_the_application_gets_the_body_and_the_scope_as_of_our_own_server(autojump_clock):
    seen = []

    async def app(scope, receive, send):
        seen.extend([scope["path"], scope["headers"], (await receive())["body"]])
        await respond(send)

    cookies = [(b"cookie", b"a=1"), (b"host", b"a.test"), (b"cookie", b"b=2")]
    encoded = {"raw_path": b"/v1%2Flists", "path": "/v1/lists", "headers": cookies}
    async with serving(app, "2", **encoded) as peer:
        await peer.body(b"hello", more=False)
    assert seen == ["/v1%2Flists", [(b"host", b"a.test"), (b"cookie", b"a=1; b=2")], b"hello"]
    assert peer.has_ended


def test_one_cookie_stays_as_it_is():
    fields = [(b"cookie", b"a=1"), (b"host", b"a.test")]
    assert with_one_cookie(fields) is fields


async def test_a_client_that_hangs_up_cancels_the_application(autojump_clock):
    cancelled = trio.Event()

    async def app(scope, receive, send):
        await send({"type": START, "status": 200, "headers": []})
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    async with serving(app) as peer:
        await peer.body(b"", more=False)
        await trio.testing.wait_all_tasks_blocked()
        await peer.hang_up()
    assert cancelled.is_set()
    assert not peer.has_ended


async def test_the_end_of_an_answer_is_no_hang_up(autojump_clock):
    """hypercorn says `http.disconnect` while the last message is still being sent."""
    finished = []

    async def app(scope, receive, send):
        await respond(send)
        await trio.lowlevel.checkpoint()
        finished.append(True)

    async with serving(app) as peer:
        sending = peer.send

        async def send_and_disconnect(message: Any) -> None:
            await sending(message)
            if peer.has_ended:
                await peer.hang_up()
                await trio.testing.wait_all_tasks_blocked()

        peer.send = send_and_disconnect  # type: ignore[method-assign]  # before the task begins
        await peer.body(b"", more=False)
    assert finished


async def test_an_answer_over_http2_ends_after_the_body(autojump_clock):
    async def app(scope, receive, send):
        await respond(send, 401, b"no", (b"connection", b"close"), (b"x-own", b"1"))

    async with serving(app, "2") as peer:
        await peer.body(PART, more=True)
        await trio.testing.wait_all_tasks_blocked()
        assert [message.get("body") for message in peer.sent] == [None, b"no"]
        assert not peer.has_ended
        for _ in range(8):  # more than would be kept for the application
            await peer.body(PART, more=True)
        await peer.body(b"", more=False)
    assert peer.has_ended
    names = [name for name, _ in peer.sent[0]["headers"]]
    assert names == [b"x-own", b"x-request-id"]


@pytest.mark.parametrize("comes", [True, False])
async def test_an_early_answer_over_http1_waits_a_moment_for_the_body(comes, autojump_clock):
    async def app(scope, receive, send):
        await respond(send, 401)

    began = trio.current_time()
    async with serving(app) as peer:
        await peer.body(PART, more=True)
        await trio.testing.wait_all_tasks_blocked()
        assert peer.sent == []
        if comes:
            await peer.body(b"", more=False)
    assert peer.has_ended
    assert trio.current_time() - began == pytest.approx(0.0 if comes else SETTLE_S, abs=0.01)


async def test_a_body_waits_until_the_application_takes_it(autojump_clock):
    taking = trio.Event()

    async def app(scope, receive, send):
        await taking.wait()
        octets = 0
        while (message := await receive())["more_body"]:
            octets += len(message["body"])
        await respond(send, body=str(octets).encode())

    async with serving(app) as peer:
        put = 0
        with trio.move_on_after(1):
            while True:
                await peer.body(PART, more=True)
                put += 1
        assert put <= 5
        taking.set()
        await peer.body(b"", more=False)
    assert peer.octets == str(put * len(PART)).encode()


@pytest.mark.parametrize("version", ["1.1", "2"])
@pytest.mark.parametrize("begun", [True, False])
async def test_a_crash_is_an_error_500_or_an_answer_without_an_end(version, begun, autojump_clock):
    async def app(scope, receive, send):
        if begun:
            await send({"type": START, "status": 200, "headers": []})
        raise ZeroDivisionError

    async with serving(app, version) as peer:
        await peer.body(b"", more=False)
    assert peer.sent[0]["status"] == (200 if begun else 500)
    assert peer.has_ended is not begun
    assert peer.octets == (b"" if begun else b"internal_error")
