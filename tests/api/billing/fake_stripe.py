"""A fake Stripe on real loopback sockets, with the real one's paths, rules and failures.

It keeps customers, meter events, portal sessions and subscriptions. A test can script
the next requests to a path (`fake.next("meter_events", "hangs")`), or leave them to a
seeded chance. As a program it prints its address and serves until it is killed:

    python -m tests.api.billing.fake_stripe [--port N] [--trouble 0.3] [--seed N]

GET /fake returns its state, and POST /fake sets subscriptions and modes in JSON.
"""

import argparse
import hashlib
import hmac
import json
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import h11
import trio

KEY = "sk_test_NeverShowThisKey0123456789"
SECRET = "whsec_NeverShowThisSecret0123456789"
PORTAL = "https://billing.stripe.test/p/session/NeverShowThisUrl"
METER = "mailprobe_verifications"
REMEMBERED = timedelta(hours=24)  # identifiers and idempotency keys
OLDEST, NEWEST = timedelta(days=35), timedelta(minutes=5)  # timestamps of meter events


@dataclass(frozen=True)
class Mode:
    """How a request is treated: whether it is done, and how it is answered."""

    takes: bool = True
    status: int | None = None  # replaces the real status
    retry_after: str | None = None
    late_s: float = 0.0
    hangs: bool = False
    drops: bool = False
    says: bytes = b'{"error":{"type":"api_error","message":"not in the mode"}}'


MODES = {
    "fine": Mode(),
    "late": Mode(late_s=0.05),
    "fails": Mode(takes=False, status=500),
    "fails after": Mode(status=500),
    "hangs": Mode(takes=False, hangs=True),
    "hangs after": Mode(hangs=True),
    "drops": Mode(takes=False, drops=True),
    "drops after": Mode(drops=True),
    "refuses": Mode(takes=False, status=400),
    "knows no key": Mode(takes=False, status=401),
    "forbids": Mode(takes=False, status=403),
    "is busy": Mode(takes=False, status=429, retry_after="7"),
    "is crowded": Mode(takes=False, status=429),
    "babbles": Mode(status=200, says=b"<html>Welcome to the hotel"),
}
FAULTS = sorted(MODES.keys() - {"fine", "is busy"})  # seven seconds are long in a test


@dataclass(frozen=True)
class Asked:
    """A request as received."""

    method: str
    path: str
    form: dict[str, str]
    headers: dict[str, str]


class Refused(Exception):
    def __init__(self, status: int, message: str, **more: str) -> None:
        super().__init__(message)
        self.status = status
        kind = {"type": "invalid_request_error", "message": message}
        self.body = {"error": kind | more}


def wall() -> datetime:
    return datetime.now(UTC)


