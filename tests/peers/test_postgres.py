"""What only a PostgreSQL server can do: be away, stall, cut a commit in two, serve many machines."""

import base64
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
import trio

from mailprobe.bench.load.private_postgres import PrivatePostgres, private_postgres
from mailprobe.storage import open_store
from mailprobe.storage.contract import Store, StoreBroken, StoreUnavailable
from mailprobe.storage.lease_allocation import LeaseRequest
from mailprobe.storage.postgres.driver.server import (
    SCHEMA,
    PostgresServer,
    TransactionSession,
    shown,
)
from mailprobe.storage.records import Ledger, Reservation
from tests.storage.child_processes import ROOT, child, line_of, tell
from tests.storage.fixed_clock import (
    NOON,
    SECRET,
    Clock,
    another_key,
    claimed,
    granted,
    make_caller,
    order,
    promise,
    row,
    use,
)

PROMISED_S = 1.0  # until a server that is away is told
PATIENCE_S = 30.0  # for what must come, on a machine however busy
KILLS = 4
OF_THE_STORE = re.compile(r"\b(open_shop|open_test_store|make_place|store_settings)\b|\bshop[:,)]")
ELSEWHERE = {
    "test_description_holds.py",  # what is said of bodies, of which 70 s are made up
    "test_connection_leases_served.py",  # on a server that flushes, below
}
OF_A_FILE = "tests/api/http/test_abuse_operations.py::test_health_says_so_when_the_disk_is_full"
SUMS = "SELECT address, sum(connections)::int FROM connection_leases GROUP BY address"


@pytest.fixture(scope="module")
def server() -> Iterator[PrivatePostgres]:
    with private_postgres() as server:
        yield server


@pytest.fixture
def url(server: PrivatePostgres) -> str:
    return server.new_database()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(url: str, clock: Clock) -> AsyncIterator[Store]:
    async with open_store(url, secret_key=SECRET, now=clock) as opened:
        yield opened


def asked(url: str, statement: str) -> list[Any]:
    with psycopg.connect(url, options=f"-c search_path={SCHEMA}", autocommit=True) as db:
        cursor = db.execute(statement)  # type: ignore[call-overload]
        return cursor.fetchall() if cursor.description else []


# the contract


def suite(server: PrivatePostgres, *words: str) -> None:
    """Tests that are elsewhere, on this server."""
    env = {**os.environ, "MAILPROBE_TEST_POSTGRES": server.url, "MAILPROBE_TEST_STORE": "postgres"}
    own = ["-p", "no:cacheprovider", "--dist", "loadfile", "--no-loadscope-reorder"]
    command = [sys.executable, "-m", "pytest", "-n", "2", *own, *words]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    assert " passed" in done.stdout


@pytest.fixture
def quick_server() -> Iterator[PrivatePostgres]:
    """One that nobody pulls the plug of."""
    with private_postgres(fsync="off", full_page_writes="off") as server:
        yield server


def test_the_contract_of_every_store(quick_server: PrivatePostgres):
    suite(quick_server, "tests/storage", "-k", "postgres")


def test_the_service_keeps_its_promises_on_it(quick_server: PrivatePostgres):
    """With the edges of every limit over one process and two, and killed ones."""
    files = [path for path in sorted((ROOT / "tests/api").rglob("test_*.py")) if asks_a_store(path)]
    assert {"test_edges.py", "test_killed.py", "test_metered_stream.py"} <= {
        path.name for path in files
    }
    suite(quick_server, *map(str, files), "--deselect", OF_A_FILE)


def asks_a_store(path: Path) -> bool:
    """The one that MAILPROBE_TEST_STORE names; and not for a minute what has little to do with it."""
    return path.name not in ELSEWHERE and bool(OF_THE_STORE.search(path.read_text("utf-8")))


def test_two_machines_keep_one_limit_at_an_exchange(server: PrivatePostgres):
    suite(server, "tests/api/quota/test_connection_leases_served.py")


