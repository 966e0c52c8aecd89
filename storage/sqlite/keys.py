"""The transaction that creates a key."""

import sqlite3
from datetime import datetime

from mailprobe.storage.accounts import insert_key, new_key
from mailprobe.storage.base.checks import next_key_at
from mailprobe.storage.base.columns import instant, micros
from mailprobe.storage.commands import CreateKey
from mailprobe.storage.contract import WINDOW, KeyCreationTooFast, KeyLimitReached
from mailprobe.storage.records import Key, KeyKind
from mailprobe.storage.sqlite import idempotency
from mailprobe.storage.sqlite.accounts import number_of
from mailprobe.storage.sqlite.database import SqliteDatabase

DB = sqlite3.Connection


def create_key(db: DB, now: datetime, command: CreateKey) -> Key:
    """Insert a key, and store the answer that `command.answer` makes from it."""
    idempotency.check_runs(db, command.idempotency)
    account = number_of(db, command.account_id)
    if command.keys_max is not None:
        (active,) = db.execute(
            "SELECT count(*) FROM keys WHERE account = ? AND kind = ? AND revoked_at IS NULL",
            (account, command.kind),
        ).fetchone()
        if active >= command.keys_max:
            raise KeyLimitReached
    if command.keys_per_minute_max is not None:
        _check_creation_rate(db, now, account, command.kind, command.keys_per_minute_max)
    if db.execute("SELECT 1 FROM keys WHERE sha256 = ?", (command.sha256,)).fetchone():
        raise ValueError("a key with this hash is kept already")
    key = new_key(command, now)
    insert_key(SqliteDatabase(db, now), account, key, command.sha256, command.by)
    if command.answer is not None:
        idempotency.keep(db, command.answer(key))
    return key


def _check_creation_rate(
    db: DB, now: datetime, account: int, kind: KeyKind, keys_per_minute_max: int
) -> None:
    rows = db.execute(
        "SELECT created_at FROM keys WHERE account = ? AND kind = ?"
        " AND created_at > ? AND created_at <= ?",
        (account, kind, micros(now - WINDOW), micros(now)),
    )
    at = next_key_at([instant(at) for (at,) in rows], keys_per_minute_max)
    if at is not None:
        raise KeyCreationTooFast(now, at)
