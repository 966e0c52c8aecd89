"""Idempotency records in a dictionary."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import trio

from mailprobe.storage.checks import as_kept
from mailprobe.storage.contract import IdempotencyInProgress, IdempotencyKeyReused
from mailprobe.storage.memory.accounts import MemoryAccounts
from mailprobe.storage.records import Answered, FirstAnswer, IdempotencyRecord


@dataclass(frozen=True, slots=True)
class _KeptRecord:
    """An idempotency key in use, with or without its answer."""

    body_sha256: str
    lease_until: datetime
    keep_until: datetime
    answer: Answered | None = None

    def stands(self, now: datetime) -> bool:
        if self.answer is None and self.lease_until <= now:
            return False
        return self.keep_until > now

    def is_ahead(self, lease_max: datetime) -> bool:
        """Whether a clock that was ahead began it: its lease is longer than any real one."""
        return self.answer is None and self.lease_until > lease_max


class MemoryIdempotency(MemoryAccounts):
    """The layer of requests that run at most once."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(now)
        self._idempotency_records: dict[tuple[str, str], _KeptRecord] = {}

    async def begin_idempotent(
        self, account_id: str, key: str, body_sha256: str, *, keep_s: float, lease_s: float
    ) -> Answered | IdempotencyRecord:
        await trio.lowlevel.checkpoint()
        now = self._now()
        kept = self._idempotency_records.get((self._accounts[account_id].id, key))
        lease_until = now + timedelta(seconds=lease_s)
        if kept is None or not kept.stands(now) or kept.is_ahead(lease_until):
            keep_until = now + timedelta(seconds=keep_s)
            self._idempotency_records[account_id, key] = _KeptRecord(
                body_sha256, lease_until, keep_until
            )
            return IdempotencyRecord(account_id, key, lease_until)
        if kept.body_sha256 != body_sha256:
            raise IdempotencyKeyReused
        if kept.answer is None:
            raise IdempotencyInProgress
        return kept.answer

    async def finish_idempotent(
        self, idempotency: IdempotencyRecord, answer: Answered | None
    ) -> None:
        await trio.lowlevel.checkpoint()
        if not self._runs(idempotency):
            return
        if answer is None:
            del self._idempotency_records[idempotency.account_id, idempotency.key]
        else:
            self._answer(FirstAnswer(idempotency, answer))

    def _runs(self, idempotency: IdempotencyRecord) -> bool:
        """Whether no answer is stored and no other request has begun since."""
        kept = self._idempotency_records.get((idempotency.account_id, idempotency.key))
        return (
            kept is not None and kept.answer is None and kept.lease_until == idempotency.lease_until
        )

    def _check_runs(self, first: FirstAnswer | None) -> None:
        """Raise IdempotencyInProgress if the request no longer runs; call before any change."""
        if first is not None and not self._runs(first.once):
            raise IdempotencyInProgress

    def _answer(self, first: FirstAnswer | None) -> None:
        if first is not None:
            place = first.once.account_id, first.once.key
            self._idempotency_records[place] = replace(
                self._idempotency_records[place], answer=as_kept(first.answer)
            )

    def _reclaim_records(self, keep_max: datetime) -> None:
        for place, kept in self._idempotency_records.items():
            self._idempotency_records[place] = replace(
                kept, keep_until=min(kept.keep_until, keep_max)
            )

    def _drop_idempotency(self, now: datetime) -> None:
        self._idempotency_records = {
            key: kept for key, kept in self._idempotency_records.items() if kept.stands(now)
        }
