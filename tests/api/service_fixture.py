"""The service in one process without sockets: a fake network, the engine and a store.

Virtual time moves the network, the limits and the dates together.
"""

import inspect
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import trio

from mailprobe.api.error_table import Links
from mailprobe.api.http.received_request import WHOLE_BODY
from mailprobe.api.keys import Prefix, key_hash, kind_of, mint, shown
from mailprobe.api.observability.metrics import Metrics
from mailprobe.api.observability.request_context import NO_REQUEST_LOG
from mailprobe.api.quota.background_writes import open_background_writes
from mailprobe.api.quota.plans import PLANS, Plans
from mailprobe.api.serve import create_app
from mailprobe.api.service import Service, new_service
from mailprobe.bench.world.fake_network import FakeNetwork, open_fake_network
from mailprobe.bench.world.mail_host import MailHost
from mailprobe.engine import EngineSettings, open_engine
from mailprobe.engine.observer import NO_OBSERVER as NO_OBSERVER
from mailprobe.engine.observer import Observer
from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.records import Account, Caller, Tier, UsageRow
from tests.api.stores import KIND, open_test_store

PART_ROWS = 2_000  # settled at a time, as streams do
START = datetime(2026, 3, 14, 9, 26, 53, tzinfo=UTC)
PLACES = Links("https://api.test", "https://docs.test/api", "https://dash.test")

FORM_ORIGIN = "https://shop.test"
VERIFY = "/v1/email/verify"
BATCH = "/v1/email/verify/batch"
STREAM = "/v1/email/verify/stream"
MANAGEMENT = "/v1/management"


class Unsteady:
    """A store that can be unavailable: every call fails while `away`, or the calls it names.

    `unavailable` is how. The calls in `throwing` raise a bug's exception.
    """

    def __init__(self, store: Any) -> None:
        self.store = store
        self.away: bool | set[str] = False
        self.unavailable = StoreUnavailable
        self.throwing: set[str] = set()
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.store, name)
        if not inspect.iscoroutinefunction(method):
            return method

        async def call(*arguments: Any, **named: Any) -> Any:
            killed_process = _killed_process.get()
            if killed_process is None:
                return await self._call(name, method, arguments, named)
            await killed_process.count_call()
            value = await self._call(name, method, arguments, named)
            await killed_process.count_call()
            return value

        return call

    async def _call(self, name: str, method: Any, arguments: Any, named: Any) -> Any:
        self.calls.append(name)
        if self.away is True or (isinstance(self.away, set) and name in self.away):
            raise self.unavailable("the disk is gone")
        if name in self.throwing:
            raise ArithmeticError("a bug")
        return await method(*arguments, **named)


class KilledProcess:
    """A process that is killed at a chosen moment: before or after one of its store calls.

    From then on none of the tasks that `run` started continues.
    """

    def __init__(self, moments: int) -> None:
        self._left = moments
        self.killed = trio.Event()

    async def count_call(self) -> None:
        self._left -= 1
        if self._left < 0:
            self.killed.set()
            await trio.sleep_forever()

    async def run(self, act: Callable[[], Awaitable[Any]]) -> None:
        _killed_process.set(self)
        await act()


_killed_process: ContextVar[KilledProcess | None] = ContextVar("killed_process", default=None)


@dataclass
class HttpAnswer:
    """An answer."""

    status: int
    headers: dict[str, str]
    octets: bytes
    chunks: list[tuple[float, bytes]] = field(default_factory=list)  # with their virtual times

    def add_header(self, name: str, value: str) -> None:
        """Those that come several times are joined by line breaks."""
        before = self.headers.get(name)
        self.headers[name] = value if before is None else f"{before}\n{value}"

    @property
    def body(self) -> Any:
        return json.loads(self.octets)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.octets.splitlines()]

    @property
    def error(self) -> Any:
        return self.body["error"]


def _scope(
    method: str, path: str, client: str, headers: Mapping[str, str | None]
) -> dict[str, Any]:
    path, _, query = path.partition("?")
    sent = {"host": "api.test", **headers}
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
        "scheme": "https", "path": path, "raw_path": path.encode(), "root_path": "",
        "query_string": query.encode(), "client": (client, 4711), "server": ("api.test", 443),
        "state": {}, "extensions": {},
        "headers": [(k.encode(), v.encode("latin-1")) for k, v in sent.items() if v is not None],
    }  # fmt: skip


