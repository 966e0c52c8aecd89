"""The store as dictionaries: the readable specification of the others.

For virtual time too: nothing here waits, and the clock is handed in. A method is
a transaction because nothing in it awaits after its first line. The store is made
of layers, each of which knows those below it: accounts, the outbox, metering,
jobs, and here what stands on all of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import trio

from storage.calendar import kept_since
from storage.memory_jobs import Jobs
from storage.memory_seats import Seats
from storage.records import Answered, Tier
from storage.store import IdempotencyInProgress, IdempotencyKeyReused, check_answer


@dataclass(frozen=True, slots=True)
class _Once:
    """An idempotency key: begun, and answered or not."""

    body_sha256: str
    lease_until: datetime
    keep_until: datetime
    answer: Answered | None = None

    def stands(self, now: datetime) -> bool:
        if self.answer is None and self.lease_until <= now:
            return False
        return self.keep_until > now


class MemoryStore(Jobs, Seats):
    """Everything that is remembered, until the process ends."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        Jobs.__init__(self, now)
        Seats.__init__(self, now)
        self._onces: dict[tuple[str, str], _Once] = {}

    # idempotency

    async def begin_once(
        self, account_id: str, key: str, body_sha256: str, *, keep_s: float, lease_s: float
    ) -> Answered | None:
        await trio.lowlevel.checkpoint()
        now = self._now()
        once = self._onces.get((self._accounts[account_id].id, key))
        if once is None or not once.stands(now):
            self._onces[account_id, key] = _Once(
                body_sha256, now + timedelta(seconds=lease_s), now + timedelta(seconds=keep_s)
            )
            return None
        if once.body_sha256 != body_sha256:
            raise IdempotencyKeyReused
        if once.answer is None:
            raise IdempotencyInProgress
        return once.answer

    async def finish_once(self, account_id: str, key: str, answer: Answered | None) -> None:
        check_answer(answer)
        await trio.lowlevel.checkpoint()
        once = self._onces.get((account_id, key))
        if once is None or once.answer:
            return
        if answer is None:
            del self._onces[account_id, key]
        else:
            self._onces[account_id, key] = replace(once, answer=answer)

    # upkeep

    async def tidy(self, retention_days: dict[Tier, int]) -> None:
        await trio.lowlevel.checkpoint()
        now = self._now()
        for account in self._accounts.values():
            if account.tier in retention_days:
                since = kept_since(now, retention_days[account.tier])
                self._drop_rows(account.id, since)
                self._drop_jobs(account.id, since)
        self._drop_ended(now)
        self._drop_letters(now)
        self._drop_seats(now)
        self._onces = {key: once for key, once in self._onces.items() if once.stands(now)}

    async def check(self) -> datetime:
        await trio.lowlevel.checkpoint()
        return self._now()
