"""Migration to a real server: everything, once, however often it is killed; and the same answers."""

import json
import os
import signal
import subprocess
import sys
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trio

from mailprobe.bench.load.private_postgres import PrivatePostgres
from mailprobe.storage import open_store
from mailprobe.storage.contract import MESSAGES_KEPT_MAX, IdempotencyKeyReused, StoreBroken
from mailprobe.storage.egresses import (
    BlockRequest,
    EgressCount,
    EgressReport,
    ReplyCount,
    ReputationDay,
)
from mailprobe.storage.list_records import HostWait, ListBounds, ListChunk, ListOrder, LoadedList
from mailprobe.storage.migrate import source
from mailprobe.storage.migrate.run import DatabaseInUse, open_move
from mailprobe.storage.migrate.tables import TABLES
from mailprobe.storage.people.links import NewLink
from mailprobe.storage.people.sign_ins import NewSignIn
from mailprobe.storage.records import (
    COMMAND_LINE,
    Actor,
    Answered,
    Caller,
    IdempotencyRecord,
    Reservation,
)
from mailprobe.storage.store import Store
from mailprobe.storage.tolerances import RefusalRequest, Refusals
from tests.peers.postgres.database import open_once, query
from tests.storage.child_processes import ROOT
from tests.storage.fixed_clock import (
    NOON,
    SECRET,
    Clock,
    another_key,
    attempt,
    claimed,
    delivering,
    granted,
    make_caller,
    order,
    promise,
    row,
    use,
)

BATCH_ROWS = 7
ANSWER = Answered(201, (("X-Id", "é"),), b'{"key":"\xff\n"}')
HASHES = ("hash", "hash 2", "hash 3", "revoked")
RUN_S_MAX = 60.0  # for one run of the command, on a busy machine

# The command in small batches, ended by a signal when the Nth batch is written and not yet committed.
# No public function runs between the two.
KILLED_COMMAND = """
import os, sys, time
from mailprobe.storage.migrate import source as migrate_source, target as migrate_target
migrate_source.BATCH_ROWS = 7
keep, left, number = migrate_target.MigrationTarget._keep, int(sys.argv[1]), int(sys.argv[2])
def keep_and_kill(self, record):
    global left
    keep(self, record)
    left -= 1
    if left == 0:
        os.kill(os.getpid(), number)
migrate_target.MigrationTarget._keep = keep_and_kill
from mailprobe.api.cli import main
main(["migrate", *sys.argv[3:]])
"""


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "BATCH_ROWS", BATCH_ROWS)


@pytest.fixture
def path(tmp_path: Path, clock: Clock) -> Path:
    path = tmp_path / "mailprobe.db"
    trio.run(fill, path, clock)
    return path


async def fill(path: Path, clock: Clock) -> None:
    """Write something of everything, across the end of a day and of a month."""
    clock.at = NOON.replace(day=31, hour=23, minute=59)
    async with open_store(path, secret_key=SECRET, now=clock) as store:
        caller = await make_caller(store)
        other = await make_caller(store, "scale", "hash 2")
        await fill_accounts(store, caller.account.id, other.account.id, clock())
        await fill_fleet(store, caller.account.id, clock().date())
        await fill_usage(store, caller, other, clock)
        await fill_jobs(store, caller, other, clock())
        await fill_list(store, caller)


async def fill_accounts(store: Store, account_id: str, other_id: str, now: datetime) -> None:
    """Keys, what was done to the accounts, bounces, and messages."""
    await store.change_account(
        other_id,
        customer_id="cus_1",
        hard_cap_micros=2**60,
        alerts=False,
        subscription_status="active",
        current_period_start=now - timedelta(days=3),
        current_period_end=now + timedelta(days=27),
        cancel_at_period_end=True,
        by=Actor("session", "a key", operator_id=account_id),
    )
    revoked = await another_key(store, account_id, "revoked")
    used = await store.create_key(
        account_id, "standard", "shop \0\x01", sha256="hash 3", prefix="sk", keys_max=None,
        by=Actor("session"),
    )  # fmt: skip
    await store.note_key_uses([used.id])
    await store.revoke_key(account_id, revoked.key.id)
    ann = await store.invite_person(account_id, "ann@shop.test", "owner")
    await store.begin_sign_in_of(NewSignIn("s", now + timedelta(days=7), "B"), ann.id, COMMAND_LINE)
    await store.request_link(
        NewLink("link", "ann@shop.test", "browser", "192.0.2.0/24", "/dashboard")
    )
    await store.end_sign_in("signed out", now + timedelta(days=7), account_id, COMMAND_LINE)
    await store.record_bounces(account_id, ["ann@shop.test"], "ses")
    for kind in MESSAGES_KEPT_MAX:
        await store.enqueue_message(kind, account_id, f"{kind} 1", b"\0\xff", due_at=now)
    (message,) = await store.claim_messages("alert", limit=1, lease_s=60)
    await store.message_attempted(message, sent=True, due_at=None)


