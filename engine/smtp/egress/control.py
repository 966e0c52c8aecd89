"""Limits of each egress, where one process has the egresses for itself.

The library and the command line use it. A service has one that counts over its processes.
"""

from collections.abc import Callable
from datetime import UTC, datetime

from ...egress import Egresses, EgressState, StateListeners

TRIAL_S = 900.0  # between two trials of a quarantined egress: each may cost it reputation
DAY_S = 86400  # of Unix time


class LocalEgressControl:
    """Counts in memory; implements egress.EgressControl. Nothing pauses an egress here."""

    def __init__(self, egresses: Egresses, now: Callable[[], float]) -> None:
        """`now` is Unix time: the days of the limits are those of UTC."""
        self._now = now
        self._rows = {row.name: row for row in egresses.rows}
        self._day = -1
        self._limits: dict[str, int | None] = {}  # of this day
        self._counted: dict[str, int] = {}  # of this day
        self._tried_at: dict[str, float] = {}  # of those in quarantine
        self.listeners = StateListeners()
        self.notifying = self.listeners.notifying

    def state(self, egress: str) -> EgressState:
        return "quarantined" if egress in self._tried_at else "active"

    def reserve(self, egress: str, count: int) -> int:
        now = self._now()
        if (day := int(now // DAY_S)) != self._day:
            self._day, self._counted = day, {}
            date = datetime.fromtimestamp(now, UTC).date()
            self._limits = {name: row.limit_on(date) for name, row in self._rows.items()}
        limit, counted = self._limits[egress], self._counted.get(egress, 0)
        granted = count if limit is None else min(count, max(0, limit - counted))
        self._counted[egress] = counted + granted
        return granted

    def awaits_more(self, egress: str) -> bool:
        return False

    def reserve_trial(self, egress: str) -> bool:
        now = self._now()
        if now - self._tried_at.get(egress, now) < TRIAL_S:
            return False
        self._tried_at[egress] = now
        return True

    def answered(self, egress: str, operator: str, host: str, reason: str) -> None:
        pass  # the engine itself judges each egress by its answers

    def quarantine(self, egress: str, why: str) -> None:
        self._tried_at.setdefault(egress, self._now())
        self.listeners.notify()

    def release(self, egress: str) -> None:
        self._tried_at.pop(egress, None)
        self.listeners.notify()
