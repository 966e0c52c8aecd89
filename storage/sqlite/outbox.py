"""Transactions of the outbox, in SQL. Each runs in the writer's or the reader's transaction."""

import sqlite3
from datetime import datetime

from ..base.columns import micros
from ..commands import EnqueueMessage
from ..contract import METER_REST_S, METER_SLOT_S
from .accounts import number_of

DB = sqlite3.Connection


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