async def fill_fleet(store: Store, account_id: str, today: date) -> None:
    """Egresses, the machine's reputation, and pauses."""
    await store.count_reputation([ReputationDay(today, "google", 100, 3)])
    await store.pause_egress("fra-1")
    await store.report_egresses(
        EgressReport(
            today,
            [EgressCount("fra-2", today, 9)],
            [BlockRequest("fra-2", 20, 500)],
            [ReplyCount("fra-2", "google", "blocked_us", today, 3)],
            {"fra-2": "it is refused"},
        )
    )
    refused = RefusalRequest(0, is_wanted=False, tolerance=4, refusals=[Refusals(9.0, account_id)])
    await store.lease_refusals("process", {("fra-2", "mx.shop.test"): refused}, lease_s=30.0)
    await store.pause("domain", "shop.test", for_s=9000, why="asked to \0")
    await store.pause("account", account_id, by=COMMAND_LINE)


async def fill_usage(store: Store, caller: Caller, other: Caller, clock: Clock) -> None:
    """Rows on both sides of midnight, refusals, a reservation, and idempotency records."""
    for seconds in (0, 30, 45):
        clock.advance(seconds)
        await use(store, caller, clock(), 11, latency_ms=seconds)
        await use(store, other, clock(), 3, billable=False, status=None)
    for failed_check in ("rate_limit", None):
        refused = row(clock(), status=None, failed_check=failed_check, units=0)
        for _ in range(25):
            await store.log_refusal(caller, refused)
    under_way = await store.reserve(caller, 9, granted, lease_s=3600)
    assert isinstance(under_way, Reservation)
    await store.settle(under_way, [row(clock())] * 2, part=3, ends=False)
    for key, answer in (("done", ANSWER), ("under way", None)):
        idempotency = await store.begin_idempotent(
            caller.account.id, key, "body", keep_s=9000, lease_s=9000
        )
        if answer:
            assert isinstance(idempotency, IdempotencyRecord)
            await store.finish_idempotent(idempotency, answer)


async def fill_jobs(store: Store, caller: Caller, other: Caller, now: datetime) -> None:
    """Jobs in each state, claimed and not."""
    await delivering(store, other, order("d", secret="s\0 \x01"), order("e", host="b.test"))
    (claim, *_) = await claimed(store, "deliver", limit=1)
    due_at = now + timedelta(seconds=5)
    await store.job_attempted(claim, attempt(1, now), state="delivering", due_at=due_at)
    await promise(store, caller, *(order(f"{n}", secret=f"s{n}") for n in range(9)))
    await claimed(store, limit=2)


async def fill_list(store: Store, caller: Caller) -> None:
    listed = ListOrder("l", "list.csv", "https://hooks.test/", "h", secret="s\0 \x01")
    await store.create_list(caller, listed, ListBounds(9, 9, 9))
    await store.add_chunks("l", [ListChunk(0, 2, '[0,0,"a\\u0000",[]]\n')], octets_max=99)
    loaded = LoadedList(["email"], 1, 2)
    await store.change_list("l", "running", before=["loading"], loaded=loaded)
    await store.keep_marks("l", {0: {0: "\u0100"}})
    await store.share_report("l", "hash of a link", for_s=86_400.0)
    [claim] = await store.claim_chunks(
        limit=1, lease_s=15.0, each_max=1, shares={}, after="", holder=None
    )
    due_at = NOON + timedelta(minutes=10)
    await store.release_chunk(
        claim, due_at, waits=[HostWait("mx.shop.test", "host_budget", 4, 1, due_at, (0,))]
    )


