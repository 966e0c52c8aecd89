"""What only a file can do with jobs and letters: be shared, be killed, keep secrets, and be large."""

import random
import re
import signal
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mailprobe.storage import open_store
from mailprobe.storage.base.columns import micros
from mailprobe.storage.records import Caller, MessageKind
from mailprobe.storage.store import Store
from tests.seeds import seeds
from tests.storage.child_processes import (
    child,
    line_of,
    octets_in,
    partitions_stored,
    partitions_true,
    report,
)
from tests.storage.fixed_clock import (
    LEASE_S,
    NOON,
    RETENTION,
    SECRET,
    Clock,
    attempt,
    claimed,
    delivering,
    granted,
    make_caller,
    order,
    promise,
    row,
)

KILLS = seeds(20)
PROMISES = 40
WEBHOOK_SECRET = "whsec_DoNotWriteThisAnywhere0123456789"


# secrets


@pytest.mark.parametrize("secret_key", [SECRET, None])
async def test_no_jobs_secret_is_in_any_file(path: Path, secret_key: bytes | None):
    async with open_store(path, secret_key=secret_key) as store:
        caller = await make_caller(store)
        orders = [order(f"{number}", secret=WEBHOOK_SECRET) for number in range(20)]
        await promise(store, caller, *orders)
        claims = await claimed(store, limit=10)
        assert {claim.secret for claim in claims} == {WEBHOOK_SECRET}
        for claim in claims:
            await store.job_verified(claim, row(NOON), b"{}")
        open_octets = octets_in(path.parent)
    for octets in (open_octets, octets_in(path.parent)):
        assert b"hooks.test" in octets  # so we look in the right place
        assert b"DoNotWriteThis" not in octets


async def test_a_jobs_secret_is_there_after_a_restart(path: Path, clock: Clock):
    async with open_store(path, secret_key=None, now=clock) as store:
        caller = await make_caller(store)
        jobs = await delivering(store, caller, order(secret=WEBHOOK_SECRET))
    async with open_store(path, secret_key=None, now=clock) as store:
        [claim] = await claimed(store, "deliver")
        assert (claim.job, claim.secret, claim.fence) == (jobs[0], WEBHOOK_SECRET, 2)


async def test_a_sealed_secret_opens_only_for_its_job(store: Store, path: Path):
    caller = await make_caller(store)
    await promise(store, caller, order("1", secret=WEBHOOK_SECRET), order("2", secret="other"))
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE jobs SET secret = (SELECT secret FROM jobs WHERE id = '1')")
    [one] = await claimed(store, limit=1)
    assert one.secret == WEBHOOK_SECRET
    [two] = await claimed(store)
    assert (two.job.id, two.secret, two.undecryptable) == ("2", None, True)


async def test_a_secret_that_cannot_be_read_holds_up_no_other_job(path: Path, clock: Clock):
    """A database whose key was lost for good goes on with what it can read."""
    async with open_store(path, secret_key=SECRET, now=clock) as store:
        caller = await make_caller(store)
        await delivering(store, caller, order("1", secret=WEBHOOK_SECRET), order("2"))
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE store_properties SET value = x'' WHERE name = 'seal'")
    async with open_store(path, secret_key=SECRET[::-1], now=clock) as store:
        claims = {claim.job.id: claim.undecryptable for claim in await claimed(store, "deliver")}
    assert claims == {"1": True, "2": False}


# processes


@pytest.mark.parametrize("work", ["verify", "deliver"])
async def test_two_processes_never_have_a_job_both_nor_one_too_many(
    store: Store, path: Path, work: Any
):
    caller = await make_caller(store)
    orders = [order(f"{number}") for number in range(PROMISES)]
    await (promise if work == "verify" else delivering)(store, caller, *orders)
    with child("claim", path, work, 17) as one, child("claim", path, work, 17) as two:
        for process in (one, two):
            assert await line_of(process) == "ready"
        for process in (one, two):
            report(process)
        has = (await line_of(one)).split() + (await line_of(two)).split()
    assert sorted(has, key=int) == [f"{number}" for number in range(17)]


async def test_of_two_processes_one_has_posted(store: Store, path: Path):
    await make_caller(store)
    with child("post", path, 100) as one, child("post", path, 100) as two:
        for process in (one, two):
            assert await line_of(process) == "ready"
        for process in (one, two):
            report(process)
        assert int(await line_of(one)) + int(await line_of(two)) == 100
    assert len(await store.messages("alert", limit=1_000)) == 100


