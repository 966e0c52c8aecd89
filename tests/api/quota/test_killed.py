"""A service that is killed or stopped under load has counted each delivered result once.

Clients send requests without a pause and record what they asked for and what they
completely received. A unit whose answer was lost on its way may be counted or not.
A unit that was received is counted, and none is counted twice.
"""

import json
import random
import signal
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import h11
import psycopg
import pytest
import trio

from mailprobe.api.keys import key_hash
from mailprobe.api.quota.plans import PLANS
from mailprobe.bench.lab import Lab
from mailprobe.storage import open_store
from mailprobe.storage.contract import is_postgres
from mailprobe.storage.postgres.driver.server import SCHEMA
from mailprobe.storage.records import Caller
from tests.api.service_fixture import BATCH, STREAM, VERIFY
from tests.api.service_process import (
    PATIENCE_S,
    Credentials,
    Place,
    Running,
    free_bind,
    make_place,
    running,
)
from tests.api.stores import KIND, asked
from tests.seeds import seeds
from tests.warm_lab import start_lab

KILLS = seeds(50) if KIND != "postgres" else 10  # each waits for a start and a lease
IDEMPOTENT_KILLS = seeds(20) if KIND != "postgres" else 10
LATEST_S = 0.5  # the longest time from a round's first line to its kill
DRAIN_S = 10.0  # the promise: SIGTERM to the end of the last process
OVER_S = 60.0  # a reservation whose process died is gone by then

