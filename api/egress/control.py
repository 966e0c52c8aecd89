"""Limits of each egress, shared by all processes of a store: an `EgressControl`.

The engine's calls change this process' memory alone. One task exchanges it with the store each
POLL_S: it reports counts in batches, reserves blocks of the day's addresses, claims trials of
quarantined egresses, and learns who rests. While the store cannot answer, the last known state
holds, and addresses leave only as far as the blocks go.
"""

import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import date, datetime, timedelta
from functools import partial

import trio
from msgspec import Struct

from mailprobe.engine.background import running_loops
from mailprobe.engine.egress import Egress, Egresses, EgressState, StateListeners
from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.egresses import (
    TRIAL_EVERY,
    BlockRequest,
    DayUse,
    EgressBoard,
    EgressCount,
    EgressGrant,
    EgressReport,
    EgressRest,
    EgressStore,
    ReplyCount,
)

from .blocks import is_low, wanted

log = logging.getLogger("mailprobe.egress")

POLL_S = 1.0  # a pause is known to every process within 2 s
BETWEEN_S = 0.05  # at least, from one exchange to the next: a store has other work
COUNTS_EVERY_S = 5.0  # counts alone are no reason to write more often
DRY_S = 5.0  # until a day that is used up is looked at again: others may give back
GIVEN_BACK_S = 3.0  # from then on a day is used up: others have seen it in two rounds
TRIAL_S = 60.0  # a claimed trial is used so soon, or not: far less than TRIAL_EVERY
CLOSE_S = 0.5  # for the last exchange: a stop has 9 s in all


class _Block(Struct):
    """The addresses of one egress' day that this process may still ask."""

    day: date
    limit: int
    left: int = 0
    used: int = 0  # needed since the last exchange
    dry_until: float = float("-inf")
    short_since: float = float("inf")  # the store has had less than was wanted


class EgressNow(Struct, frozen=True):
    """An egress as metrics show it."""

    name: str
    state: EgressState
    asked: int  # today, by all processes
    limit: int | None