async def test_leases_are_granted_once_whoever_asks_at_the_same_instant(url: str):
    """By the database's clock and its locks: many holders, many addresses, several stores."""
    hosts = [f"192.0.2.{n}" for n in range(20)]
    most: Counter[str] = Counter()

    async def compete(store: Store, holder: str) -> None:
        rng, held = random.Random(holder), dict.fromkeys(hosts, 0)
        for _ in range(15):
            wanted = rng.sample(hosts, 10)
            asked_ = {host: LeaseRequest(held[host] - (held[host] > 2), 4) for host in wanted}
            held |= await store.lease_connections(holder, asked_, limit=4, lease_s=60)
            for address, leases in asked(url, SUMS):
                most[address] = max(most[address], leases)

    async with (
        open_store(url, secret_key=SECRET) as one,
        open_store(url, secret_key=SECRET) as two,
        trio.open_nursery() as nursery,
    ):
        for n in range(6):
            nursery.start_soon(compete, (one, two)[n % 2], f"{n}")
    assert set(most.values()) == {4}
    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    assert asked(url, deadlocks) == [(0,)]


# starting


async def opened(url: str, secret_key: bytes | None = SECRET) -> None:
    async with open_store(url, secret_key=secret_key):
        pass


async def test_several_that_start_together_all_start(url: str):
    with child("check", url) as a, child("check", url) as b, child("check", url) as c:
        for process in (a, b, c):
            assert await line_of(process) == str(NOON)
    names = asked(url, "SELECT name FROM migrations ORDER BY number")
    assert names[0] == ("001_initial",)


async def test_what_was_kept_is_there_after_a_restart(url: str, clock: Clock):
    async with open_store(url, secret_key=SECRET, now=clock) as store:
        caller = await make_caller(store)
        await use(store, caller, NOON, 3)
        ledger = await store.ledger(caller)
    async with open_store(url, secret_key=SECRET, now=clock) as store:
        assert await store.caller("hash") == caller
        assert await store.ledger(caller) == ledger


async def test_the_clock_is_the_databases(url: str):
    """Machines whose clocks differ share one."""
    async with open_store(url, secret_key=SECRET) as store:
        before = asked(url, "SELECT clock_timestamp()")[0][0]
        reported = await store.check()
        caller = await make_caller(store)
        reservation = await store.reserve(caller, 1, granted, lease_s=60)
        after = asked(url, "SELECT clock_timestamp()")[0][0]
    assert isinstance(reservation, Reservation)
    assert before <= reported <= reservation.reserved_at <= after


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda url: url.replace("secret@", "s3cret@"), "refuses the password"),
        (lambda url: url + "_none", "no such database"),
        (lambda url: "postgresql://mailprobe:s3cret@127.0.0.1:1/x", "refused"),
        (lambda url: "postgresql://mailprobe:s3cret@127.0.0.1:port/x", "port"),
        (lambda url: "postgresql://mailprobe:s3cret@[127.0.0.1/x", "URL"),
    ],
)
async def test_a_server_that_cannot_be_used_is_one_line_without_a_password(
    url: str, change: Any, words: str
):
    with pytest.raises(StoreUnavailable) as reported:
        await opened(change(url))
    line = str(reported.value)
    assert words in line
    assert line.isprintable()
    assert "s3cret" not in repr(reported.value)
    assert ":secret" not in line


async def test_the_secret_key_must_be_given_and_the_same(url: str):
    with pytest.raises(StoreBroken, match="MAILPROBE_SECRET_KEY"):
        await opened(url, None)
    await opened(url)
    with pytest.raises(StoreBroken, match="another MAILPROBE_SECRET_KEY"):
        await opened(url, bytes(32))


async def test_a_newer_schema_and_another_programs_are_refused(url: str):
    await opened(url)
    asked(url, "INSERT INTO migrations VALUES (1000, '1000_later')")
    with pytest.raises(StoreBroken, match="newer version"):
        await opened(url)
    asked(url, "DROP TABLE migrations")
    with pytest.raises(StoreBroken, match="another program"):
        await opened(url)


