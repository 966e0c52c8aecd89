"""The memory store: dictionaries, the readable specification of the others.

It works in virtual time: nothing here waits, and the clock is injected. A method is
a transaction because nothing in it awaits after its first line. The store is built
from layers, each of which knows those below it: accounts, idempotency records, the
outbox, usage, jobs, and here what needs all of them.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

import trio

from mailprobe.storage.contract import IDEMPOTENCY_KEPT_MAX, LEASES_MAX, WAITS_MAX, WINDOW
from mailprobe.storage.memory.jobs import MemoryJobs
from mailprobe.storage.memory.leases import MemoryLeases
from mailprobe.storage.periods import FOREVER, kept_since
from mailprobe.storage.records import Tier


class MemoryStore(MemoryJobs, MemoryLeases):
    """A Store that lasts until the process ends."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        MemoryJobs.__init__(self, now)
        MemoryLeases.__init__(self, now)

    # upkeep

    async def apply_retention(self, retention_days: dict[Tier, int]) -> None:
        await trio.lowlevel.checkpoint()
        now = self._now()
        for account in self._accounts.values():
            if account.tier in retention_days:
                since = kept_since(now, retention_days[account.tier])
                self._drop_rows(account.id, since)
                self._drop_jobs(account.id, since)
                self._drop_keys(account.id, since, self._keys_of_jobs())
        self._correct_instants(now)
        self._drop_ended(now)
        self._drop_messages(now)
        self._drop_receivers(now)
        self._drop_leases(now)
        self._drop_idempotency(now)

    def _correct_instants(self, now: datetime) -> None:
        """Correct the instants that a clock wrote that was ahead."""
        lease_max, wait_max = now + LEASES_MAX, now + WAITS_MAX
        for id, lease in self._leases.items():
            if lease_max < lease.until < FOREVER:  # a job's has no end
                self._leases[id] = replace(lease, until=lease_max)
        self._messages.reclaim(lambda message: wait_max, lease_max)
        self._jobs.reclaim(
            lambda kept: now if kept.work == "verify" or not kept.job.tries else wait_max, lease_max
        )
        self._reclaim_leases(lease_max)
        self._reclaim_records(now + IDEMPOTENCY_KEPT_MAX)
        for key in list(self._keys.values()):
            if key.revoked_at and key.revoked_at > now + WINDOW:
                self._keys[key.id] = replace(key, revoked_at=now)
            if any(at > now + WINDOW for at in self._windows.get(key.id, ())):
                self._reclaim(key, now)

    async def check(self) -> datetime:
        await trio.lowlevel.checkpoint()
        return self._now()