# no limit is in the way
WIDE = """
[free]
rate_limit_per_min = 1_000_000
monthly_calls = 1_000_000
[builder]
rate_limit_per_min = 1_000_000
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with start_lab() as lab:
        yield lab


# == clients and their books ==================================================================


@dataclass(frozen=True)
class Count:
    """`units` count toward the free quota; `billable`, a part of them, cost money."""

    units: int = 0
    billable: int = 0

    def __add__(self, other: "Count") -> "Count":
        return Count(self.units + other.units, self.billable + other.billable)

    def __sub__(self, other: "Count") -> "Count":
        return Count(self.units - other.units, self.billable - other.billable)

    def __le__(self, other: "Count") -> bool:
        return self.units <= other.units and self.billable <= other.billable


@dataclass
class Book:
    """What the clients of one account asked for and received, in this round and before it."""

    who: Credentials
    asked: Count = Count()  # in this round
    received: Count = Count()
    asked_before: Count = Count()  # in all earlier rounds
    counted_before: Count = Count()

    def turn(self, counted: Count) -> None:
        self.asked_before += self.asked
        self.counted_before = counted
        self.asked = self.received = Count()


@dataclass(frozen=True)
class Pool:
    """Addresses for which it is certain whether their results are billable."""

    syntax: Sequence[str]
    billable: Sequence[str]  # they pass layer 1

    def draw(self, rng: random.Random, size: int) -> list[str]:
        return [rng.choice(rng.choice((self.syntax, self.billable))) for _ in range(size)]

    def count(self, emails: Sequence[str]) -> Count:
        return Count(len(emails), sum(email not in self.syntax for email in emails))


class Gone(Exception):
    """The server closed or reset the connection."""


class Wire:
    """One kept-alive connection to the service."""

    def __init__(self, stream: trio.SocketStream, key: str) -> None:
        self._stream = stream
        self._key = key
        self._http = h11.Connection(h11.CLIENT)
        self._idempotency_key: str | None = None

    async def post(self, path: str, body: object, spend: Callable[[bytes], None]) -> int:
        """Pass the octets of the results to `spend` as they come; return the status. Raises Gone.

        503 is allowed, since the machine may be slow, and so is 409 to a request with
        an idempotency key. `spend` gets nothing of them.
        """
        octets = json.dumps(body).encode()
        headers = [
            ("Host", "a.test"),
            ("Authorization", f"Bearer {self._key}"),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(octets))),
        ]
        if self._idempotency_key is not None:
            headers.append(("Idempotency-Key", self._idempotency_key))
        request = h11.Request(method="POST", target=path, headers=headers)
        try:
            for event in (request, h11.Data(data=octets), h11.EndOfMessage()):
                await self._stream.send_all(self._http.send(event) or b"")
            answer = await self._next()
            assert isinstance(answer, h11.Response), answer
            allowed = (200, 503) if self._idempotency_key is None else (200, 409, 503)
            assert answer.status_code in allowed, answer
            while isinstance(piece := await self._next(), h11.Data):
                if answer.status_code == 200:
                    spend(bytes(piece.data))
        except trio.BrokenResourceError as error:
            raise Gone from error
        except h11.RemoteProtocolError as error:
            if not self._ended:
                raise  # the server broke the protocol
            raise Gone from error
        if self._http.their_state is not h11.DONE:  # the server closes the connection
            raise Gone
        self._http.start_next_cycle()
        return int(answer.status_code)

    async def repeat_request(self, path: str, body: object, key: str) -> tuple[int, bytes]:
        """Send a request with an idempotency key; return its status and body. Raises Gone."""
        pieces: list[bytes] = []
        self._idempotency_key = key
        status = await self.post(path, body, pieces.append)
        return status, b"".join(pieces)

    @property
    def _ended(self) -> bool:
        return self._http.trailing_data[1]

    async def _next(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            with trio.fail_after(PATIENCE_S):
                self._http.receive_data(await self._stream.receive_some())
        if isinstance(event, h11.ConnectionClosed):
            raise Gone
        return event


class Load:
    """Clients that send requests without a pause until the server is gone."""

    def __init__(self, pool: Pool, rng: random.Random, books: Sequence[Book]) -> None:
        self._pool = pool
        self._rng = rng
        self._books = books
        self.streams_open = 0  # streams with a line received and not their end
        self.streams_cut = 0  # streams that ended after some of their lines
        self.stream_opened = trio.Event()  # since the last start

    @asynccontextmanager
    async def on(self, port: int) -> AsyncIterator[None]:
        """Run all clients of a round; the block ends when each has lost its connection."""
        self.stream_opened = trio.Event()
        async with trio.open_nursery() as nursery:
            for book in self._books:
                for act in (self._verify, self._batch, self._stream, self._stream):
                    nursery.start_soon(self._repeat, act, port, book)
            with trio.fail_after(PATIENCE_S):
                await self.stream_opened.wait()
            yield

    async def _repeat(
        self, act: Callable[[Wire, Book], Awaitable[None]], port: int, book: Book
    ) -> None:
        with suppress(Gone, OSError):  # OSError: the server died before the client connected
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                wire = Wire(stream, book.who.key)
                while True:
                    await act(wire, book)

    async def _verify(self, wire: Wire, book: Book) -> None:
        (email,) = self._draw(book, 1)
        pieces: list[bytes] = []
        await wire.post(VERIFY, {"email": email}, pieces.append)
        if pieces:
            self._receive(book, [json.loads(b"".join(pieces))])

    async def _batch(self, wire: Wire, book: Book) -> None:
        emails = self._draw(book, 8)
        pieces: list[bytes] = []
        await wire.post(BATCH, {"emails": emails}, pieces.append)
        if pieces:
            self._receive(book, json.loads(b"".join(pieces))["results"])

    async def _stream(self, wire: Wire, book: Book) -> None:
        emails = self._draw(book, 30)
        lines = 0
        rest = b""

        def spend(octets: bytes) -> None:
            nonlocal lines, rest
            *whole, rest = (rest + octets).split(b"\n")
            if not whole:
                return
            self._receive(book, [json.loads(line) for line in whole])
            self.streams_open += not lines
            lines += len(whole)
            self.stream_opened.set()

        try:
            await wire.post(STREAM, {"emails": emails}, spend)
        except Gone:
            self.streams_cut += 0 < lines < len(emails)
            raise
        finally:
            self.streams_open -= bool(lines)
        assert lines in (len(emails), 0)
        assert rest == b""

    def _draw(self, book: Book, size: int) -> list[str]:
        emails = self._pool.draw(self._rng, size)
        book.asked += self._pool.count(emails)
        return emails

    def _receive(self, book: Book, results: Sequence[dict[str, Any]]) -> None:
        book.received += self._pool.count([result["email"] for result in results])


# == what is in the database ==================================================================


@dataclass(frozen=True)
class Kept:
    """What the database counts for one account."""

    rows: Count
    months: Count
    days_billable: int


OF = "WHERE account = (SELECT number FROM accounts WHERE id = ?)"
QUESTIONS = (
    f"SELECT coalesce(sum(units), 0), coalesce(sum(CAST(billable AS integer)), 0) FROM usage {OF}",
    f"SELECT coalesce(sum(units), 0), coalesce(sum(billable), 0) FROM months {OF}",
    f"SELECT coalesce(sum(billable), 0) FROM days {OF}",
)


def kept(place: Place, who: Credentials) -> Kept:
    (rows,), (months,), (days,) = asked(place.database, *QUESTIONS, values=(who.account_id,))
    return Kept(Count(*map(int, rows)), Count(*map(int, months)), int(days[0]))


def reservations(place: Place) -> int:
    [[(count,)]] = asked(place.database, "SELECT count(*) FROM reservations")
    return int(count)


def assert_counted_idempotency(place: Place, book: Book) -> None:
    """All received units are counted, none beyond those asked for, and each unit has one row."""
    found = kept(place, book.who)
    assert book.received <= found.rows - book.counted_before <= book.asked
    assert found.months == found.rows
    assert found.days_billable == found.rows.billable
    book.turn(found.rows)


async def reserved_later(place: Place, who: Credentials) -> int:
    """Return the units reserved a minute from now, as limit checks see them; apply retention."""

    def later() -> datetime:
        return datetime.now(UTC) + timedelta(seconds=OVER_S)

    async with open_store(place.database, secret_key=place.secret_key, now=later) as store:
        caller = await store.caller(key_hash(who.key))
        assert isinstance(caller, Caller)
        ledger = await store.ledger(caller)
        await store.apply_retention({tier: plan.retention_days for tier, plan in PLANS.items()})
    return ledger.reserved


# == the tests ================================================================================


async def test_kills_lose_nothing_and_count_nothing_twice(tmp_path: Path, lab: Lab) -> None:
    """Every other time there are two workers; all processes are killed at once.

    The counts are compared after each kill. Otherwise a lost unit could be offset by
    one that was counted and whose answer was lost.
    """
    place, rng = make_place(tmp_path, lab, WIDE), random.Random(9)
    books = [Book(place.make_account("free")), Book(place.make_account("builder"))]
    pool = Pool(lab.addresses["syntax"], lab.addresses["disposable"] + lab.addresses["deliverable"])
    load, bind = Load(pool, rng, books), free_bind()
    for kill in range(KILLS):
        with running(place, workers=1 + kill % 2, bind=bind) as service:
            for book in books:
                assert_counted_idempotency(place, book)
            async with load.on(service.port):
                await trio.sleep(rng.uniform(0, LATEST_S))  # nothing is waited for: any moment
                service.kill()
    with running(place, bind=bind) as service:
        for book in books:
            assert_counted_idempotency(place, book)
            assert_answered(service, book)
        service.stop()
    assert load.streams_cut
    for book in books:
        assert await reserved_later(place, book.who) == 0
    assert reservations(place) == 0


def assert_answered(service: Running, book: Book) -> None:
    """The API reports the database's numbers; on free, also what killed workers had reserved."""
    counted, reported = (
        book.counted_before,
        service.manage(book.who, "/account")["usage_this_month"],
    )
    if book.who.tier == "free":
        assert counted.units <= reported <= book.asked_before.units
    else:
        assert reported == counted.billable


