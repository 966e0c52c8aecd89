"""Transactions of the outbox, in SQL. A message that another process holds is skipped."""

from collections.abc import Sequence
from datetime import datetime

from ..base.columns import micros
from ..commands import EnqueueMessage
from ..contract import METER_REST_S, METER_SLOT_S
from .driver.server import TransactionConnection, Writes


def post(
    db: TransactionConnection, now: datetime, those: Sequence[tuple[EnqueueMessage, int]]
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
