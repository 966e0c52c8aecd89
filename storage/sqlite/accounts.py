"""Transactions of accounts and keys, in SQL. Each runs in the writer's or the reader's transaction."""

import sqlite3
from datetime import datetime
from functools import lru_cache

from ..base.columns import (
    ACCOUNT_COLUMNS,
    ACCOUNT_FIELDS,
    KEY_COLUMNS,
    account_of,
    key_of,
)
from ..commands import FindCaller
from ..records import Caller

DB = sqlite3.Connection
CALLERS_MAX = 4096  # 1.5 KB per entry


def number_of(db: DB, account_id: str) -> int:
    """Return the account's row number; raises KeyError if there is none."""
    row = db.execute("SELECT number FROM accounts WHERE id = ?", (account_id,)).fetchone()
    if row is None:
        raise KeyError(account_id)
    return int(row[0])


def find_caller(db: DB, _: datetime, command: FindCaller) -> Caller | None:
    """Return the active key with this hash and its account, or None."""
    return caller(db, command.sha256)


def caller(db: DB, sha256: str) -> Caller | None:
    """Return the active key with this hash and its account, or None."""
    return _caller(db, "sha256 = ? AND revoked_at IS NULL", sha256)


def caller_of_key(db: DB, number: int) -> Caller:
    """Return the key with this row number, revoked or not, and its account."""
    found = _caller(db, "keys.number = ?", number)
    assert found, "no key is deleted that has jobs"
    return found


def _caller(db: DB, which: str, value: str | int) -> Caller | None:
    row = db.execute(
        f"SELECT {ACCOUNT_COLUMNS}, {KEY_COLUMNS}"
        f" FROM keys JOIN accounts ON accounts.number = keys.account WHERE {which}",
        (value,),
    ).fetchone()
    if row is None:
        return None
    return _caller_of(row)


@lru_cache(maxsize=CALLERS_MAX)
def _caller_of(row: tuple[object, ...]) -> Caller:
    """Build a Caller from a row. Cached: most requests come from few callers, whose rows are equal."""
    fields = len(ACCOUNT_FIELDS)
    return Caller(account_of(row[:fields]), key_of(row[fields:]))
