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
from mailprobe.storage.commands import (
    ChangeAccount,
    CreateAccount,
    CreateFirstAccount,
    CreateKey,
    FindAccount,
    FindAccountOfCustomer,
    ListAccounts,
    ListKeys,
    RevokeKey,
)
from mailprobe.storage.contract import WINDOW, KeyCreationTooFast, KeyLimitReached
from mailprobe.storage.postgres.driver.batch_executor import Raised
from mailprobe.storage.postgres.driver.server import TransactionSession
from mailprobe.storage.records import Account, Caller, Key, KeyKind

CALLERS = (
    f"SELECT keys.sha256, keys.number, {ACCOUNT_COLUMNS}, {KEY_COLUMNS}"
    " FROM keys JOIN accounts ON accounts.number = keys.account WHERE "
)

ACTIVE = (
    "SELECT account, kind, count(*) FROM keys WHERE account = ANY(%s)"
    " AND revoked_at IS NULL GROUP BY account, kind"
)
MADE = (
    "SELECT account, kind, created_at FROM keys WHERE account = ANY(%s)"
    " AND created_at > %s AND created_at <= %s"
)
HASHES = "SELECT sha256 FROM keys WHERE sha256 = ANY(%s)"
KEEP_KEYS = (
    "INSERT INTO keys (id, account, kind, label, prefix, sha256, created_at)"
    " SELECT * FROM unnest(%s::text[], %s::bigint[], %s::text[], %s::text[], %s::text[],"
    " %s::text[], %s::bigint[])"
)


def create_account(db: TransactionSession, command: CreateAccount) -> Account:
    account = Account(str(uuid4()), command.email, command.tier, db.now())
    places = ", ".join(["%s"] * len(ACCOUNT_FIELDS))
    db.execute(
        f"INSERT INTO accounts ({', '.join(ACCOUNT_FIELDS)}) VALUES ({places})",
        [column(getattr(account, name)) for name in ACCOUNT_FIELDS],
    )
    return account


def create_first_account(db: TransactionSession, command: CreateFirstAccount) -> Account | None:
    """Insert an account with its keys; None if there is an account.

    The lock conflicts with itself and with inserts, so that of several one is the first.
    """
    db.execute("LOCK TABLE accounts IN SHARE ROW EXCLUSIVE MODE")
    if db.one("SELECT 1 FROM accounts LIMIT 1"):
        return None
    account = create_account(db, CreateAccount(command.email, command.tier))
    number, *_ = db.one("SELECT number FROM accounts WHERE id = %s", [account.id])
    create_keys(db, db.now(), [(each, number) for each in command.key_commands(account.id)])
    return account


def find_account(db: TransactionSession, command: FindAccount) -> Account | None:
    row = db.one(f"SELECT {ACCOUNT_COLUMNS} FROM accounts WHERE id = %s", [command.account_id])
    return row and account_of(row)


def list_accounts(db: TransactionSession, command: ListAccounts) -> list[Account]:
    rows = db.all(f"SELECT {ACCOUNT_COLUMNS} FROM accounts ORDER BY number")
    return [account_of(row) for row in rows]


def account_of_customer(db: TransactionSession, command: FindAccountOfCustomer) -> Account | None:
    row = db.one(
        f"SELECT {ACCOUNT_COLUMNS} FROM accounts WHERE customer_id = %s", [command.customer_id]
    )
    return row and account_of(row)


def change_account(db: TransactionSession, command: ChangeAccount) -> Account | None:
    """Update in one statement, so that the database itself keeps `customer_id` unique."""
    if command.changes:
        sets = ", ".join(f"{name} = %s" for name in command.changes)  # fields: check_changes()
        values = [column(value) for value in command.changes.values()]
        try:
            db.execute(f"UPDATE accounts SET {sets} WHERE id = %s", [*values, command.account_id])
        except errors.UniqueViolation:
            raise ValueError("another account has this customer_id") from None
    return find_account(db, FindAccount(command.account_id))


def create_keys(
    db: TransactionSession, now: datetime, those: Sequence[tuple[CreateKey, int]]
) -> list[Any]:
    """Insert keys; returns a key or Raised for each. Each has its locked account's number."""
    if not those:
        return []
    accounts = {account for _, account in those}
    active: dict[tuple[int, KeyKind], int] = {
        (account, kind): count for account, kind, count in db.all(ACTIVE, [list(accounts)])
    }
    made: dict[tuple[int, KeyKind], list[datetime]] = {}
    for account, kind, at in db.all(MADE, [list(accounts), micros(now - WINDOW), micros(now)]):
        made.setdefault((account, kind), []).append(instant(at))
    kept = {sha256 for (sha256,) in db.all(HASHES, [[command.sha256 for command, _ in those]])}
    reported: list[Any] = []
    rows = []
    for command, account in those:
        of_kind = account, command.kind
        count = active.get(of_kind, 0)
        if command.keys_max is not None and count >= command.keys_max:
            reported.append(Raised(KeyLimitReached()))
        elif command.keys_per_minute_max is not None and (
            at := next_key_at(made.get(of_kind, []), command.keys_per_minute_max)
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
            active[of_kind] = count + 1
            made.setdefault(of_kind, []).append(now)
            owner = key.id, account, key.kind
            rows.append((*owner, key.label, key.prefix, command.sha256, micros(now)))
    if rows:
        db.execute(KEEP_KEYS, [list(column) for column in zip(*rows, strict=True)])
    return reported


def list_keys(db: TransactionSession, command: ListKeys) -> list[Key]:
    rows = db.all(
        f"SELECT {KEY_COLUMNS} FROM accounts JOIN keys ON keys.account = accounts.number"
        " WHERE accounts.id = %s AND revoked_at IS NULL ORDER BY keys.number",
        [command.account_id],
    )
    return [key_of(row) for row in rows]


def revoke_key(db: TransactionSession, command: RevokeKey) -> bool:
    of_account = " AND account = (SELECT number FROM accounts WHERE id = %(account)s)"
    revoked = db.execute(
        "UPDATE keys SET revoked_at = %(now)s WHERE id = %(key)s AND revoked_at IS NULL"
        + (of_account if command.account_id is not None else ""),
        {"now": micros(db.now()), "key": command.key_id, "account": command.account_id},
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
