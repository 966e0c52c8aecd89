"""The service under the released hypercorn, on real sockets: every kind of request, over both versions."""

import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import h2.connection
import h2.events
import httpx
import pytest
import trio
import wsproto.connection
import wsproto.events
from trio_websocket import ConnectionRejected, wrap_client_stream

from mailprobe.api.live.messages import MESSAGE_CHARACTERS_MAX
from mailprobe.bench.lab import Lab
from mailprobe.engine.background import sole_exception
from tests.api.asgi.hypercorn_process import APP, TRIO, hypercorn, interrupt, start
from tests.api.live.live_client import LIVE, Live
from tests.api.service_process import PATIENCE_S, ROOT, Credentials, Place, Running, make_place
from tests.warm_lab import start_lab

VERSIONS = ("HTTP/1.1", "HTTP/2")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with start_lab() as running:
        yield running


@pytest.fixture(scope="module")
def service(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    place = new_place(tmp_path_factory.mktemp("hypercorn"), lab)
    with hypercorn(place) as running:
        yield running


@pytest.fixture(scope="module")
def account(service: Running) -> Credentials:
    return service.place.make_account("scale")


@pytest.fixture(params=VERSIONS)
def client(
    request: pytest.FixtureRequest, service: Running, account: Credentials
) -> Iterator[httpx.Client]:
    """A client with a key, which speaks one version only."""
    with httpx.Client(
        base_url=service.url,
        headers={"Authorization": f"Bearer {account.key}"},
        timeout=PATIENCE_S,
        trust_env=False,
        event_hooks={"response": [lambda got: check_version(got, request.param)]},
        http1=request.param == "HTTP/1.1",
        http2=request.param == "HTTP/2",
    ) as client:
        yield client


def check_version(got: httpx.Response, version: str) -> None:
    assert got.http_version == version


def new_place(path: Path, lab: Lab, **settings: str) -> Place:
    return make_place(path, lab, "", tools_bind="", **settings)


def test_the_command_is_that_of_the_page() -> None:
    page = (ROOT / "docs/deployment.md").read_text("utf-8")
    assert f"\n{' '.join(('hypercorn', *TRIO, APP))}\n" in page


def test_one_address_is_verified(client: httpx.Client, lab: Lab) -> None:
    address = lab.addresses["deliverable"][0]
    got = client.post("/v1/email/verify", json={"email": address})
    assert (got.status_code, got.json()["status"]) == (200, "deliverable")
    assert got.headers["x-request-id"]


def test_a_batch_is_verified(client: httpx.Client, lab: Lab) -> None:
    emails = [lab.addresses[kind][0] for kind in ("deliverable", "undeliverable", "syntax")]
    got = client.post("/v1/email/verify/batch", json={"emails": emails})
    assert got.status_code == 200, got.text
    statuses = {each["email"]: each["status"] for each in got.json()["results"]}
    assert list(statuses.values()) == ["deliverable", "undeliverable", "invalid"]


def test_a_streams_lines_come_as_they_are_known(client: httpx.Client, lab: Lab) -> None:
    """A host that never greets takes a second at least; the other line does not wait for it."""
    emails = [lab.addresses["timed_out"][0], lab.addresses["deliverable"][0]]
    with client.stream("POST", "/v1/email/verify/stream", json={"emails": emails}) as got:
        came = [(time.monotonic(), json.loads(line)) for line in got.iter_lines()]
    assert [line["status"] for _, line in came] == ["deliverable", "unknown"]
    assert came[1][0] - came[0][0] > 0.1


def test_pages_and_the_dashboard_are_served(client: httpx.Client) -> None:
    got = client.get("/dashboard", follow_redirects=True)
    assert got.status_code == 200
    assert "text/html" in got.headers["content-type"]
    assert client.get("/docs").status_code == 200
    assert client.head("/docs").content == b""


def test_cookies_that_http2_splits_are_one(client: httpx.Client, account: Credentials) -> None:
    """As browsers split them; the session's is the second."""
    signed_in = client.post(
        "/dashboard/sign-in",
        data={"key": account.provisioning_key},
        headers={"Origin": str(client.base_url).rstrip("/")},
    )
    assert signed_in.status_code == 303, signed_in.text
    name, value = next(iter(signed_in.cookies.items()))
    client.cookies.clear()
    fields = [("Cookie", "theme=dark"), ("Cookie", f"{name}={value}")]
    if signed_in.http_version == "HTTP/1.1":
        fields = [("Cookie", f"theme=dark; {name}={value}")]
    assert client.get("/dashboard", headers=fields).status_code == 200


def test_an_error_has_its_body(client: httpx.Client) -> None:
    del client.headers["Authorization"]
    got = client.post("/v1/email/verify", json={"email": "ann@example.org"})
    assert (got.status_code, got.json()["error"]) == (401, "missing_api_key")
    assert client.get("/nothing").json()["error"] == "not_found"


class Http2Peer:
    """A client of HTTP/2 that sends what the test says, on stream 1."""

    def __init__(self, wire: trio.SocketStream) -> None:
        self._wire = wire
        self._h2 = h2.connection.H2Connection()
        self._h2.initiate_connection()
        self.events: list[Any] = []

    async def head_of_connection(self) -> None:
        await self._wire.send_all(self._h2.data_to_send())
        await self.until(h2.events.RemoteSettingsChanged)

    async def until(self, kind: type) -> None:
        """Receive until there is an event of this kind."""
        while not any(isinstance(event, kind) for event in self.events):
            await self.receive()

    async def receive(self) -> None:
        octets = await self._wire.receive_some()
        assert octets, "the service has closed"
        self.events.extend(self._h2.receive_data(octets))
        await self._wire.send_all(self._h2.data_to_send())

    async def head(self, key: str = "", **fields: str) -> None:
        """Send the head. Names without a hyphen are pseudo-headers."""
        common = {":scheme": "http", ":authority": "a.test"}
        own = {f":{name}": value for name, value in fields.items() if "-" not in name}
        others = {name: value for name, value in fields.items() if "-" in name}
        others |= {"authorization": f"Bearer {key}"} if key else {}
        self._h2.send_headers(1, [*common.items(), *own.items(), *others.items()])
        await self._wire.send_all(self._h2.data_to_send())

    async def data(self, octets: bytes, *, ends: bool = False) -> None:
        self._h2.send_data(1, octets, end_stream=ends)
        await self._wire.send_all(self._h2.data_to_send())

    def taken(self) -> bytes:
        """What has come of the answer's body since the last call."""
        come = [event for event in self.events if isinstance(event, h2.events.DataReceived)]
        self.events = [event for event in self.events if event not in come]
        return b"".join(event.data or b"" for event in come)


@asynccontextmanager
async def open_http2(service: Running) -> AsyncIterator[Http2Peer]:
    """The service is still there at the end."""
    with trio.fail_after(PATIENCE_S):
        async with await trio.open_tcp_stream("127.0.0.1", service.port) as wire:
            peer = Http2Peer(wire)
            await peer.head_of_connection()
            yield peer
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(f"{service.url}/health")).status_code == 200


