"""Transactions of pauses and machines."""

from datetime import datetime, timedelta

from mailprobe.storage.audit.records import Act
from mailprobe.storage.columns import instant, micros
from mailprobe.storage.fleet.pauses import (
    MACHINES_KEPT,
    PAUSES_MAX,
    BeginPause,
    EndPause,
    FleetMachine,
    ListMachines,
    ListPauses,
    NoteMachine,
    Pause,
    TooManyPauses,
)
from mailprobe.storage.sql import audit
from mailprobe.storage.sql.database import Database

LASTS = "(until IS NULL OR until > :now)"


def begin(db: Database, command: BeginPause) -> Pause:
    """See PauseStore.pause."""
    now = db.now()
    _drop_ended(db, now)
    ((others,),) = db.all(
        "SELECT count(*) FROM pauses WHERE kind <> :kind OR name <> :name",
        {"kind": command.kind, "name": command.name},
    )
    if others >= PAUSES_MAX:
        raise TooManyPauses
    until = None if command.for_s is None else now + timedelta(seconds=command.for_s)
    db.change(
        "INSERT INTO pauses (kind, name, since, until, why) VALUES (:kind, :name, :now, :until, :why)"
        " ON CONFLICT (kind, name) DO UPDATE SET since = excluded.since, until = excluded.until,"
        " why = excluded.why",
        {
            "kind": command.kind, "name": command.name, "now": micros(now),
            "until": until and micros(until), "why": command.why,
        },
    )  # fmt: skip
    if command.kind == "account":
        audit.add_to(db, command.name, command.by, Act("lists_paused"))
    return Pause(command.kind, command.name, now, until, command.why)


def end(db: Database, command: EndPause) -> bool:
    """See PauseStore.unpause."""
    _drop_ended(db, db.now())
    ended = db.change(
        "DELETE FROM pauses WHERE kind = :kind AND name = :name",
        {"kind": command.kind, "name": command.name},
    )
    if ended and command.kind == "account":
        audit.add_to(db, command.name, command.by, Act("lists_unpaused"))
    return bool(ended)


def _drop_ended(db: Database, now: datetime) -> None:
    db.change("DELETE FROM pauses WHERE until <= :now", {"now": micros(now)})


def read(db: Database, _: ListPauses) -> list[Pause]:
    """See PauseStore.pauses."""
    rows = db.all(
        f"SELECT kind, name, since, until, why FROM pauses WHERE {LASTS} ORDER BY kind, name",
        {"now": micros(db.now())},
    )
    return [
        Pause(kind, name, instant(since), until and instant(until), why)
        for kind, name, since, until, why in rows
    ]


def note_machine(db: Database, command: NoteMachine) -> None:
    """See PauseStore.note_machine."""
    now = db.now()
    db.change(
        "INSERT INTO machines (name, version, seen_at) VALUES (:name, :version, :now)"
        " ON CONFLICT (name) DO UPDATE SET version = excluded.version, seen_at = excluded.seen_at",
        {"name": command.name, "version": command.version, "now": micros(now)},
    )
    db.change("DELETE FROM machines WHERE seen_at < :gone", {"gone": micros(now - MACHINES_KEPT)})


def read_machines(db: Database, _: ListMachines) -> list[FleetMachine]:
    """See PauseStore.machines."""
    rows = db.all(
        "SELECT name, version, seen_at FROM machines WHERE seen_at >= :gone ORDER BY name",
        {"gone": micros(db.now() - MACHINES_KEPT)},
    )
    return [FleetMachine(name, version, instant(seen_at)) for name, version, seen_at in rows]
