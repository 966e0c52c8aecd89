"""Idempotency keys, as a dictionary."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import trio

from mailprobe.storage.contract import IdempotencyInProgress, IdempotencyKeyReused, as_kept
from mailprobe.storage.memory.accounts import Accounts
from mailprobe.storage.records import Answered, FirstAnswer, Once


@dataclass(frozen=True, slots=True)
class _Kept:
    """An idempotency key: begun, and answered or not."""

    body_sha256: str
    lease_until: datetime
    keep_until: datetime
    answer: Answered | None = None

    def stands(self, now: datetime) -> bool:
        if self.answer is None and self.lease_until <= now:
            return False
        return self.keep_until > now

    def is_ahead(self, lease_max: datetime) -> bool:
        """Was it begun by a clock that was ahead? No lease is as long."""
        return self.answer is None and self.lease_until > lease_max


class Onces(Accounts):
    """Requests that are answered once."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(now)
        self._onces: dict[tuple[str, str], _Kept] = {}

    async def begin_once(
        self, account_id: str, key: str, body_sha256: str, *, keep_s: float, lease_s: float
    ) -> Answered | Once:
        await trio.lowlevel.checkpoint()
        now = self._now()
        kept = self._onces.get((self._accounts[account_id].id, key))
        lease_until = now + timedelta(seconds=lease_s)
        if kept is None or not kept.stands(now) or kept.is_ahead(lease_until):
            keep_until = now + timedelta(seconds=keep_s)
            self._onces[account_id, key] = _Kept(body_sha256, lease_until, keep_until)
            return Once(account_id, key, lease_until)
        if kept.body_sha256 != body_sha256:
            raise IdempotencyKeyReused
        if kept.answer is None:
            raise IdempotencyInProgress
        return kept.answer

    async def finish_once(self, once: Once, answer: Answered | None) -> None:
        await trio.lowlevel.checkpoint()
        if not self._runs(once):
            return
        if answer is None:
            del self._onces[once.account_id, once.key]
        else:
            self._answer(FirstAnswer(once, answer))

    def _runs(self, once: Once) -> bool:
        """No answer is kept, and no other request has begun since."""
        kept = self._onces.get((once.account_id, once.key))
        return kept is not None and kept.answer is None and kept.lease_until == once.lease_until

    def _check_runs(self, first: FirstAnswer | None) -> None:
        """Before anything is changed."""
        if first is not None and not self._runs(first.once):
            raise IdempotencyInProgress

    def _answer(self, first: FirstAnswer | None) -> None:
        if first is not None:
            place = first.once.account_id, first.once.key
            self._onces[place] = replace(self._onces[place], answer=as_kept(first.answer))

    def _bring_back_onces(self, keep_max: datetime) -> None:
        for place, kept in self._onces.items():
            self._onces[place] = replace(kept, keep_until=min(kept.keep_until, keep_max))

    def _drop_onces(self, now: datetime) -> None:
        self._onces = {key: kept for key, kept in self._onces.items() if kept.stands(now)}