class StoredControl:
    """The `EgressControl` of one process."""

    def __init__(self, egresses: Egresses, now: Callable[[], datetime]) -> None:
        self.egresses = egresses
        self._rows = {row.name: row for row in egresses.rows}
        self._now = now
        self._board = EgressBoard()
        self._states: dict[str, EgressState] = {}  # of those that rest
        self._blocks: dict[str, _Block] = {}
        self._asked: Counter[tuple[str, date]] = Counter()  # this and below: not reported yet
        self._replies: Counter[tuple[str, str, str, date]] = Counter()
        self._quarantined: dict[str, str] = {}
        self._released: set[str] = set()
        self._trials_wanted: set[str] = set()
        self._trials: dict[str, float] = {}  # until when a claimed trial is good
        self._counted_at = float("-inf")
        self._is_cut_off = False
        self._wake = trio.Event()
        self._listeners = StateListeners()
        self.notifying = self._listeners.notifying

    # -- the engine (EgressControl)

    def state(self, egress: str) -> EgressState:
        return self._states.get(egress, "active")

    def reserve(self, egress: str, count: int) -> int:
        row = self._rows.get(egress)
        if row is None or count <= 0:
            return 0
        day = self._today()
        block = self._block(row, day)
        if block is None:
            self._asked[egress, day] += count
            return count
        got = min(count, block.left)
        block.left -= got
        block.used += count
        self._asked[egress, day] += got
        if is_low(block.left, block.used) and trio.current_time() >= block.dry_until:
            self._wake.set()
        return got

    def awaits_more(self, egress: str) -> bool:
        """See EgressControl. A killed process' block does not come back, so this ends."""
        block = self._blocks.get(egress)
        if block is None or not block.limit:
            return False
        return trio.current_time() < block.short_since + GIVEN_BACK_S

    def reserve_trial(self, egress: str) -> bool:
        """See EgressControl. The first call claims a trial, which a later one gets."""
        until = self._trials.pop(egress, None)
        if until is not None and trio.current_time() < until:
            return True
        if egress in self._rows and self._may_be_tried(egress):
            self._trials_wanted.add(egress)
        return False

    def _may_be_tried(self, egress: str) -> bool:
        """Might the store grant a trial? An instant beyond TRIAL_EVERY is of a clock that was ahead."""
        due = self._board.rests.get(egress, EgressRest()).trial_at
        return due is None or not timedelta() < due - self._now() <= TRIAL_EVERY

    def answered(self, egress: str, operator: str, host: str, reason: str) -> None:
        if egress in self._rows:
            self._replies[egress, operator, reason, self._today()] += 1

    def quarantine(self, egress: str, why: str) -> None:
        if egress in self._rows:
            self._released.discard(egress)
            self._quarantined[egress] = why
            self._find_state(egress)
            self._wake.set()

    def release(self, egress: str) -> None:
        if egress in self._rows:
            self._quarantined.pop(egress, None)
            self._released.add(egress)
            self._find_state(egress)
            self._wake.set()

    # -- metrics

    def overview(self) -> list[EgressNow]:
        """Every egress of the file, as it is now."""
        day = self._today()
        return [
            EgressNow(
                name,
                self.state(name),
                self._board.uses.get(name, DayUse()).asked + self._asked[name, day],
                row.limit_on(day),
            )
            for name, row in self._rows.items()
        ]

    # -- the store

    async def keep_shared(self, store: EgressStore) -> None:
        """Exchange with the store until cancelled."""
        while True:
            with trio.move_on_after(POLL_S):
                await self._wake.wait()
            self._wake = trio.Event()
            await self.exchange(store)
            await trio.sleep(BETWEEN_S)

    async def exchange(self, store: EgressStore, *, is_last: bool = False) -> None:
        """Report to the store, and learn from it; one that cannot answer is asked again."""
        report = self._draw_report(is_last=is_last)
        try:
            grant = await self._exchanged(store, report)
        except StoreUnavailable:
            if not self._is_cut_off:
                log.warning("egresses not shared: store unavailable")
            self._is_cut_off = True
            for block in self._blocks.values():  # who needs more need not look 20 times a second
                block.dry_until = trio.current_time() + POLL_S
            return
        self._is_cut_off = False
        self._apply(report, grant)

    async def _exchanged(self, store: EgressStore, report: EgressReport) -> EgressGrant:
        try:
            if report:
                return await store.report_egresses(report)
            return EgressGrant(await store.egresses(report.day))
        except BaseException:  # also a cancelled call, which has done nothing
            self._restore(report)
            raise

    def _draw_report(self, *, is_last: bool) -> EgressReport:
        """What to report now. What is given back is no longer used, whatever becomes of the report."""
        day, now = self._today(), trio.current_time()
        blocks = [] if is_last else [each for each in self._wanted(day, now) if each.wanted]
        if is_last:
            blocks = [BlockRequest(name, -each.left, 0) for name, each in self._blocks.items()
                      if each.left and each.day == day]  # fmt: skip
        for each in blocks:
            if each.wanted < 0:
                self._blocks[each.egress].left += each.wanted
        marks = bool(self._quarantined or self._released or self._trials_wanted)
        if not (is_last or blocks or marks or now >= self._counted_at + COUNTS_EVERY_S):
            return EgressReport(day)
        self._counted_at = now
        report = EgressReport(
            day,
            tuple(EgressCount(*key, asked) for key, asked in self._asked.items() if asked),
            tuple(blocks),
            tuple(ReplyCount(*key, times) for key, times in self._replies.items()),
            dict(self._quarantined),
            frozenset(self._released),
            frozenset(self._trials_wanted),
        )
        for pending in (self._asked, self._replies, self._quarantined, self._released):
            pending.clear()
        self._trials_wanted.clear()
        return report

    def _wanted(self, day: date, now: float) -> list[BlockRequest]:
        requests = []
        for name, row in self._rows.items():
            block = self._block(row, day)
            if block is None:
                continue
            free = max(0, block.limit - self._board.uses.get(name, DayUse()).reserved)
            more = wanted(block.left, block.used, free)
            block.used = 0
            if more < 0 or now >= block.dry_until:
                requests.append(BlockRequest(name, more, block.limit))
        return requests

    def _restore(self, report: EgressReport) -> None:
        """The report has not arrived: report it again. What happened since then goes before it."""
        for count in report.counts:
            self._asked[count.egress, count.day] += count.asked
        for reply in report.replies:
            self._replies[reply[:4]] += reply.times
        for egress, why in report.quarantined.items():
            if egress not in self._released:
                self._quarantined.setdefault(egress, why)
        self._released |= report.released - self._quarantined.keys()
        self._trials_wanted |= report.trials

    def _apply(self, report: EgressReport, grant: EgressGrant) -> None:
        now = trio.current_time()
        self._board = grant.board
        for request in report.blocks:
            block, got = self._blocks[request.egress], grant.blocks.get(request.egress, 0)
            if block.day != report.day or request.wanted <= 0:
                continue
            block.left += got
            if got >= request.wanted:
                block.short_since = float("inf")
                continue
            block.short_since = now if got else min(block.short_since, now)
            is_early = now < block.short_since + GIVEN_BACK_S
            block.dry_until = now + (POLL_S if is_early else DRY_S)
        for egress in grant.trials:
            self._trials[egress] = now + TRIAL_S
        for egress in self._rows:
            self._find_state(egress)

    def _find_state(self, egress: str) -> None:
        """The state by the board, and by what is not reported yet."""
        rest = self._board.rests.get(egress, EgressRest())
        state = _state_of(rest)
        if state != "paused" and egress in self._quarantined:
            state = "quarantined"
        if state == "quarantined" and egress in self._released:
            state = "active"
        if state != self.state(egress) and egress not in {*self._quarantined, *self._released}:
            why = rest.why or ""  # the engine logs what it decides here
            log.warning("egress %s elsewhere: egress=%s why=%s", state, egress, why)
        if state != self.state(egress):
            self._states[egress] = state
            self._listeners.notify()

    def _block(self, row: Egress, day: date) -> _Block | None:
        """The block of this day; None where there is no limit."""
        block = self._blocks.get(row.name)
        if block is not None and block.day == day:
            return block
        limit = row.limit_on(day) if row.daily else None
        if limit is None:
            return None
        block = self._blocks[row.name] = _Block(day, limit)
        return block

    def _today(self) -> date:
        return self._now().date()


def _state_of(rest: EgressRest) -> EgressState:
    if rest.paused_at is not None:
        return "paused"
    return "active" if rest.quarantined_at is None else "quarantined"


def states_of(board: EgressBoard, egresses: Egresses) -> Mapping[str, EgressState]:
    """The state of every egress of a file, as the store has it."""
    none = EgressRest()
    return {row.name: _state_of(board.rests.get(row.name, none)) for row in egresses.rows}


@asynccontextmanager
async def open_control(
    egresses: Egresses, store: EgressStore, now: Callable[[], datetime]
) -> AsyncIterator[StoredControl]:
    """Share what leaves by these egresses for the duration of the block."""
    control = StoredControl(egresses, now)
    await control.exchange(store)  # before the first address: blocks, and who rests
    try:
        async with running_loops(partial(control.keep_shared, store)):
            yield control
    finally:  # what a cancelled exchange took back is in the last one
        with trio.move_on_after(CLOSE_S, shield=True):
            await control.exchange(store, is_last=True)