async def test_a_body_after_an_early_answer_over_http2_leaves_the_service_alive(
    service: Running,
) -> None:
    """hypercorn alone forgets the stream with the answer, and ends as a whole with what still comes."""
    async with open_http2(service) as peer:
        await peer.head(method="POST", path="/v1/email/verify")
        await peer.until(h2.events.DataReceived)
        assert b"missing_api_key" in peer.taken()
        await peer.data(b"{}", ends=True)
        await peer.until(h2.events.StreamEnded)


async def test_a_live_socket_verifies_over_http2(service: Running, account: Credentials) -> None:
    """By the extended CONNECT of RFC 8441."""
    socket = wsproto.connection.Connection(wsproto.connection.ConnectionType.CLIENT)
    async with open_http2(service) as peer:
        await peer.head(
            method="CONNECT", protocol="websocket", path=LIVE,
            key=account.key, **{"sec-websocket-version": "13"},
        )  # fmt: skip
        await peer.until(h2.events.ResponseReceived)
        asked = 'no address\n{"type": "end"}'
        await peer.data(socket.send(wsproto.events.TextMessage(data=asked)))
        said = ""
        closed: wsproto.events.CloseConnection | None = None
        while closed is None:
            await peer.receive()
            socket.receive_data(peer.taken())
            for event in socket.events():
                match event:
                    case wsproto.events.TextMessage(data=text):
                        said += text + "\n"
                    case wsproto.events.CloseConnection():
                        closed = event
        await peer.data(socket.send(closed.response()), ends=True)
    assert closed.code == 1000
    lines = [json.loads(line) for line in said.splitlines()]
    assert [line["status"] for line in lines if line["type"] == "result"] == ["invalid"]
    assert lines[-1] == {"type": "done", "answered": 1}


