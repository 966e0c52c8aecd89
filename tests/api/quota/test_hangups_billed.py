"""Clients that hang up after any octet of a request or an answer are billed for what they got.

Real sockets, virtual time. The client closes, resets or half-closes its connection after
a number of octets. Then its request holds no capacity, lease or reservation. An incomplete
request counts nothing; an answer that began counts whole. A repeat with the same
Idempotency-Key completes the work and bills it once.
"""

import json
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any, Literal

import pytest
import trio
from msgspec import structs
from trio.testing import MockClock

from mailprobe.api.http.listeners import listeners_on, open_sockets
from mailprobe.api.http.server import serve_app
from mailprobe.api.http.shared import HttpServer
from mailprobe.api.mcp.app import create_tools_app
from mailprobe.api.mcp.tools import PROVISIONING_HEADER
from mailprobe.api.quota.plans import PLANS
from mailprobe.api.serve import create_app
from mailprobe.bench.world.mail_host import MailHost
from tests.api.jobs.test_repeated import idle_board
from tests.api.raw_http import error_body
from tests.api.service_fixture import BATCH, STREAM, VERIFY, RunningService, open_shop

TICK_S = 0.005  # virtual time; it passes only while all tasks wait
QUIET_S = 0.2  # time until a lost client must hold nothing; the slow host takes longer
SLOW_S = 0.4
SAMPLES = 14
KEYS = "/v1/management/keys"
TOOLS = "/mcp"
UNLIMITED = {
    tier: structs.replace(plan, rate_limit_per_min=10**9, max_keys=10**9)
    for tier, plan in PLANS.items()
}

End = Literal["closes", "resets", "half-closes"]
ENDS: tuple[End, ...] = ("closes", "resets", "half-closes")

FAST, SLOW, BAD, THROWAWAY = "known@friendly.test", "known@late.test", "bad", "a@mailinator.com"


@pytest.fixture
def ticking_clock() -> MockClock:
    """Virtual time that advances when all tasks have waited for a moment of real time."""
    return MockClock(autojump_threshold=0.001)


@dataclass(frozen=True)
class Done:
    """Counts of what requests have done for one account."""

    units: int = 0
    billable: int = 0
    jobs: int = 0
    keys: int = 0

    def __sub__(self, other: "Done") -> "Done":
        return Done(
            self.units - other.units, self.billable - other.billable,
            self.jobs - other.jobs, self.keys - other.keys,
        )  # fmt: skip


NOTHING = Done()


@dataclass(frozen=True)
class Case:
    """A request, its answer's status, and what it does once."""

    path: str
    body: Any
    idempotency: Done
    status: int = 200
    is_chunked: bool = False
    after: bytes = b""  # octets sent after the request on the same connection

    def octets(self, shop: RunningService, key: str | None) -> bytes:
        sent = shop.provisioning if self.path == KEYS else shop.key
        body = json.dumps(self.body).encode()
        head = [
            f"POST {self.path} HTTP/1.1",
            "Host: a.test",
            f"Authorization: Bearer {sent}",
            "Content-Type: application/json",
        ]
        if self.path == TOOLS:
            head.append(f"{PROVISIONING_HEADER}: {shop.provisioning}")
        if key is not None:
            head.append(f"Idempotency-Key: {key}")
        if self.is_chunked:
            head.append("Transfer-Encoding: chunked")
            half = len(body) // 2
            pieces = (body[:half], body[half:], b"")
            body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
        else:
            head.append(f"Content-Length: {len(body)}")
        return "\r\n".join([*head, "", ""]).encode() + body + self.after