def test_the_url_is_shown_without_what_is_secret():
    assert shown("postgresql://u:pw@h:1/n?sslpassword=x") == "postgresql://u@h:1/n"
    assert shown("postgresql:///n") == "postgresql:///n"


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (
            "text",
            [
                "",
                "NULL",
                "null",
                None,
                '"',
                "\\",
                '\\"',
                "{a,b}",
                " a ",
                "\0",
                "\x01",
                "\x010",
                "ü",
            ],
        ),
        ("text", ["'; DROP TABLE usage; --", "\n\r\t", "\U0001f4ec", ","]),
        ("text", []),
        ("bigint", [0, -1, 2**63 - 1, -(2**63), None]),
        ("bigint", [1]),
        ("boolean", [True, False, None]),
        ("bytea", [b"", b'\0\\"{,}\xff', None]),
        ("date", [date(1, 1, 1), NOON.date(), None]),
        ("uuid", [UUID(int=0), UUID(int=2**128 - 1), None]),
    ],
)
def test_what_is_written_as_an_array_is_read_as_it_was(
    server: PrivatePostgres, kind: str, values: list[Any]
):
    with closing(PostgresServer(server.url).connect()) as db:
        [(read,)] = db.execute(f"SELECT %s::{kind}[]", [values]).fetchall()  # type: ignore[call-overload]
        assert read == values
        for value in values:
            [(same,)] = db.execute("SELECT %s = ANY(%s)", [value, [value]]).fetchall()
            assert same is (None if value is None else True)


def test_what_nobody_can_write_as_an_array_is_refused(server: PrivatePostgres):
    with (
        closing(PostgresServer(server.url).connect()) as db,
        pytest.raises(TypeError, match="complex"),
    ):
        db.execute("SELECT %s::text[]", [[1j]])


# processes


async def test_two_processes_at_the_edge(store: Store, url: str):
    caller = await make_caller(store)
    with child("edge", url, 77) as one, child("edge", url, 77) as two:
        for process in (one, two):
            assert await line_of(process) == "ready"
        for process in (one, two):
            tell(process)
        said = [[int(n) for n in (await line_of(process)).split()] for process in (one, two)]
    reported = [sum(counts) for counts in zip(*said, strict=True)]
    assert reported[0] <= 77
    assert reported[2] or reported == [
        77,
        43,
        0,
    ]  # who was left waiting by a busy machine may ask again
    assert (await store.ledger(caller)).reserved == reported[0]


@pytest.mark.parametrize("work", ["verify", "deliver"])
async def test_the_bounds_of_claims_hold_over_all_processes(store: Store, url: str, work: Any):
    caller = await make_caller(store)
    orders = [order(f"{n}", host=f"{n % 3}.test") for n in range(60)]
    await promise(store, caller, *orders)
    if work == "deliver":
        for claim in await claimed(store):
            assert await store.job_verified(claim, row(NOON), b"{}")
    with child("claim", url, work, 7) as one, child("claim", url, work, 7) as two:
        for process in (one, two):
            assert await line_of(process) == "ready"
        for process in (one, two):
            tell(process)
        has = [id for process in (one, two) for id in (await line_of(process)).split()]
    assert len(has) == len(set(has))
    partition = "host" if work == "deliver" else "account"
    claims = f"SELECT {partition}, count(*) FROM jobs WHERE lease_until IS NOT NULL GROUP BY 1"
    partitions = asked(url, claims)
    assert len(partitions) == (3 if work == "deliver" else 1)
    assert {count for _, count in partitions} == {7}
    assert len(has) <= 7 * len(partitions)


async def test_killed_at_any_moment_nothing_acknowledged_is_lost_or_counted_twice(
    store: Store, url: str, clock: Clock
):
    rng = random.Random(8)
    caller = await make_caller(store)
    acknowledged: list[int] = []
    for kill in range(KILLS):
        with child("load", url, kill * 1_000_000) as process:
            for _ in range(rng.randint(1, 100)):
                acknowledged.append(int(await line_of(process)))
            process.send_signal(signal.SIGKILL)
            acknowledged += map(int, process.stdout.read().split("\n")[:-1])
    rows = dict(asked(url, "SELECT latency_ms, count(*) FROM usage GROUP BY latency_ms"))
    assert set(acknowledged) <= rows.keys()
    assert set(rows.values()) == {3}
    ledger = await store.ledger(caller)
    assert ledger.month_billable == ledger.month_units - ledger.reserved
    assert ledger.month_billable == 3 * asked(url, "SELECT count(*) / 3 FROM usage")[0][0]
    clock.pass_(60)
    assert (await store.ledger(caller)).reserved == 0