async def test_a_claim_without_due_work_needs_no_write_lock(store: Store, path: Path, clock: Clock):
    caller = await make_caller(store)
    assert await claimed(store) == await claimed(store, "deliver") == []
    await promise(store, caller, order("1"), order("2"))
    await claimed(store, each_max=1)
    await store.enqueue_message("alert", caller.account.id, "n", b"", due_at=clock())
    await store.claim_messages("alert", limit=1, lease_s=LEASE_S)
    with child("hold", path) as process:
        assert await line_of(process) == "held"
        assert await claimed(store, each_max=1) == []
        assert await claimed(store, "deliver") == []
        kinds: tuple[MessageKind, ...] = ("alert", "meter")
        for kind in kinds:
            assert await store.claim_messages(kind, limit=9, lease_s=LEASE_S) == []


async def test_killed_at_any_moment_no_job_is_lost_or_counted_twice(path: Path, clock: Clock):
    rng = random.Random(14)
    said: Counter[tuple[str, str]] = Counter()
    async with open_store(path, secret_key=SECRET, now=clock) as store:
        caller = await make_caller(store)
    for kill in range(KILLS):
        with child("work", path, kill * 1_000_000, kill * LEASE_S) as process:
            lines = [await line_of(process) for _ in range(rng.randint(1, 120))]
            process.send_signal(signal.SIGKILL)
            lines += process.stdout.read().split("\n")[:-1]
        said.update(tuple(line.split()) for line in lines)  # type: ignore[misc]
    assert set(said.values()) == {1}
    with closing(sqlite3.connect(path)) as db:
        assert partitions_stored(db) == partitions_true(db)
        assert_all_is_there(db, said)
    async with open_store(path, secret_key=SECRET, now=clock) as store:
        await assert_all_is_counted(store, caller, path)
        clock.advance(KILLS * LEASE_S)
        await work_off(store)
        await assert_all_is_counted(store, caller, path)
        assert (await store.ledger(caller)).reserved == 0
    with closing(sqlite3.connect(path)) as db:
        assert set(db.execute("SELECT state, tries FROM jobs")) == {("done", 2)}
        numbers = "SELECT job, group_concat(number) FROM job_attempts GROUP BY job"
        assert {numbers for _, numbers in db.execute(numbers)} == {"1,2"}
        assert partitions_stored(db) == []


def assert_all_is_there(db: sqlite3.Connection, said: Counter[tuple[str, str]]) -> None:
    """What was acknowledged; more may be there, for a kill may come between the two."""
    verified_or_more = ("delivering", "done")
    states = dict(db.execute("SELECT id, state FROM jobs"))
    for write, id in said:
        if write == "promised":
            assert id in states
        elif write == "done":
            assert states[id] == "done"
        else:
            assert states[id] in verified_or_more


async def assert_all_is_counted(store: Store, caller: Caller, path: Path) -> None:
    """Once for each job that is verified, everywhere."""
    with closing(sqlite3.connect(path)) as db:
        verified = [int(id) for (id,) in db.execute("SELECT id FROM jobs WHERE payload NOT NULL")]
        rows = [number for (number,) in db.execute("SELECT latency_ms FROM usage")]
        (metered,) = db.execute("SELECT sum(count) FROM outbox").fetchone()
        (pending,) = db.execute("SELECT count(*) FROM jobs WHERE payload IS NULL").fetchone()
    assert sorted(rows) == sorted(verified)
    ledger = await store.ledger(caller)
    assert ledger.month_billable == ledger.period_billable == metered == len(verified)
    assert ledger.month_units - ledger.reserved == len(verified)
    assert ledger.reserved == pending


async def work_off(store: Store) -> None:
    while claims := await claimed(store):
        for claim in claims:
            logged = row(NOON, latency_ms=int(claim.job.id))
            assert await store.job_verified(claim, logged, b"{}", emit_meter_event=True)
    while claims := await claimed(store, "deliver"):
        for claim in claims:
            tried = attempt(claim.job.tries + 1)
            done = bool(claim.job.tries)
            state: Any = "done" if done else "delivering"
            due_at = None if done else NOON
            assert await store.job_attempted(claim, tried, state=state, due_at=due_at)


# a large file


