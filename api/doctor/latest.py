"""The checks for a page: run when a person looks, and kept for an hour.

They ask mail hosts and resolvers elsewhere, so no service runs them by itself, and no clicks
run them more often than once in AGAIN_S.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

import trio
from msgspec import Struct

from .checks import Check

KEPT_S = 3600.0
AGAIN_S = 30.0


class Checked(Struct, frozen=True):
    """The checks, and when they were run."""

    checks: Sequence[Check]
    at: datetime

    @property
    def failed(self) -> int:
        return sum(check.status == "failed" for check in self.checks)


class MachineChecks:
    """The checks of a process's machine, as they were found last."""

    def __init__(self, examine: Callable[[], Awaitable[Sequence[Check]]]) -> None:
        self._examine = examine
        self.known: Checked | None = None  # the last result; None before somebody has looked
        self._known_until = 0.0
        self._lock = trio.Lock()

    async def latest(self, now: Callable[[], datetime], *, anew: bool = False) -> Checked:
        """Return what is known, or run the checks, within 10 s; `anew`: unless they were run just now."""
        async with self._lock:
            left_s = self._known_until - trio.current_time()
            if self.known is None or left_s <= (KEPT_S - AGAIN_S if anew else 0.0):
                self.known = Checked(await self._examine(), now())
                self._known_until = trio.current_time() + KEPT_S
            return self.known
