"""Transactions of accounts and keys, in SQL. Each runs in the writer's or the reader's transaction."""

import sqlite3
from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import uuid4

from mailprobe.storage.checks import next_key_at
from mailprobe.storage.columns import (
    ACCOUNT_COLUMNS,
    ACCOUNT_FIELDS,
    KEY_COLUMNS,
    account_of,
    column,
    instant,
    key_of,
    micros,
)
from mailprobe.storage.commands import (
    ChangeAccount,
    CreateAccount,
    CreateFirstAccount,
    CreateKey,
    FindAccount,
    FindAccountOfCustomer,
    FindCaller,
    ListAccounts,
    ListKeys,
    RevokeKey,
)
from mailprobe.storage.contract import WINDOW, KeyCreationTooFast, KeyLimitReached
from mailprobe.storage.records import Account, Caller, Key, KeyKind

DB = sqlite3.Connection
CALLERS_MAX = 4096  # some KiB per entry


def create_account(db: DB, now: datetime, command: CreateAccount) -> Account:
    """Insert an account with a new UUID."""
    account = Account(str(uuid4()), command.email, command.tier, now)
    places = ", ".join("?" * len(ACCOUNT_FIELDS))
    db.execute(
        f"INSERT INTO accounts ({', '.join(ACCOUNT_FIELDS)}) VALUES ({places})",
        [column(getattr(account, name)) for name in ACCOUNT_FIELDS],
    )
    return account


def create_first_account(db: DB, now: datetime, command: CreateFirstAccount) -> Account | None:
    """Insert an account with its keys; None if there is an account."""
    if db.execute("SELECT 1 FROM accounts LIMIT 1").fetchone():
        return None
    account = create_account(db, now, CreateAccount(command.email, command.tier))
    for each in command.key_commands(account.id):
        create_key(db, now, each)
    return account


def find_account(db: DB, _: datetime, command: FindAccount) -> Account | None:
    """Return the account, or None."""
    row = db.execute(
        f"SELECT {ACCOUNT_COLUMNS} FROM accounts WHERE id = ?", (command.account_id,)
    ).fetchone()
    return row and account_of(row)


def list_accounts(db: DB, _: datetime, command: ListAccounts) -> list[Account]:
    """Return all accounts, oldest first."""
    rows = db.execute(f"SELECT {ACCOUNT_COLUMNS} FROM accounts ORDER BY number")
    return [account_of(row) for row in rows]


def account_of_customer(db: DB, _: datetime, command: FindAccountOfCustomer) -> Account | None:
    """Return the account with this customer id, or None."""
    row = db.execute(
        f"SELECT {ACCOUNT_COLUMNS} FROM accounts WHERE customer_id = ?", (command.customer_id,)
    ).fetchone()
    return row and account_of(row)


def change_account(db: DB, now: datetime, command: ChangeAccount) -> Account | None:
    """Set the named fields; None if there is no such account. Raises ValueError for a taken customer_id."""
    if _is_anothers(db, command.account_id, command.changes.get("customer_id")):
        raise ValueError("another account has this customer_id")
    for name, value in command.changes.items():  # each is a field's name: check_changes()
        db.execute(
            f"UPDATE accounts SET {name} = ? WHERE id = ?", (column(value), command.account_id)
        )
    return find_account(db, now, FindAccount(command.account_id))


def _is_anothers(db: DB, account_id: str, customer_id: str | None) -> bool:
    other = db.execute(
        "SELECT 1 FROM accounts AS mine JOIN accounts AS other ON other.number <> mine.number"
        " WHERE mine.id = ? AND other.customer_id = ?",
        (account_id, customer_id),
    )
    return other.fetchone() is not None


def number_of(db: DB, account_id: str) -> int:
    """Return the account's row number; raises KeyError if there is none."""
    row = db.execute("SELECT number FROM accounts WHERE id = ?", (account_id,)).fetchone()
    if row is None:
        raise KeyError(account_id)
    return int(row[0])


def create_key(db: DB, now: datetime, command: CreateKey) -> Key:
    """Insert a key; raises what Store.create_key raises."""
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
    key = Key(str(uuid4()), command.account_id, command.kind, command.label, command.prefix, now)
    db.execute(
        "INSERT INTO keys (id, account, kind, label, prefix, sha256, created_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (key.id, account, key.kind, key.label, key.prefix, command.sha256, micros(key.created_at)),
    )
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


def list_keys(db: DB, _: datetime, command: ListKeys) -> list[Key]:
    """Return the account's active keys, oldest first."""
    rows = db.execute(
        f"SELECT {KEY_COLUMNS} FROM accounts JOIN keys ON keys.account = accounts.number"
        " WHERE accounts.id = ? AND revoked_at IS NULL ORDER BY keys.number",
        (command.account_id,),
    )
    return [key_of(row) for row in rows]


def revoke_key(db: DB, now: datetime, command: RevokeKey) -> bool:
    """Revoke an active key; False if the account (None: any) has none with this id."""
    revoked = db.execute(
        "UPDATE keys SET revoked_at = :now WHERE id = :key AND revoked_at IS NULL AND"
        " (:account IS NULL OR account = (SELECT number FROM accounts WHERE id = :account))",
        {"now": micros(now), "key": command.key_id, "account": command.account_id},
    )
    return bool(revoked.rowcount)


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
def _caller_of(row: tuple[Any, ...]) -> Caller:
    """Build a Caller from a row. Cached: most requests come from few callers, whose rows are equal."""
    fields = len(ACCOUNT_FIELDS)
    return Caller(account_of(row[:fields]), key_of(row[fields:]))