async def test_the_jobs_of_a_killed_process_go_on_in_another(url: str):
    """By the database's clock: within half a minute of the kill."""
    async with open_store(url, secret_key=SECRET) as store:
        caller = await make_caller(store)
        await promise(store, caller, *[order(f"{n}") for n in range(10)])
        with child("claim for real", url, 10) as process:
            assert await line_of(process) == "10"
            assert await claimed(store) == []
            process.send_signal(signal.SIGKILL)
        began = time.monotonic()
        with trio.fail_after(PATIENCE_S + 10):
            while not (claims := await claimed(store)):  # noqa: ASYNC110 - a lease's end
                await trio.sleep(0.5)
        assert time.monotonic() - began < PATIENCE_S
        assert len(claims) == 10
        for claim in claims:
            assert await store.job_verified(claim, row(await store.check()), b"{}")
        assert (await store.ledger(caller)).month_billable == 10


async def test_batches_in_any_order_never_wait_in_a_circle(store: Store, url: str, clock: Clock):
    """Two stores, each with several batches at once, over the same accounts."""
    callers = [await make_caller(store, sha256=f"{n}") for n in range(8)]
    rng = random.Random(5)
    async with open_store(url, secret_key=SECRET, now=clock) as other:
        for _ in range(10):
            async with trio.open_nursery() as nursery:
                for each in (store, other):
                    for caller in rng.sample(callers, 8) * 3:
                        nursery.start_soon(use, each, caller, NOON, 2)
    for caller in callers:
        assert (await store.ledger(caller)).month_billable == 120
    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    assert asked(url, deadlocks) == [(0,)]


# away


async def ask_in_vain(store: Store, caller: Any) -> None:
    for act in (
        lambda: store.reserve(caller, 1, granted, lease_s=60),
        lambda: store.caller("hash"),
        lambda: store.ledger(caller),
        lambda: store.check(),
    ):
        began = trio.current_time()
        with pytest.raises(StoreUnavailable) as reported:
            await act()
        assert trio.current_time() - began < PROMISED_S
        assert "secret" not in str(reported.value)


@pytest.mark.parametrize("gently", [True, False])
async def test_a_server_that_is_away_is_unavailable_and_heals(
    server: PrivatePostgres, store: Store, gently: bool
):
    caller = await make_caller(store)
    await use(store, caller, NOON)
    await trio.to_thread.run_sync(lambda: server.stop(gently=gently))
    try:
        await ask_in_vain(store, caller)
        await ask_in_vain(store, caller)
    finally:
        await trio.to_thread.run_sync(server.start)
    await use(store, caller, NOON)  # at once: whoever finds its connection dead makes another
    assert await store.caller("hash") == caller
    assert (await store.ledger(caller)).month_units == 2


async def test_a_lock_that_is_held_too_long_is_unavailable_and_heals(store: Store, url: str):
    """What was sent behind the statement that failed was never prepared, and is not taken for it."""
    caller = await make_caller(store)
    with psycopg.connect(url, options=f"-c search_path={SCHEMA}") as db:
        db.execute("SELECT 1 FROM accounts FOR UPDATE")
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await use(store, caller, NOON)
    for _ in range(3):
        await use(store, caller, NOON)
        assert await store.reserve(caller, 1, lambda ledger: "no", lease_s=60) == "no"
    assert (await store.ledger(caller)).month_units == 3


async def test_a_long_window_is_read_as_far_as_somebody_looks(store: Store, clock: Clock):
    caller = await make_caller(store)
    for _ in range(3):
        await store.reserve(caller, 2, granted, lease_s=60)
    instants = []
    for _ in range(250):
        clock.pass_(0.1)
        await store.reserve(caller, 1, granted, lease_s=60)
        instants.append(clock())
    seen: list[Any] = []

    def weigh(ledger: Ledger) -> str:
        seen.append((ledger.window_units, list(ledger.window)))
        return "no"

    assert await store.reserve(caller, 1, weigh, lease_s=60) == "no"
    assert seen == [(256, [(NOON, 6), *((at, 1) for at in instants)])]
    clock.pass_(47)
    assert await store.reserve(caller, 1, weigh, lease_s=60) == "no"
    later = [(at, 1) for at in instants if at > clock() - timedelta(seconds=60)]
    assert seen[1] == (len(later), later)
    assert 0 < len(later) < 250