class Visit:
    """The client's side of one request: it sends the body, reads the answer, and may hang up."""

    def __init__(
        self,
        pieces: list[tuple[float, bytes]],
        hang_up_after: Callable[[list[bytes]], bool] | None,
    ) -> None:
        self.answer = HttpAnswer(0, {}, b"")
        self.work = trio.CancelScope()  # the application's
        self._pieces = pieces
        self._hang_up_after = hang_up_after
        self._hung_up = trio.Event()

    async def receive(self) -> dict[str, Any]:
        if self._pieces:
            pause_s, piece = self._pieces.pop(0)
            with trio.move_on_after(pause_s) as pause:
                await self._hung_up.wait()
            if pause.cancelled_caught:
                return {"type": "http.request", "body": piece, "more_body": bool(self._pieces)}
        await self._hung_up.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        await trio.lowlevel.checkpoint()
        answer = self.answer
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            for name, value in message["headers"]:
                answer.add_header(name.decode().lower(), value.decode())
        elif octets := message.get("body"):
            answer.chunks.append((trio.current_time(), octets))
            if self._hang_up_after and self._hang_up_after([chunk for _, chunk in answer.chunks]):
                self.hang_up()
                await trio.sleep_forever()

    def hang_up(self) -> None:
        """As the server does: the application can receive it, and its work is cancelled."""
        self._hung_up.set()
        self.work.cancel()

    async def hang_up_in(self, after_s: float) -> None:
        await trio.sleep(after_s)
        self.hang_up()

    async def hang_up_after_steps(self, steps: int) -> None:
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        self.hang_up()


@dataclass
class RunningService:
    """The service, its fake network, and an account with a key of each kind."""

    app: Any
    service: Service
    store: Any
    world: FakeNetwork
    clock: "Clock"
    account: Account
    key: str
    provisioning: str

    async def new_key(self, prefix: Prefix, account_id: str | None = None) -> str:
        raw = mint(prefix)
        await self.store.create_key(
            account_id or self.account.id, kind_of(raw), None,
            sha256=key_hash(raw), prefix=shown(raw), keys_max=None,
        )  # fmt: skip
        return raw

    async def new_form_key(self, prefix: Prefix = "pk_live_", rate_per_min: int = 1000) -> str:
        """A publishable key for FORM_ORIGIN, and for a page on the developer's machine."""
        raw = mint(prefix)
        await self.store.create_key(
            self.account.id, kind_of(raw), None, sha256=key_hash(raw), prefix=shown(raw),
            keys_max=None, origins=(FORM_ORIGIN, "http://localhost:3000"), rate_per_min=rate_per_min,
        )  # fmt: skip
        return raw

    async def caller(self, key: str | None = None) -> Caller:
        caller = await self.store.caller(key_hash(key or self.key))
        assert isinstance(caller, Caller)
        return caller

    async def change(self, **changes: Any) -> None:
        await self.store.change_account(self.account.id, **changes)

    async def use_up(self, calls: int, *, units: int = 1) -> None:
        """Record billable calls for the account, by another key."""
        other = await self.caller(await self.new_key("sk_live_"))
        reservation = await self.store.reserve(other, 1, lambda ledger: None, lease_s=10)
        row = UsageRow(self.clock(), "batch", "deliverable", None, units, True, 1)
        for part, first in enumerate(range(0, calls, PART_ROWS)):
            rows = [row] * min(PART_ROWS, calls - first)
            ends = first + PART_ROWS >= calls
            await self.store.settle(reservation, rows, part=part, ends=ends)

    async def rows(self) -> list[Any]:
        return list(reversed(await self.store.usage(self.account.id, limit=10_000)))

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        octets: bytes | None = None,
        key: str | None = "",
        headers: Mapping[str, str | None] | None = None,
        hang_up_after: Callable[[list[bytes]], bool] | None = None,
        hang_up_at: float | None = None,
        hang_up_steps: int | None = None,
        pieces: list[tuple[float, bytes]] | None = None,
        client: str = "192.0.2.7",
    ) -> HttpAnswer:
        """Send a request and return the whole answer. `key`: "" is the account's own, None is none.

        The client hangs up once `hang_up_after` is true of the received chunks, after
        `hang_up_at` seconds, or after `hang_up_steps` steps of the scheduler. `pieces`
        is a body without a length; each piece comes its seconds after the one before.
        """
        if octets is None:
            octets = b"" if body is None else json.dumps(body).encode()
        if key == "":
            key = self.provisioning if path.startswith(MANAGEMENT) else self.key
        sent = {k.lower(): v for k, v in (headers or {}).items()}
        if key is not None:
            sent.setdefault("authorization", f"Bearer {key}")
        if octets:
            sent.setdefault("content-type", "application/json")
            sent.setdefault("content-length", str(len(octets)))
        scope = _scope(method, path, client, sent)
        if pieces is None and octets:
            scope["extensions"] = {WHOLE_BODY: octets}
        visit = Visit([(0.0, octets)] if pieces is None else pieces, hang_up_after)
        async with trio.open_nursery() as nursery:
            if hang_up_steps is not None:
                nursery.start_soon(visit.hang_up_after_steps, hang_up_steps)
            if hang_up_at is not None:
                nursery.start_soon(visit.hang_up_in, hang_up_at)
            with visit.work:
                await self.app(scope, visit.receive, visit.send)
            nursery.cancel_scope.cancel()
        visit.answer.octets = b"".join(chunk for _, chunk in visit.answer.chunks)
        return visit.answer

    async def verify(self, email: Any = "known@friendly.test", **more: Any) -> HttpAnswer:
        return await self.request("POST", VERIFY, {"email": email}, **more)

    async def batch(self, *emails: Any, **more: Any) -> HttpAnswer:
        return await self.request("POST", BATCH, {"emails": list(emails)}, **more)

    async def stream(self, *emails: Any, **more: Any) -> HttpAnswer:
        return await self.request("POST", STREAM, {"emails": list(emails)}, **more)

    async def manage(self, method: str, path: str, body: Any = None, **more: Any) -> HttpAnswer:
        return await self.request(method, MANAGEMENT + path, body, **more)


