"""A process of its own over a database file: a WarmProcess of `tests.storage.child_process DEED PATH …`.

It says what it did in lines on standard output, and waits where told so for a
line on standard input.
"""

import os
import resource
import signal
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import import_module
from pathlib import Path

import trio

from mailprobe.storage import audit, open_store, utc_now
from mailprobe.storage.base.encryption import key_path
from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.records import Caller, JobState, LeaseRequest, Ledger, Reservation, Work
from mailprobe.storage.sqlite import file as sqlite_file
from mailprobe.storage.store import Store
from tests.storage.fixed_clock import (
    NOON,
    SECRET,
    Clock,
    attempt,
    claimed,
    granted,
    order,
    promise,
    row,
)
from tests.storage.long_timeouts import use_long_timeouts

NOBODY = 65534
clock = Clock()
ROOM_OCTETS = 300_000  # some hundred rows fill it


def report(line: object) -> None:
    os.write(1, f"{line}\n".encode())


def wait() -> None:
    sys.stdin.readline()


async def known_caller(store: Store) -> Caller:
    caller = await store.caller("hash")
    assert caller
    return caller


async def reserve_at_the_edge(store: Store, limit: str) -> None:
    """Sixty ask at once; says how many got a unit, how many were refused or left waiting."""
    caller = await known_caller(store)
    said = {"granted": 0, "refused": 0, "unavailable": 0}

    def weigh(ledger: Ledger) -> str | None:
        return "no" if ledger.month_units >= int(limit) else None

    async def reserve() -> None:
        try:
            outcome = await store.reserve(caller, 1, weigh, lease_s=60)
            said["granted" if isinstance(outcome, Reservation) else "refused"] += 1
        except StoreUnavailable:
            said["unavailable"] += 1

    report("ready")
    await trio.to_thread.run_sync(wait)
    async with trio.open_nursery() as nursery:
        for _ in range(60):
            nursery.start_soon(reserve)
    report(" ".join(map(str, said.values())))


async def load(store: Store, first: str) -> None:
    """Reserve and settle for ever; says a number once its three rows are settled."""
    caller = await known_caller(store)
    number = int(first)

    async def go() -> None:
        nonlocal number
        while True:
            number += 1
            mine = number
            reservation = await store.reserve(caller, 5, granted, lease_s=60)
            assert isinstance(reservation, Reservation)
            await store.settle(reservation, [row(NOON, latency_ms=mine)] * 3)
            report(mine)

    async with trio.open_nursery() as nursery:
        for _ in range(12):
            nursery.start_soon(go)


async def work(store: Store, first: str, begins_s: str) -> None:
    """Promise, claim, verify and call back for ever; says each outcome once it is known.

    A job is called twice: the first try fails. What a process before this one had
    claimed when it was killed is free by the instant at which this one begins.
    """
    caller = await known_caller(store)
    clock.advance(float(begins_s))
    number = int(first)

    async def promise_jobs() -> None:
        nonlocal number
        while True:
            number += 1
            mine = number
            await promise(store, caller, order(f"{mine}", host=f"{mine % 5}.test", secret="s"))
            report(f"promised {mine}")

    async def verify() -> None:
        while True:
            for claim in await claimed(store, "verify", limit=3, each_max=30):
                logged = row(NOON, latency_ms=int(claim.job.id))
                if await store.job_verified(claim, logged, b"{}", emit_meter_event=True):
                    report(f"verified {claim.job.id}")

    async def deliver() -> None:
        while True:
            for claim in await claimed(store, "deliver", limit=3, each_max=4):
                job = claim.job
                state: JobState = "done" if job.tries else "delivering"
                tried, due_at = attempt(job.tries + 1), None if job.tries else clock()
                if await store.job_attempted(claim, tried, state=state, due_at=due_at):
                    report(f"{state} {job.id}")

    async with trio.open_nursery() as nursery:
        for go in (promise_jobs, promise_jobs, verify, verify, deliver, deliver, deliver):
            nursery.start_soon(go)


async def claim_at_the_edge(store: Store, work: Work, each_max: str) -> None:
    """Thirty claim at once; says which jobs they have."""
    has: list[str] = []

    async def go() -> None:
        while True:
            try:
                claims = await claimed(store, work, limit=2, each_max=int(each_max))
            except StoreUnavailable:
                continue  # so many at once are too many for a busy machine
            has.extend(claim.job.id for claim in claims)
            return

    report("ready")
    await trio.to_thread.run_sync(wait)
    async with trio.open_nursery() as nursery:
        for _ in range(30):
            nursery.start_soon(go)
    report(" ".join(has))


