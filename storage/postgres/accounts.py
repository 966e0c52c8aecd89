"""Transactions of accounts and keys, in SQL, and the look-up of many callers at once."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import uuid4

from psycopg import errors

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
from mailprobe.storage.contract import WINDOW, KeyCreationTooFast, KeyLimitReached
from mailprobe.storage.postgres.driver.batch_executor import Raised
from mailprobe.storage.postgres.driver.commands import NewKey
from mailprobe.storage.postgres.driver.server import TransactionSession
from mailprobe.storage.records import Account, Caller, Key, Tier

CALLERS = (
    f"SELECT keys.sha256, keys.number, {ACCOUNT_COLUMNS}, {KEY_COLUMNS}"
    " FROM keys JOIN accounts ON accounts.number = keys.account WHERE "
)

ACTIVE = (
    "SELECT account, count(*) FROM keys WHERE account = ANY(%s) AND kind = 'standard'"
    " AND revoked_at IS NULL GROUP BY account"
)
MADE = (
    "SELECT account, created_at FROM keys WHERE account = ANY(%s) AND kind = 'standard'"
    " AND created_at > %s AND created_at <= %s"
)
HASHES = "SELECT sha256 FROM keys WHERE sha256 = ANY(%s)"
KEEP_KEYS = (
    "INSERT INTO keys (id, account, kind, label, prefix, sha256, created_at)"
    " SELECT * FROM unnest(%s::text[], %s::bigint[], %s::text[], %s::text[], %s::text[],"
    " %s::text[], %s::bigint[])"
)


def create_account(db: TransactionSession, email: str, tier: Tier) -> Account:
    account = Account(str(uuid4()), email, tier, db.now())
    places = ", ".join(["%s"] * len(ACCOUNT_FIELDS))
    db.execute(
        f"INSERT INTO accounts ({', '.join(ACCOUNT_FIELDS)}) VALUES ({places})",
        [column(getattr(account, name)) for name in ACCOUNT_FIELDS],
    )
    return account


def account(db: TransactionSession, account_id: str) -> Account | None:
    row = db.one(f"SELECT {ACCOUNT_COLUMNS} FROM accounts WHERE id = %s", [account_id])
    return row and account_of(row)


def accounts(db: TransactionSession) -> list[Account]:
    rows = db.all(f"SELECT {ACCOUNT_COLUMNS} FROM accounts ORDER BY number")
    return [account_of(row) for row in rows]


def account_of_customer(db: TransactionSession, customer_id: str) -> Account | None:
    row = db.one(f"SELECT {ACCOUNT_COLUMNS} FROM accounts WHERE customer_id = %s", [customer_id])
    return row and account_of(row)


def change_account(
    db: TransactionSession, account_id: str, changes: dict[str, Any]
) -> Account | None:
    """Update in one statement, so that the database itself keeps `customer_id` unique."""
    if changes:
        sets = ", ".join(f"{name} = %s" for name in changes)  # fields: check_changes()
        values = [column(value) for value in changes.values()]
        try:
            db.execute(f"UPDATE accounts SET {sets} WHERE id = %s", [*values, account_id])
        except errors.UniqueViolation:
            raise ValueError("another account has this customer_id") from None
    return account(db, account_id)


def create_keys(
    db: TransactionSession, now: datetime, those: Sequence[tuple[NewKey, int]]
) -> list[Any]:
    """Insert keys; returns a key or Raised for each. Each has its locked account's number."""
    if not those:
        return []
    accounts = {account for _, account in those}
    active: dict[int, int] = dict(db.all(ACTIVE, [list(accounts)]))
    made: dict[int, list[datetime]] = {}
    for account, at in db.all(MADE, [list(accounts), micros(now - WINDOW), micros(now)]):
        made.setdefault(account, []).append(instant(at))
    kept = {sha256 for (sha256,) in db.all(HASHES, [[command.sha256 for command, _ in those]])}
    reported: list[Any] = []
    rows = []
    for command, account in those:
        standard = command.kind == "standard"
        count = active.get(account, 0)
        if standard and command.keys_max is not None and count >= command.keys_max:
            reported.append(Raised(KeyLimitReached()))
        elif (
            standard
            and command.keys_per_minute_max is not None
            and (at := next_key_at(made.get(account, []), command.keys_per_minute_max))
        ):
            reported.append(Raised(KeyCreationTooFast(now, at)))
        elif command.sha256 in kept:
            reported.append(Raised(ValueError("a key with this hash is kept already")))
        else:
            key = Key(
                str(uuid4()), command.account_id, command.kind, command.label, command.prefix, now
            )
            reported.append(key)
            kept.add(command.sha256)
            active[account] = count + standard
            if standard:
                made.setdefault(account, []).append(now)
            owner = key.id, account, key.kind
            rows.append((*owner, key.label, key.prefix, command.sha256, micros(now)))
    if rows:
        db.execute(KEEP_KEYS, [list(column) for column in zip(*rows, strict=True)])
    return reported


def keys(db: TransactionSession, account_id: str) -> list[Key]:
    rows = db.all(
        f"SELECT {KEY_COLUMNS} FROM accounts JOIN keys ON keys.account = accounts.number"
        " WHERE accounts.id = %s AND revoked_at IS NULL ORDER BY keys.number",
        [account_id],
    )
    return [key_of(row) for row in rows]


def revoke_key(db: TransactionSession, account_id: str | None, key_id: str) -> bool:
    of_account = " AND account = (SELECT number FROM accounts WHERE id = %(account)s)"
    revoked = db.execute(
        "UPDATE keys SET revoked_at = %(now)s WHERE id = %(key)s AND revoked_at IS NULL"
        + (of_account if account_id is not None else ""),
        {"now": micros(db.now()), "key": key_id, "account": account_id},
    )
    return bool(revoked.rowcount)


def callers(db: TransactionSession, hashes: Sequence[str]) -> list[Caller | None]:
    """Look up the callers of many key hashes with one query; None for an unknown or revoked key."""
    rows = db.all(f"{CALLERS} sha256 = ANY(%s) AND revoked_at IS NULL", [list(set(hashes))])
    found = {row[0]: _caller(row) for row in rows}
    return [found.get(sha256) for sha256 in hashes]


def callers_of_keys(db: TransactionSession, numbers: Iterable[int]) -> dict[int, Caller]:
    """Return the callers by key number, revoked or not."""
    rows = db.all(f"{CALLERS} keys.number = ANY(%s)", [list(numbers)])
    return {row[1]: _caller(row) for row in rows}


def _caller(row: tuple[Any, ...]) -> Caller:
    fields = 2 + len(ACCOUNT_FIELDS)
    return Caller(account_of(row[2:fields]), key_of(row[fields:]))