async def test_a_server_that_stands_still_is_unavailable_and_heals(
    server: PrivatePostgres, store: Store
):
    caller = await make_caller(store)
    await use(store, caller, NOON)
    with server.frozen():
        await ask_in_vain(store, caller)
    with trio.fail_after(PATIENCE_S):
        while True:
            try:
                await use(store, caller, NOON)
                break
            except StoreUnavailable:
                await trio.lowlevel.checkpoint()
    assert (await store.ledger(caller)).month_billable == 2


async def test_stopped_and_started_under_load_nothing_is_lost_or_counted_twice(
    server: PrivatePostgres, store: Store, url: str, clock: Clock
):
    """What is settled is told again until it is acknowledged, as the service does it."""
    callers = [await make_caller(store, sha256=f"{n}") for n in range(4)]
    settled: Counter[int] = Counter()
    number = 0
    going_on = True

    async def settle(reservation: Reservation, mine: int) -> None:
        while True:
            try:
                await store.settle(reservation, [row(NOON, latency_ms=mine)] * 3)
                return
            except StoreUnavailable:
                await trio.sleep(0.02)

    async def go(place: int) -> None:
        nonlocal number
        while going_on:
            number += 1
            mine = number
            try:
                reservation = await store.reserve(callers[place], 5, granted, lease_s=60)
            except StoreUnavailable:
                await trio.sleep(0.02)
                continue
            assert isinstance(reservation, Reservation)
            await settle(reservation, mine)
            settled[place] += 3

    async def reach(count: int) -> None:
        while sum(settled.values()) < count:  # noqa: ASYNC110 - several tasks count
            await trio.sleep(0.01)

    with trio.fail_after(10 * PATIENCE_S):
        async with trio.open_nursery() as nursery:
            for place in range(4):
                for _ in range(8):
                    nursery.start_soon(go, place)
            for stop in range(4):
                await reach(sum(settled.values()) + 200)
                await trio.to_thread.run_sync(
                    lambda gently=stop % 2 == 1: server.stop(gently=gently)
                )
                await trio.to_thread.run_sync(server.start)
            await reach(sum(settled.values()) + 200)
            going_on = False
    rows = dict(asked(url, "SELECT latency_ms, count(*) FROM usage GROUP BY latency_ms"))
    assert set(rows.values()) == {3}
    assert 3 * len(rows) == sum(settled.values())
    for place, caller in enumerate(callers):
        ledger = await store.ledger(caller)
        assert ledger.month_billable == settled[place]
    clock.pass_(60)
    for place, caller in enumerate(callers):
        ledger = await store.ledger(caller)
        assert (ledger.month_units, ledger.reserved) == (settled[place], 0)


# a connection that breaks in the middle of a commit


def cut(monkeypatch: pytest.MonkeyPatch, *, committed: bool, times: int = 1) -> list[Any]:
    """The connection breaks after the commit was done, or before it was asked for."""
    commit = TransactionSession.commit
    cuts: list[Any] = []

    def commit_and_break(self: TransactionSession) -> None:
        if len(cuts) >= times:
            commit(self)
            return
        cuts.append(self)
        self.committing = True
        if committed:
            self.db.execute("COMMIT")
            if self.db.info.pipeline_status:
                self.db.pgconn.pipeline_sync()
                self.db.pgconn.flush()
                time.sleep(0.3)  # the server does it; what it says is never read
        with socket.socket(fileno=os.dup(self.db.fileno())) as copy:
            copy.shutdown(socket.SHUT_RDWR)
        raise psycopg.OperationalError("the connection was cut")

    monkeypatch.setattr(TransactionSession, "commit", commit_and_break)
    return cuts


