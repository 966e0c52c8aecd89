"""Abusive HTTP clients on real sockets: each is refused or limited and delays no other client."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from socket import SO_SNDBUF, SOL_SOCKET
from typing import Any

import pytest
import trio

from mailprobe.api.admission.overload import AdmissionQueue
from mailprobe.api.admission.request_bodies import BodyBudget
from mailprobe.api.error_table import octets_of_code
from mailprobe.api.mcp.app import create_tools_app
from mailprobe.api.serve import create_app
from mailprobe.bench.world.mail_host import HostAddress, MailHost
from tests.api.raw_http import Raw, Serving, respond, serving
from tests.api.service_fixture import PLACES, RunningService, open_shop

VERIFY = "/v1/email/verify"
STRIPE = "/v1/billing/stripe"
MEBIBYTE = 1024 * 1024


@dataclass
class Listeners:
    """A service with its API and tool server on real sockets."""

    shop: RunningService
    api: Serving
    tools: Serving

    def head(self, path: str, *fields: str, key: str = "", method: str = "POST") -> str:
        lines = [f"{method} {path} HTTP/1.1", "Host: a.test", *fields]
        if key:
            lines.append(f"Authorization: Bearer {key}")
        return "\r\n".join([*lines, "", ""])

    def single(self, email: str = "ann@mailinator.com") -> str:
        body = f'{{"email":"{email}"}}'
        return self.head(VERIFY, f"Content-Length: {len(body)}", key=self.shop.key) + body


class ReceivesEvents:
    """A billing provider that receives webhook events and records their sizes."""

    receives_events = True

    def __init__(self) -> None:
        self.events: list[int] = []

    async def receive_event(self, octets: bytes, signature: str) -> None:
        self.events.append(len(octets))


@asynccontextmanager
async def open_listeners(payments: object = None, **limits: Any) -> AsyncIterator[Listeners]:
    intake = limits.pop("intake", None) or BodyBudget()
    async with open_shop("scale", payments=payments) as shop:
        tools = create_tools_app(shop.service, "http://a.test", PLACES.docs_url)
        common: dict[str, Any] = {"intake": intake, "vital": (b"/health",), **limits}
        common["error_body"] = lambda code: octets_of_code(code, PLACES)
        async with (
            serving(create_app(shop.service), **common) as api,
            serving(tools, **common) as served,
        ):
            yield Listeners(shop, api, served)


# -- HTTP -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["head", "get", "post", "Post"])
@pytest.mark.parametrize("path", ["/health", VERIFY, "/nowhere"])
async def test_a_method_in_lower_case_is_refused_and_logs_nothing(method, path, caplog):
    async with open_listeners() as listeners:
        for server in (listeners.api, listeners.tools):
            answer = await server.request(listeners.head(path, "Content-Length: 0", method=method))
            assert (answer.status, answer.code) == (400, "invalid_request")
    assert "Traceback" not in caplog.text


ENCODED = [
    "/v1%2Femail/verify",
    "/v1/email%2Fverify",
    "/v1/email/verif%79",
    "/%761/email/verify",
    "/healt%68",
    "/v1/management/keys%2F",
    "/v1/email/verify%00",
]


@pytest.mark.parametrize("path", ENCODED)
@pytest.mark.parametrize("long_way", [False, True])
async def test_an_encoded_path_is_not_the_route(path, long_way):
    fields = ["Expect: nothing"] if long_way else []
    async with open_listeners() as listeners, listeners.api.connect() as raw:
        for method in ("GET", "POST"):
            body = ["Content-Length: 2"] if method == "POST" else []
            asked = listeners.head(path, *fields, *body, key=listeners.shop.key, method=method)
            answer = await raw.request(asked + ("{}" if body else ""))
            assert (answer.status, answer.code) == (404, "not_found")
        tools = await listeners.tools.request(listeners.head("/%6dcp", "Content-Length: 0"))
        assert (tools.status, tools.code) == (404, "not_found")


@pytest.mark.parametrize("coding", ["gzip", "br", "identity, gzip", "GZIP"])
async def test_a_coded_body_is_refused_unread(coding):
    async with open_listeners() as listeners:
        fields = [f"Content-Encoding: {coding}", "Content-Length: 500"]
        answer = await listeners.api.request(
            listeners.head(VERIFY, *fields, key=listeners.shop.key)
        )
        assert (answer.status, answer.code) == (415, "unsupported_media_type")
        answer = await listeners.api.request(listeners.head(VERIFY, *fields))
        assert answer.status == 401
        answer = await listeners.tools.request(
            listeners.head("/mcp", *fields, key=listeners.shop.key)
        )
        assert answer.status == 415
        fields = ["Content-Encoding: identity", "Content-Length: 2"]
        assert (await listeners.api.request(listeners.head(VERIFY, *fields) + "{}")).status == 401


# -- incomplete bodies ---------------------------------------------------------------------------


async def crowd(stack: AsyncExitStack, server: Serving, said: bytes | str, count: int) -> list[Raw]:
    raws = []
    for _ in range(count):
        raws.append(await stack.enter_async_context(server.connect()))
        await raws[-1].send(said)
    return raws


async def settled() -> None:
    await trio.testing.wait_all_tasks_blocked(0.05)


@pytest.mark.parametrize("path", [STRIPE, VERIFY, "/mcp"])
async def test_slow_bodies_without_a_key_hold_up_nobody(path):
    """100 slow bodies where 20 requests may be in flight."""
    opened = open_listeners(ReceivesEvents(), in_flight_max=20, body_s=30.0)
    async with opened as listeners, AsyncExitStack() as stack:
        server = listeners.tools if path == "/mcp" else listeners.api
        await crowd(stack, server, listeners.head(path, "Content-Length: 1000") + "{", 100)
        for _ in range(5):
            assert (await listeners.api.request(listeners.single())).status == 200
            health = listeners.head("/health", method="GET")
            assert b'"ok":true' in (await listeners.api.request(health)).body


@pytest.mark.parametrize("target", ["/health", "/health?from=probe", "http://a.test/health?"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_health_is_answered_at_the_limit_of_requests_in_flight(target, method):
    async with open_listeners(in_flight_max=0) as listeners, listeners.api.connect() as raw:
        assert (await listeners.api.request(listeners.single())).status == 503
        await raw.send(listeners.head(target, method=method))
        assert (await raw.answer(head_only=method == "HEAD")).status == 200


async def test_slow_heads_hold_up_nobody():
    async with (
        open_listeners(connections_max=30, head_s=30.0) as listeners,
        AsyncExitStack() as stack,
    ):
        await crowd(stack, listeners.api, "POST / HT", 60)
        for _ in range(5):
            assert (await listeners.api.request(listeners.single())).status == 200


async def test_at_the_limit_the_request_awaited_longest_is_rejected_with_503():
    opened = open_listeners(ReceivesEvents(), connections_max=3, body_s=30.0)
    async with opened as listeners, AsyncExitStack() as stack:
        slow = await crowd(
            stack, listeners.api, listeners.head(STRIPE, "Content-Length: 9") + "{", 3
        )
        await settled()
        assert (await listeners.api.request(listeners.single())).status == 200
        answer = await slow[0].answer()
        assert (answer.status, answer.code) == (503, "overloaded")
        await slow[0].assert_closed()


async def test_a_route_that_is_off_answers_404_unread():
    async with open_listeners() as listeners, listeners.api.connect() as raw:
        answer = await raw.request(listeners.head(STRIPE, f"Content-Length: {MEBIBYTE}"))
        assert (answer.status, answer.code) == (404, "not_found")


@pytest.mark.parametrize("fields", [["Content-Length: 9999999"], ["Content-Length: 500"]])
@pytest.mark.parametrize("listener", ["api", "tools"])
async def test_the_key_is_checked_from_the_head_on_both_servers(listener, fields):
    """401 comes before 413 and 408, and the server reads nothing of the body."""
    async with open_listeners() as listeners, getattr(listeners, listener).connect() as raw:
        path = VERIFY if listener == "api" else "/mcp"
        for sent in ([], ["Authorization: Bearer sk_live_nothing"]):
            async with getattr(listeners, listener).connect() as raw:
                answer = await raw.request(listeners.head(path, *fields, *sent))
                assert answer.status == 401


async def test_an_event_has_at_most_256_kib():
    payments = ReceivesEvents()
    async with open_listeners(payments) as listeners:
        for octets, status in ((256 * 1024, 204), (256 * 1024 + 1, 413)):
            head = listeners.head(STRIPE, f"Content-Length: {octets}")
            assert (await listeners.api.request(head.encode() + bytes(octets))).status == status
            chunks = listeners.head(STRIPE, "Transfer-Encoding: chunked").encode()
            chunks += b"%x\r\n" % octets + bytes(octets) + b"\r\n0\r\n\r\n"
            assert (await listeners.api.request(chunks)).status == status
    assert payments.events == [256 * 1024] * 2


async def test_beyond_the_sum_of_all_bodies_the_youngest_without_a_key_is_refused():
    intake = BodyBudget(octets_max=MEBIBYTE)
    body = bytes(MEBIBYTE // 4)
    opened = open_listeners(ReceivesEvents(), intake=intake, body_s=30.0)
    async with opened as listeners, AsyncExitStack() as stack:
        keyed = listeners.head(VERIFY, "Content-Length: 600000", key=listeners.shop.key).encode()
        named = await crowd(stack, listeners.api, keyed + body, 2)
        await settled()
        event = listeners.head(STRIPE, f"Content-Length: {len(body) - 1000}").encode()
        first, second = await crowd(stack, listeners.api, event + body[:-2000], 2)
        await settled()
        assert intake.octets <= MEBIBYTE
        await named[0].send(bytes(MEBIBYTE // 4))
        answer = await second.answer()
        assert (answer.status, answer.code) == (503, "overloaded")
        await first.send(bytes(1000))
        await settled()
        assert intake.octets <= MEBIBYTE
        for raw in named:
            await raw.stream.aclose()
        await settled()
        assert intake.octets == 0


async def test_bodies_on_their_way_leave_room_for_requests_that_come_in_one_piece():
    """Incomplete bodies once filled the whole budget, and another client's small request got 503."""
    intake = BodyBudget(octets_max=MEBIBYTE)
    async with open_listeners(intake=intake, body_s=30.0) as listeners, AsyncExitStack() as stack:
        neighbour = await listeners.shop.new_key("sk_live_")
        head = listeners.head(VERIFY, f"Content-Length: {MEBIBYTE // 4 + 1}", key=neighbour)
        slow = []
        for _ in range(4):
            slow += await crowd(stack, listeners.api, head.encode(), 1)
            await settled()
            await slow[-1].send(bytes(MEBIBYTE // 4))
            await settled()
        assert 0 < intake.octets <= MEBIBYTE
        answer = await listeners.api.request(listeners.single())
        assert answer.status == 200, answer.body


async def test_of_one_address_and_of_one_key_the_body_awaited_longest_is_refused():
    intake = BodyBudget(address_bodies_max=2, account_bodies_max=3)
    opened = open_listeners(ReceivesEvents(), intake=intake, body_s=30.0)
    async with opened as listeners, AsyncExitStack() as stack:
        for head, most in (
            (listeners.head(STRIPE, "Content-Length: 9"), 2),
            (listeners.head(VERIFY, "Content-Length: 9", key=listeners.shop.key), 3),
        ):
            slow = await crowd(stack, listeners.api, head, most)
            await settled()
            await crowd(stack, listeners.api, head, 1)
            assert (await slow[0].answer()).code == "overloaded"
        other = await listeners.shop.new_key("sk_live_")
        raw = await stack.enter_async_context(listeners.api.connect())
        await raw.send(listeners.head(VERIFY, "Content-Length: 2", key=other))
        await settled()
        assert (await raw.request("{}")).status == 400


# -- hanging up -----------------------------------------------------------------------------------

BEHIND = {"nothing": "", "a CRLF": "\r\n", "a request": "GET /health HTTP/1.1\r\nHost: a\r\n\r\n"}


@pytest.mark.parametrize("behind", BEHIND.values(), ids=BEHIND)
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("half", [False, True])
async def test_a_client_that_hangs_up_is_not_billed_whatever_followed_the_body(behind, apart, half):
    async with open_listeners() as listeners:
        shop = listeners.shop
        shop.world.add("silent.test", MailHost(address=HostAddress.SILENT))
        async with listeners.api.connect() as raw:
            if apart:
                await raw.send(listeners.single("ann@silent.test"))
                await settled()
                await raw.send(behind or "\r\n")
            else:
                await raw.send(listeners.single("ann@silent.test") + behind)
            await until_under_way(shop, 1)
            if half:
                await raw.stream.send_eof()
                await until_under_way(shop, 0)
        await until_under_way(shop, 0)
        await settled()
        assert await shop.rows() == []  # an answer, after a second, would have had a row


async def until_under_way(shop: RunningService, count: int) -> None:
    with trio.fail_after(5):
        while shop.service.capacity.addresses != count:
            await trio.lowlevel.checkpoint()


async def test_a_half_closed_client_still_gets_its_answer():
    async with open_listeners() as listeners:
        health = listeners.head("/health", method="GET")
        for asked, status in (
            (health, 200),
            (listeners.head(VERIFY), 401),
            (listeners.single(), 200),
        ):
            async with listeners.api.connect() as raw:
                await raw.send(asked)
                await raw.stream.send_eof()
                assert (await raw.answer()).status == status
                await raw.assert_closed()


# -- unread answers -------------------------------------------------------------------------------


@pytest.mark.parametrize("apart", [False, True])
async def test_no_answer_is_made_before_the_one_before_it_is_out(apart):
    """Hundreds of pipelined requests with unread answers once held as many answers in memory."""
    made = 0

    async def app(scope, receive, send):
        nonlocal made
        made += 1
        await respond(send, bytes(2 * MEBIBYTE))

    request = b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n"
    async with serving(app, send_s=30.0) as server, server.connect(receive_octets=65536) as raw:
        for part in [request] * 20 if apart else [request * 20]:
            await raw.send(part)
            await settled()
        assert made <= 4  # the kernel's buffers hold some MiB
        for _ in range(20):
            assert len((await raw.answer()).body) == 2 * MEBIBYTE
        assert made == 20


async def test_a_client_that_reads_no_answer_holds_no_slot_of_a_request():
    """Unread answers once counted as requests in flight for 15 s: a hundred delayed all clients."""
    room = AdmissionQueue()
    opened = open_listeners(admission_queue=room, in_flight_max=20, send_s=30.0)
    async with opened as listeners, AsyncExitStack() as stack:
        refused = listeners.head(VERIFY, "Content-Length: 2") + "{}"
        for _ in range(20):
            connecting = listeners.api.connect(receive_octets=4096)
            raw = await stack.enter_async_context(connecting)
            raw.stream.socket.setsockopt(SOL_SOCKET, SO_SNDBUF, MEBIBYTE)
            with trio.move_on_after(0.1):
                await raw.stream.send_all((refused * 10_000).encode())
        await settled()
        assert len(room) == 0
        for _ in range(5):
            assert (await listeners.api.request(listeners.single())).status == 200


async def test_a_client_that_reads_no_answer_is_closed_for_a_new_one():
    """Such a client once kept its connection for 15 s, even when all connections were taken."""

    async def app(scope, receive, send):
        await respond(send, bytes(8 * MEBIBYTE) if scope["path"] == "/large" else b"ok")

    async with serving(app, connections_max=3, send_s=30.0) as server, AsyncExitStack() as stack:
        large = "GET /large HTTP/1.1\r\nHost: a.test\r\n\r\n"
        await crowd(stack, server, large, 3)
        await settled()
        for _ in range(5):
            asked = "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n"
            assert (await server.request(asked)).body == b"ok"
