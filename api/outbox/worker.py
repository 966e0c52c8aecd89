"""The outbox worker: claims due work from the store, does it, and records the results.

The store keeps jobs and messages until they are done, and every process runs a worker
for each queue of them: verifications, callbacks, alerts, the billing meter. A queue says
how to claim, what to do with an item, and how to record the result. The worker keeps
these rules for all of them:

- An item is done by one worker at a time: the worker extends the lease of each claim
  while it holds it, and stops an attempt whose lease ends.
- A result is recorded as often as it takes until the store accepts it; meanwhile the
  worker claims nothing, so that it does not repeat what it has done. The store ignores
  the result of a claim that another one has followed.
- What fails is tried again when its queue's back-off says so. An attempt that ends
  without a result (a bug, a killed process, an unavailable store) is repeated after
  its lease.
- A bug met in one item is logged and does not stop the others.

So nothing is lost, and delivery is at least once: an item is repeated only if a process
dies between the attempt and its record, or if the store is unavailable for longer than
a lease.
"""

import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from heapq import heappop, heappush
from math import inf
from typing import Any, Generic, Protocol, TypeVar

import trio
from msgspec import Struct, field

from mailprobe.engine.background import contained, log_fault, supervised
from mailprobe.storage.contract import StoreUnavailable

from .backoff import Backoff

log = logging.getLogger("mailprobe.outbox")

REMEMBERED_MAX = 10_000  # retries with a wake-up of their own; others wait for the next poll

T = TypeVar("T")


class Pace(Struct, frozen=True):
    """How much a worker does at a time, and how long it waits."""

    at_once: int  # items held at a time
    lease_s: float  # after a crash, another process may claim the item
    extend_every_s: float
    poll_s: float  # between polls for other processes' work
    store_pause_s: float  # while the store is unavailable
    drain_s: float  # a stop waits for unfinished items
    shielded: bool = False  # a stop waits even if the block that runs the worker is cancelled
    batch_s: float = inf  # after it, a batch is over: see Batch.is_over
    claim_every_s: float = 0.0  # from the end of a claim to the next one, at least


class AttemptFailure(Protocol):
    """What the worker must know of a failed attempt.

    `general` failures are not about one item: all others would fail too.
    """

    @property
    def why(self) -> str: ...
    @property
    def general(self) -> bool: ...
    @property
    def retry_after_s(self) -> float: ...


class AttemptResult(Struct, frozen=True):
    """The result of an attempt: how to record it, and when the item is due again (None: never)."""

    record: Callable[[], Awaitable[object]]  # one write; raises StoreUnavailable
    retry_in_s: float | None = None
    failure: AttemptFailure | None = None


class HeldClaim(Struct, Generic[T], eq=False):
    """An item that this worker holds, and the scopes that end with its lease and its result."""

    item: T
    attempt: trio.CancelScope
    extension: trio.CancelScope = field(default_factory=trio.CancelScope)
    has_ended: bool = False  # as `extend` said


class Batch(Struct, Generic[T]):
    """Items that were claimed together, and the failures among them so far."""

    claims: list[HeldClaim[T]]
    ends_at: float
    failures: list[AttemptFailure] = field(default_factory=list)

    @property
    def general_failure(self) -> AttemptFailure | None:
        """The failure that affects all items, with the longest Retry-After; else None."""
        general = [failure for failure in self.failures if failure.general]
        return max(general, key=lambda failure: failure.retry_after_s, default=None)

    @property
    def is_over(self) -> bool:
        """Should no further item be attempted: would it fail too, or delay the next batch?"""
        return self.general_failure is not None or trio.current_time() > self.ends_at


class WorkQueue(Struct, Generic[T], frozen=True):
    """What a worker works off.

    Items with the same `ordered_by` are attempted one after another, in the order of the
    claim; the next batch is then claimed only when this one has ended. `after_bug` returns
    the result of an item that failed because of a bug, or None to repeat it after its lease.
    `backoff` is the worker's own, after a batch with a general failure. With `logs_ended` the
    queue itself logs that claims have ended.
    """

    name: str  # plural, for the log
    pace: Pace
    claim: Callable[[int], Awaitable[Sequence[T]]]  # at most so many
    extend: Callable[[T], Awaitable[bool]]  # False if the claim has ended
    attempt: Callable[[T, Batch[T]], Awaitable[AttemptResult]]
    name_of: Callable[[T], str]  # for the log
    ordered_by: Callable[[T], str] | None = None
    after_bug: Callable[[T], AttemptResult | None] | None = None
    backoff: Backoff | None = None
    logs_ended: bool = False