@pytest.mark.parametrize("committed", [True, False])
async def test_a_commit_whose_answer_is_lost_is_done_once(
    store: Store, url: str, monkeypatch: pytest.MonkeyPatch, committed: bool
):
    caller = await make_caller(store)
    await use(store, caller, NOON)
    cuts = cut(monkeypatch, committed=committed)
    reservation = await store.reserve(caller, 5, granted, lease_s=60)
    assert isinstance(reservation, Reservation)
    assert len(cuts) == 1
    assert (await store.ledger(caller)).reserved == 5
    cuts.clear()
    await store.settle(reservation, [row(NOON)] * 5, metered=True)
    assert len(cuts) == 1
    assert (await store.ledger(caller)).month_billable == 6
    assert [message.count for message in await store.messages("meter", limit=9)] == [5]


@pytest.mark.parametrize("committed", [True, False])
async def test_a_jobs_outcome_whose_answer_is_lost_counts_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, committed: bool
):
    caller = await make_caller(store)
    cuts = cut(monkeypatch, committed=committed)
    await promise(store, caller, order())
    assert len(cuts) == 1
    [claim] = await claimed(store)
    cuts.clear()
    assert await store.job_verified(claim, row(NOON), b"{}", metered=True)
    assert len(cuts) == 1
    ledger = await store.ledger(caller)
    assert (ledger.month_billable, ledger.reserved) == (1, 0)
    assert [message.count for message in await store.messages("meter", limit=9)] == [1]


# partitions


async def test_a_day_past_retention_is_dropped_whole_and_made_again_on_demand(
    store: Store, url: str, clock: Clock
):
    caller = await make_caller(store)
    await use(store, caller, NOON, 3)
    clock.pass_(days=91)
    await store.apply_retention({"free": 7, "builder": 90, "scale": 90})
    tables = asked(url, f"SELECT tablename FROM pg_tables WHERE schemaname = '{SCHEMA}'")
    assert ("usage_20250314",) not in tables
    assert (f"usage_{clock() + timedelta(days=1):%Y%m%d}",) in tables
    await use(store, caller, NOON, 2)  # it comes late
    assert (await store.days(caller.account.id, NOON.date(), NOON.date()))[0].calls == 5


async def test_a_partition_that_another_process_dropped_is_made_again(
    store: Store, url: str, clock: Clock
):
    caller = await make_caller(store)
    await use(store, caller, NOON)
    asked(url, "DROP TABLE usage_20250314")
    await use(store, caller, NOON, 2)
    assert len(await store.usage(caller.account.id, limit=10)) == 2


async def test_no_secret_is_in_the_database(url: str, server: PrivatePostgres):
    """What is sealed cannot be read by who reads the tables."""
    async with open_store(url, secret_key=SECRET) as store:
        caller = await make_caller(store)
        await promise(store, caller, order(secret="DoNotWriteThis"))
    dump = [
        str(row)
        for table in ("store_properties", "jobs", "keys", "idempotency_records")
        for row in asked(url, f"SELECT t::text FROM {table} AS t")
    ]
    assert any("ann+1@shop.test" in line for line in dump)
    for secret in (b"DoNotWriteThis", SECRET):
        for form in (secret.decode("latin-1"), secret.hex(), base64.b64encode(secret).decode()):
            assert not any(form in line for line in dump)


def weigh_by_the_month(limit: int) -> Any:
    def weigh(ledger: Ledger) -> str | None:
        return "no" if ledger.month_units >= limit else None

    return weigh


async def test_keys_of_an_account_share_its_month_over_two_stores(
    store: Store, url: str, clock: Clock
):
    caller = await make_caller(store)
    second = await another_key(store, caller.account.id, "second")
    outcomes: Counter[str] = Counter()

    async def ask(each: Store, who: Any) -> None:
        outcome = await each.reserve(who, 1, weigh_by_the_month(40), lease_s=60)
        outcomes["granted" if isinstance(outcome, Reservation) else "refused"] += 1

    async with (
        open_store(url, secret_key=SECRET, now=clock) as other,
        trio.open_nursery() as nursery,
    ):
        for _ in range(30):
            nursery.start_soon(ask, store, caller)
            nursery.start_soon(ask, other, second)
    assert outcomes == {"granted": 40, "refused": 20}