# == requests with an idempotency key =========================================================

AGAIN_S = 0.02  # pause of a client after 409 or 503


@dataclass
class Repeater:
    """A client that repeats each request with its idempotency key until it has the answer."""

    who: Credentials
    pool: Pool
    rng: random.Random
    asked: Count = Count()
    answered: Count = Count()
    requests: int = 0
    repeats: int = 0
    pending: tuple[str, dict[str, Any], str, Count] | None = None
    last: bool = False  # the client begins no new request

    async def run(self, port: int) -> None:
        with suppress(Gone, OSError):
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                wire = Wire(stream, self.who.key)
                while self.pending or not self.last:
                    await self._request(wire)

    async def _request(self, wire: Wire) -> None:
        if self.pending is None:
            self.pending = self._draw()
        else:
            self.repeats += 1
        path, body, key, count = self.pending
        status, octets = await wire.repeat_request(path, body, key)
        if status != 200:
            await trio.sleep(AGAIN_S)
            return
        self.answered += count
        self.pending = None
        if self.rng.random() < 0.2:  # as if the answer had been lost on its way
            status, again = await wire.repeat_request(path, body, key)
            assert (status, again) == (200, octets)

    def _draw(self) -> tuple[str, dict[str, Any], str, Count]:
        emails = self.pool.draw(self.rng, self.rng.choice((1, 8)))
        count = self.pool.count(emails)
        self.asked += count
        self.requests += 1
        key = f"{self.rng.getrandbits(64):x}"
        if len(emails) == 1:
            return VERIFY, {"email": emails[0]}, key, count
        return BATCH, {"emails": emails}, key, count


