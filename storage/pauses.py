"""Pauses that the operator made at run time, and the machines that serve: two small tables.

Every process reads the pauses about once a second, so they are few.
"""

from datetime import datetime, timedelta
from typing import Literal

from msgspec import Struct

from . import audit
from .audit import Act
from .base.columns import instant, micros
from .database import Database, StorePart, read, write
from .records import SERVICE, Actor

# A domain or an operator of mail hosts is not asked; an account's lists wait; a machine is drained.
PauseKind = Literal["domain", "operator", "account", "machine"]

PAUSES_MAX = 1_000  # each process reads all of them every second
MACHINES_KEPT = timedelta(days=1)  # since a machine was seen last; by then it is gone
WHY_CHARACTERS_MAX = 200


class TooManyPauses(Exception):
    """There are PAUSES_MAX of them."""


class Pause(Struct, frozen=True):
    """A pause that lasts until `until`, or (None) until it is ended."""

    kind: PauseKind
    name: str  # a domain as A-labels, the id of an operator or an account, a machine's name
    since: datetime
    until: datetime | None
    why: str


class FleetMachine(Struct, frozen=True):
    """A machine whose processes use this store."""

    name: str
    version: str  # of a process that was seen last
    seen_at: datetime


def begin_pause(
    db: Database,
    kind: PauseKind,
    name: str,
    *,
    for_s: float | None = None,
    why: str = "",
    by: Actor = SERVICE,
) -> Pause:
    """Pause this for so long, or until it is ended; an earlier pause of it is replaced.

    An account's pause and its end are in its audit log. Raises TooManyPauses, KeyError if
    there is no such account, ValueError for a `why` of more than WHY_CHARACTERS_MAX.
    """
    if len(why) > WHY_CHARACTERS_MAX:
        raise ValueError(f"why takes at most {WHY_CHARACTERS_MAX} characters")
    now = db.now()
    _drop_ended(db, now)
    ((others,),) = db.all(
        "SELECT count(*) FROM pauses WHERE kind <> :kind OR name <> :name",
        {"kind": kind, "name": name},
    )
    if others >= PAUSES_MAX:
        raise TooManyPauses
    until = None if for_s is None else now + timedelta(seconds=for_s)
    db.change(
        "INSERT INTO pauses (kind, name, since, until, why) VALUES (:kind, :name, :now, :until, :why)"
        " ON CONFLICT (kind, name) DO UPDATE SET since = excluded.since, until = excluded.until,"
        " why = excluded.why",
        {
            "kind": kind, "name": name, "now": micros(now), "until": until and micros(until),
            "why": why,
        },
    )  # fmt: skip
    if kind == "account":
        audit.add_to(db, name, by, Act("lists_paused"))
    return Pause(kind, name, now, until, why)


def end_pause(db: Database, kind: PauseKind, name: str, *, by: Actor = SERVICE) -> bool:
    """End a pause; False if there is none."""
    _drop_ended(db, db.now())
    ended = db.change(
        "DELETE FROM pauses WHERE kind = :kind AND name = :name", {"kind": kind, "name": name}
    )
    if ended and kind == "account":
        audit.add_to(db, name, by, Act("lists_unpaused"))
    return bool(ended)


def _drop_ended(db: Database, now: datetime) -> None:
    db.change("DELETE FROM pauses WHERE until <= :now", {"now": micros(now)})


def list_pauses(db: Database) -> list[Pause]:
    """Return the pauses that last, by kind and name."""
    rows = db.all(
        "SELECT kind, name, since, until, why FROM pauses WHERE until IS NULL OR until > :now"
        " ORDER BY kind, name",
        {"now": micros(db.now())},
    )
    return [
        Pause(kind, name, instant(since), until and instant(until), why)
        for kind, name, since, until, why in rows
    ]


def note_machine(db: Database, name: str, version: str) -> None:
    """A process of this machine runs; forget machines that were not seen for MACHINES_KEPT."""
    now = db.now()
    db.change(
        "INSERT INTO machines (name, version, seen_at) VALUES (:name, :version, :now)"
        " ON CONFLICT (name) DO UPDATE SET version = excluded.version, seen_at = excluded.seen_at",
        {"name": name, "version": version, "now": micros(now)},
    )
    db.change("DELETE FROM machines WHERE seen_at < :gone", {"gone": micros(now - MACHINES_KEPT)})


def list_machines(db: Database) -> list[FleetMachine]:
    """Return the machines that are not forgotten, by name."""
    rows = db.all(
        "SELECT name, version, seen_at FROM machines WHERE seen_at >= :gone ORDER BY name",
        {"gone": micros(db.now() - MACHINES_KEPT)},
    )
    return [FleetMachine(name, version, instant(seen_at)) for name, version, seen_at in rows]


class PauseStore(StorePart):
    """The part of the store that keeps pauses and machines."""

    pause = write(begin_pause)
    unpause = write(end_pause)
    pauses = read(list_pauses)
    note_machine = write(note_machine)
    machines = read(list_machines)
