"""Reservations and their settlement, many at once, in SQL; the caller has locked the accounts."""

import os
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from psycopg import Cursor

from ..base.columns import micros
from ..commands import Extend, Settle
from ..records import Reservation, units_of
from .driver.server import TransactionConnection, Writes
from .ledgers import MOMENT

# Settles each part once, at the batch's instant. Used units are no longer reserved; an ended
# reservation is deleted.
FIRST = (
    "WITH asked AS (SELECT * FROM unnest(%s::uuid[], %s::bigint[], %s::boolean[], %s::bigint[])"
    " AS asked (reservation, part, ends, used)),"
    " new AS (INSERT INTO settlements (reservation, part, at)"
    f" SELECT reservation, part, {MOMENT} FROM asked ON CONFLICT DO NOTHING"
    " RETURNING reservation, part),"
    " settled AS (SELECT reservation, bool_or(ends) AS ends, sum(used)::bigint AS used"
    " FROM asked JOIN new USING (reservation, part) GROUP BY reservation),"
    " ended AS (DELETE FROM reservations USING settled WHERE ends AND id = reservation),"
    " lessened AS (UPDATE reservations SET units = greatest(0, units - used)"
    " FROM settled WHERE NOT ends AND id = reservation)"
    " SELECT reservation, part FROM new"
)
SETTLED = (
    "SELECT reservation, part FROM settlements WHERE (reservation, part) IN"
    " (SELECT * FROM unnest(%s::uuid[], %s::bigint[]))"
)
MARK = "INSERT INTO settlements (reservation, part, at) VALUES (%s, 0, %s)"
EXTEND = (
    "UPDATE reservations SET lease_until = until"
    " FROM unnest(%s::uuid[], %s::bigint[]) AS extended (reservation, until)"
    " WHERE id = reservation AND lease_until > %s"
)
END = "DELETE FROM reservations WHERE account = ANY(%s) AND lease_until <= %s"
KEEP = (
    "INSERT INTO reservations (id, account, units, lease_until)"
    " SELECT * FROM unnest(%s::uuid[], %s::bigint[], %s::bigint[], %s::bigint[])"
)

Part = tuple[UUID, int]
Row = tuple[UUID, int, int, int]  # id, account, units, end of the lease


def new_id(now: datetime) -> UUID:
    """Return a UUID of version 7 (RFC 9562). It starts with the time, so new rows share index pages."""
    ms = micros(now) // 1000 & (1 << 48) - 1
    rest = int.from_bytes(os.urandom(10), "big")
    number = ms << 80 | rest & ~(0xF << 76) & ~(0b11 << 62) | 0x7 << 76 | 0b10 << 62
    return UUID(int=number)


def keep(writes: Writes, rows: Sequence[Row]) -> None:
    writes.add(KEEP, *map(list, zip(*rows, strict=True)))


def drop_ended(writes: Writes, now: datetime, accounts: Sequence[int]) -> None:
    """Delete the accounts' reservations whose lease has ended."""
    writes.add(END, list(accounts), micros(now))


def extend(db: TransactionConnection, now: datetime, commands: Sequence[Extend]) -> None:
    if not commands:
        return
    until = {
        uuid_of(command.reservation): micros(now + timedelta(seconds=command.lease_s))
        for command in commands
    }
    db.execute(EXTEND, [list(until), list(until.values()), micros(now)])


def mark(writes: Writes, now: datetime) -> Part:
    """Insert an empty settlement, which shows that the transaction was committed."""
    id = new_id(now)
    writes.add(MARK, id, micros(now))
    return id, 0


def parts_of(commands: Iterable[Settle]) -> dict[Part, Settle]:
    """Return the commands by part; the first one if several name the same part."""
    parts: dict[Part, Settle] = {}
    for command in commands:
        parts.setdefault(part_of(command), command)
    return parts


def part_of(command: Settle) -> Part:
    return uuid_of(command.reservation), command.part


def settled(db: TransactionConnection, parts: Sequence[Part]) -> set[Part]:
    """Return those of the parts that are settled already."""
    return set(db.all(SETTLED, [[id for id, _ in parts], [part for _, part in parts]]))


def settle(db: TransactionConnection, parts: dict[Part, Settle]) -> Cursor:
    """Settle the parts; the cursor's rows are those not settled before. The accounts are locked."""
    commands = parts.values()
    ends = [command.ends for command in commands]
    used = [units_of(command.rows) for command in commands]
    return db.execute(FIRST, [[id for id, _ in parts], [part for _, part in parts], ends, used])


def uuid_of(reservation: Reservation) -> UUID:
    return UUID(reservation.id)
