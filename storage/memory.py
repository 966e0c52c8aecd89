"""The store as dictionaries: the readable specification of the others.

For virtual time too: nothing here waits, and the clock is handed in. A method is
a transaction because nothing in it awaits after its first line. The store is made
of layers, each of which knows those below it: accounts, idempotency keys, the
outbox, metering, jobs, and here what stands on all of them.
"""

from collections.abc import Callable
from datetime import datetime

import trio

from storage.calendar import kept_since
from storage.memory_jobs import Jobs
from storage.memory_seats import Seats
from storage.records import Tier


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
        self._drop_ended(now)
        self._drop_letters(now)
        self._drop_receivers(now)
        self._drop_seats(now)
        self._drop_onces(now)

    async def check(self) -> datetime:
        await trio.lowlevel.checkpoint()
        return self._now()
