"""Idempotency records in a dictionary."""

from collections.abc import Callable
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from mailprobe.storage.commands import BeginIdempotent, EncryptedFirst, FinishIdempotent
from mailprobe.storage.contract import IdempotencyInProgress, IdempotencyKeyReused
from mailprobe.storage.records import IdempotencyRecord
from tests.storage.ledger.accounts import ModelAccounts


class _KeptRecord(Struct, frozen=True):
    """An idempotency key in use, with or without its answer."""

    body_sha256: str
    lease_until: datetime
    keep_until: datetime
    answer: bytes | None = None

    def stands(self, now: datetime) -> bool:
        if self.answer is None and self.lease_until <= now:
            return False
        return self.keep_until > now

    def is_ahead(self, lease_max: datetime) -> bool:
        """Whether a clock that was ahead began it: its lease is longer than any real one."""
        return self.answer is None and self.lease_until > lease_max


class ModelIdempotency(ModelAccounts):
    """The layer of requests that run at most once."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(now)
        self._idempotency_records: dict[tuple[str, str], _KeptRecord] = {}

    def begin_idempotent(self, command: BeginIdempotent) -> IdempotencyRecord | bytes:
        now = self._now()
        kept = self._idempotency_records.get((self._accounts[command.account_id].id, command.key))
        lease_until = command.lease_until(now)
        if (
            kept is None
            or not kept.stands(now)
            or kept.is_ahead(now + timedelta(seconds=command.lease_s))
        ):
            keep_until = now + timedelta(seconds=command.keep_s)
            self._idempotency_records[command.account_id, command.key] = _KeptRecord(
                command.body_sha256, lease_until, keep_until
            )
            return IdempotencyRecord(command.account_id, command.key, lease_until)
        if kept.body_sha256 != command.body_sha256:
            raise IdempotencyKeyReused
        if kept.answer is None:
            raise IdempotencyInProgress
        return kept.answer

    def finish_idempotent(self, command: FinishIdempotent) -> None:
        begun = command.idempotency
        if command.answer is None:
            kept = self._idempotency_records.get((begun.account_id, begun.key))
            mark = begun.lease_until.microsecond
            if kept and kept.answer is None and kept.lease_until.microsecond == mark:
                del self._idempotency_records[begun.account_id, begun.key]
        elif self._runs(begun):
            self._answer(EncryptedFirst(begun, command.answer))

    def _runs(self, idempotency: IdempotencyRecord) -> bool:
        """Whether no answer is stored and no other request has begun since."""
        kept = self._idempotency_records.get((idempotency.account_id, idempotency.key))
        return (
            kept is not None and kept.answer is None and kept.lease_until == idempotency.lease_until
        )

    def _check_runs(self, first: EncryptedFirst | None) -> None:
        """Raise IdempotencyInProgress if the request no longer runs; call before any change."""
        if first is not None and not self._runs(first.idempotency):
            raise IdempotencyInProgress

    def _answer(self, first: EncryptedFirst | None) -> None:
        if first is not None:
            place = first.idempotency.account_id, first.idempotency.key
            self._idempotency_records[place] = replace(
                self._idempotency_records[place], answer=first.answer
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