async def every_write(store: Store, caller: Caller) -> None:
    await delivering(store, caller, order("1", secret="s"), order("2"))
    [one, two] = await claimed(store, "deliver")
    await store.extend_claim(one, lease_s=5)
    await store.job_attempted(one, attempt(), state="delivering", due_at=NOON)
    await store.job_attempted(two, attempt(), state="done", due_at=None)
    await store.resend_job("1")
    await promise(store, caller, order("3"))
    [three] = await claimed(store)
    await store.abandon_job(three)
    await store.attempts("1")
    await store.job("1")
    for which in ({}, {"account_id": caller.account.id}):
        for state in (None, "done"):
            await store.jobs(**which, state=state, limit=5)
        await store.messages("meter", **which, limit=5)
    states: tuple[Any, ...] = (None, "done", "failed")
    for state in states:
        await store.jobs(account_id=caller.account.id, state=state, host="hooks.test", limit=5)
    await store.jobs(account_id=caller.account.id, before="1", limit=5)
    await store.receivers(caller.account.id)
    reservation: Any = await store.reserve(caller, 1, granted, lease_s=60)
    await store.settle(reservation, [row(NOON)], emit_meter_event=True)
    await store.enqueue_message("alert", caller.account.id, "n", b"", due_at=NOON)
    [message] = await store.claim_messages("alert", limit=5, lease_s=5)
    await store.message_attempted(message, sent=True, due_at=None)
    await store.apply_retention(RETENTION)
    await store.account_of_customer("cus_1")
    await store.change_account(caller.account.id, customer_id="cus_1")


async def test_no_write_reads_or_sorts_a_whole_table(store: Store, path: Path):
    """Their plans, as SQLite tells them: https://sqlite.org/eqp.html."""
    caller = await make_caller(store)
    statements: set[str] = set()
    for database_thread in (store.executor.writer, store.executor.reader):  # type: ignore[attr-defined]
        database_thread.db.set_trace_callback(statements.add)
    await every_write(store, caller)
    plans: dict[str, list[str]] = {}
    with closing(sqlite3.connect(path)) as db:
        for statement in statements:
            if re.search(r"\b(jobs|job_partitions|job_attempts|outbox|customer_id)\b", statement):
                rows = db.execute(f"EXPLAIN QUERY PLAN {statement}")
                plans[statement] = [step for *_, step in rows]
    assert len(plans) > 40
    large = re.compile(r"SCAN (jobs|job_partitions|job_attempts|outbox)|TEMP B-TREE FOR ORDER BY")
    slow = {
        statement: plan
        for statement, plan in plans.items()
        if any(large.match(step) for step in plan)
        and not (plan[0] == "SCAN jobs" and "ORDER BY jobs.number DESC LIMIT" in statement)
    }
    assert slow == {}


def fill(path: Path, *, ended: int, full: int, others: int) -> None:
    """So many jobs that have ended, then of one host that are due, then of hosts that are due later."""
    at = micros(NOON)
    jobs: list[tuple[str, str, str, int | None, int | None]] = [
        (f"ended {n}", "ended.test", "done", None, at) for n in range(ended)
    ]
    jobs += [
        (f"full {n}", "full.test", "delivering", at - 2_000_000 + n, None) for n in range(full)
    ]
    jobs += [(f"{n}", f"{n}.test", "delivering", at - 1_000_000 + n, None) for n in range(others)]
    with closing(sqlite3.connect(path)) as db, db:
        db.executemany(
            "INSERT INTO jobs (account, key, email, webhook, created_at, payload, id, host, state,"
            " due_at, ended_at) VALUES (1, 1, 'a@shop.test', 'https://x.test/', 0, x'', ?, ?, ?, ?, ?)",
            jobs,
        )
        db.execute(
            "INSERT INTO job_partitions SELECT state, account, host, count(*), min(due_at) FROM jobs"
            " WHERE state = 'delivering' GROUP BY 1, 2, 3"
        )
        db.execute(
            "INSERT INTO job_backlogs SELECT account, 0, count(*), NULL, min(due_at) FROM jobs"
            " WHERE state = 'delivering' GROUP BY 1"
        )


async def steps_of_a_claim(path: Path, clock: Clock, **jobs: int) -> int:
    """Of SQLite's machine, in hundreds, once the one host has all the claims it may have."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    async with open_store(path, secret_key=SECRET, now=clock) as store:
        await make_caller(store)
        fill(path, **jobs)
        claims = await claimed(store, "deliver", limit=4, each_max=4)
        assert {claim.job.host for claim in claims} == {"full.test"}
        for database_thread in (store.executor.writer, store.executor.reader):  # type: ignore[attr-defined]
            database_thread.db.set_progress_handler(count, 100)
        claims = await claimed(store, "deliver", limit=10, each_max=4)
        assert [claim.job.id for claim in claims] == [f"{n}" for n in range(10)]
    return steps


async def test_a_claim_costs_as_much_however_many_have_ended_or_wait(tmp_path: Path, clock: Clock):
    few = await steps_of_a_claim(tmp_path / "few.db", clock, ended=10, full=20, others=20)
    many = await steps_of_a_claim(
        tmp_path / "many.db", clock, ended=20_000, full=20_000, others=2_000
    )
    assert few <= many < 1.2 * few + 2
