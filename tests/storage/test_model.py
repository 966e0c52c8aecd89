"""SQLite does whatever memory does: any sequence of deeds, found by hypothesis.

Memory is the model. Both live in a trio thread; a rule is told to both, and what
they answer must be the same but for the identities that each makes up.
"""

import queue
import shutil
import tempfile
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import trio
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from storage import open_store
from storage.records import Account, Answered, Caller, Key, Reservation
from storage.store import (
    IdempotencyInProgress,
    IdempotencyKeyReused,
    KeyLimitReached,
    Store,
)
from tests.storage.moments import SECRET, Clock, granted, row

Both = tuple[Any, Any]  # memory's and SQLite's
TOLD = (IdempotencyInProgress, IdempotencyKeyReused, KeyLimitReached, ValueError)
MEMORY_DISK = Path("/dev/shm")  # answers are compared here, not durability
STARTS = datetime.fromisoformat("2025-01-31T23:58:00+00:00")
RETENTION: Any = {"free": 7, "builder": 90, "scale": 90}
TIERS = st.sampled_from(["free", "builder", "scale"])
STEPS_S = st.sampled_from([0, 0.000_001, 1, 29.999_999, 30, 59.999_999, 60, 3_600, 86_400, 864_000])


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
    if isinstance(value, list):
        return [nameless(item) for item in value]
    return value


class Portal:
    """The two stores in a thread of their own, for rules that are no coroutines."""

    def __init__(self, clock: Clock, path: Path) -> None:
        self._ready: queue.Queue[Any] = queue.Queue()
        self._thread = threading.Thread(target=trio.run, args=(self._keep_open, clock, path))
        self._thread.start()
        self.stores, self._token, self._leave = self._ready.get()

    async def _keep_open(self, clock: Clock, path: Path) -> None:
        leave = trio.Event()
        async with (
            open_store("memory:", secret_key=None, now=clock) as memory,
            open_store(path, secret_key=SECRET, now=clock) as sqlite,
        ):
            self._ready.put(((memory, sqlite), trio.lowlevel.current_trio_token(), leave))
            await leave.wait()

    def run(self, deed: Callable[[Store], Awaitable[Any]], store: Store) -> Any:
        try:
            return trio.from_thread.run(deed, store, trio_token=self._token)
        except TOLD as told:
            return type(told)

    def close(self) -> None:
        trio.from_thread.run_sync(self._leave.set, trio_token=self._token)
        self._thread.join()