class Worker(Generic[T]):
    """Works off one queue; run by `open_workers()`. `chance` returns numbers from 0 to 1."""

    def __init__(self, queue: WorkQueue[T], *, chance: Callable[[], float]) -> None:
        self._queue = queue
        self._pace = queue.pace
        self._chance = chance
        self._wake_event = trio.Event()
        self._dues: list[float] = []  # a heap of this process's retry times, trio clock
        self._held: set[HeldClaim[T]] = set()
        self._unrecorded: set[HeldClaim[T]] = set()  # their results wait for the store
        self._rests_until = -inf
        self._refused = 0  # batches in succession that ended with a general failure
        self._stopping = False
        self._cut = 0  # items whose attempt the end of the drain time cancelled
        self._life = trio.CancelScope()

    async def run(self) -> None:
        """Claim and work off until `stop()`; then finish what is held, within the drain time."""
        if self._stopping:
            return
        with trio.CancelScope(shield=self._pace.shielded) as self._life:
            async with trio.open_nursery() as nursery:
                while not self._stopping:
                    wake_event = self._wake_event
                    if self._capacity() > 0:
                        batch = await self.claim()
                        if batch.claims:
                            nursery.start_soon(contained, self.work_off, batch)
                    earliest = trio.current_time() + self._pace.claim_every_s
                    with trio.move_on_at(self._next_claim_at()):
                        await wake_event.wait()
                    if not self._stopping:
                        await trio.sleep_until(earliest)
        if self._cut:
            log.warning(
                "work cut off: queue=%s items=%d drain_s=%g; each is claimed again after its lease",
                self._queue.name, self._cut, self._pace.drain_s,
            )  # fmt: skip

    def wake(self) -> None:
        """Something may be due: an item was submitted, or capacity was freed."""
        self._wake_event.set()
        self._wake_event = trio.Event()

    def held(self) -> list[T]:
        """Return the items that it has claimed and not finished."""
        return [each.item for each in self._held]

    def stop(self) -> None:
        """Claim nothing more; cancel what is unfinished after the drain time."""
        if not self._stopping:
            self._stopping = True
            self._life.deadline = trio.current_time() + self._pace.drain_s
            self.wake()

    def _capacity(self) -> int:
        if self._unrecorded or trio.current_time() < self._rests_until:
            return 0
        if self._queue.ordered_by is not None and self._held:
            return 0
        return self._pace.at_once - len(self._held)

    def _next_claim_at(self) -> float:
        now = trio.current_time()
        if now < self._rests_until:
            return self._rests_until
        while self._dues and self._dues[0] <= now:
            heappop(self._dues)
        return min([now + self._pace.poll_s, *self._dues[:1]])

    # a batch

    async def claim(self) -> Batch[T]:
        """Claim what is due; an empty batch if the store is unavailable. Raises nothing."""
        asked_at = trio.current_time()
        items: Sequence[T] = ()
        try:
            items = await self._queue.claim(self._capacity())
        except StoreUnavailable as error:
            log.warning(
                "store unavailable: queue=%s retry_in_s=%g error=%s",
                self._queue.name, self._pace.store_pause_s, error,
            )  # fmt: skip
            self._rests_until = trio.current_time() + self._pace.store_pause_s
        except Exception:  # a row that cannot be read; the other claims end with their lease
            log_fault(self._queue.claim)
        if not items:
            self._refused = 0
        lease_until = asked_at + self._pace.lease_s  # not later than the store's
        claims = [HeldClaim(item, trio.CancelScope(deadline=lease_until)) for item in items]
        self._held.update(claims)
        return Batch(claims, trio.current_time() + self._pace.batch_s)

    async def work_off(self, batch: Batch[T]) -> None:
        """Attempt and record every item of the batch."""
        groups: defaultdict[object, list[HeldClaim[T]]] = defaultdict(list)
        for held in batch.claims:
            order = self._queue.ordered_by
            groups[held if order is None else order(held.item)].append(held)
        try:
            async with trio.open_nursery() as nursery:
                for group in groups.values():
                    nursery.start_soon(contained, self._work_in_order, group, batch)
            self._rest_after(batch)
        finally:
            self._held.difference_update(batch.claims)
            self.wake()

    def _rest_after(self, batch: Batch[T]) -> None:
        """Back off while the other side refuses everything."""
        if batch.failures:
            log.warning(
                "batch failed: queue=%s failed=%d of=%d error=%s",
                self._queue.name, len(batch.failures), len(batch.claims), batch.failures[0].why,
            )  # fmt: skip
        failure = batch.general_failure
        if failure is None or self._queue.backoff is None:
            self._refused = 0
            return
        self._refused += 1
        rest_s = self._queue.backoff.pause_s(
            self._refused, chance=self._chance(), retry_after_s=failure.retry_after_s
        )
        self._rests_until = trio.current_time() + (rest_s or 0.0)

    async def _work_in_order(self, group: Sequence[HeldClaim[T]], batch: Batch[T]) -> None:
        """The items of a group wait for each other, so all their leases are extended meanwhile."""
        async with trio.open_nursery() as nursery:
            for held in group:
                nursery.start_soon(contained, self._extend_lease, held)
            for held in group:
                await contained(self._work, held, batch)
            nursery.cancel_scope.cancel()

    # an item

    async def _work(self, held: HeldClaim[T], batch: Batch[T]) -> None:
        try:
            result = await self._attempt(held, batch)
            if result is None:
                return
            if result.failure is not None:
                batch.failures.append(result.failure)
            if result.retry_in_s is not None and len(self._dues) < REMEMBERED_MAX:
                heappush(self._dues, trio.current_time() + result.retry_in_s)
            await self._record(held, result)
        finally:
            held.extension.cancel()
            self._unrecorded.discard(held)
            if self._queue.ordered_by is None:  # else its batch is not over
                self._held.discard(held)
                self.wake()

    async def _attempt(self, held: HeldClaim[T], batch: Batch[T]) -> AttemptResult | None:
        """Attempt the item as long as its lease lasts; None leaves it to the next claim."""
        try:
            with held.attempt:
                await trio.lowlevel.checkpoint()  # the lease may have ended while the item waited
                return await self._queue.attempt(held.item, batch)
        except StoreUnavailable as error:
            self._warn(held, "store unavailable", error)
            return None
        except trio.Cancelled:
            self._cut += 1
            raise
        except Exception:
            log_fault(self._queue.attempt)
            self._warn(held, "attempt failed", "a bug, logged above")
            return self._queue.after_bug(held.item) if self._queue.after_bug else None
        if not (held.has_ended and self._queue.logs_ended):
            self._warn(held, "attempt not finished", "its lease has ended")
        return None

    async def _record(self, held: HeldClaim[T], result: AttemptResult) -> None:
        while True:
            try:
                await result.record()
                return
            except StoreUnavailable as error:
                self._warn(held, "result not recorded", error)
            self._unrecorded.add(held)
            await trio.sleep(self._pace.store_pause_s)

    async def _extend_lease(self, held: HeldClaim[T]) -> None:
        """Extend the lease until the result is recorded; end the attempt if the claim is lost."""
        with held.extension:
            while True:
                await trio.sleep(self._pace.extend_every_s)
                asked_at = trio.current_time()
                try:
                    if not await self._queue.extend(held.item):
                        held.has_ended = True
                        held.attempt.cancel()
                        return
                except StoreUnavailable as error:
                    self._warn(held, "lease not extended", error)
                else:
                    held.attempt.deadline = asked_at + self._pace.lease_s

    def _warn(self, held: HeldClaim[T], event: str, error: object) -> None:
        name = self._queue.name_of(held.item)
        log.warning("%s: queue=%s item=%s error=%s", event, self._queue.name, name, error)


@asynccontextmanager
async def open_workers(*workers: Worker[Any]) -> AsyncIterator[None]:
    """Run the workers for the duration of the block; leaving it stops them."""
    async with trio.open_nursery() as nursery:
        for worker in workers:
            nursery.start_soon(supervised, worker.run)
        try:
            yield
        finally:
            for worker in workers:
                worker.stop()