async def everything_in(store: Store) -> list[Any]:
    """Everything that can be read without a change."""
    found: list[Any] = [await store.accounts(), await store.account_of_customer("cus_1")]
    for sha256 in HASHES:
        caller = await store.caller(sha256)
        found.append(caller)
        found += await everything_of(store, caller) if caller else []
        found += [await store.bounces(caller.account.id, ["ann@shop.test"])] if caller else []
    jobs = await store.jobs(limit=100)
    found += [jobs, *[await store.attempts(job.id) for job in jobs]]
    found += [await store.messages(kind, limit=100) for kind in MESSAGES_KEPT_MAX]
    found += [await store.stored_list("l"), await store.chunks("l", first=0, limit=9)]
    found += [await store.list_columns("l")]
    found += [await store.list_marks("l", first=0), await store.pauses()]
    found += [await store.list_waits(["l"]), await store.host_tolerances()]
    found += [await store.shared_reports("l"), await store.list_of_report("hash of a link")]
    found += [await store.link("link", "browser")]
    for account in await store.accounts():
        id = account.id
        found += [await store.audit(id), await store.people(id), await store.listed_sign_ins(id)]
    return found


async def everything_of(store: Store, caller: Caller) -> list[Any]:
    account_id = caller.account.id
    ledger = await store.ledger(caller)
    return [
        ledger,
        [*ledger.window],
        await store.keys(account_id),
        await store.find_sign_in("signed out", account_id, caller.key.id),
        await store.days(account_id, date.min, date.max),
        sorted(await store.usage(account_id, limit=10_000), key=repr),
    ]


async def results_of_writes(store: Store, clock: Clock) -> list[Any]:
    """The results of what a service does next; of new rows without their random ids."""
    caller = await store.caller("hash")
    assert caller
    account_id = caller.account.id
    results: list[Any] = [
        await store.begin_idempotent(account_id, "done", "body", keep_s=60, lease_s=60),
        type(await refusal_of(store, account_id)),
    ]
    clock.advance(1)
    claims = [*await claimed(store, limit=20), *await claimed(store, "deliver", limit=20)]
    results += sorted((one.job.id, one.secret, one.fence, one.caller.key.id) for one in claims)
    clock.advance(3600)
    results += [(one.job.id, one.secret, one.fence) for one in await claimed(store, limit=20)]
    for kind in MESSAGES_KEPT_MAX:
        messages = await store.claim_messages(kind, limit=9, lease_s=60)
        results.append([(one.id, one.body, one.fence) for one in messages])
    another = await make_caller(store, "free", "hash 4")
    for one in (caller, another):
        await use(store, one, clock(), 5)
        results += [(await store.ledger(one)).month_units, (await store.ledger(one)).reserved]
    await promise(store, another, order("new", secret="s"))
    results.append([job.id for job in await store.jobs(limit=100)])
    results.append((await store.ledger(caller)).reserved)
    await store.apply_retention({"free": 7, "builder": 90, "scale": 90, "own": 90})
    results.append(len(await store.usage(account_id, limit=10_000)))
    return results


async def refusal_of(store: Store, account_id: str) -> Exception:
    with pytest.raises(IdempotencyKeyReused) as raised:
        await store.begin_idempotent(account_id, "done", "another body", keep_s=60, lease_s=60)
    return raised.value


def move_all(path: Path, url: str) -> dict[str, int]:
    with open_move(path, url, SECRET) as move:
        while move.step():
            pass
        moved = {table: move.compare(table).rows for table in move.tables}
        move.end()
    return moved


async def behaviour_of(store_url: object, clock: Clock, at: Any) -> tuple[list[Any], list[Any]]:
    """What can be read from a store, and what writes return after that."""
    clock.at = at
    async with open_store(str(store_url), secret_key=SECRET, now=clock) as store:
        return await everything_in(store), await results_of_writes(store, clock)


def test_a_moved_store_answers_as_before(path: Path, url: str, clock: Clock):
    """Everything that can be read, and what follows: replays, claims, grants, new rows."""
    rows = move_all(path, url)
    assert {table.name for table in TABLES} == rows.keys()
    assert [table for table, count in rows.items() if not count] == []
    at = clock()
    before = trio.run(behaviour_of, path, clock, at)
    after = trio.run(behaviour_of, url, clock, at)
    assert before[0] == after[0]
    assert before[1] == after[1]


