"""Transactions of what a page shows of a list: marks of addresses, waits."""

from collections.abc import Mapping, Sequence

from mailprobe.storage.base.columns import micros
from mailprobe.storage.database import Database
from mailprobe.storage.list_records import ChunkPart
from mailprobe.storage.lists.commands import KeepMarks, NoteWait, ReadMarks

NUMBER = "(SELECT number FROM lists WHERE id = :id)"
UNANSWERED = "."


def mark(db: Database, parts: Sequence[tuple[ChunkPart, bool]]) -> None:
    """Keep the marks of results that were just stored, in the place of those before.

    Each part comes with whether it is its chunk's first. A chunk whose first results were stored
    without marks keeps none: see `keep`.
    """
    marked = [(part, is_first) for part, is_first in parts if part.marks]
    places = sorted({(part.list_id, part.place) for part, _ in marked})
    found = db.all_each(
        f"SELECT marks FROM list_marks WHERE list = {NUMBER} AND place = :place",
        [{"id": id, "place": place} for id, place in places],
    )
    before = {at: rows[0][0] for at, rows in zip(places, found, strict=True) if rows}
    for part, is_first in marked:
        at = part.list_id, part.place
        if is_first or at in before:
            before[at] = _merged(before.get(at, ""), part.marks)
    db.change_each(
        "INSERT INTO list_marks (list, place, marks) SELECT number, :place, :marks FROM lists"
        " WHERE id = :id ON CONFLICT (list, place) DO UPDATE SET marks = excluded.marks",
        [{"id": id, "place": place, "marks": marks} for (id, place), marks in before.items()],
    )


def _merged(before: str, marks: Mapping[int, str]) -> str:
    letters = list(before.ljust(max(marks) + 1, UNANSWERED))
    for number, letter in marks.items():
        letters[number] = letter
    return "".join(letters)


def keep(db: Database, command: KeepMarks) -> None:
    """Keep marks of chunks that have none; the chunk's claim does not matter."""
    which = {"id": command.list_id}
    if not db.all(f"SELECT 1 FROM lists WHERE id = :id{db.FOR_UPDATE}", which):
        return
    for place, marks in command.marks.items():
        db.change(
            f"INSERT INTO list_marks (list, place, marks) SELECT {NUMBER}, :place, :marks"
            f" WHERE NOT EXISTS (SELECT 1 FROM list_marks WHERE list = {NUMBER} AND place = :place)",
            {**which, "place": place, "marks": _merged("", marks)},
        )


def read(db: Database, command: ReadMarks) -> list[tuple[int, str]]:
    """Return the places that have marks, in order, each with them."""
    rows = db.all(
        f"SELECT place, marks FROM list_marks WHERE list = {NUMBER} AND place >= :first"
        " ORDER BY place LIMIT :limit",
        {"id": command.list_id, "first": command.first, "limit": command.limit},
    )
    return [(place, marks) for place, marks in rows]


def note_wait(db: Database, command: NoteWait) -> None:
    """Keep until when the list waits, unless it waits longer already."""
    db.change(
        "UPDATE lists SET waits_until = :until, waits_for = :cause WHERE id = :id"
        " AND (waits_until IS NULL OR waits_until < :until)",
        {"id": command.list_id, "until": micros(command.until), "cause": command.cause},
    )
