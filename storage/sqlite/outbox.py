"""Transactions of the outbox, in SQL. Each runs in the writer's or the reader's transaction."""

import sqlite3
from datetime import datetime, timedelta

from mailprobe.storage.checks import at_most
from mailprobe.storage.columns import MESSAGE_COLUMNS, message_of, micros
from mailprobe.storage.contract import LISTED_MAX, METER_REST_S, METER_SLOT_S
from mailprobe.storage.records import MessageKind, OutboxMessage
from mailprobe.storage.sqlite.accounts import number_of

DB = sqlite3.Connection
CAN_BE_CLAIMED = "due_at <= :now AND (lease_until IS NULL OR lease_until <= :now)"
OUTBOX_SQL = (
    f"SELECT {MESSAGE_COLUMNS} FROM outbox JOIN accounts ON accounts.number = outbox.account"
)


def post(
    db: DB,
    now: datetime,
    kind: MessageKind,
    account_id: str,
    name: str,
    body: bytes,
    due_at: datetime,
) -> bool:
    """Insert a message; False if there is one of this kind, account and name."""
    account = number_of(db, account_id)
    posted = db.execute(
        "INSERT INTO outbox (kind, account, name, body, count, made_at, due_at)"
        " VALUES (?, ?, ?, ?, 0, ?, ?) ON CONFLICT DO NOTHING",
        (kind, account, name, body, micros(now), micros(due_at)),
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


def claim(
    db: DB, now: datetime, kind: MessageKind, limit: int, lease_s: float
) -> list[OutboxMessage]:
    """Claim due messages for `lease_s`."""
    numbers = due(db, now, kind, limit)
    at, until = micros(now), micros(now + timedelta(seconds=lease_s))
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


def tried(
    db: DB,
    now: datetime,
    message: OutboxMessage,
    sent: bool,
    due_at: datetime | None,
    error: str | None,
) -> bool:
    """Record the result of sending; False if the claim does not count."""
    changed = db.execute(
        "UPDATE outbox SET tries = tries + 1, due_at = ?, sent_at = ?, error = ?,"
        " lease_until = NULL WHERE kind = ? AND name = ?"
        " AND account = (SELECT number FROM accounts WHERE id = ?)"
        " AND fence = ? AND lease_until IS NOT NULL",
        (
            due_at and micros(due_at),
            micros(now) if sent else None,
            error,
            message.kind,
            message.name,
            message.account_id,
            message.fence,
        ),
    )
    return bool(changed.rowcount)


def messages(db: DB, kind: MessageKind, account_id: str | None, limit: int) -> list[OutboxMessage]:
    """Return messages newest first, at most LISTED_MAX."""
    of_account = " AND outbox.account = (SELECT number FROM accounts WHERE id = :account)"
    rows = db.execute(
        f"{OUTBOX_SQL} WHERE kind = :kind{of_account if account_id is not None else ''}"
        " ORDER BY outbox.number DESC LIMIT :limit",
        {"kind": kind, "account": account_id, "limit": at_most(LISTED_MAX, limit)},
    )
    return [message_of(row) for row in rows]