async def claim_for_real(store: Store, count: str) -> None:
    """Claim by the store's own clock, and wait to be killed; says how many jobs it has."""
    report(len(await claimed(store, limit=int(count))))
    await trio.sleep_forever()


async def post(store: Store, count: str) -> None:
    """Says how many of so many letters were posted here first."""
    caller = await known_caller(store)
    posted: list[bool] = []

    async def go(name: str) -> None:
        posted.append(
            await store.enqueue_message("alert", caller.account.id, name, b"", due_at=NOON)
        )

    report("ready")
    await trio.to_thread.run_sync(wait)
    async with trio.open_nursery() as nursery:
        for number in range(int(count)):
            nursery.start_soon(go, f"{number}")
    report(sum(posted))


async def revoke(store: Store) -> None:
    caller = await known_caller(store)
    report(await store.revoke_key(None, caller.key.id))


async def fill(store: Store, path: str) -> None:
    """Settle until no file may grow; says how slow that was to learn, what could still be read,
    and whether all that was acknowledged is counted once in the end."""
    caller = await known_caller(store)
    reservations = [await store.reserve(caller, 100, granted, lease_s=60) for _ in range(60)]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    largest = max(file.stat().st_size for file in Path(path).parent.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest + ROOM_OCTETS, limits[1]))
    failed, slowest_s = [], 0.0
    for reservation in reservations:
        began = time.perf_counter()
        try:
            await store.settle(reservation, [row(NOON)] * 100)
        except StoreUnavailable:
            slowest_s = max(slowest_s, time.perf_counter() - began)
            failed.append(reservation)
    readable = await store.caller("hash") == caller
    under_way = (await store.ledger(caller)).reserved
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    for reservation in reservations[-1:] + failed:
        await store.settle(reservation, [row(NOON)] * 100)
    ledger = await store.ledger(caller)
    report(slowest_s)
    report((0 < len(failed) < 60, readable, under_way == 100 * len(failed), ledger.month_billable))


async def die_unrecorded(store: Store, key_id: str) -> None:
    """Revoke a key, and be killed between the act and its entry in the audit log."""
    audit.add_each = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    await store.revoke_key(None, key_id)


async def check(store: Store) -> None:
    report(await store.check())


def hold(path: str) -> None:
    """Hold the write lock until told."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    report("held")
    wait()
    db.execute("ROLLBACK")
    db.close()
    report("let go")


async def lease_for_real(store: Store) -> None:
    """Lease a connection in a session, and then live."""
    asked, lease_s = {"192.0.2.1": LeaseRequest(0, 1)}, 60.0
    while not store.lease_session():
        await store.lease_connections("a", asked, limit=1, lease_s=lease_s)
    await store.lease_connections("a", asked, limit=1, lease_s=lease_s)
    report("leased")
    await trio.sleep_forever()


WRITES: dict[str, Callable[..., Awaitable[None]]] = {
    "edge": reserve_at_the_edge,
    "load": load,
    "work": work,
    "claim": claim_at_the_edge,
    "claim for real": claim_for_real,
    "lease for real": lease_for_real,
    "post": post,
    "revoke": revoke,
    "fill": fill,
    "die unrecorded": die_unrecorded,
    "check": check,
    "check as nobody": check,
}


async def do(write: str, path: str, *rest: str) -> None:
    if write != "fill":  # which measures them
        use_long_timeouts()
    try:
        now = utc_now if write.endswith("for real") else clock
        secret_key = None if key_path(Path(path)).exists() else SECRET
        async with open_store(path, secret_key=secret_key, now=now) as store:
            await WRITES[write](store, *rest)
    except StoreUnavailable as error:
        report(f"{type(error).__name__} {error}")


def main(words: list[str]) -> None:
    if words[0] == "hold":
        hold(words[1])
    else:
        if words[0] == "check as nobody" and os.geteuid() == 0:
            # The interpreter and this tree may lie where only root reads: what is read late comes now.
            import_module("urllib.parse")
            import_module("mailprobe.storage.sqlite.store")
            sqlite_file.scripts_of_schema()
            os.setuid(NOBODY)
        trio.run(partial(do, *words))
