"""Transactions of the outbox, in SQL. A message that another process holds is skipped."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from psycopg import errors

from mailprobe.storage.columns import MESSAGE_COLUMNS, message_of, micros
from mailprobe.storage.commands import (
    ClaimMessages,
    EnqueueMessage,
    ExtendMessage,
    ListMessages,
    MessageAttempted,
)
from mailprobe.storage.contract import METER_REST_S, METER_SLOT_S
from mailprobe.storage.postgres.driver.server import TransactionSession, Writes
from mailprobe.storage.records import MessageKind, OutboxMessage

OUTBOX_SQL = (
    f"SELECT {MESSAGE_COLUMNS} FROM outbox JOIN accounts ON accounts.number = outbox.account"
)
DUE = "kind = %(kind)s AND due_at <= %(now)s AND (lease_until IS NULL OR lease_until <= %(now)s)"


def post(
    db: TransactionSession, now: datetime, those: Sequence[tuple[EnqueueMessage, int]]
) -> list[bool]:
    """Insert messages; returns for each whether it is new. The accounts are locked."""
    if not those:
        return []
    rows = [
        (each.kind, account, each.name, each.body, micros(each.due_at)) for each, account in those
    ]
    posted = db.all(
        "INSERT INTO outbox (kind, account, name, body, due_at, count, made_at)"
        " SELECT *, 0, %s FROM"
        " unnest(%s::text[], %s::bigint[], %s::text[], %s::bytea[], %s::bigint[])"
        " ON CONFLICT DO NOTHING RETURNING kind, account, name",
        [micros(now), *(list(column) for column in zip(*rows, strict=True))],
    )
    first = set(posted)
    reported = []
    for row in rows:
        reported.append(row[:3] in first)
        first.discard(row[:3])
    return reported


# Finds the first open slot from the given one: itself, or the one after the last of its
# consecutive closed slots. Names compare as text: they have ten digits until the year 2286. If a
# message is claimed between our read and our write, its count is null, which the column
# forbids: the transaction is rolled back and repeated.
METERS = (
    "INSERT INTO outbox (kind, account, name, body, count, made_at, due_at)"
    f" SELECT 'meter', account, slot::text, '', count, %s, (slot + {METER_SLOT_S + METER_REST_S})"
    " * 1000000 FROM (SELECT account, count, coalesce((SELECT one.name::bigint + {slot_s}"
    " FROM outbox AS one WHERE kind = 'meter' AND one.account = metered.account"
    " AND name >= asked::text AND fence > 0 AND NOT EXISTS (SELECT 1 FROM outbox AS next"
    " WHERE kind = 'meter' AND next.account = metered.account"
    " AND name = (one.name::bigint + {slot_s})::text AND fence > 0)"
    " AND EXISTS (SELECT 1 FROM outbox AS same WHERE kind = 'meter'"
    " AND same.account = metered.account AND name = asked::text AND fence > 0)"
    " ORDER BY name LIMIT 1), asked) AS slot"
    " FROM unnest(%s::bigint[], %s::bigint[]) AS metered (account, count),"
    " (SELECT %s::bigint AS asked) AS asked) AS raised"
    " ON CONFLICT (kind, account, name) DO UPDATE"
    " SET count = CASE WHEN outbox.fence = 0 THEN outbox.count + excluded.count END"
).replace("{slot_s}", str(METER_SLOT_S))


def raise_meters(writes: Writes, now: datetime, billable: dict[int, int]) -> None:
    """Add the counts, by account, to the message of the first open slot from now on.

    The caller has locked the accounts.
    """
    if billable:
        slot = int(now.timestamp()) // METER_SLOT_S * METER_SLOT_S
        writes.add(METERS, micros(now), list(billable), list(billable.values()), slot)


def is_overtaken(error: Exception) -> bool:
    """Return whether a meter's message was claimed between our read and our write."""
    return isinstance(error, errors.NotNullViolation) and error.diag.table_name == "outbox"


def is_due(db: TransactionSession, kind: MessageKind) -> bool:
    values = {"kind": kind, "now": micros(db.now())}
    return bool(db.one(f"SELECT 1 FROM outbox WHERE {DUE} LIMIT 1", values))


def claim(db: TransactionSession, command: ClaimMessages) -> list[OutboxMessage]:
    now = db.now()
    values = {
        "kind": command.kind,
        "now": micros(now),
        "until": micros(now + timedelta(seconds=command.lease_s)),
        "limit": command.limit,
    }
    claimed = db.all(
        "WITH due AS MATERIALIZED ("
        f" SELECT number, due_at FROM outbox WHERE {DUE}"
        " ORDER BY due_at, number LIMIT %(limit)s FOR UPDATE SKIP LOCKED)"
        " UPDATE outbox SET lease_until = %(until)s, fence = fence + 1,"
        " first_tried_at = coalesce(first_tried_at, %(now)s)"
        " FROM due WHERE outbox.number = due.number RETURNING outbox.number",
        values,
    )
    rows = db.all(
        f"{OUTBOX_SQL} WHERE outbox.number = ANY(%s) ORDER BY due_at, outbox.number",
        [[number for (number,) in claimed]],
    )
    return [message_of(row) for row in rows]


def extend(db: TransactionSession, command: ExtendMessage) -> bool:
    now = db.now()
    extended = db.execute(
        "UPDATE outbox SET lease_until = %s WHERE kind = %s AND name = %s"
        " AND account = (SELECT number FROM accounts WHERE id = %s)"
        " AND fence = %s AND lease_until > %s",
        [
            micros(now + timedelta(seconds=command.lease_s)),
            command.message.kind,
            command.message.name,
            command.message.account_id,
            command.message.fence,
            micros(now),
        ],
    )
    return bool(extended.rowcount)


def attempted(db: TransactionSession, command: MessageAttempted) -> bool:
    changed = db.execute(
        "UPDATE outbox SET tries = tries + 1, due_at = %s, sent_at = %s, error = %s,"
        " lease_until = NULL WHERE kind = %s AND name = %s"
        " AND account = (SELECT number FROM accounts WHERE id = %s)"
        " AND fence = %s AND lease_until IS NOT NULL",
        [
            command.due_at and micros(command.due_at),
            micros(db.now()) if command.sent else None,
            command.error,
            command.message.kind,
            command.message.name,
            command.message.account_id,
            command.message.fence,
        ],
    )
    return bool(changed.rowcount)


def list_messages(db: TransactionSession, command: ListMessages) -> list[OutboxMessage]:
    of_account = " AND outbox.account = (SELECT number FROM accounts WHERE id = %(account)s)"
    rows = db.all(
        f"{OUTBOX_SQL} WHERE kind = %(kind)s{of_account if command.account_id is not None else ''}"
        " ORDER BY outbox.number DESC LIMIT %(limit)s",
        {
            "kind": command.kind,
            "account": command.account_id,
            "limit": command.limit,
        },
    )
    return [message_of(row) for row in rows]
