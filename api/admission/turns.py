"""Turns at work that accounts share: so many at a time, and first the account that has used least.

What an account has used is the time that its turns took, halved with each HALF_LIFE_S. A turn may
be paused: after SLICE_S it makes way for an account that has used less, and goes on when it is that
account's turn again. So a short piece of work waits for some slices of long ones, and not for their
ends. Paused work holds memory: only `begun_max` turns are begun. At that limit an account that has
waited for BEGIN_S ends the turn of the account that has used most.

Nothing waits for longer than `wait_s`: then the newest waiting turn of the account with most of
them is refused, and so on until this one is begun or refused.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from math import inf

import trio
from msgspec import Struct, field

from ..refusals import Overloaded

HALF_LIFE_S = 60.0
SLICE_S = 1.0  # far more than it costs to pause a process, and two of them are hardly noticed
BEGIN_S = 3.0  # of a wait to begin, before a turn of another account is ended for it
LESS_S = 0.5  # by so much less an account has used, before another makes way for it
AGAIN_S = 1.0  # until another turn is ended or refused for one that still waits
FORGOTTEN_S = 0.001  # an account that has used less is forgotten


class UsedTime:
    """The seconds that each account has used, halved with each HALF_LIFE_S. Times are arguments."""

    def __init__(self) -> None:
        self._used: dict[str, tuple[float, float]] = {}  # the seconds, and when they were so many
        self._swept_at = -inf

    def at(self, account_id: str, now: float) -> float:
        seconds, then = self._used.get(account_id, (0.0, now))
        return float(seconds * 0.5 ** (max(0.0, now - then) / HALF_LIFE_S))

    def add(self, account_id: str, seconds: float, now: float) -> None:
        self._used[account_id] = (self.at(account_id, now) + seconds, now)
        if now - self._swept_at >= HALF_LIFE_S:
            self._swept_at = now
            for each in [each for each in self._used if self.at(each, now) < FORGOTTEN_S]:
                del self._used[each]


class FairTurn(Struct, eq=False):
    """One turn. It waits, is begun, and may be paused."""

    turns: "FairTurns"
    account_id: str
    number: int
    asked_at: float
    is_begun: bool = False
    is_refused: bool = False
    running_since: float = inf
    changed: trio.Event = field(default_factory=trio.Event)
    block: trio.CancelScope | None = None

    async def make_way(self, pause: Callable[[], None], go_on: Callable[[], None]) -> None:
        """Pause the work if it has lasted for SLICE_S and an account waits that has used less."""
        if trio.current_time() - self.running_since >= SLICE_S and self.turns.makes_way(self):
            pause()
            try:
                await self.changed.wait()
            finally:
                go_on()

    def refuse(self) -> None:
        """It ends, with Overloaded."""
        self.is_refused = True
        self.changed.set()
        if self.block is not None:
            self.block.cancel()

    def end(self) -> None:
        """It is over, or no longer waited for."""
        self.turns.end(self)


class FairTurns:
    """The turns at one kind of work."""

    def __init__(
        self,
        at_once: float,
        *,
        account_max: float = inf,
        begun_max: float | None = None,
        waiting_max: float = inf,
        wait_s: float = inf,
    ) -> None:
        """`account_max` turns of an account are begun at a time, and `begun_max` in all."""
        self._at_once = at_once
        self._account_max = account_max
        self._begun_max = at_once if begun_max is None else begun_max
        self._waiting_max = waiting_max
        self._wait_s = wait_s
        self._running: set[FairTurn] = set()
        self._waiting: dict[FairTurn, None] = {}  # with those that are paused; ordered
        self._used = UsedTime()
        self._numbers = count()
        self._refused_at = -inf

    @asynccontextmanager
    async def turn(self, account_id: str) -> AsyncIterator[FairTurn]:
        """Wait for a turn, which lasts for the block. Raises Overloaded."""
        with trio.CancelScope() as block:
            turn = await self.begin(account_id, block)
            try:
                yield turn
            finally:
                turn.end()
        if block.cancelled_caught:
            raise Overloaded

    async def begin(self, account_id: str, block: trio.CancelScope | None = None) -> FairTurn:
        """Wait for a turn, and return it; end it. Raises Overloaded.

        A turn may be ended for another only if it has a `block`, which is cancelled then.
        """
        turn = FairTurn(self, account_id, next(self._numbers), trio.current_time())
        self._waiting[turn] = None
        self._pass_on()
        try:
            await self._wait(turn)
        except BaseException:
            turn.end()
            raise
        turn.block = block
        return turn

    async def _wait(self, turn: FairTurn) -> None:
        if sum(not each.is_begun for each in self._waiting) > self._waiting_max:
            self._refuse_newest(list(self._waiting))
        await trio.lowlevel.checkpoint()
        wake_at, refuse_at = turn.asked_at + BEGIN_S, turn.asked_at + self._wait_s
        while not turn.is_begun:
            with trio.move_on_at(min(wake_at, refuse_at)):
                await turn.changed.wait()
            if turn.is_refused:
                raise Overloaded
            now = trio.current_time()
            if now >= refuse_at:
                self._refuse_one(turn, now)
                refuse_at = now + AGAIN_S
            elif now >= wake_at:
                self._make_room(turn)
                wake_at = now + AGAIN_S

    def _refuse_one(self, late: FairTurn, now: float) -> None:
        """Refuse one for a turn that has waited too long, and the next one AGAIN_S later.

        If it waits for turns of its own account, it is one of these.
        """
        if not self._may_have_more(late.account_id):
            self._refuse_newest([x for x in self._waiting if x.account_id == late.account_id])
        elif now - self._refused_at >= AGAIN_S:
            self._refused_at = now
            self._refuse_newest(list(self._waiting))

    def _refuse_newest(self, among: Sequence[FairTurn]) -> None:
        """Refuse the newest that waits, of the account with most of them."""
        waiting = [each for each in among if not (each.is_begun or each.is_refused)]
        counts = Counter(each.account_id for each in waiting)
        if waiting:
            max(waiting, key=lambda each: (counts[each.account_id], each.number)).refuse()

    def makes_way(self, turn: FairTurn) -> bool:
        """Whether a turn that runs is paused for an account that has used less."""
        now = trio.current_time()
        following = self._next(now)
        if following is None or not self._has_used_less(following.account_id, turn.account_id, now):
            return False
        self._stop(turn, now)
        turn.changed = trio.Event()
        self._waiting[turn] = None
        self._pass_on()
        return not turn.changed.is_set()

    def end(self, turn: FairTurn) -> None:
        """See FairTurn.end()."""
        if turn in self._running:
            self._stop(turn, trio.current_time())
        self._waiting.pop(turn, None)
        self._pass_on()

    def _make_room(self, turn: FairTurn) -> None:
        """End the turn of the account that has used most, if there may be no more begun ones."""
        begun = self._begun()
        is_full = self._at_once < self._begun_max <= len(begun)
        if not is_full or not self._may_have_more(turn.account_id):
            return
        now = trio.current_time()
        ending = [each for each in begun if each.block is not None and not each.is_refused]
        if len(ending) < len(begun):  # one ends already
            return
        most = max(ending, key=lambda each: (self._use(each.account_id, now), each.number))
        if self._has_used_less(turn.account_id, most.account_id, now):
            most.refuse()

    def _pass_on(self) -> None:
        now = trio.current_time()
        while len(self._running) < self._at_once and (turn := self._next(now)) is not None:
            del self._waiting[turn]
            self._running.add(turn)
            turn.is_begun, turn.running_since = True, now
            turn.changed.set()

    def _stop(self, turn: FairTurn, now: float) -> None:
        self._running.discard(turn)
        self._used.add(turn.account_id, now - turn.running_since, now)

    def _next(self, now: float) -> FairTurn | None:
        """The waiting turn that runs next."""
        begun = Counter(each.account_id for each in self._begun())
        is_full = begun.total() >= self._begun_max
        able = [
            each
            for each in self._waiting
            if not each.is_refused
            and (each.is_begun or (not is_full and begun[each.account_id] < self._account_max))
        ]
        used = {each: self._use(each, now) for each in {turn.account_id for turn in able}}
        return min(able, key=lambda each: (used[each.account_id], each.number), default=None)

    def _begun(self) -> list[FairTurn]:
        return [*self._running, *(each for each in self._waiting if each.is_begun)]

    def _may_have_more(self, account_id: str) -> bool:
        """Whether the account may have one more begun turn."""
        own = sum(each.account_id == account_id for each in self._begun())
        return own < self._account_max

    def _has_used_less(self, account_id: str, than: str, now: float) -> bool:
        return self._use(account_id, now) + LESS_S < self._use(than, now)

    def _use(self, account_id: str, now: float) -> float:
        """The seconds that the account has used, those of its turns that run included."""
        running = (
            now - each.running_since for each in self._running if each.account_id == account_id
        )
        return self._used.at(account_id, now) + sum(running)
