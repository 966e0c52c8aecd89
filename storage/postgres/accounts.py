"""Transactions of accounts and keys, in SQL, and the look-up of many callers at once."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from ..accounts import new_key, next_key_at
from ..base.columns import (
    ACCOUNT_COLUMNS,
    ACCOUNT_FIELDS,
    KEY_COLUMNS,
    account_of,
    instant,
    key_of,
    micros,
    origins_column,
)
from ..commands import CreateKey
from ..contract import WINDOW, KeyCreationTooFast, KeyLimitReached
from ..records import Caller, KeyKind
from .driver.batch_executor import Raised
from .driver.server import TransactionConnection

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
    "INSERT INTO keys (id, account, kind, label, prefix, sha256, created_at, origins,"
    " rate_per_min, made_by)"
    " SELECT * FROM unnest(%s::text[], %s::bigint[], %s::text[], %s::text[], %s::text[],"
    " %s::text[], %s::bigint[], %s::text[], %s::bigint[], %s::text[])"
)


def create_keys(
    db: TransactionConnection, now: datetime, those: Sequence[tuple[CreateKey, int]]
) -> list[object]:
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
    reported: list[object] = []
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
            key = new_key(command, now)
            reported.append(key)
            kept.add(command.sha256)
            active[of_kind] = count + 1
            made.setdefault(of_kind, []).append(now)
            owner = key.id, account, key.kind
            bounds = origins_column(key.origins), key.rate_per_min, key.made_by
            rows.append((*owner, key.label, key.prefix, command.sha256, micros(now), *bounds))
    if rows:
        db.execute(KEEP_KEYS, [list(column) for column in zip(*rows, strict=True)])
    return reported


def callers(db: TransactionConnection, hashes: Sequence[str]) -> list[Caller | None]:
    """Look up the callers of many key hashes with one query; None for an unknown or revoked key."""
    rows = db.all(f"{CALLERS} sha256 = ANY(%s) AND revoked_at IS NULL", [list(set(hashes))])
    found = {row[0]: _caller(row) for row in rows}
    return [found.get(sha256) for sha256 in hashes]


def callers_of_keys(db: TransactionConnection, numbers: Iterable[int]) -> dict[int, Caller]:
    """Return the callers by key number, revoked or not."""
    rows = db.all(f"{CALLERS} keys.number = ANY(%s)", [list(numbers)])
    return {row[1]: _caller(row) for row in rows}


def _caller(row: tuple[object, ...]) -> Caller:
    fields = 2 + len(ACCOUNT_FIELDS)
    return Caller(account_of(row[2:fields]), key_of(row[fields:]))
