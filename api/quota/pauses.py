"""The operator's pauses over the fleet, as this process knows them.

One task reads the pauses of the store about once a second, so that a command holds in every
process within two. The engine then asks no host of a paused domain or operator; lists let the
addresses wait, uncounted, and requests are answered `paused`. No chunk of a paused account's
lists is claimed, nor any by a drained machine. While the store is unavailable all stays as it was.
"""

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

import trio

from mailprobe.engine.pauses import CurrentPauses, Pauses
from mailprobe.release import version
from mailprobe.storage.contract import LISTED_MAX, StoreUnavailable
from mailprobe.storage.pauses import Pause, PauseKind
from mailprobe.storage.store import Store

log = logging.getLogger("mailprobe.pauses")

READ_EVERY_S = 1.0
START_S = 1.0  # that a start waits for the pauses
NOTE_EVERY_S = 20.0  # that this machine runs, and that lists of paused accounts wait
LIVE_S = 3 * NOTE_EVERY_S  # a machine that was not noted for so long has stopped
PAUSED_CODE = "paused"  # why a list waits


class FleetPauses:
    """One per process. Nothing is paused without `watch()`."""

    def __init__(self, machine: str = "") -> None:
        self.machine = machine
        self.accounts: frozenset[str] = frozenset()  # whose lists wait
        self.drained = False  # this process claims no chunk of a list
        self._found: tuple[Pause, ...] = ()
        self._noted_at = -math.inf

    async def start(self, store: Store, engine_pauses: CurrentPauses) -> None:
        """Read the pauses before there is work, within START_S.

        A drained machine that starts again claims no list, and no paused host is asked meanwhile.
        """
        with trio.move_on_after(START_S), suppress(StoreUnavailable):  # then no work begins, either
            self._apply(await store.pauses(), engine_pauses)

    async def watch(
        self,
        store: Store,
        engine_pauses: CurrentPauses,
        *,
        now: Callable[[], datetime],
        wake_lists: Callable[[], None],
    ) -> None:
        """Follow the pauses of the store; runs until cancelled."""
        while True:
            with suppress(StoreUnavailable):  # calls that fail are counted, and requests log it
                if self._apply(await store.pauses(), engine_pauses):
                    wake_lists()
                    self._noted_at = -math.inf
                if trio.current_time() >= self._noted_at + NOTE_EVERY_S:
                    await self._note(store, now())
            await trio.sleep(READ_EVERY_S)

    # below: the task of `watch`

    def _names(self, kind: PauseKind) -> frozenset[str]:
        return frozenset(each.name for each in self._found if each.kind == kind)

    def _apply(self, found: Sequence[Pause], engine_pauses: CurrentPauses) -> bool:
        """Make these the pauses of this process; a line of the log for each that is new or over."""
        before, self._found = self._found, tuple(found)
        if before == self._found:
            return False
        for each in self._found:
            if each not in before:
                until = (
                    "unpaused" if each.until is None else each.until.isoformat(timespec="seconds")
                )
                log.warning(
                    "paused: kind=%s name=%s until=%s why=%r",
                    each.kind, each.name, until, each.why,
                )  # fmt: skip
        for kind, name in {(each.kind, each.name) for each in before} - {
            (each.kind, each.name) for each in self._found
        }:
            log.warning("pause over: kind=%s name=%s", kind, name)
        self.accounts = self._names("account")
        self.drained = self.machine in self._names("machine")
        engine_pauses.change(Pauses(self._names("domain"), self._names("operator")))
        return True

    async def _note(self, store: Store, now: datetime) -> None:
        """Note that this machine runs, and that lists of paused accounts wait."""
        self._noted_at = trio.current_time()
        if self.machine:
            await store.note_machine(self.machine, version())
        until = now + timedelta(seconds=2 * NOTE_EVERY_S)  # it is noted again before
        for account_id in self.accounts:
            for each in await store.lists(account_id, limit=LISTED_MAX):
                if each.state == "running":
                    await store.note_wait(each.id, until, PAUSED_CODE)
