"""Transactions of idempotency records, in SQL."""

import sqlite3
from datetime import datetime, timedelta

from ..base.columns import micros
from ..base.lease_holders import is_gone
from ..commands import BeginIdempotent, EncryptedFirst, FinishIdempotent
from ..contract import IdempotencyInProgress, IdempotencyKeyReused
from ..records import MARKS, IdempotencyRecord
from .accounts import number_of

DB = sqlite3.Connection


def begin(db: DB, now: datetime, command: BeginIdempotent) -> IdempotencyRecord | bytes:
    """Begin a request: a record for the first, else the encrypted answer. Raises as begin_idempotent."""
    lease_until = command.lease_until(now)
    keep_until = now + timedelta(seconds=command.keep_s)
    account = number_of(db, command.account_id)
    at = micros(now)
    standing = db.execute(
        "SELECT body_sha256, answer, holder FROM idempotency_records WHERE account = ? AND key = ? AND keep_until > ?"
        " AND (answer IS NOT NULL OR lease_until > ? AND lease_until <= ?)",
        (
            account,
            command.key,
            at,
            at,
            micros(now + timedelta(seconds=command.lease_s)),
        ),  # a longer lease was written by a clock that was ahead
    ).fetchone()
    if standing is None or (standing[1] is None and is_gone(standing[2] or "")):
        db.execute(
            "INSERT OR REPLACE INTO idempotency_records (account, key, body_sha256, lease_until, keep_until, holder)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (
                account,
                command.key,
                command.body_sha256,
                micros(lease_until),
                micros(keep_until),
                command.holder,
            ),
        )
        return IdempotencyRecord(command.account_id, command.key, lease_until)
    body_before, answer, _ = standing
    if body_before != command.body_sha256:
        raise IdempotencyKeyReused
    if answer is None:
        raise IdempotencyInProgress
    return bytes(answer)


RUNNING = (
    " WHERE account = (SELECT number FROM accounts WHERE id = ?) AND key = ? AND answer IS NULL"
    " AND lease_until = ?"
)
MARKED = RUNNING.replace("lease_until = ?", f"lease_until % {MARKS} = ? % {MARKS}")


def _running_key(idempotency: IdempotencyRecord) -> tuple[str, str, int]:
    return idempotency.account_id, idempotency.key, micros(idempotency.lease_until)


def finish(db: DB, _: datetime, command: FinishIdempotent) -> None:
    """Store the encrypted answer, or (None) delete the record, if the request still runs."""
    if command.answer is None:
        db.execute(f"DELETE FROM idempotency_records{MARKED}", _running_key(command.idempotency))
    else:
        keep(db, EncryptedFirst(command.idempotency, command.answer))


def check_runs(db: DB, idempotency: IdempotencyRecord | None) -> None:
    """Raise IdempotencyInProgress if the request no longer runs; call it before any write."""
    if idempotency is None:
        return
    if not db.execute(
        f"SELECT 1 FROM idempotency_records{RUNNING}", _running_key(idempotency)
    ).fetchone():
        raise IdempotencyInProgress


def keep(db: DB, first: EncryptedFirst | None) -> None:
    """Store the answer to a running request."""
    if first is not None:
        db.execute(
            f"UPDATE idempotency_records SET answer = ?{RUNNING}",
            (first.answer, *_running_key(first.idempotency)),
        )
