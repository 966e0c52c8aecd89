"""Transactions of what a page shows of a list: marks of addresses, waits."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from ..base.columns import micros
from ..database import Database
from ..list_records import ChunkPart

NUMBER = "(SELECT number FROM lists WHERE id = :id)"
UNANSWERED = "."
MARKS_READ_MAX = 10_000  # places in one call: a million addresses, some 10 ms


def mark(db: Database, parts: Sequence[tuple[ChunkPart, bool]]) -> None:
    """Keep the marks of results that were just stored, in the place of those before.

    Each part comes with whether it is its chunk's first. A chunk whose first results were stored
    without marks keeps none: see `keep_marks`.
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


def keep_marks(db: Database, list_id: str, marks: Mapping[int, Mapping[int, str]]) -> None:
    """Keep marks at places that have none: of results that an earlier version has stored.

    They are by place, then by the address's number. The chunk's claim does not matter.
    """
    which = {"id": list_id}
    if not db.all(f"SELECT 1 FROM lists WHERE id = :id{db.FOR_UPDATE}", which):
        return
    for place, of_place in marks.items():
        db.change(
            f"INSERT INTO list_marks (list, place, marks) SELECT {NUMBER}, :place, :marks"
            f" WHERE NOT EXISTS (SELECT 1 FROM list_marks WHERE list = {NUMBER} AND place = :place)",
            {**which, "place": place, "marks": _merged("", of_place)},
        )


def read_marks(db: Database, list_id: str, *, first: int) -> list[tuple[int, str]]:
    """Return MARKS_READ_MAX places from `first` that have marks, each with a character for
    each of its addresses: "." where there is no answer. Those at the end may be missing.
    """
    rows = db.all(
        f"SELECT place, marks FROM list_marks WHERE list = {NUMBER} AND place >= :first"
        " ORDER BY place LIMIT :limit",
        {"id": list_id, "first": first, "limit": MARKS_READ_MAX},
    )
    return [(place, marks) for place, marks in rows]


def note_wait(db: Database, list_id: str, until: datetime, cause: str) -> None:
    """Keep until when a limit lets a list wait, and the code of its error; the longest wait stays."""
    db.change(
        "UPDATE lists SET waits_until = :until, waits_for = :cause WHERE id = :id"
        " AND (waits_until IS NULL OR waits_until < :until)",
        {"id": list_id, "until": micros(until), "cause": cause},
    )
