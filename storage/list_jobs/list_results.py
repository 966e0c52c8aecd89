"""Transactions of a list's results: stored with the list's progress, many chunks at once.

Each result leaves a mark of its address, a character, by which a page counts and filters.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec import Struct, field

from ..database import Database
from ..list_records import ChunkPart
from . import list_lines, list_waits
from .list_lines import ROWS_PART, LinesPart, ListKey
from .list_waits import NUMBER
from .lists import HAS_DUE, HELD, make_last_due

FIRST_PART = ROWS_PART + 1  # of a chunk's results
UNANSWERED = "."
MARKS_READ_MAX = 10_000  # places in one call: a million addresses, some 10 ms


class _Progress(Struct):
    """Of one list, while results of its chunks are stored."""

    key: ListKey
    counts: Counter[str]
    answered: int
    addresses: int
    octets: int = 0  # that are added
    parts: list[ChunkPart] = field(default_factory=list)  # that were stored

    def add(self, part: ChunkPart) -> None:
        self.parts.append(part)
        self.counts.update(part.counts)
        self.answered += part.answered
        self.octets += len(part.results.encode())


def record_all(db: Database, now: datetime, parts: Sequence[ChunkPart]) -> list[bool]:
    """Store results of claimed chunks; False for each whose claim another one followed.

    Nothing of these is stored. The rows of the lists are locked first, as by all that change
    both, and in order. The round trips are as many for a hundred parts as for one.
    """
    ids = sorted({part.list_id for part in parts})
    found = db.all_each(
        f"SELECT number, day, counts, answered, addresses FROM lists WHERE id = :id{db.FOR_UPDATE}",
        [{"id": id} for id in ids],
    )
    lists = {
        id: _Progress(ListKey(number, day), Counter(json.loads(counts)), answered, addresses)
        for id, rows in zip(ids, found, strict=True)
        for number, day, counts, answered, addresses in rows
    }
    stored = db.all_each(
        "UPDATE list_chunks SET parts = parts + 1, passing = passing + :passing,"
        " due_at = CASE WHEN :ends = 1 THEN NULL ELSE due_at END,"
        " holder = CASE WHEN :ends = 1 THEN NULL ELSE holder END,"
        f" lease_until = CASE WHEN :ends = 1 THEN NULL ELSE lease_until END WHERE {HELD}"
        " RETURNING parts",
        [
            {
                "id": part.list_id, "place": part.place, "fence": part.fence,
                "passing": part.passing, "ends": int(part.ends),
            }
            for part in parts
        ],
    )  # fmt: skip
    kept = [(part, rows[0][0]) for part, rows in zip(parts, stored, strict=True) if rows]
    list_lines.add(
        db,
        [
            LinesPart(lists[part.list_id].key, part.place, number, results=part.results)
            for part, number in kept
        ],
    )
    _mark(db, [(part, number == FIRST_PART) for part, number in kept])
    for part, _ in kept:
        lists[part.list_id].add(part)
    for id, each in sorted(lists.items()):
        waited = {part.place: () for part in each.parts if part.ends and part.has_waited}
        if waited:
            list_waits.change(db, id, waited)
    changed = {id: each for id, each in lists.items() if each.parts}
    db.change_each(
        "UPDATE lists SET counts = :counts, answered = :answered, octets = octets + :octets"
        " WHERE id = :id",
        [
            {
                "id": id, "counts": json.dumps(_without_zeros(each.counts)),
                "answered": each.answered, "octets": each.octets,
            }
            for id, each in changed.items()
        ],
    )  # fmt: skip
    make_last_due(db, now, _ended(db, changed))
    return [bool(rows) for rows in stored]


def _ended(db: Database, lists: Mapping[str, _Progress]) -> list[str]:
    """Return those that have no address left, or whose pass has no chunk left."""
    whole = {id: each for id, each in lists.items() if each.answered == each.addresses}
    ended = [id for id, each in whole.items() if any(part.answered for part in each.parts)]
    passes = [
        id
        for id, each in whole.items()
        if id not in ended and any(part.ends for part in each.parts)
    ]
    due = db.all_each(
        f"SELECT 1 FROM lists WHERE id = :id AND {HAS_DUE}", [{"id": id} for id in passes]
    )
    return ended + [id for id, rows in zip(passes, due, strict=True) if not rows]


def _without_zeros(counts: Mapping[str, int]) -> dict[str, int]:
    return {status: count for status, count in counts.items() if count}


def record_part(db: Database, part: ChunkPart) -> bool:
    """Store results of a claimed chunk that are not counted; False if another claim followed."""
    (stored,) = record_all(db, db.now(), [part])
    return stored


# marks


def _mark(db: Database, parts: Sequence[tuple[ChunkPart, bool]]) -> None:
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
