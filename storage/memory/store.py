"""The store as dictionaries: the readable specification of the others.

For virtual time too: nothing here waits, and the clock is handed in. A method is
a transaction because nothing in it awaits after its first line. The store is made
of layers, each of which knows those below it: accounts, idempotency keys, the
outbox, metering, jobs, and here what stands on all of them.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

import trio

from mailprobe.storage.contract import LEASES_MAX, ONCES_KEPT_MAX, WAITS_MAX, WINDOW
from mailprobe.storage.memory.jobs import Jobs
from mailprobe.storage.memory.leases import Seats
from mailprobe.storage.periods import FOREVER, kept_since
from mailprobe.storage.records import Tier


class MemoryStore(Jobs, Seats):
    """Everything that is remembered, until the process ends."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        Jobs.__init__(self, now)
        Seats.__init__(self, now)

    # upkeep

    async def tidy(self, retention_days: dict[Tier, int]) -> None:
        await trio.lowlevel.checkpoint()
        now = self._now()
        for account in self._accounts.values():
            if account.tier in retention_days:
                since = kept_since(now, retention_days[account.tier])
                self._drop_rows(account.id, since)
                self._drop_jobs(account.id, since)
                self._drop_keys(account.id, since, self._keys_of_jobs())
        self._bring_back_all(now)
        self._drop_ended(now)
        self._drop_letters(now)
        self._drop_receivers(now)
        self._drop_seats(now)
        self._drop_onces(now)

    def _bring_back_all(self, now: datetime) -> None:
        """What a clock wrote that was ahead."""
        lease_max, wait_max = now + LEASES_MAX, now + WAITS_MAX
        for id, lease in self._leases.items():
            if lease_max < lease.until < FOREVER:  # a job's has no end
                self._leases[id] = replace(lease, until=lease_max)
        self._letters.bring_back(lambda letter: wait_max, lease_max)
        self._jobs.bring_back(
            lambda kept: now if kept.work == "verify" or not kept.job.tries else wait_max, lease_max
        )
        self._bring_back_seats(lease_max)
        self._bring_back_onces(now + ONCES_KEPT_MAX)
        for key in list(self._keys.values()):
            if key.revoked_at and key.revoked_at > now + WINDOW:
                self._keys[key.id] = replace(key, revoked_at=now)
            if any(at > now + WINDOW for at in self._windows.get(key.id, ())):
                self._bring_back(key, now)

    async def check(self) -> datetime:
        await trio.lowlevel.checkpoint()
        return self._now()