class LazyApp:
    """The application of a service, created at its first request: two thirds of opening a service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._app is None:
            self._app = create_app(self._service)
        await self._app(scope, receive, send)


class Clock:
    """A source of dates that follows trio's clock and can be set."""

    def __init__(self) -> None:
        self.offset = START - timedelta(seconds=trio.current_time())

    def __call__(self) -> datetime:
        return self.offset + timedelta(seconds=trio.current_time())

    def set(self, at: datetime) -> None:
        self.offset = at - timedelta(seconds=trio.current_time())


@asynccontextmanager
async def open_shop(
    tier: Tier = "builder",
    *,
    plans: Plans = PLANS,
    addresses_max: int | None = None,
    metrics: Metrics | None = None,
    kind: str = KIND,
    observer: Observer | None = None,
    **more: Any,
) -> AsyncIterator[RunningService]:
    """Open a service with one account and three domains: friendly, slow and silent.

    `metrics` counts the events of all its parts; `kind` is the kind of store.
    """
    clock = Clock()
    async with (
        AsyncExitStack() as stack,
        open_fake_network() as network,
        open_background_writes() as background_writes,
    ):
        network.add("friendly.test", MailHost(mailboxes=frozenset({"ann", "bob"})))
        network.add("slow.test", MailHost(latency_s=0.4))
        network.add("catchall.test", MailHost(catch_all=True))
        async with open_engine(
            EngineSettings(),
            transport=network.transport,
            dial=network.dial,
            rng=random.Random(0),
            observer=observer or metrics or NO_OBSERVER,
        ) as engine:
            store: Any = Unsteady(await stack.enter_async_context(open_test_store(clock, kind)))
            service = new_service(
                store=metrics.timed(store) if metrics else store,
                engine=engine,
                background_writes=background_writes,
                links=PLACES,
                plans=plans,
                addresses_max=addresses_max,
                now=clock,
                request_log=metrics or NO_REQUEST_LOG,
                **more,
            )
            account = await store.create_account("ann@example.org", tier)
            shop = RunningService(LazyApp(service), service, store, network, clock, account, "", "")
            shop.key = await shop.new_key("sk_live_")
            shop.provisioning = await shop.new_key("sk_mgmt_")
            yield shop