def run_command(
    path: Path, url: str, batches: int, number: int
) -> "subprocess.CompletedProcess[str]":
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAILPROBE_")}
    env["MAILPROBE_SECRET_KEY"] = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
    command = [sys.executable, "-c", KILLED_COMMAND, str(batches), str(number)]
    return subprocess.run(
        [*command, "--from", str(path), "--to", url],
        cwd=path.parent,
        env={**env, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
    )


def test_however_often_it_is_killed_all_is_moved_once(path: Path, url: str, clock: Clock):
    """With SIGKILL, before the commit of each fourth batch; until the end no service can open the target."""
    kills = 0
    while (done := run_command(path, url, 4, signal.SIGKILL)).returncode == -signal.SIGKILL:
        kills += 1
        with pytest.raises(StoreBroken, match="run `mailprobe migrate` to its end"):
            trio.run(open_once, url)
        assert "secret" not in done.stderr
    assert kills > 3
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout
    at = clock()
    assert trio.run(behaviour_of, path, clock, at) == trio.run(behaviour_of, url, clock, at)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_move_says_how_to_go_on(path: Path, url: str, number: int):
    done = run_command(path, url, 5, number)
    assert done.returncode == 130
    assert "continue with: mailprobe migrate --from" in done.stderr
    assert "secret@" not in done.stderr
    [[moving]] = query(url, "SELECT value FROM store_properties WHERE name = 'moving'")
    assert sum(json.loads(moving)["rows"].values()) > 0
    assert run_command(path, url, 0, number).returncode == 0


def test_a_move_that_is_done_does_nothing_again(path: Path, url: str):
    move_all(path, url)
    rows = query(url, "SELECT count(*) FROM usage")
    done = run_command(path, url, 0, signal.SIGKILL)
    assert (done.returncode, done.stdout) == (0, "")
    assert "nothing to do" in done.stderr
    assert query(url, "SELECT count(*) FROM usage") == rows


def test_a_source_that_was_used_after_its_move_is_reported(path: Path, url: str, clock: Clock):
    move_all(path, url)
    trio.run(behaviour_of, path, clock, clock())
    done = run_command(path, url, 0, signal.SIGKILL)
    assert (done.returncode, done.stdout) == (2, "")
    assert "what is in PostgreSQL is what counts" in done.stderr


def test_a_source_that_was_used_in_the_middle_is_moved_anew(path: Path, url: str, clock: Clock):
    with open_move(path, url, SECRET) as move:
        for _ in range(25):
            assert move.step()
    trio.run(behaviour_of, path, clock, clock())
    with pytest.raises(StoreBroken, match="begin with --anew"), open_move(path, url, SECRET):
        pass
    with open_move(path, url, SECRET, anew=True) as move:
        assert move.rows == {}
        while move.step():
            pass
        assert move.compare("usage").rows == move.rows["usage"] > 0


async def test_a_target_with_other_data_is_refused(path: Path, url: str, clock: Clock):
    async with open_store(url, secret_key=SECRET, now=clock) as store:
        await store.create_account("bob@shop.test", "free")
    with pytest.raises(StoreBroken, match="holds other data"), open_move(path, url, SECRET):
        pass
    with (
        pytest.raises(StoreBroken, match="holds other data"),
        open_move(path, url, SECRET, anew=True),
    ):
        pass
    assert query(url, "SELECT email FROM accounts") == [("bob@shop.test",)]


async def test_a_target_that_is_served_is_refused(path: Path, url: str):
    async with open_store(url, secret_key=SECRET) as store:
        await store.check()
        with pytest.raises(DatabaseInUse, match="is being served"), open_move(path, url, SECRET):
            pass


def test_a_target_is_moved_into_by_one(path: Path, url: str):
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(%s)", [0x6D70_6D6F_7665])
        with pytest.raises(DatabaseInUse, match="another move"), open_move(path, url, SECRET):
            pass


def test_a_target_of_another_key_or_a_newer_version_is_refused(
    path: Path, server: PrivatePostgres, url: str
):
    async def make() -> None:
        async with open_store(url, secret_key=bytes(32)):
            pass

    trio.run(make)
    with pytest.raises(StoreBroken, match="another MAILPROBE_SECRET_KEY"):
        move_all(path, url)
    newer = server.new_database()
    trio.run(open_once, newer)
    query(newer, "INSERT INTO migrations (number, name) VALUES (999, 'later')")
    with pytest.raises(StoreBroken, match="newer version"):
        move_all(path, newer)


def test_a_row_that_differs_is_seen(path: Path, url: str):
    """Then the target cannot be opened."""
    with open_move(path, url, SECRET) as move:
        while move.step():
            pass
        query(url, "UPDATE usage SET latency_ms = latency_ms + 1 WHERE number = 1")
        query(url, "DELETE FROM days WHERE account = 1")
        for table in ("usage", "days"):
            with pytest.raises(StoreBroken, match=f"{table} differs"):
                move.compare(table)
    with pytest.raises(StoreBroken, match="to its end"):
        trio.run(open_once, url)
