"""The outbox worker's invariants, for any queue: several workers share a store, and anything fails.

An item is attempted by one living worker at a time, its claim is extended while it is held,
it is tried again by the plan, it is never lost, and it is not done twice by two workers that
both live. The store is a memory store or an SQLite file, time is virtual, and faults come
from a seed: the store is away or its answer is lost, a worker is killed between two steps,
an attempt lasts longer than a lease, an item meets a bug.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import pairwise
from math import inf
from typing import Any

import pytest
import trio
import trio.lowlevel
from msgspec.structs import replace

from mailprobe.api.outbox.backoff import Backoff, growing
from mailprobe.api.outbox.worker import (
    AttemptResult,
    Batch,
    Pace,
    Worker,
    WorkQueue,
    open_workers,
)
from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.records import OutboxMessage
from tests.api.service_fixture import Clock
from tests.api.stores import open_test_store
from tests.seeds import seeds

LEASE_S = 15.0
PACE = Pace(
    3, lease_s=LEASE_S, extend_every_s=4.0, poll_s=5.0, store_pause_s=1.0, drain_s=4.0
)  # fmt: skip
PLAN = Backoff((2.0, 10.0, 40.0), spread=(0.8, 1.2))
POISON = "poison"
POISON_CLAIMS_MAX = 4
FAULTS_S = 150.0  # after this nothing fails any more, and everything must come to its end
WORKERS = 3
ITEMS = 12
LOOKED_AT_EVERY_S = 10.0  # each look reads all items: every second, looks were a third of a run


@dataclass(frozen=True)
class Faults:
    """What may go wrong in a run."""

    kills: bool = False
    outages: bool = False
    lost_answers: float = 0.0  # the share of calls that take effect and then fail


class Process:
    """A process with one worker, which is killed after some steps: none of its tasks goes on."""

    def __init__(self, world: "World", steps: float) -> None:
        self.world = world
        self.steps = steps
        self.killed = trio.Event()
        self.attempting: Counter[str] = Counter()  # by account
        self.missed: Counter[str] = Counter()  # extensions that failed, by item

    async def step(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            self.killed.set()
        if self.killed.is_set():
            await trio.sleep_forever()

    async def call(self, do: Callable[[], Awaitable[Any]]) -> Any:
        await self.step()
        value = await self.world.call(do)
        await self.step()
        return value

    def queue(self, pace: Pace, *, ordered: bool) -> WorkQueue[OutboxMessage]:
        return WorkQueue(
            "items",
            pace,
            claim=self.claim,
            extend=self.extend,
            attempt=self.attempt,
            name_of=lambda message: message.name,
            ordered_by=(lambda message: message.account_id) if ordered else None,
            after_bug=self.after_bug,
        )

    async def claim(self, limit: int) -> Sequence[OutboxMessage]:
        assert limit > 0
        store = self.world.store
        claimed: list[OutboxMessage] = await self.call(
            lambda: store.claim_messages("alert", limit=limit, lease_s=LEASE_S)
        )
        return claimed

    async def extend(self, message: OutboxMessage) -> bool:
        store = self.world.store
        try:
            held: bool = await self.call(lambda: store.extend_message(message, lease_s=LEASE_S))
        except StoreUnavailable:
            self.missed[message.name] += 1
            raise
        return held

    async def attempt(self, message: OutboxMessage, _: Batch[OutboxMessage]) -> AttemptResult:
        world, name = self.world, message.name
        await self.step()
        world.begin(self, message)
        self.attempting[message.account_id] += 1
        world.most = max(world.most, self.attempting.total())
        world.most_of_account = max(world.most_of_account, *self.attempting.values())
        try:
            await trio.sleep(world.takes_s[name])
            await self.step()
            if name == POISON:
                raise ZeroDivisionError
            if message.tries < world.failures[name]:
                return self.failed(message)
            world.done[name] = self
            return AttemptResult(partial(self.record, message, sent=True, due_at=None))
        finally:
            self.attempting[message.account_id] -= 1
            if world.attempting.get(name) is self:
                del world.attempting[name]

    def failed(self, message: OutboxMessage) -> AttemptResult:
        pause_s = PLAN.pause_s(message.tries + 1, chance=self.world.rng.random())
        assert pause_s is not None
        due_at = self.world.clock() + timedelta(seconds=pause_s)
        record = partial(self.record, message, sent=False, due_at=due_at)
        return AttemptResult(record, retry_in_s=pause_s)

    async def record(self, message: OutboxMessage, *, sent: bool, due_at: Any) -> None:
        store = self.world.store
        if await self.call(lambda: store.message_attempted(message, sent=sent, due_at=due_at)):
            self.world.recorded(message.name, due_at)

    def after_bug(self, message: OutboxMessage) -> AttemptResult | None:
        if message.fence < POISON_CLAIMS_MAX:
            return None
        return AttemptResult(partial(self.record, message, sent=False, due_at=None))


class World:
    """A store shared by processes, the faults to come, and what the processes have done."""

    def __init__(self, store: Any, clock: Clock, faults: Faults, seed: int) -> None:
        self.store = store
        self.clock = clock
        self.faults = faults
        self.rng = random.Random(seed)
        self.away = False
        self.takes_s: dict[str, float] = {}
        self.failures: dict[str, int] = {}  # before the item succeeds
        self.attempts: defaultdict[str, list[float]] = defaultdict(list)
        self.attempting: dict[str, Process] = {}
        self.done: dict[str, Process] = {}  # who succeeded last
        self.over: set[str] = set()  # the store has recorded the end
        self.due: dict[str, Any] = {}
        self.most = self.most_of_account = 0

    async def call(self, do: Callable[[], Awaitable[Any]]) -> Any:
        await trio.sleep(0.001)
        if self.away:
            raise StoreUnavailable("away")
        value = await do()
        if self.rng.random() < self.faults.lost_answers:
            raise StoreUnavailable("its answer was lost")
        return value

    def begin(self, process: Process, message: OutboxMessage) -> None:
        name = message.name
        other = self.attempting.get(name)
        assert other is None or other.killed.is_set(), "two living workers attempt it"
        assert name not in self.over, "it is attempted after its end"
        if name in self.due:
            assert self.clock() >= self.due[name] - timedelta(milliseconds=1), "before its time"
        earlier = self.done.get(name)
        if earlier is not None and not earlier.killed.is_set():
            assert earlier.missed[name], (
                "done twice, and nothing kept its lease from being extended"
            )
        self.attempting[name] = process
        self.attempts[name].append(trio.current_time())

    def recorded(self, name: str, due_at: Any) -> None:
        self.due[name] = due_at
        if due_at is None:
            self.over.add(name)

    async def fill(self) -> None:
        names = [POISON, *map(str, range(1, ITEMS))]
        accounts = [(await self.store.create_account("a@b.test", "free")).id for _ in range(3)]
        for number, name in enumerate(names):
            self.takes_s[name] = self.rng.choice([0.01, 0.5, 1.5 * LEASE_S, 3 * LEASE_S])
            self.failures[name] = self.rng.randrange(4)
            account = accounts[number % len(accounts)]
            await self.store.enqueue_message("alert", account, name, b"", due_at=self.clock())

    async def live(self, pace: Pace, *, ordered: bool) -> None:
        """One process after another, each as long as it lives."""
        while True:
            steps = self.rng.randint(1, 120) if self.faults.kills else inf
            if trio.current_time() > FAULTS_S:
                steps = inf
            process = Process(self, steps)
            worker = Worker(process.queue(pace, ordered=ordered), chance=self.rng.random)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(worker.run)
                await process.killed.wait()
                nursery.cancel_scope.cancel()
            await trio.sleep(self.rng.uniform(0, 5))

    async def fail_now_and_then(self) -> None:
        while self.faults.outages and trio.current_time() < FAULTS_S:
            await trio.sleep(self.rng.expovariate(1 / 15))
            self.away = True
            await trio.sleep(self.rng.choice([0.5, 3.0, LEASE_S, 2 * LEASE_S]))
            self.away = False

    async def all_over(self) -> list[OutboxMessage]:
        messages: list[OutboxMessage] = []
        with trio.fail_after(3000):
            while not messages or any(message.due_at for message in messages):
                await trio.sleep(LOOKED_AT_EVERY_S)
                messages = await self.store.messages("alert", limit=100)
        return messages


FAULTS = {
    "none": Faults(),
    "kills": Faults(kills=True),
    "outages": Faults(outages=True),
    "lost answers": Faults(lost_answers=0.1),
    "all": Faults(kills=True, outages=True, lost_answers=0.05),
}


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(
    ("kind", "name", "seed"),
    [("memory", name, seed) for name in FAULTS for seed in range(seeds(10))]
    + [("sqlite", name, 0) for name in FAULTS],
)
async def test_each_item_is_done_by_one_worker_at_a_time_whatever_fails(
    autojump_clock, faults, kind: str, name: str, seed: int, ordered: bool
):
    clock = Clock()
    async with open_test_store(clock, kind) as store:
        world = World(store, clock, FAULTS[name], seed)
        await world.fill()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.fail_now_and_then)
            for _ in range(WORKERS):
                nursery.start_soon(partial(world.live, PACE, ordered=ordered))
            messages = await world.all_over()
            nursery.cancel_scope.cancel()
    assert len(messages) == ITEMS
    assert {message.name for message in messages if not message.sent_at} <= {POISON}
    assert {message.name for message in messages if message.sent_at} == {*world.failures} - {POISON}
    assert world.most <= PACE.at_once
    assert world.most_of_account == 1 or not ordered
    assert all("ZeroDivisionError" in fault for fault in faults)
    if name == "none":  # also those that last three leases
        attempts = {item: len(times) for item, times in world.attempts.items()}
        planned = {item: failures + 1 for item, failures in world.failures.items()}
        assert attempts == {**planned, POISON: POISON_CLAIMS_MAX}


@pytest.mark.parametrize("steps", range(14))
async def test_a_worker_that_is_killed_between_any_two_steps_loses_nothing(
    autojump_clock, steps: int
):
    clock = Clock()
    async with open_test_store(clock, "memory") as store:
        world = World(store, clock, Faults(), 0)
        account = await store.create_account("a@b.test", "free")
        await store.enqueue_message("alert", account.id, "n", b"", due_at=clock())
        world.takes_s, world.failures = {"n": 6.0}, {"n": 1}  # extended once
        first, second = Process(world, steps), Process(world, inf)
        async with trio.open_nursery() as nursery:
            for process in (first, second):
                worker = Worker(process.queue(PACE, ordered=False), chance=world.rng.random)
                nursery.start_soon(worker.run)
            await trio.sleep(60)
            nursery.cancel_scope.cancel()
        [message] = await store.messages("alert", limit=10)
    assert message.sent_at
    assert first.killed.is_set() or steps > 8
    assert len(world.attempts["n"]) <= 3


# -- one worker ---------------------------------------------------------------------------------


class Source:
    """A queue without a store: gives out what a test puts in, and fails as it says."""

    def __init__(self) -> None:
        self.due: list[str] = []
        self.claims: list[float] = []
        self.began: list[tuple[float, str]] = []
        self.ended: list[str] = []
        self.extended: list[str] = []
        self.recorded: list[str] = []
        self.failures: list[Any] = []
        self.takes_s = 0.0
        self.retry_in_s: float | None = None
        self.away: set[str] = set()
        self.held = True

    async def claim(self, limit: int) -> list[str]:
        await trio.lowlevel.checkpoint()
        self.claims.append(trio.current_time())
        self.check("claim")
        claimed, self.due = self.due[:limit], self.due[limit:]
        return claimed

    async def extend(self, item: str) -> bool:
        await trio.lowlevel.checkpoint()
        self.extended.append(item)
        self.check("extend")
        return self.held

    async def attempt(self, item: str, _: Batch[str]) -> AttemptResult:
        self.began.append((trio.current_time(), item))
        await trio.sleep(self.takes_s)
        self.check("attempt")
        self.ended.append(item)
        failure = self.failures.pop(0) if self.failures else None
        return AttemptResult(partial(self.record, item), self.retry_in_s, failure)

    async def record(self, item: str) -> None:
        await trio.lowlevel.checkpoint()
        self.check("record")
        self.recorded.append(item)

    def check(self, call: str) -> None:
        if call in self.away:
            raise StoreUnavailable("away")

    def worker(self, pace: Pace = PACE, **more: Any) -> Worker[str]:
        queue = WorkQueue(
            "items", pace, claim=self.claim, extend=self.extend, attempt=self.attempt,
            name_of=str, **more,
        )  # fmt: skip
        return Worker(queue, chance=lambda: 1.0)


@dataclass
class Refused:
    why: str = "no"
    general: bool = True
    retry_after_s: float = 0.0


async def test_it_claims_when_it_is_woken_and_polls_in_between(autojump_clock):
    source = Source()
    worker = source.worker()
    async with open_workers(worker):
        await trio.sleep(7)
        source.due = ["a"]
        worker.wake()
        await trio.sleep(0.001)
        assert source.recorded == ["a"]
    assert source.claims[:3] == [0, 5, 7]


async def test_an_unavailable_store_is_called_once_a_pause(autojump_clock, caplog):
    source = Source()
    source.due, source.away = ["a"], {"claim"}
    worker = source.worker()
    async with open_workers(worker):
        await trio.sleep(2.5)
        worker.wake()
        await trio.lowlevel.checkpoint()
        assert source.claims == [0, 1, 2]
        source.away = set()
        await trio.sleep(1)
        assert source.recorded == ["a"]
    assert (
        f"store unavailable: queue=items retry_in_s={PACE.store_pause_s:g} error=away"
        in caplog.text
    )


async def test_a_result_is_recorded_before_anything_else_is_claimed(autojump_clock):
    source = Source()
    source.due, source.away = ["a"], {"record"}
    worker = source.worker()
    async with open_workers(worker):
        await trio.sleep(0.5)
        source.due = ["b"]
        worker.wake()
        await trio.sleep(40)
        assert source.began == [(0, "a")]
        source.away = set()
        await trio.sleep(1)
    assert source.recorded == ["a", "b"]


async def test_a_failed_item_is_claimed_when_it_is_due_again(autojump_clock):
    source = Source()
    source.due, source.retry_in_s = ["a"], 2.5
    async with open_workers(source.worker()):
        await trio.sleep(4)
    assert 2.5 in source.claims


@pytest.mark.parametrize(("trouble", "ends_s"), [("lost", PACE.extend_every_s), ("away", LEASE_S)])
async def test_an_attempt_ends_with_its_lease(autojump_clock, caplog, trouble: str, ends_s: float):
    """Another worker has the claim, or the store cannot be asked to extend it."""
    source = Source()
    source.due, source.takes_s = ["a"], 100.0
    source.away, source.held = ({"extend"}, True) if trouble == "away" else (set(), False)
    async with open_workers(source.worker()):
        await trio.sleep(ends_s - 0.5)
        assert "its lease has ended" not in caplog.text
        await trio.sleep(1)
        assert "its lease has ended" in caplog.text
        await trio.sleep(200)
    assert source.ended == source.recorded == []


async def test_an_item_is_left_to_its_lease_if_its_attempt_cannot_be_recorded(autojump_clock):
    source = Source()
    source.due, source.away = ["a"], {"attempt"}
    async with open_workers(source.worker()):
        await trio.sleep(60)
    assert [item for _, item in source.began] == ["a"]
    assert source.recorded == []


async def test_where_everything_is_refused_it_rests_longer_each_time(autojump_clock):
    source = Source()
    source.failures = [Refused() for _ in range(5)] + [Refused(retry_after_s=50.0)]
    rule = Backoff(growing(2.0, 10.0), retry_after_s_max=60.0)
    worker = source.worker(backoff=rule, ordered_by=str)
    async with open_workers(worker):
        for _ in range(900):
            source.due = source.due or ["a"]
            worker.wake()
            await trio.sleep(0.1)
    pauses = [round(after - before) for (before, _), (after, _) in pairwise(source.began)]
    assert pauses[:6] == [2, 4, 8, 10, 10, 50]
    assert set(pauses[6:]) == {0}


async def test_a_batch_in_order_is_claimed_when_the_last_one_has_ended(autojump_clock):
    source = Source()
    source.due, source.takes_s = ["a1", "b1", "a2", "a3"], 1.0
    worker = source.worker(ordered_by=lambda item: item[0])
    async with open_workers(worker):
        await trio.sleep(10)
    assert sorted(source.began) == [(0, "a1"), (0, "b1"), (1, "a2"), (2, "a3")]


async def test_leases_are_extended_for_items_that_wait_and_not_for_finished_ones(autojump_clock):
    source = Source()
    source.due, source.takes_s = ["a1", "a2"], 5.0
    async with open_workers(source.worker(ordered_by=lambda item: item[0])):
        await trio.sleep(13)
    assert sorted(source.extended) == ["a1", "a2", "a2"]


@pytest.mark.parametrize(("takes_s", "recorded"), [(3.0, ["a"]), (9.0, [])])
async def test_a_stop_waits_for_what_is_held_as_long_as_it_may(autojump_clock, takes_s, recorded):
    source = Source()
    source.due, source.takes_s = ["a"], takes_s
    async with open_workers(source.worker()):
        await trio.sleep(1)
    assert trio.current_time() == min(takes_s, 1 + PACE.drain_s)
    assert source.recorded == recorded


@pytest.mark.parametrize("shielded", [False, True])
async def test_a_shielded_worker_finishes_even_if_its_block_is_cancelled(
    autojump_clock, shielded: bool
):
    source = Source()
    source.due, source.takes_s = ["a"], 3.0
    with trio.move_on_after(1):
        async with open_workers(source.worker(replace(PACE, shielded=shielded))):
            await trio.sleep_forever()
    assert source.recorded == (["a"] if shielded else [])
    assert trio.current_time() == (3 if shielded else 1)


async def test_a_bug_in_a_claim_or_a_record_stops_nothing(autojump_clock, faults, monkeypatch):
    async def broken(*_: Any) -> Any:
        raise ZeroDivisionError

    source = Source()
    source.due = ["a"]
    with monkeypatch.context() as patched:
        patched.setattr(source, "record", broken)
        worker = source.worker()
        async with open_workers(worker):
            await trio.sleep(1)
            patched.undo()
            source.due = ["b"]
            await trio.sleep(10)
    source.due = ["c"]
    claim, claims = source.claim, 0

    async def claim_after_a_bug(limit: int) -> Any:
        nonlocal claims
        claims += 1
        return await (claim if claims > 1 else broken)(limit)

    monkeypatch.setattr(source, "claim", claim_after_a_bug)
    async with open_workers(source.worker()):
        await trio.sleep(11)
    assert source.recorded == ["b", "c"]
    assert len(faults) == 2
