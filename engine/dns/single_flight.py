"""A cache with one look-up at a time for each name, however many callers want it.

A look-up belongs to all its callers. A caller whose deadline passes, or that cancels,
fails alone, and the look-up goes on for the others; after the last one it is cancelled.
Failures to get a turn in a queue are not kept, failures of the resolvers for a few seconds.
Where failures are not kept at all, a caller that joined a failing look-up gets a new one.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar, cast

import trio

from ..observer import NO_OBSERVER, Observer
from .deadlines import NEVER, DeadlineClock
from .endpoint import LOOKUP_S
from .messages import LookupFailed
from .query_queue import Priority

DOMAINS_MAX = 100_000  # kept, of domains and of exchanges each; about 1 KB apiece
FAILURE_KEPT_S = 5.0
JOINED_LATE_S = 0.1  # after a look-up began: less than the first pause of a failing one

Answer = TypeVar("Answer")
Part = TypeVar("Part", covariant=True)


class LookupHandle(Protocol[Part]):
    """A look-up that sends one question to the resolvers, or two."""

    def start(self) -> None: ...
    def claim(self, account: str, priority: Priority) -> None: ...
    def persist(self) -> None: ...
    def withdraw(self, account: str) -> None: ...
    def cancel(self) -> None: ...

    @property
    def was_sent(self) -> bool: ...
    def failure(self) -> LookupFailed: ...

    def partial(self) -> Part | None:
        """An answer that is good enough when there is no time for the whole one, or None."""
        ...


class Interest(Generic[Answer]):
    """One caller's interest in a look-up.

    `settle` is called at most once, with the answer or LookupFailed. If there is no
    answer by `late_at`, `late` is called. At `deadline` the caller gets LookupFailed,
    while the look-up may go on for others.
    """

    __slots__ = (
        *("_lookup", "account", "deadline", "joined_at", "late", "late_at", "priority", "settle"),
    )

    def __init__(
        self,
        account: str,
        priority: Priority,
        settle: Callable[[Answer | LookupFailed], None],
        deadline: float = NEVER,
        *,
        late_at: float = NEVER,
        late: Callable[[], None] | None = None,
    ) -> None:
        self.account = account
        self.priority = priority
        self.settle = settle
        self.deadline = deadline
        self.late_at = late_at
        self.late = late
        self.joined_at = 0.0
        self._lookup: InFlightLookup[Answer] | None = None

    def join(self, lookup: "InFlightLookup[Answer]", now: float) -> None:
        self._lookup = lookup
        self.joined_at = now

    def cancel(self) -> None:
        """Stop waiting for the answer; `settle` will not be called."""
        if (lookup := self._lookup) is not None:
            self._lookup = None
            lookup.unsubscribe(self, by_clock=False)

    def end(self, answer: Answer | LookupFailed) -> None:
        """Called by the look-up when it is done."""
        self._lookup = None
        settle, self.settle = self.settle, _nothing  # breaks a reference cycle
        settle(answer)

    @property
    def over(self) -> bool:
        return self._lookup is None

    @property
    def due(self) -> float:
        return min(self.deadline, self.late_at)

    @property
    def is_lagging(self) -> bool:
        """Whether a failure at this time would be ours: see LookupFailed."""
        lookup = None if self._lookup is None else self._lookup.lookup
        return lookup is not None and lookup.failure().by_lag

    def tick(self, now: float) -> None:
        lookup = self._lookup
        assert lookup is not None
        if now >= self.deadline:
            self._lookup = None
            self.settle(lookup.unsubscribe(self, by_clock=True))
        elif now >= self.late_at:
            self.late_at = NEVER
            if self.late is not None:
                self.late()


def _nothing(_: object) -> None:
    """Replaces a callback that must not be called again."""


class InFlightLookup(Generic[Answer]):
    """A look-up under way, with all callers that wait for its answer."""

    __slots__ = ("_began", "_cache", "_counts", "_interests", "_name", "lookup", "wanted_by")

    def __init__(
        self, name: str, cache: "SingleFlightCache[Answer]", first: Interest[Answer]
    ) -> None:
        self._name = name
        self._cache = cache
        self._began = cache.now()
        self._interests: dict[Interest[Answer], None] = {first: None}
        self._counts = {first.account: 1}
        self.wanted_by = {first.account: first.priority}
        self.lookup: LookupHandle[Answer] | None = None
        first.join(self, self._began)

    def join(self, interest: Interest[Answer]) -> None:
        self._interests[interest] = None
        interest.join(self, self._cache.now())
        account, priority = interest.account, interest.priority
        self._counts[account] = self._counts.get(account, 0) + 1
        if account not in self.wanted_by or priority < self.wanted_by[account]:
            self.wanted_by[account] = priority
            assert self.lookup is not None
            self.lookup.claim(account, priority)
        if priority >= Priority.LIST:
            assert self.lookup is not None
            self.lookup.persist()

    def unsubscribe(self, interest: Interest[Answer], *, by_clock: bool) -> Answer | LookupFailed:
        """Remove a caller; return what there is for one whose deadline has passed."""
        del self._interests[interest]
        lookup, account = self.lookup, interest.account
        assert lookup is not None
        reported = (by_clock and lookup.partial()) or lookup.failure()
        self._counts[account] -= 1
        if not self._interests:
            kept_s = FAILURE_KEPT_S if by_clock and lookup.was_sent else 0.0
            if isinstance(reported, LookupFailed):
                kept_s = 0.0 if reported.by_lag else min(kept_s, self._cache.failure_kept_s)
            lookup.cancel()
            self._cache.lookup_done(self._name, cast(Answer, reported), kept_s)
            if by_clock:
                self._report(reported)
        elif not self._counts[account]:
            del self._counts[account]
            lookup.withdraw(account)
            del self.wanted_by[account]
        return reported

    def finish(self, answer: Answer, kept_s: float) -> None:
        """The look-up is done: all waiting callers get the answer.

        A failure that is not kept goes only to those that waited from the start; the others
        get one new look-up.
        """
        self._cache.lookup_done(self._name, answer, kept_s)
        self._report(answer)
        self.lookup = None  # breaks a reference cycle
        interests, self._interests = self._interests, {}
        anew: list[Interest[Answer]] = []
        if kept_s <= 0 and isinstance(answer, LookupFailed):
            late_from = self._began + JOINED_LATE_S
            anew = [interest for interest in interests if interest.joined_at > late_from]
        for interest in anew:
            del interests[interest]
            self._cache.join(self._name, interest)
            interest.joined_at = float("-inf")  # only once
        for interest in interests:
            interest.end(answer)

    def _report(self, answer: Answer | LookupFailed) -> None:
        certain = not isinstance(answer, LookupFailed)
        self._cache.observer.lookup_done(self._began, certain=certain)


class SingleFlightCache(Generic[Answer]):
    """Answers by name until they expire, and one look-up at a time for each name.

    `new_lookup` makes a look-up, which calls `finish` with the answer and the seconds for
    which it may be kept. A look-up that ends at its last caller's deadline is kept for
    `failure_kept_s`. Beyond `names_max` the oldest answer is dropped.
    """

    def __init__(
        self,
        clock: DeadlineClock,
        new_lookup: "Callable[[str, InFlightLookup[Answer]], LookupHandle[Answer]]",
        *,
        names_max: int = DOMAINS_MAX,
        failure_kept_s: float = FAILURE_KEPT_S,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        self.observer = observer
        self.failure_kept_s = failure_kept_s
        self.now = clock.now
        self._clock = clock
        self._new_lookup = new_lookup
        self._names_max = names_max
        # name -> (expires at, answer), oldest first. Not a plain dict: to find its first
        # key, that steps over every entry once deleted from its front.
        self._answers: OrderedDict[str, tuple[float, Answer]] = OrderedDict()
        self._in_flight: dict[str, InFlightLookup[Answer]] = {}

    def cached(self, name: str, *, deferred_start: bool = False) -> Answer | None:
        """Return the cached answer, or None; with `deferred_start`, None for a hasty failure."""
        until, answer = self._answers.get(name, _NEVER)
        if self.now() >= until or (
            deferred_start and isinstance(answer, LookupFailed) and answer.hasty
        ):
            return None
        return answer

    def subscribe(self, name: str, interest: Interest[Answer]) -> None:
        """Join the look-up of this name, or start it. The interest is settled later."""
        self.join(name, interest)
        self._clock.watch(interest)

    def join(self, name: str, interest: Interest[Answer]) -> None:
        """The same for an interest whose deadline the clock keeps already."""
        lookup = self._in_flight.get(name)
        if lookup is not None:
            lookup.join(interest)
        else:
            lookup = self._in_flight[name] = InFlightLookup(name, self, interest)
            try:
                lookup.lookup = self._new_lookup(name, lookup)
                lookup.lookup.start()
            except BaseException:
                self._in_flight.pop(name, None)  # or later callers would join it and wait for ever
                raise

    async def find(
        self, name: str, account: str = "", priority: Priority = Priority.REQUEST
    ) -> Answer | LookupFailed:
        """Return the answer, kept or looked up. It takes at most LOOKUP_S, unless it is a list's."""
        if (known := self.cached(name, deferred_start=priority >= Priority.LIST)) is not None:
            await trio.lowlevel.checkpoint()
            return known
        task = _TaskInterest[Answer](account, priority, self.now)
        self.subscribe(name, task)
        return await task.wait()

    def lookup_done(self, name: str, answer: Answer, kept_s: float) -> None:
        """The look-up of this name is over; keep its answer for `kept_s`."""
        del self._in_flight[name]
        if kept_s > 0:
            self.keep(name, answer, kept_s)

    def keep(self, name: str, answer: Answer, kept_s: float) -> None:
        answers = self._answers
        answers[name] = (self.now() + kept_s, answer)
        answers.move_to_end(name)
        if len(answers) > self._names_max:
            answers.popitem(last=False)


_NEVER = (float("-inf"), None)


class _TaskInterest(Interest[Answer]):
    """The interest of a task that waits. Cancelling the task cancels it."""

    __slots__ = ("_answer", "_task")

    def __init__(self, account: str, priority: Priority, now: Callable[[], float]) -> None:
        deadline = now() + LOOKUP_S if priority < Priority.LIST else NEVER
        super().__init__(account, priority, self._settle, deadline)
        self._task = trio.lowlevel.current_task()
        self._answer: Answer | LookupFailed | None = None

    async def wait(self) -> Answer | LookupFailed:
        await trio.lowlevel.wait_task_rescheduled(self._abort)
        assert self._answer is not None
        return self._answer

    def _settle(self, answer: Answer | LookupFailed) -> None:
        self._answer = answer
        trio.lowlevel.reschedule(self._task)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self.cancel()
        return trio.lowlevel.Abort.SUCCEEDED