def end_leases(place: Place) -> None:
    """End the leases of killed requests, as if a minute had passed."""
    statement = "UPDATE idempotency_records SET lease_until = 0 WHERE answer IS NULL"
    if not is_postgres(place.database):
        with closing(sqlite3.connect(place.database)) as db, db:
            db.execute(statement)
        return
    with psycopg.connect(place.database, options=f"-c search_path={SCHEMA}") as server:
        server.execute(statement)


async def test_a_repeated_request_is_billed_once_whatever_is_killed(
    tmp_path: Path, lab: Lab
) -> None:
    """Each request is repeated until it has its answer, so that the sums are equal at the end."""
    place, rng = make_place(tmp_path, lab, WIDE), random.Random(23)
    pool = Pool(lab.addresses["syntax"], lab.addresses["disposable"] + lab.addresses["deliverable"])
    accounts = [place.make_account("free"), place.make_account("builder")]
    clients = [Repeater(who, pool, random.Random(n)) for n in range(3) for who in accounts]
    bind = free_bind()
    for kill in range(IDEMPOTENT_KILLS):
        with running(place, workers=1 + kill % 2, bind=bind) as service:
            async with trio.open_nursery() as nursery:
                for client in clients:
                    nursery.start_soon(client.run, service.port)
                await trio.sleep(rng.uniform(0, LATEST_S))  # nothing is waited for: any moment
                service.kill()
        end_leases(place)
        for who in accounts:
            found, ours = kept(place, who), [client for client in clients if client.who is who]
            assert sum((c.answered for c in ours), Count()) <= found.rows
            assert found.rows <= sum((c.asked for c in ours), Count())
            assert found.months == found.rows
    with running(place, bind=bind) as service, trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            for client in clients:
                client.last = True
                nursery.start_soon(client.run, service.port)
        service.stop()
    for who in accounts:
        ours = [client for client in clients if client.who is who]
        asked_in_all = sum((client.asked for client in ours), Count())
        assert all(client.pending is None for client in ours)
        found = kept(place, who)
        assert found.rows == found.months == asked_in_all
        assert found.days_billable == asked_in_all.billable
    assert sum(client.repeats for client in clients) > IDEMPOTENT_KILLS


@pytest.mark.parametrize("workers", [1, 2])
async def test_sigterm_under_load_ends_in_time_and_has_counted_every_line(
    tmp_path: Path, lab: Lab, workers: int
) -> None:
    """Silent hosts keep streams open at SIGTERM; the service completes every one."""
    place = make_place(tmp_path, lab, WIDE)
    book = Book(place.make_account("builder"))
    slow = lab.addresses["timed_out"]
    pool = Pool(lab.addresses["syntax"], lab.addresses["disposable"] + slow)
    load = Load(pool, random.Random(10), [book])
    with running(place, workers=workers) as service:
        async with load.on(service.port):
            assert load.streams_open
            service.process.send_signal(signal.SIGTERM)
            with trio.fail_after(DRAIN_S):
                await trio.to_thread.run_sync(service.wait, abandon_on_cancel=True)
        assert service.process.returncode == 0, place.log.read_text()
    assert load.streams_cut == 0
    assert_counted_idempotency(place, book)
    assert reservations(place) == 0
