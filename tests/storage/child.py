"""A process of its own over a database file: `python -m tests.storage.child DEED PATH …`.

It says what it did in lines on standard output, and waits where told so for a
line on standard input.
"""

import os
import resource
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import import_module
from pathlib import Path

import trio

from storage import open_store
from storage.records import Caller, Ledger, Reservation
from storage.store import Store, StoreUnavailable
from tests.storage.moments import NOON, SECRET, Clock, granted, row

NOBODY = 65534
ROOM_OCTETS = 300_000  # some hundred rows fill it


def say(line: object) -> None:
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

    async def ask() -> None:
        try:
            outcome = await store.reserve(caller, 1, weigh, lease_s=60)
            said["granted" if isinstance(outcome, Reservation) else "refused"] += 1
        except StoreUnavailable:
            said["unavailable"] += 1

    say("ready")
    await trio.to_thread.run_sync(wait)
    async with trio.open_nursery() as nursery:
        for _ in range(60):
            nursery.start_soon(ask)
    say(" ".join(map(str, said.values())))


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
            say(mine)

    async with trio.open_nursery() as nursery:
        for _ in range(12):
            nursery.start_soon(go)


async def revoke(store: Store) -> None:
    caller = await known_caller(store)
    say(await store.revoke_key(None, caller.key.id))


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
    say(slowest_s)
    say((0 < len(failed) < 60, readable, under_way == 100 * len(failed), ledger.month_billable))


async def check(store: Store) -> None:
    say(await store.check())


def hold(path: str) -> None:
    """Hold the write lock until told."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    say("held")
    wait()
    db.execute("ROLLBACK")
    db.close()
    say("let go")


DEEDS: dict[str, Callable[..., Awaitable[None]]] = {
    "edge": reserve_at_the_edge,
    "load": load,
    "revoke": revoke,
    "fill": fill,
    "check": check,
    "check as nobody": check,
}


async def do(deed: str, path: str, *rest: str) -> None:
    try:
        async with open_store(Path(path), secret_key=SECRET, now=Clock()) as store:
            await DEEDS[deed](store, *rest)
    except StoreUnavailable as error:
        say(f"{type(error).__name__} {error}")


if __name__ == "__main__":
    if sys.argv[1] == "hold":
        hold(sys.argv[2])
    else:
        if sys.argv[1] == "check as nobody" and os.geteuid() == 0:
            # The interpreter may lie where only root reads: what pathlib imports late comes now.
            import_module("urllib.parse")
            os.setuid(NOBODY)
        trio.run(partial(do, *sys.argv[1:]))
