"""How many refused recipients a mail host tolerates from us before it defends itself.

Mail servers ban clients that ask for unknown recipients: some at the third of a session
(MDaemon), some at ten an hour (Kerio) or 25 (Cisco), some once half of a client's recipients
were bad (Forcepoint). They count random addresses like listed ones. `data/operators.toml` has
an allowance for each operator and kind of software that we know, and a strict one for all
other hosts.

Every recipient under way may be refused, so each is reserved before it is sent. A random
address is nearly certain to be refused, so it gets no more than half of an hour's allowance:
the rest is kept for listed addresses. Pure: time is an argument.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

UNBOUNDED = 1 << 30
BUDGET_RULE = "budget.refusals"  # of an address that was not sent because nothing was left
HOUR_S = 3600.0
STEP_S = 300.0  # recipients are counted in steps, and a step is dropped as a whole
SHARE_FROM = 5  # recipients sent before a share of them is judged: none bans at fewer
ENGINES_MAX = 256  # others whose recipients are counted at a host: a fleet has some dozens
BUDGETS_MAX = 20_000  # hosts remembered; of the longest unused, nothing is left to count


@dataclass(frozen=True, slots=True)
class RefusalAllowance:
    """What a host tolerates: refused recipients in a session, in an hour, and their share in an hour.

    None: no limit is known. The share must stay below its limit once SHARE_FROM were sent.
    `slow`: by default it answers a refused recipient seconds later.
    """

    session: int
    hour: int | None = None
    share: float | None = None
    slow: bool = False

    @property
    def is_bounded(self) -> bool:
        """Does it limit more than one session?"""
        return self.hour is not None or self.share is not None


@dataclass(frozen=True, slots=True)
class SpentBudget:
    """A mail host that has refused recipients of ours within the last hour, for the operator."""

    name: str
    label: str  # of the row of its allowance
    refused: int
    left: int  # that may be sent now, even if all of them are refused


class CountedStep(NamedTuple):
    """The recipients of some minutes."""

    ended_at: float
    sent: int
    refused: int


class RefusalBudget:
    """The recipients of the last hour at one mail host. Times are seconds of trio's clock."""

    __slots__ = (
        *("_elsewhere", "_old", "_refused", "_refused_elsewhere"),
        *("_sent", "_sent_elsewhere", "_step_ends"),
        *("allowance", "in_flight", "is_bounded", "label"),
    )

    def __init__(self, allowance: RefusalAllowance, label: str) -> None:
        """`label` names the row of the allowance, for metrics."""
        self.set_allowance(allowance, label)
        self.in_flight = 0  # sent, and not answered yet
        self._sent = 0  # answered in the present step and in the old ones
        self._refused = 0
        self._old: deque[CountedStep] = deque()
        self._step_ends = 0.0
        self._elsewhere: dict[str, tuple[CountedStep, ...]] = {}  # by other engines of this egress
        self._sent_elsewhere = self._refused_elsewhere = 0

    def set_allowance(self, allowance: RefusalAllowance, label: str) -> None:
        """More is known of the host: this row holds from now on."""
        self.allowance = allowance
        self.label = label
        self.is_bounded = allowance.is_bounded  # read for each batch, so it is plain

    def reserve(self, count: int) -> None:
        """So many recipients are about to be sent."""
        self.in_flight += count

    def release(self, count: int) -> None:
        """So many of the reserved will get no answer."""
        self.in_flight -= count

    def answered(self, now: float, *, refused: bool) -> None:
        """One of the reserved was answered; `refused` for good (5yz)."""
        self.in_flight -= 1
        if now >= self._step_ends:
            self._begin_step(now)
        self._sent += 1
        self._refused += refused

    def refused(self, now: float) -> int:
        """How many recipients were refused within the last hour."""
        if now >= self._step_ends:
            self._begin_step(now)
        return self._refused + self._refused_elsewhere

    def own_steps(self, now: float) -> list[CountedStep]:
        """The recipients of the last hour by the end of their step, without those of others."""
        if now >= self._step_ends:
            self._begin_step(now)
        sent = self._sent - sum(step.sent for step in self._old)
        refused = self._refused - sum(step.refused for step in self._old)
        return [*self._old, CountedStep(self._step_ends, sent, refused)]

    def count_elsewhere(self, engine: str, steps: Iterable[CountedStep], now: float) -> None:
        """Another engine has sent so many in the last hour: this replaces what it said before."""
        self._elsewhere.pop(engine, None)
        self._elsewhere[engine] = tuple(steps)
        if len(self._elsewhere) > ENGINES_MAX:
            del self._elsewhere[next(iter(self._elsewhere))]
        self._add_up_elsewhere(now)

    def _add_up_elsewhere(self, now: float) -> None:
        counted = [
            step
            for steps in self._elsewhere.values()
            for step in steps
            if now - HOUR_S < step.ended_at
        ]
        self._sent_elsewhere = sum(step.sent for step in counted)
        self._refused_elsewhere = sum(step.refused for step in counted)

    def left(self, now: float) -> int:
        """How many more recipients may be sent now, even if all of them are refused."""
        return self._left(now, self.in_flight) if self.is_bounded else UNBOUNDED

    def left_to_tests(self, now: float) -> int:
        """How many random addresses may be sent now: 1 at most, unless nothing is bounded."""
        return self._left_to_tests(now, self.in_flight)

    def tolerates_tests(self, now: float) -> bool:
        """May a random address be sent once those under way are answered, if none is refused?"""
        return self._left_to_tests(now, 0) > 0

    def _left_to_tests(self, now: float, in_flight: int) -> int:
        allowance = self.allowance
        if not self.is_bounded:
            return UNBOUNDED
        left = self._left(now, in_flight)
        refused = self._refused + self._refused_elsewhere + in_flight
        sent = self._sent + self._sent_elsewhere + in_flight
        if allowance.hour is not None and 2 * refused >= allowance.hour:
            return 0
        # Behind it, one listed address more must find room.
        after = allowance.share is None or refused + 2 < allowance.share * max(
            SHARE_FROM + 1, sent + 2
        )
        return int(left > 0 and after)

    def exhausted(self, now: float) -> bool:
        """Is nothing left even when no recipient is under way?"""
        return self.is_bounded and self._left(now, 0) <= 0

    def _left(self, now: float, in_flight: int) -> int:
        if now >= self._step_ends:
            self._begin_step(now)
        allowance = self.allowance
        refused = self._refused + self._refused_elsewhere + in_flight
        left = UNBOUNDED if allowance.hour is None else allowance.hour - refused
        if allowance.share is not None:
            sent, share = self._sent + self._sent_elsewhere + in_flight, allowance.share
            # The most for which refused + k < share * (sent + k).
            below = -int(-(share * sent - refused) // (1 - share)) - 1
            left = min(left, max(below, SHARE_FROM - sent))
        return max(0, left)

    def _begin_step(self, now: float) -> None:
        old = self._old
        counted = sum(step.sent for step in old), sum(step.refused for step in old)
        if self._sent > counted[0]:
            old.append(
                CountedStep(self._step_ends, self._sent - counted[0], self._refused - counted[1])
            )
        while old and old[0].ended_at <= now - HOUR_S:
            step = old.popleft()
            self._sent -= step.sent
            self._refused -= step.refused
        self._step_ends = now + STEP_S
        if self._elsewhere:
            self._add_up_elsewhere(now)


class RefusalBudgets:
    """The budgets of all mail hosts. Bounded; the longest unused is removed first."""

    def __init__(self, new_budget: Callable[[], RefusalBudget]) -> None:
        self._new_budget = new_budget
        self._budgets: OrderedDict[Hashable, RefusalBudget] = OrderedDict()

    def find(self, host: Hashable) -> RefusalBudget:
        budget = self._budgets.get(host)
        if budget is None:
            budget = self._budgets[host] = self._new_budget()
            if len(self._budgets) > BUDGETS_MAX:
                self._budgets.popitem(last=False)
        else:
            self._budgets.move_to_end(host)
        return budget
