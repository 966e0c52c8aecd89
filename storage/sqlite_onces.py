"""The transactions of idempotency keys, as SQL."""

import sqlite3
from datetime import datetime

from storage.rows import micros
from storage.sqlite_accounts import number_of
from storage.store import IdempotencyInProgress, IdempotencyKeyReused

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
    account = number_of(db, account_id)
    at = micros(now)
    standing = db.execute(
        "SELECT body_sha256, answer FROM onces WHERE account = ? AND key = ? AND keep_until > ?"
        " AND (answer IS NOT NULL OR lease_until > ?)",
        (account, key, at, at),
    ).fetchone()
    if standing is None:
        db.execute(
            "INSERT OR REPLACE INTO onces (account, key, body_sha256, lease_until, keep_until)"
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


def finish(db: DB, account_id: str, key: str, answer: bytes | None) -> None:
    which = (
        " WHERE account = (SELECT number FROM accounts WHERE id = ?) AND key = ? AND answer IS NULL"
    )
    if answer is None:
        db.execute(f"DELETE FROM onces{which}", (account_id, key))
    else:
        db.execute(f"UPDATE onces SET answer = ?{which}", (answer, account_id, key))