class TwoStores(RuleBasedStateMachine):
    accounts = Bundle("accounts")
    callers = Bundle("callers")
    reservations = Bundle("reservations")

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock(STARTS)
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY_DISK if MEMORY_DISK.exists() else None))
        self.portal = Portal(self.clock, self.folder / "mailprobe.db")
        self.hashes: list[str] = []
        self.known: list[Both] = []

    def teardown(self) -> None:
        self.portal.close()
        shutil.rmtree(self.folder)

    def both(self, deed: Callable[..., Awaitable[Any]], *each: Both) -> Both:
        """Tell both, each with its own of what is handed in; they must answer alike."""
        told = [
            self.portal.run(lambda store, n=n: deed(store, *(pair[n] for pair in each)), store)
            for n, store in enumerate(self.portal.stores)
        ]
        assert nameless(told[0]) == nameless(told[1])
        return told[0], told[1]

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

    @initialize(target=callers, tier=TIERS)
    def first(self, tier: Any) -> Both:
        account = self.both(lambda store: store.create_account("ann@shop.test", tier))
        caller = self.make_caller(account, "standard", None)
        assert caller
        self.known.append(caller)
        return caller

    @rule(target=accounts, tier=TIERS)
    def create_account(self, tier: Any) -> Both:
        return self.both(lambda store: store.create_account("bob@shop.test", tier))

    @rule(
        target=callers,
        account=accounts,
        kind=st.sampled_from(["standard", "provisioning"]),
        keys_max=st.sampled_from([None, 1, 2]),
    )
    def create_key(self, account: Both, kind: Any, keys_max: int | None) -> Both:
        made = self.make_caller(account, kind, keys_max)
        if made is None:
            return self.known[0]
        self.known.append(made)
        return made

    @rule(caller=callers)
    def revoke(self, caller: Both) -> None:
        self.both(lambda store, one: store.revoke_key(one.account.id, one.key.id), caller)

    @rule(caller=callers, start=st.integers(-40, 5), length=st.integers(1, 40), tier=TIERS)
    def subscribe(self, caller: Both, start: int, length: int, tier: Any) -> None:
        begins = self.clock() + timedelta(days=start)
        self.both(
            lambda store, one: store.change_account(
                one.account.id,
                tier=tier,
                current_period_start=begins,
                current_period_end=begins + timedelta(days=length),
            ),
            caller,
        )

    @rule(caller=callers)
    def unsubscribe(self, caller: Both) -> None:
        gone = {"current_period_start": None, "current_period_end": None}
        self.both(lambda store, one: store.change_account(one.account.id, **gone), caller)

    @rule(seconds=STEPS_S)
    def wait(self, seconds: float) -> None:
        self.clock.pass_(seconds)

    @rule(
        target=reservations,
        caller=callers,
        units=st.integers(1, 5),
        lease_s=st.sampled_from([1, 30, 60, 100_000]),
    )
    def reserve(self, caller: Both, units: int, lease_s: float) -> Both:
        return self.both(
            lambda store, one: store.reserve(one, units, granted, lease_s=lease_s), caller
        )

    @rule(caller=callers, units=st.integers(1, 5))
    def ask_at_a_limit(self, caller: Both, units: int) -> None:
        def weigh(ledger: Any) -> Any:
            return ledger if ledger.window_units + units > 8 else None

        self.both(lambda store, one: store.reserve(one, units, weigh, lease_s=30), caller)

    @rule(reservation=reservations, lease_s=st.sampled_from([1, 60]))
    def extend(self, reservation: Both, lease_s: float) -> None:
        self.both(lambda store, one: store.extend(one, lease_s=lease_s), reservation)

    @rule(
        reservation=reservations,
        back_s=st.lists(st.sampled_from([0, 1, 200, 86_400, 8_640_000]), max_size=5),
        billable=st.booleans(),
    )
    def settle(self, reservation: Both, back_s: list[int], billable: bool) -> None:
        rows = [row(self.clock() - timedelta(seconds=s), billable=billable) for s in back_s]
        self.both(lambda store, one: store.settle(one, rows), reservation)

    @rule(
        caller=callers,
        why=st.sampled_from([None, "rate_limit_exceeded"]),
        count=st.sampled_from([1, 15]),
    )
    def refuse(self, caller: Both, why: str | None, count: int) -> None:
        refusal = row(self.clock(), failed_check=why, units=0, billable=False)
        for _ in range(count):
            self.both(lambda store, one: store.log_refusal(one, refusal), caller)

    @rule(caller=callers, key=st.sampled_from("kl"), body=st.sampled_from("bc"))
    def begin_once(self, caller: Both, key: str, body: str) -> None:
        self.both(
            lambda store, one: store.begin_once(
                one.account.id, key, body, keep_s=86_400, lease_s=60
            ),
            caller,
        )

    @rule(
        caller=callers,
        key=st.sampled_from("kl"),
        answer=st.none()
        | st.builds(
            Answered,
            st.integers(200, 599),
            st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=2).map(tuple),
            st.binary(max_size=20),
        ),
    )
    def finish_once(self, caller: Both, key: str, answer: Answered | None) -> None:
        self.both(lambda store, one: store.finish_once(one.account.id, key, answer), caller)

    @rule()
    def tidy(self) -> None:
        self.both(lambda store: store.tidy(RETENTION))

    @invariant()
    def everything_that_can_be_seen_is_the_same(self) -> None:
        self.both(look, ([one for one, _ in self.known], [other for _, other in self.known]))
        for sha256 in self.hashes:
            self.both(lambda store, sha256=sha256: store.caller(sha256))


async def look(store: Store, callers: list[Caller]) -> list[Any]:
    seen: list[Any] = [await store.accounts()]
    for caller in callers:
        account_id = caller.account.id
        seen += [
            await store.account(account_id),
            await store.keys(account_id),
            await store.ledger(caller),
            await store.days(account_id, date.min, date.max),
            sorted(await store.usage(account_id, limit=10_000), key=repr),
        ]
    return seen


def test_sqlite_answers_as_memory_does():
    run_state_machine_as_test(
        TwoStores,
        settings=settings(
            max_examples=40,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
