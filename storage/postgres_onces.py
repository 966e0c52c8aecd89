"""The transactions of idempotency keys, as SQL; the accounts are held, so one of many is the first."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from storage.postgres_clerk import Raised
from storage.postgres_server import Session
from storage.postgres_wishes import Begin
from storage.rows import micros
from storage.store import IdempotencyInProgress, IdempotencyKeyReused

STANDING = (
    "SELECT onces.account, onces.key, body_sha256, answer FROM onces"
    " JOIN unnest(%s::bigint[], %s::text[]) AS asked (account, key)"
    " ON onces.account = asked.account AND onces.key = asked.key"
    " WHERE keep_until > %s AND (answer IS NOT NULL OR lease_until > %s)"
)
KEEP = (
    "INSERT INTO onces (account, key, body_sha256, lease_until, keep_until)"
    " SELECT * FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::bigint[], %s::bigint[])"
    " ON CONFLICT (account, key) DO UPDATE SET"
    " body_sha256 = excluded.body_sha256, lease_until = excluded.lease_until,"
    " keep_until = excluded.keep_until, answer = NULL"
)


def begin(db: Session, now: datetime, those: Sequence[tuple[Begin, int]]) -> list[Any]:
    """None for the first, the sealed answer or what is to be raised for the others."""
    if not those:
        return []
    accounts, keys = [account for _, account in those], [wish.key for wish, _ in those]
    rows = db.all(STANDING, [accounts, keys, micros(now), micros(now)])
    standing = {(account, key): (body, answer) for account, key, body, answer in rows}
    begun: list[tuple[Any, ...]] = []
    told: list[Any] = []
    for wish, account in those:
        if before := standing.get((account, wish.key)):
            told.append(_again(wish, *before))
            continue
        lease = micros(now + timedelta(seconds=wish.lease_s))
        keep = micros(now + timedelta(seconds=wish.keep_s))
        begun.append((account, wish.key, wish.body_sha256, lease, keep))
        standing[account, wish.key] = wish.body_sha256, None
        told.append(None)
    if begun:
        db.execute(KEEP, [list(column) for column in zip(*begun, strict=True)])
    return told


def _again(wish: Begin, body_sha256: str, answer: bytes | None) -> Any:
    if body_sha256 != wish.body_sha256:
        return Raised(IdempotencyKeyReused())
    return Raised(IdempotencyInProgress()) if answer is None else bytes(answer)


def finish(db: Session, account_id: str, key: str, answer: bytes | None) -> None:
    which = (
        " WHERE account = (SELECT number FROM accounts WHERE id = %s) AND key = %s"
        " AND answer IS NULL"
    )
    if answer is None:
        db.execute(f"DELETE FROM onces{which}", [account_id, key])
    else:
        db.execute(f"UPDATE onces SET answer = %s{which}", [answer, account_id, key])
