"""Transactions of idempotency records, in SQL."""

import sqlite3
from datetime import datetime

from mailprobe.storage.columns import micros
from mailprobe.storage.contract import IdempotencyInProgress, IdempotencyKeyReused
from mailprobe.storage.encrypted_columns import EncryptedFirst
from mailprobe.storage.records import IdempotencyRecord
from mailprobe.storage.sqlite.accounts import number_of

DB = sqlite3.Connection


def begin(
    db: DB,
    now: datetime,
    account_id: str,
    key: str,
    body_sha256: str,
    lease_until: datetime,
    keep_until: datetime,
) -> bytes | None:
    """Begin a request: None for the first, else the encrypted answer. Raises as begin_idempotent."""
    account = number_of(db, account_id)
    at = micros(now)
    standing = db.execute(
        "SELECT body_sha256, answer FROM idempotency_records WHERE account = ? AND key = ? AND keep_until > ?"
        " AND (answer IS NOT NULL OR lease_until > ? AND lease_until <= ?)",
        (
            account,
            key,
            at,
            at,
            micros(lease_until),
        ),  # a longer lease was written by a clock that was ahead
    ).fetchone()
    if standing is None:
        db.execute(
            "INSERT OR REPLACE INTO idempotency_records (account, key, body_sha256, lease_until, keep_until)"
            " VALUES (?, ?, ?, ?, ?)",
            (account, key, body_sha256, micros(lease_until), micros(keep_until)),
        )
        return None
    body_before, answer = standing
    if body_before != body_sha256:
        raise IdempotencyKeyReused
    if answer is None:
        raise IdempotencyInProgress
    return bytes(answer)


RUNNING = (
    " WHERE account = (SELECT number FROM accounts WHERE id = ?) AND key = ? AND answer IS NULL"
    " AND lease_until = ?"
)


def _running_key(idempotency: IdempotencyRecord) -> tuple[str, str, int]:
    return idempotency.account_id, idempotency.key, micros(idempotency.lease_until)


def finish(db: DB, idempotency: IdempotencyRecord, answer: bytes | None) -> None:
    """Store the encrypted answer, or (None) delete the record, if the request still runs."""
    if answer is None:
        db.execute(f"DELETE FROM idempotency_records{RUNNING}", _running_key(idempotency))
    else:
        db.execute(
            f"UPDATE idempotency_records SET answer = ?{RUNNING}",
            (answer, *_running_key(idempotency)),
        )


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
        finish(db, first.idempotency, first.answer)
