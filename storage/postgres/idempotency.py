"""Transactions of idempotency records, in SQL; locked accounts make one of several requests first."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from ..base.columns import instant, micros
from ..base.lease_holders import is_gone
from ..commands import BeginIdempotent, EncryptedFirst, FinishIdempotent
from ..contract import IdempotencyInProgress, IdempotencyKeyReused
from ..records import MARKS, IdempotencyRecord
from .driver.batch_executor import Raised
from .driver.server import TransactionConnection, Writes

STANDING = (
    "SELECT idempotency_records.account, idempotency_records.key, body_sha256, answer, holder"
    " FROM idempotency_records"
    " JOIN unnest(%s::bigint[], %s::text[], %s::bigint[]) AS asked (account, key, longest)"
    " ON idempotency_records.account = asked.account AND idempotency_records.key = asked.key"
    " WHERE keep_until > %s AND (answer IS NOT NULL OR lease_until > %s AND lease_until <= longest)"
)
KEEP = (
    "INSERT INTO idempotency_records (account, key, body_sha256, lease_until, keep_until, holder)"
    " SELECT * FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::bigint[], %s::bigint[],"
    " %s::text[])"
    " ON CONFLICT (account, key) DO UPDATE SET"
    " body_sha256 = excluded.body_sha256, lease_until = excluded.lease_until,"
    " keep_until = excluded.keep_until, holder = excluded.holder, answer = NULL"
)
RUNNING = (
    "SELECT accounts.id, idempotency_records.key, lease_until"
    " FROM unnest(%s::text[], %s::text[], %s::bigint[]) AS asked (id, key, until)"
    " JOIN accounts ON accounts.id = asked.id"
    " JOIN idempotency_records ON idempotency_records.account = accounts.number AND idempotency_records.key = asked.key"
    " WHERE answer IS NULL AND lease_until = asked.until"
)
ANSWER = (
    "UPDATE idempotency_records SET answer = given.answer"
    " FROM unnest(%s::bigint[], %s::text[], %s::bytea[]) AS given (account, key, answer)"
    " WHERE idempotency_records.account = given.account AND idempotency_records.key = given.key"
)


def begin(
    db: TransactionConnection, now: datetime, those: Sequence[tuple[BeginIdempotent, int]]
) -> list[object]:
    """Return a record for each first request, the encrypted answer or Raised for the others."""
    if not those:
        return []
    accounts, keys = [account for _, account in those], [command.key for command, _ in those]
    # a longer lease was written by a clock that was ahead
    longest = [micros(now + timedelta(seconds=command.lease_s)) for command, _ in those]
    rows = db.all(STANDING, [accounts, keys, longest, micros(now), micros(now)])
    standing = {
        (account, key): (body, answer)
        for account, key, body, answer, holder in rows
        if answer is not None or not is_gone(holder or "")
    }
    begun: list[tuple[object, ...]] = []
    reported: list[object] = []
    for command, account in those:
        if before := standing.get((account, command.key)):
            reported.append(_again(command, *before))
            continue
        until = command.lease_until(now)
        keep = micros(now + timedelta(seconds=command.keep_s))
        begun.append(
            (account, command.key, command.body_sha256, micros(until), keep, command.holder)
        )
        standing[account, command.key] = command.body_sha256, None
        reported.append(IdempotencyRecord(command.account_id, command.key, until))
    if begun:
        db.execute(KEEP, [list(column) for column in zip(*begun, strict=True)])
    return reported


def _again(command: BeginIdempotent, body_sha256: str, answer: bytes | None) -> object:
    if body_sha256 != command.body_sha256:
        return Raised(IdempotencyKeyReused())
    return Raised(IdempotencyInProgress()) if answer is None else bytes(answer)


def finish(db: TransactionConnection, those: Sequence[tuple[FinishIdempotent, int]]) -> None:
    for command, account in those:
        idempotency = command.idempotency
        which = " WHERE account = %(account)s AND key = %(key)s AND answer IS NULL"
        values = {
            "account": account,
            "key": idempotency.key,
            "until": micros(idempotency.lease_until),
        }
        if command.answer is None:
            marked = f" AND lease_until %% {MARKS} = %(until)s %% {MARKS}"
            db.execute(f"DELETE FROM idempotency_records{which}{marked}", values)
        else:
            db.execute(
                f"UPDATE idempotency_records SET answer = %(answer)s{which}"
                " AND lease_until = %(until)s",
                {**values, "answer": command.answer},
            )


def running(
    db: TransactionConnection, those: Sequence[IdempotencyRecord]
) -> set[IdempotencyRecord]:
    """Return the records that have no answer and were not followed by another request."""
    rows = db.all(
        RUNNING,
        [
            [idempotency.account_id for idempotency in those],
            [idempotency.key for idempotency in those],
            [micros(idempotency.lease_until) for idempotency in those],
        ],
    )
    return {IdempotencyRecord(account_id, key, instant(until)) for account_id, key, until in rows}


def keep(writes: Writes, those: Sequence[tuple[int, EncryptedFirst]]) -> None:
    """Store the answers of running requests, each with its account's number."""
    if those:
        accounts, keys = (
            [account for account, _ in those],
            [one.idempotency.key for _, one in those],
        )
        writes.add(ANSWER, accounts, keys, [one.answer for _, one in those])