@dataclass
class FakeStripe:
    """The state of the fake, and its answers."""

    now: Callable[[], datetime] = wall
    key: str = KEY
    trouble: float = 0.0  # the share of requests in a bad mode
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    customers: dict[str, dict[str, Any]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    subscriptions: dict[str, dict[str, Any]] = field(default_factory=dict)
    products: dict[str, dict[str, Any]] = field(default_factory=dict)
    modes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    keys: dict[str, tuple[datetime, Any, bytes, int]] = field(default_factory=dict)
    busy: Counter[str] = field(default_factory=Counter)
    on_ask: Callable[[Asked], None] = lambda asked: None
    on_done: Callable[[Asked], None] = lambda asked: None  # before it is answered

    # set by a test

    def next(self, word: str, *modes: str) -> None:
        """Set the modes of the next requests whose path ends with this word."""
        self.modes[word] += modes

    def put(self, *subscriptions: dict[str, Any]) -> None:
        for one in subscriptions:
            self.subscriptions[one["id"]] = one

    # read by a test

    @property
    def counted(self) -> int:
        return sum(event["value"] for event in self.events)

    def times_asked(self, word: str) -> int:
        return sum(asked.path.endswith(word) for asked in self.asked)

    # answering

    def mode(self, path: str) -> Mode:
        for word, modes in self.modes.items():
            if path.endswith(word) and modes:
                return MODES[modes.pop(0)]
        if self.rng.random() < self.trouble:
            return MODES[self.rng.choice(FAULTS)]
        return MODES["fine"]

    def answer(self, asked: Asked) -> tuple[int, bytes]:
        try:
            if asked.headers.get("authorization") != f"Bearer {self.key}":
                shown = f"{self.key[:8]}***{self.key[-4:]}"
                raise Refused(401, f"Invalid API Key provided: {shown}")
            return self._idempotency(asked)
        except Refused as refused:
            return refused.status, json.dumps(refused.body).encode()

    def _idempotency(self, asked: Asked) -> tuple[int, bytes]:
        """Do a POST with an idempotency key once, and repeat its answer for later ones."""
        key = asked.headers.get("idempotency-key", "")
        same = (asked.path, asked.form)
        at, before, body, status = self.keys.get(key, (self.now(), same, b"", 0))
        if status and self.now() - at < REMEMBERED:
            if before != same:
                raise Refused(400, "Keys can only be used once", type="idempotency_error")
            return status, body
        answer = 200, json.dumps(self._act(asked)).encode()
        if key:
            self.keys[key] = (self.now(), same, answer[1], answer[0])
        return answer

    def _act(self, asked: Asked) -> dict[str, Any]:
        match asked.method, asked.path.split("/")[2:]:
            case "POST", ["customers"]:
                return self._make_customer(asked.form)
            case "POST", ["billing", "meter_events"]:
                return self._count(asked.form)
            case "POST", ["billing_portal", "sessions"]:
                self._check_customer(asked.form["customer"])
                return {"id": "bps_1", "object": "billing_portal.session", "url": PORTAL}
            case "GET", ["subscriptions"]:
                return self._list(asked.form)
            case "GET", ["subscriptions", name]:
                return self._unfolded(name, asked.form)
        raise Refused(404, f"Unrecognized request URL ({asked.method}: {asked.path})")

    def _make_customer(self, form: dict[str, str]) -> dict[str, Any]:
        name = f"cus_{len(self.customers) + 1}"
        self.customers[name] = {
            "id": name,
            "object": "customer",
            "email": form["email"],
            "metadata": {"account_id": form["metadata[account_id]"]},
        }
        return self.customers[name]

    def _check_customer(self, name: str) -> None:
        if name not in self.customers:
            raise Refused(400, f"No such customer: '{name}'", code="resource_missing")

    def _count(self, form: dict[str, str]) -> dict[str, Any]:
        identifier, value = form["identifier"], form["payload[value]"]
        at = datetime.fromtimestamp(int(form["timestamp"]), UTC)
        if form["event_name"] != METER:
            raise Refused(400, f"No active meter found for event_name {form['event_name']}")
        self._check_customer(form["payload[stripe_customer_id]"])
        if not (value.isdigit() and 0 < len(identifier) <= 100):
            raise Refused(400, "Invalid value or identifier")
        if not self.now() - OLDEST <= at <= self.now() + NEWEST:
            raise Refused(400, "The timestamp must be within the past 35 calendar days")
        since = self.now() - REMEMBERED
        if any(e["identifier"] == identifier and e["taken_at"] > since for e in self.events):
            raise Refused(400, f"An event already exists with identifier {identifier}.")
        event = {
            "object": "billing.meter_event",
            "identifier": identifier,
            "event_name": METER,
            "customer": form["payload[stripe_customer_id]"],
            "value": int(value),
            "timestamp": int(form["timestamp"]),
        }
        self.events.append(event | {"taken_at": self.now()})
        return event

    def _list(self, form: dict[str, str]) -> dict[str, Any]:
        every = form.get("status") == "all"
        found = [
            one
            for one in self.subscriptions.values()
            if one["customer"] == form["customer"] and (every or one["status"] != "canceled")
        ]
        found.sort(key=lambda one: -one["created"])
        limit = int(form.get("limit", "10"))
        return {"object": "list", "data": found[:limit], "has_more": len(found) > limit}

    def _unfolded(self, name: str, form: dict[str, str]) -> dict[str, Any]:
        if name not in self.subscriptions:
            raise Refused(404, f"No such subscription: '{name}'", code="resource_missing")
        one: dict[str, Any] = json.loads(json.dumps(self.subscriptions[name]))
        if "items.data.price.product" in form.values():
            for item in one["items"]["data"]:
                product = item["price"]["product"]
                item["price"]["product"] = self.products.get(product, product)
        return one

    # connections

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one connection."""
        connection = h11.Connection(h11.SERVER)
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError, h11.ProtocolError):
            async with stream:
                while connection.our_state is h11.IDLE:
                    if not await self._serve_one(stream, connection):
                        return
                    if connection.states[h11.SERVER] is h11.MUST_CLOSE:
                        return
                    connection.start_next_cycle()

    async def _serve_one(self, stream: trio.SocketStream, connection: h11.Connection) -> bool:
        asked, octets = await _receive(stream, connection)
        if asked is None:
            return False
        if asked.path == "/fake":
            await _send(stream, connection, 200, self._steer(asked, octets))
            return True
        self.asked.append(asked)
        self.on_ask(asked)
        mode = self.mode(asked.path)
        customer = asked.form.get("payload[stripe_customer_id]")
        if customer and self.busy[customer]:
            busy = Refused(429, "one at a time", type="rate_limit_error", code="lock_timeout")
            await _send(stream, connection, 429, json.dumps(busy.body).encode())
            return True
        if customer:
            self.busy[customer] += 1
        try:
            return await self._fare(stream, connection, asked, mode)
        finally:
            if customer:
                self.busy[customer] -= 1

    async def _fare(
        self, stream: trio.SocketStream, connection: h11.Connection, asked: Asked, mode: Mode
    ) -> bool:
        status, body = 0, b""
        if mode.takes:
            status, body = self.answer(asked)
            self.on_done(asked)
        if mode.hangs:  # until the client gives up
            with trio.move_on_after(60):
                while await stream.receive_some():
                    pass
            return False
        if mode.drops:
            return False
        if mode.late_s:
            await trio.sleep(mode.late_s)
        if mode.status is not None:
            status, body = mode.status, mode.says
        await _send(stream, connection, status, body, mode.retry_after)
        return True

    def _steer(self, asked: Asked, octets: bytes) -> bytes:
        if asked.method == "POST":
            reported = json.loads(octets)
            self.put(*reported.get("subscriptions", []))
            self.trouble = reported.get("trouble", self.trouble)
            for word, modes in reported.get("modes", {}).items():
                self.next(word, *modes)
        return json.dumps(
            {
                "counted": self.counted,
                "customers": self.customers,
                "events": [{**event, "taken_at": str(event["taken_at"])} for event in self.events],
                "subscriptions": self.subscriptions,
            }
        ).encode()


async def _receive(
    stream: trio.SocketStream, connection: h11.Connection
) -> tuple[Asked | None, bytes]:
    head: h11.Request | None = None
    octets = b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some(65536))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            octets += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            break
        else:
            return None, b""
    assert head is not None
    url = urlsplit(head.target.decode())
    is_form = head.method == b"POST" and url.path != "/fake"
    form = dict(parse_qsl(octets.decode() if is_form else url.query))
    headers = {name.decode(): value.decode() for name, value in head.headers}
    return Asked(head.method.decode(), url.path, form, headers), octets


async def _send(
    stream: trio.SocketStream,
    connection: h11.Connection,
    status: int,
    body: bytes,
    retry_after: str | None = None,
) -> None:
    headers = [("Content-Length", str(len(body))), ("Content-Type", "application/json")]
    headers += [("Request-Id", "req_1")]
    if retry_after:
        headers.append(("Retry-After", retry_after))
    out = connection.send(h11.Response(status_code=status, headers=headers)) or b""
    out += connection.send(h11.Data(data=body)) or b""
    out += connection.send(h11.EndOfMessage()) or b""
    await stream.send_all(out)


@asynccontextmanager
async def open_fake_stripe(port: int = 0, **settings: Any) -> AsyncIterator[FakeStripe]:
    fake = FakeStripe(**settings)
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
        fake.url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.start_soon(trio.serve_listeners, fake.serve, listeners)
        yield fake
        nursery.cancel_scope.cancel()


# -- what it tells -----------------------------------------------------------------------------


def subscription(
    customer: str,
    tier: str | None = "builder",
    *,
    id: str = "sub_1",
    status: str = "active",
    created: int = 1_770_000_000,
    start: int = 1_772_323_200,
    end: int = 1_775_001_600,
    product: str = "prod_1",
    **more: Any,
) -> dict[str, Any]:
    """Return a subscription in the API's form since 2025: the item has the period."""
    price: dict[str, Any] = {
        "id": "price_1",
        "object": "price",
        "lookup_key": tier,
        "metadata": {},
        "product": product,
    }
    item: dict[str, Any] = {"id": "si_1", "object": "subscription_item", "price": price}
    item |= {"current_period_start": start, "current_period_end": end}
    return {
        "id": id,
        "object": "subscription",
        "customer": customer,
        "status": status,
        "created": created,
        "items": {"object": "list", "data": [item], "has_more": False},
        "metadata": {},
        "cancel_at_period_end": False,
        "canceled_at": None,
        "cancel_at": None,
        "trial_start": None,
        "trial_end": None,
        "billing_cycle_anchor": start,
    } | more


def signed(
    kind: str, about: dict[str, Any], at: datetime, secret: str = SECRET
) -> tuple[bytes, str]:
    """Return the body of an event and its header Stripe-Signature."""
    event = {"id": "evt_1", "object": "event", "type": kind, "data": {"object": about}}
    octets = json.dumps(event).encode()
    return octets, signature(octets, at, secret)


def signature(octets: bytes, at: datetime, secret: str = SECRET) -> str:
    stamp = int(at.timestamp())
    mac = hmac.new(secret.encode(), f"{stamp}.".encode() + octets, hashlib.sha256)
    return f"t={stamp},v1={mac.hexdigest()}"


async def _main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--port", type=int, default=0)
    options.add_argument("--trouble", type=float, default=0.0)
    options.add_argument("--seed", type=int, default=0)
    said = options.parse_args()
    rng = random.Random(said.seed)
    async with open_fake_stripe(said.port, trouble=said.trouble, rng=rng) as fake:
        print(fake.url, flush=True)
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(_main)
