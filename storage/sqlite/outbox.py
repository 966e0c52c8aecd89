"""Transactions of the outbox, in SQL. Each runs in the writer's or the reader's transaction."""

import sqlite3
from datetime import datetime, timedelta

from mailprobe.storage.columns import MESSAGE_COLUMNS, message_of, micros
from mailprobe.storage.commands import (
    ClaimMessages,
    EnqueueMessage,
    ExtendMessage,
    ListMessages,
    MessageAttempted,
)
from mailprobe.storage.contract import METER_REST_S, METER_SLOT_S
from mailprobe.storage.records import MessageKind, OutboxMessage
from mailprobe.storage.sqlite.accounts import number_of

DB = sqlite3.Connection
CAN_BE_CLAIMED = "due_at <= :now AND (lease_until IS NULL OR lease_until <= :now)"
OUTBOX_SQL = (
    f"SELECT {MESSAGE_COLUMNS} FROM outbox JOIN accounts ON accounts.number = outbox.account"
)


def enqueue(db: DB, now: datetime, command: EnqueueMessage) -> bool:
    """Insert a message; False if there is one of this kind, account and name."""
    account = number_of(db, command.account_id)
    posted = db.execute(
        "INSERT INTO outbox (kind, account, name, body, count, made_at, due_at)"
        " VALUES (?, ?, ?, ?, 0, ?, ?) ON CONFLICT DO NOTHING",
        (command.kind, account, command.name, command.body, micros(now), micros(command.due_at)),
    )
    return bool(posted.rowcount)


# The last of the consecutive closed slots from the given one on. After a clock was set back a day
# there are thousands, and each settlement meets them: one statement, not one per slot.
LAST_CLOSED = (
    "SELECT name FROM outbox AS one WHERE kind = 'meter' AND account = :account AND name >= :slot"
    " AND fence > 0 AND NOT EXISTS (SELECT 1 FROM outbox WHERE kind = 'meter' AND account = :account"
    f" AND name = CAST(one.name + {METER_SLOT_S} AS TEXT) AND fence > 0)"
    " ORDER BY name LIMIT 1"  # as text: all have ten digits until the year 2286
)


def raise_meter(db: DB, now: datetime, account: int, billable: int) -> None:
    """Add to the count of the account's first open slot from now on."""
    slot = int(now.timestamp()) // METER_SLOT_S * METER_SLOT_S
    if _is_closed(db, account, slot):
        (last,) = db.execute(LAST_CLOSED, {"account": account, "slot": str(slot)}).fetchone()
        slot = int(last) + METER_SLOT_S
    due_at = (slot + METER_SLOT_S + METER_REST_S) * 1_000_000
    db.execute(
        "INSERT INTO outbox (kind, account, name, body, count, made_at, due_at)"
        " VALUES ('meter', ?, ?, x'', ?, ?, ?)"
        " ON CONFLICT (kind, account, name) DO UPDATE SET count = count + excluded.count",
        (account, str(slot), billable, micros(now), due_at),
    )


def _is_closed(db: DB, account: int, slot: int) -> bool:
    closed = db.execute(
        "SELECT 1 FROM outbox WHERE kind = 'meter' AND account = ? AND name = ? AND fence > 0",
        (account, str(slot)),
    )
    return closed.fetchone() is not None


def due(db: DB, now: datetime, kind: MessageKind, limit: int) -> list[int]:
    """Return the numbers of the messages that a claim would take, those due longest first."""
    rows = db.execute(
        f"SELECT number FROM outbox WHERE kind = :kind AND {CAN_BE_CLAIMED}"
        " ORDER BY due_at, number LIMIT :limit",
        {"kind": kind, "now": micros(now), "limit": max(0, limit)},
    )
    return [number for (number,) in rows]


def is_due(db: DB, now: datetime, command: ClaimMessages) -> bool:
    """Return whether a claim would take any message."""
    return bool(due(db, now, command.kind, 1))


def claim(db: DB, now: datetime, command: ClaimMessages) -> list[OutboxMessage]:
    """Claim due messages for `lease_s`."""
    numbers = due(db, now, command.kind, command.limit)
    at, until = micros(now), micros(now + timedelta(seconds=command.lease_s))
    db.executemany(
        "UPDATE outbox SET lease_until = ?, fence = fence + 1,"
        " first_tried_at = coalesce(first_tried_at, ?) WHERE number = ?",
        [(until, at, number) for number in numbers],
    )
    rows = [
        db.execute(f"{OUTBOX_SQL} WHERE outbox.number = ?", (number,)).fetchone()
        for number in numbers
    ]
    return [message_of(row) for row in rows]


def extend(db: DB, now: datetime, command: ExtendMessage) -> bool:
    """Let the claim end `lease_s` from now; False if it has ended."""
    extended = db.execute(
        "UPDATE outbox SET lease_until = ? WHERE kind = ? AND name = ?"
        " AND account = (SELECT number FROM accounts WHERE id = ?)"
        " AND fence = ? AND lease_until > ?",
        (
            micros(now + timedelta(seconds=command.lease_s)),
            command.message.kind,
            command.message.name,
            command.message.account_id,
            command.message.fence,
            micros(now),
        ),
    )
    return bool(extended.rowcount)


def attempted(db: DB, now: datetime, command: MessageAttempted) -> bool:
    """Record the result of sending; False if the claim does not count."""
    changed = db.execute(
        "UPDATE outbox SET tries = tries + 1, due_at = ?, sent_at = ?, error = ?,"
        " lease_until = NULL WHERE kind = ? AND name = ?"
        " AND account = (SELECT number FROM accounts WHERE id = ?)"
        " AND fence = ? AND lease_until IS NOT NULL",
        (
            command.due_at and micros(command.due_at),
            micros(now) if command.sent else None,
            command.error,
            command.message.kind,
            command.message.name,
            command.message.account_id,
            command.message.fence,
        ),
    )
    return bool(changed.rowcount)


def list_messages(db: DB, _: datetime, command: ListMessages) -> list[OutboxMessage]:
    """Return messages newest first, at most LISTED_MAX."""
    of_account = " AND outbox.account = (SELECT number FROM accounts WHERE id = :account)"
    rows = db.execute(
        f"{OUTBOX_SQL} WHERE kind = :kind{of_account if command.account_id is not None else ''}"
        " ORDER BY outbox.number DESC LIMIT :limit",
        {
            "kind": command.kind,
            "account": command.account_id,
            "limit": command.limit,
        },
    )
    return [message_of(row) for row in rows]
