"""A store with accounts and keys, and the operations of their callers, for measurements."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from msgspec import Struct

from mailprobe.storage import open_store
from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.records import Caller, Ledger, Reservation, UsageRow
from mailprobe.storage.store import Store

KEYS = 64  # each of its own account
LEASE_S = 20.0
SECRET = bytes(32)

Operation = Callable[[int], Awaitable[object]]


async def retry(operation: Operation, number: int) -> None:
    """Repeat while the store is unavailable: a busy disk costs time, but must not end the run."""
    while True:
        try:
            await operation(number)
        except StoreUnavailable:
            continue
        return


def row() -> UsageRow:
    return UsageRow(datetime.now(UTC), "verify", "deliverable", None, 1, True, 12)


def no_limit(ledger: Ledger) -> None:
    """Allow every reservation; read the window's sum, as any plan does."""
    assert ledger.window_units >= 0


class StoreLoad(Struct, frozen=True):
    """A store with keys in it, and the operations of their callers."""

    store: Store
    callers: Sequence[Caller]

    def caller(self, number: int) -> Caller:
        return self.callers[number % len(self.callers)]

    async def look_up(self, number: int) -> None:
        assert await self.store.caller(f"hash {number % len(self.callers)}")

    async def reserve(self, number: int, units: int = 1) -> Reservation:
        made = await self.store.reserve(self.caller(number), units, no_limit, lease_s=LEASE_S)
        assert made
        return made

    async def settle(self, reservation: Reservation) -> None:
        await self.store.settle(reservation, [row()], emit_meter_event=True)

    async def use(self, number: int) -> None:
        await self.settle(await self.reserve(number))

    async def spend(self, number: int) -> None:
        await self.store.spend(self.caller(number), [row()], no_limit, emit_meter_event=True)


async def welcome(store: Store, keys: int = KEYS) -> StoreLoad:
    callers = []

    async def make(number: int) -> None:
        sha256 = f"hash {number}"
        if not await store.caller(sha256):  # else a try without an answer was committed
            account = await store.create_account(f"{number}@customer.test", "scale")
            await store.create_key(
                account.id, "standard", None, sha256=sha256, prefix="sk_live_benc", keys_max=None
            )
        caller = await store.caller(sha256)
        assert caller
        callers.append(caller)

    for number in range(keys):
        await retry(make, number)
    return StoreLoad(store, callers)


@asynccontextmanager
async def open_customers(url: str) -> AsyncIterator[StoreLoad]:
    async with open_store(url, secret_key=SECRET) as store:
        yield await welcome(store)