def tool(name: str, **arguments: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


HEALTH = b"GET /health HTTP/1.1\r\nHost: a.test\r\n\r\n"
LIST = [FAST, BAD, THROWAWAY]
HOOK = "https://hooks.test/"

KEYED = {
    "a single": Case(VERIFY, {"email": FAST}, Done(1, 1)),
    "a single that asks nobody": Case(VERIFY, {"email": THROWAWAY}, Done(1, 1)),
    "a single to a slow host": Case(VERIFY, {"email": SLOW}, Done(1, 1)),
    "a malformed single": Case(VERIFY, {"email": 5}, Done(1), 400),
    "a single and a line's end": Case(VERIFY, {"email": SLOW}, Done(1, 1), after=b"\r\n"),
    "a single and the next request": Case(VERIFY, {"email": SLOW}, Done(1, 1), after=HEALTH),
    "a batch": Case(BATCH, {"emails": LIST}, Done(3, 2)),
    "a batch in chunks": Case(BATCH, {"emails": LIST}, Done(3, 2), is_chunked=True),
    "a batch with a slow host": Case(BATCH, {"emails": [*LIST, SLOW]}, Done(4, 3)),
    "a job": Case(VERIFY, {"email": FAST, "webhook": HOOK}, Done(jobs=1), 202),
    "a key": Case(KEYS, {"label": "x"}, Done(keys=1), 201),
    "a tool's single": Case(TOOLS, tool("verify_email", email=FAST), Done(1, 1)),
    "a tool's job": Case(TOOLS, tool("verify_email", email=FAST, webhook=HOOK), Done(jobs=1)),
    "a tool's key": Case(TOOLS, tool("create_api_key", label="x"), Done(keys=1)),
    "a tool's malformed single": Case(TOOLS, tool("verify_email", email=5), Done(1)),
}
STREAMS = {
    "a stream": Case(STREAM, {"emails": LIST}, Done(3, 2)),
    "a stream that asks nobody": Case(STREAM, {"emails": [BAD, THROWAWAY]}, Done(2, 1)),
    "a stream with a slow host": Case(STREAM, {"emails": [*LIST, SLOW]}, Done(4, 3)),
}
CASES = KEYED | STREAMS
SLOW_ONES = [name for name, case in KEYED.items() if SLOW in json.dumps(case.body)]


@dataclass
class Rig:
    """A service with its listeners, and what a lost client may still hold."""

    shop: RunningService
    servers: list[HttpServer]
    ports: dict[bool, int]  # key: whether it is the tool server's port

    async def done(self) -> Done:
        """Return what has been counted; only waiting jobs may have units reserved."""
        store = self.shop.store
        ledger = await store.ledger(await self.shop.caller())
        jobs, keys = ledger.undelivered, len(await store.keys(self.shop.account.id))
        assert ledger.reserved == jobs
        return Done(ledger.month_units - jobs, ledger.month_billable, jobs, keys)

    @property
    def holds(self) -> list[Any]:
        service = self.shop.service
        return [
            *(held for server in self.servers for held in server.connections),
            *(server.in_flight for server in self.servers if server.in_flight),
            *service.quota.leases,
            *filter(None, (
                len(service.admission_queue), service.intake.octets, service.intake.awaited,
                service.capacity.addresses, service.background_writes.pending,
                service.quota.engine.probing.turn.under_way,
            )),
        ]  # fmt: skip

    async def until_quiet(self) -> None:
        with trio.move_on_after(QUIET_S) as waiting:
            for _ in range(20):
                await trio.lowlevel.checkpoint()
            while self.holds:  # noqa: ASYNC110 - many things, none of which tells
                await trio.sleep(TICK_S)
        assert not waiting.cancelled_caught, self.holds

    async def send(
        self, case: Case, octets: bytes, *, take: int | None, end: End, split: bool = False
    ) -> bytes:
        """Send `octets`, receive `take` octets of the answer (None: all of it) and hang up."""
        async with await trio.open_tcp_stream("127.0.0.1", self.ports[case.path == TOOLS]) as wire:
            got = b""
            with suppress(trio.BrokenResourceError):
                if split:
                    await wire.send_all(octets[: len(octets) // 2])
                    await trio.sleep(TICK_S)
                    octets = octets[len(octets) // 2 :]
                await wire.send_all(octets)
                with trio.move_on_after(3 * SLOW_S):
                    while (take is None or len(got) < take) and not is_whole(got):
                        more = await wire.receive_some(65536 if take is None else take - len(got))
                        if not more:
                            break
                        got += more
                if end == "half-closes":
                    await wire.send_eof()
                    while more := await wire.receive_some(65536):
                        got += more
            if end == "resets":
                wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            wire.socket.close()
        return got


def is_whole(got: bytes) -> bool:
    head, found, body = got.partition(b"\r\n\r\n")
    if b"content-length: " in head:
        length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
        return bool(found) and len(body) >= int(length)
    return got.endswith(b"\r\n0\r\n\r\n")


@asynccontextmanager
async def open_rig() -> AsyncIterator[Rig]:
    servers: list[HttpServer] = []

    class Watched(HttpServer):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            servers.append(self)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("mailprobe.api.http.server.HttpServer", Watched)
        patched.setattr("mailprobe.api.operations.keys.KEYS_A_MINUTE", 10**9)
        patched.setattr("mailprobe.api.quota.charge.JOBS_UNDELIVERED_MAX", 10**9)
        async with open_shop("scale", plans=UNLIMITED) as shop, trio.open_nursery() as nursery:
            shop.world.add("late.test", MailHost(latency_s=SLOW_S))
            shop.service = service = structs.replace(shop.service, jobs=idle_board(shop))
            listeners = {
                False: create_app(service),
                True: create_tools_app(service, "https://tools.test", "https://docs.test/api"),
            }
            ports = {}
            for is_tools, app in listeners.items():
                (sock,) = open_sockets("127.0.0.1", 0)
                ports[is_tools] = sock.getsockname()[1]

                async def serve(
                    app: Any = app, sock: Any = sock, task_status: Any = trio.TASK_STATUS_IGNORED
                ) -> None:
                    await serve_app(
                        app, listeners_on([sock]), drain=trio.Event(), error_body=error_body,
                        admission_queue=service.admission_queue, intake=service.intake, task_status=task_status,
                    )  # fmt: skip

                await nursery.start(serve)
            nursery.start_soon(tick)
            yield Rig(shop, servers, ports)
            nursery.cancel_scope.cancel()


async def tick() -> None:
    """Limit the clock's jumps to TICK_S, so that a slow host stays slow while any task works."""
    while True:  # noqa: ASYNC110 - the clock is what it is about
        await trio.sleep(TICK_S)


def moments(count: int) -> Iterator[tuple[int, End]]:
    """Sample the octets after which a client hangs up, with the first and the last, and how."""
    numbers = sorted({0, 1, count - 2, count - 1, *range(2, count, max(1, count // SAMPLES))})
    return zip(numbers, cycle(ENDS), strict=False)


async def warm(rig: Rig) -> None:
    """Cache the mail hosts' routes and their catch-all results."""
    async with trio.open_nursery() as nursery:
        for email in (FAST, SLOW):
            nursery.start_soon(rig.shop.verify, email)
    await rig.until_quiet()


# -- the request ------------------------------------------------------------------------------


async def test_a_request_that_is_cut_does_nothing(ticking_clock) -> None:
    async with open_rig() as rig:
        await warm(rig)
        before = await rig.done()
        for name, case in CASES.items():
            octets = case.octets(rig.shop, "k" if name in KEYED else None)
            for n, end in moments(len(octets) - len(case.after)):
                await rig.send(case, octets[:n], take=0, end=end)
                await rig.until_quiet()
                assert await rig.done() == before, (name, n, end)


# -- the answer -------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [[*KEYED], [*STREAMS]], ids=["with a key", "streams"])
async def test_an_answer_that_is_cut_is_billed_as_what_was_given(ticking_clock, names) -> None:
    async with open_rig() as rig:
        await warm(rig)
        for name in names:
            case = CASES[name]
            for place, (n, end) in enumerate(moments(await length_of_answer(rig, case) + 1)):
                if n > 1 and name in SLOW_ONES:
                    break  # the whole answer comes at once, and late
                key = f"{name} {place:05}" if name in KEYED else None
                octets = case.octets(rig.shop, key)
                before = await rig.done()
                got = await rig.send(case, octets, take=n, end=end, split=bool(place % 2))
                await rig.until_quiet()
                done = await rig.done() - before
                check = check_whole if name in KEYED else check_lines
                assert check(case, done, got), (name, n, end, done, got)
                if key is not None:
                    await check_repeat(rig, case, octets, done)


async def length_of_answer(rig: Rig, case: Case) -> int:
    whole = await rig.send(case, case.octets(rig.shop, None), take=None, end="closes")
    await rig.until_quiet()
    assert is_whole(whole)
    return len(whole)


def check_whole(case: Case, done: Done, got: bytes) -> bool:
    """An answer that began is counted whole; one that did not is counted whole or not billed."""
    if got:
        return done == case.idempotency
    if SLOW in json.dumps(case.body):  # the client left long before the answer
        return done.units < case.idempotency.units and replace(done, units=0) == NOTHING
    not_billed = done.units <= case.idempotency.units and replace(done, units=0) == NOTHING
    return done == case.idempotency or not_billed


def check_lines(case: Case, done: Done, got: bytes) -> bool:
    """Every line that began is counted; the slow host's line is not counted before it begins."""
    begun = got.split(b'{"email"')[1:]
    billable = sum(b'"syntax"' not in line for line in begun if b'"failed_check"' in line)
    if len(begun) > done.units or billable > done.billable:
        return False
    slow = SLOW in case.body["emails"]
    last_may_have_begun = got.count(b"}\n") >= case.idempotency.units - 1 and not got.endswith(
        b"}\n\r\n"
    )
    return not slow or last_may_have_begun or done.units < case.idempotency.units


async def check_repeat(rig: Rig, case: Case, octets: bytes, first: Done) -> None:
    before = await rig.done()
    again = await rig.send(case, octets, take=None, end="closes")
    await rig.until_quiet()
    assert again.startswith(b"HTTP/1.1 %d " % case.status) or case.path == TOOLS, again
    assert is_whole(again)
    done = await rig.done() - before
    if b"idempotency-replayed" in again:
        assert (first, done) == (case.idempotency, NOTHING)
    else:
        assert (replace(first, units=0), done) == (NOTHING, case.idempotency)
