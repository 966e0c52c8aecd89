"""The model and a store side by side: each call is made on both.

They live in a trio thread. What they answer must be the same but for the
identities that each makes up.
"""

import queue
import threading
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import Any

import trio
from msgspec.structs import replace

from mailprobe.storage import open_store
from mailprobe.storage.contract import (
    MESSAGES_KEPT_MAX,
    IdempotencyInProgress,
    IdempotencyKeyReused,
    KeyLimitReached,
)
from mailprobe.storage.records import (
    Account,
    Caller,
    Claim,
    IdempotencyRecord,
    Job,
    Key,
    OutboxMessage,
    Reservation,
)
from mailprobe.storage.store import Store
from tests.storage.fixed_clock import SECRET, Clock
from tests.storage.ledger.store import ModelStore
from tests.storage.stores import STORES, place_for

MODELLED = [kind for kind in STORES if kind != "sqlite"]  # its transactions are those of memory
Both = tuple[Any, Any]  # the model's and the store's
REFUSALS = (IdempotencyInProgress, IdempotencyKeyReused, KeyLimitReached, ValueError)
NO_FOLDER = Path()  # only a store in a file needs one
STARTS = datetime.fromisoformat("2025-01-31T23:58:00+00:00")


def nameless(value: Any) -> Any:
    """The value without the identities that a store makes up."""
    if isinstance(value, Account):
        return replace(value, id="")
    if isinstance(value, Key):
        return replace(value, id="", account_id="")
    if isinstance(value, Caller):
        return Caller(nameless(value.account), nameless(value.key))
    if isinstance(value, Reservation):
        return replace(value, id="", caller=nameless(value.caller))
    if isinstance(value, Job):
        return replace(value, account_id="")
    if isinstance(value, Claim):
        return replace(value, job=nameless(value.job), caller=nameless(value.caller))
    if isinstance(value, IdempotencyRecord):
        return replace(value, account_id="")
    if isinstance(value, OutboxMessage):
        return replace(value, id="", account_id="")
    if isinstance(value, list):
        return [nameless(item) for item in value]
    return value


class Portal:
    """The two stores in a thread of their own, for rules that are no coroutines."""

    def __init__(self, clock: Clock, path: str) -> None:
        self._ready: queue.Queue[Any] = queue.Queue()
        self._thread = threading.Thread(target=trio.run, args=(self._keep_open, clock, path))
        self._thread.start()
        self.stores, self._token, self._leave = self._ready.get()

    async def _keep_open(self, clock: Clock, path: str) -> None:
        leave = trio.Event()
        async with (
            open_store(path, secret_key=SECRET, now=clock) as store,
        ):
            self._ready.put(((ModelStore(clock), store), trio.lowlevel.current_trio_token(), leave))
            await leave.wait()

    def run(self, write: Callable[[Store], Awaitable[Any]], store: Store) -> Any:
        try:
            return trio.from_thread.run(write, store, trio_token=self._token)
        except REFUSALS as reported:
            return type(reported)

    def close(self) -> None:
        trio.from_thread.run_sync(self._leave.set, trio_token=self._token)
        self._thread.join()


class TwoStores:
    """Two stores on one clock, and the callers that are known to both."""

    kind = "memory"  # of the store

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock(STARTS)
        self.place = ExitStack()
        self.portal = Portal(self.clock, self.place.enter_context(place_for(self.kind, NO_FOLDER)))
        self.hashes: list[str] = []
        self.known: list[Both] = []

    def close(self) -> None:
        self.portal.close()
        self.place.close()

    def both(self, write: Callable[..., Awaitable[Any]], *each: Both) -> Both:
        """Tell both, each with its own of what is handed in; they must answer alike."""

        def write_each(n: int, store: Any) -> Awaitable[Any]:
            return write(store, *(pair[n] for pair in each))

        reported = [
            self.portal.run(partial(write_each, n), store)
            for n, store in enumerate(self.portal.stores)
        ]
        assert nameless(reported[0]) == nameless(reported[1])
        return reported[0], reported[1]

    def make_caller(self, account: Both, kind: Any, keys_max: int | None) -> Both | None:
        sha256 = f"hash {len(self.hashes)}"
        made = self.both(
            lambda store, account: store.create_key(
                account.id, kind, None, sha256=sha256, prefix="sk_live_abcd", keys_max=keys_max
            ),
            account,
        )
        if not isinstance(made[0], Key):
            return None
        self.hashes.append(sha256)
        return self.both(lambda store: store.caller(sha256))

    def first_caller(self, tier: Any) -> Both:
        """The first of a new account."""
        account = self.both(lambda store: store.create_account("ann@shop.test", tier))
        caller = self.make_caller(account, "standard", None)
        assert caller
        self.known.append(caller)
        return caller

    def compare(self) -> None:
        """Everything that can be seen is the same."""
        self.both(observe, ([one for one, _ in self.known], [other for _, other in self.known]))
        for sha256 in self.hashes:
            self.both(lambda store, sha256=sha256: store.caller(sha256))


async def observe(store: Store, callers: list[Caller]) -> list[Any]:
    seen: list[Any] = [await store.accounts()]
    for caller in callers:
        account_id = caller.account.id
        seen += [
            await store.account(account_id),
            await store.keys(account_id),
            await store.ledger(caller),
            await store.days(account_id, date.min, date.max),
            sorted(await store.usage(account_id, limit=10_000), key=repr),
            await store.jobs(account_id=account_id, limit=2),
            await store.messages("meter", account_id=account_id, limit=2),
        ]
    jobs = await store.jobs(limit=100)
    seen += [jobs, *[await store.attempts(job.id) for job in jobs]]
    seen += [await store.messages(kind, limit=100) for kind in MESSAGES_KEPT_MAX]
    return seen