@asynccontextmanager
async def open_live(service: Running, path: str = LIVE, key: str = "") -> AsyncIterator[Live]:
    """Open a WebSocket. Raises ConnectionRejected, in groups."""
    headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
    with trio.fail_after(PATIENCE_S):
        async with (
            await trio.open_tcp_stream("127.0.0.1", service.port) as wire,
            trio.open_nursery() as nursery,
        ):
            host = f"127.0.0.1:{service.port}"
            yield Live(await wrap_client_stream(nursery, wire, host, path, extra_headers=headers))
            nursery.cancel_scope.cancel()


async def test_a_live_socket_verifies(service: Running, account: Credentials, lab: Lab) -> None:
    emails = [lab.addresses[kind][0] for kind in ("deliverable", "undeliverable")]
    async with open_live(service, key=account.key) as live:
        await live.send(*emails, {"type": "end"})
        assert await live.until_closed() == 1000
    found = {line["email"]: line["status"] for line in live.of("result")}
    assert found == dict(zip(emails, ("deliverable", "undeliverable"), strict=True))
    assert live.lines[-1] == {"type": "done", "answered": 2}


async def test_a_message_that_is_too_large_closes_the_live_socket(
    service: Running, account: Credentials
) -> None:
    async with open_live(service, key=account.key) as live:
        await live.send("a" * (MESSAGE_CHARACTERS_MAX + 1))
        assert await live.until_closed() == 1009


@pytest.mark.parametrize(
    ("path", "status", "code"), [(LIVE, 401, "missing_api_key"), ("/other", 404, "not_found")]
)
async def test_a_websocket_is_refused_with_its_error(
    service: Running, path: str, status: int, code: str
) -> None:
    with pytest.raises(BaseExceptionGroup) as raised:
        async with open_live(service, path):
            raise AssertionError("it was opened")
    refused = sole_exception(raised.value)
    assert isinstance(refused, ConnectionRejected)
    assert refused.status_code == status
    assert json.loads(refused.body or b"")["error"] == code


def test_ctrl_c_ends_it_cleanly(tmp_path: Path, lab: Lab) -> None:
    place = new_place(tmp_path, lab, log="info")
    with hypercorn(place) as service:
        said = interrupt(service)
    assert "/dashboard/welcome?token=" in said
    assert said.count("Running on") == 1
    assert said.count('"event":"started"') == said.count('"event":"stopped"') == 1
    assert "Traceback" not in said


def test_two_workers_share_the_accounts(tmp_path: Path, lab: Lab) -> None:
    """They start together on a database that does not exist yet."""
    place = new_place(tmp_path, lab)
    with hypercorn(place, workers=2) as service:
        key = place.make_account("builder").key
        for _ in range(8):
            got = httpx.post(
                f"{service.url}/v1/email/verify",
                json={"email": "no address"},
                headers={"Authorization": f"Bearer {key}"},
                timeout=PATIENCE_S,
                trust_env=False,
            )
            assert got.status_code == 200, got.text
        assert "Traceback" not in interrupt(service)


@pytest.mark.parametrize(
    ("options", "settings", "line"),
    [
        (TRIO, {"MAILPROBE_LOG": "loud"}, "mailprobe: MAILPROBE_LOG is 'loud': it takes one of"),
        ((), {}, "mailprobe: this server does not run on trio; for hypercorn, give"),
    ],
    ids=["wrong setting", "other worker class"],
)
def test_a_failed_start_says_why_in_its_last_line(
    tmp_path: Path, lab: Lab, options: tuple[str, ...], settings: dict[str, str], line: str
) -> None:
    place = new_place(tmp_path, lab)
    process = start(
        replace(place, env={**place.env, **settings}), *options, "--bind", "127.0.0.1:0"
    )
    process.communicate(timeout=PATIENCE_S)
    words = [each for each in place.log.read_text().splitlines() if "Lifespan failure" in each]
    assert len(words) == 1
    assert line in words[0]
