"""Reservations and their settlement, many at once, as SQL; the accounts are held by the caller."""

import os
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from storage.postgres_ledgers import Who
from storage.postgres_server import Session
from storage.postgres_wishes import Extend, Settle
from storage.records import Reservation
from storage.sqlite_rows import micros

FIRST = (
    "INSERT INTO settlements (reservation, part, at)"
    " SELECT reservation, part, %s FROM unnest(%s::uuid[], %s::bigint[]) AS asked (reservation, part)"
    " ON CONFLICT DO NOTHING RETURNING reservation, part"
)
LESSEN = (
    "UPDATE reservations SET units = greatest(0, units - used)"
    " FROM unnest(%s::uuid[], %s::bigint[]) AS settled (reservation, used)"
    " WHERE id = reservation"
)
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
    """A UUID of version 7 (RFC 9562): its time first, so that those of a while lie together."""
    ms = micros(now) // 1000 & (1 << 48) - 1
    rest = int.from_bytes(os.urandom(10), "big")
    number = ms << 80 | rest & ~(0xF << 76) & ~(0b11 << 62) | 0x7 << 76 | 0b10 << 62
    return UUID(int=number)


def keep(db: Session, now: datetime, rows: Sequence[Row]) -> None:
    """New ones; of their accounts those go whose lease has ended."""
    ids, accounts, units, until = map(list, zip(*rows, strict=True))
    db.execute(END, [list(set(accounts)), micros(now)])
    db.execute(KEEP, [ids, accounts, units, until])


def extend(db: Session, now: datetime, wishes: Sequence[Extend]) -> None:
    if not wishes:
        return
    until = {
        uuid_of(wish.reservation): micros(now + timedelta(seconds=wish.lease_s)) for wish in wishes
    }
    db.execute(EXTEND, [list(until), list(until.values()), micros(now)])


def first_of(
    db: Session, now: datetime, those: Sequence[tuple[Settle, Who]]
) -> dict[Part, tuple[Settle, Who]]:
    """Each part once: of those that ask for the same one here, and of all before."""
    parts: dict[Part, tuple[Settle, Who]] = {}
    for wish, who in those:
        parts.setdefault((uuid_of(wish.reservation), wish.part), (wish, who))
    new = db.all(FIRST, [micros(now), [id for id, _ in parts], [part for _, part in parts]])
    fresh = {(id, part) for id, part in new}
    return {part: found for part, found in parts.items() if part in fresh}


def settle_nothing(db: Session, now: datetime) -> Part:
    """Of no reservation: it shows that a transaction was committed that has no other mark."""
    part = new_id(now), 0
    db.execute(FIRST, [micros(now), [part[0]], [part[1]]])
    return part


def give_back(db: Session, wishes: Sequence[Settle]) -> None:
    """What was used is no longer reserved, and of what has ended nothing is."""
    ended = [uuid_of(wish.reservation) for wish in wishes if wish.ends]
    used: Counter[UUID] = Counter()
    for wish in wishes:
        if not wish.ends:
            used[uuid_of(wish.reservation)] += sum(row.units for row in wish.rows)
    if ended:
        db.execute("DELETE FROM reservations WHERE id = ANY(%s)", [ended])
    if used:
        db.execute(LESSEN, [list(used), list(used.values())])


def uuid_of(reservation: Reservation) -> UUID:
    return UUID(reservation.id)
