"""The lines of lists: their rows and results, in parts that are added once and never changed.

PostgreSQL keeps them in a partition for each day on which lists were made. Each statement that
reads has the day in its text: with the day as a value, PostgreSQL would plan for every partition
and lock every one, which exhausts its lock table after some hundred days.
"""

from collections.abc import Sequence

from msgspec import Struct

from ..database import Database
from ..list_records import ListChunk

ROWS_PART = 0  # of a chunk; those of its results follow
CHUNKS_READ_MAX = 50  # in one call: some 10,000 rows
PLACES_SEARCHED_MAX = 200  # in one call: some milliseconds, at 20 KB each
DELETED_MAX = 50  # parts in one transaction: most have some KiB, few a MiB


class ListKey(Struct, frozen=True):
    """What the lines of a list are found by."""

    number: int
    day: int  # the first instant of the day on which it was made


def _of_list(day: int) -> str:
    """SQL of the lines of a list that was made on this day."""
    return f"day = {day:d} AND list = :list"


class LinesPart(Struct, frozen=True):
    list: ListKey
    place: int
    part: int
    rows: str = ""
    results: str = ""


def key_of(db: Database, list_id: str) -> ListKey | None:
    rows = db.all("SELECT number, day FROM lists WHERE id = :id", {"id": list_id})
    return ListKey(*rows[0]) if rows else None


def add(db: Database, parts: Sequence[LinesPart]) -> None:
    for day in {part.list.day for part in parts}:
        db.need_list_day(day)
    db.change_each(
        "INSERT INTO list_lines (day, list, place, part, rows, results)"
        " VALUES (:day, :list, :place, :part, :rows, :results)",
        [
            {
                "day": each.list.day, "list": each.list.number, "place": each.place,
                "part": each.part, "rows": each.rows, "results": each.results,
            }
            for each in parts
        ],
    )  # fmt: skip


def read(db: Database, places: Sequence[tuple[ListKey, int]]) -> list[tuple[str, str]]:
    """Return the rows and the results of each of these chunks."""
    lines: dict[tuple[int, int], tuple[str, str]] = {}
    for day in sorted({key.day for key, _ in places}):
        of_day = [(key.number, place) for key, place in places if key.day == day]
        found = db.all_each(
            f"SELECT rows, results FROM list_lines WHERE {_of_list(day)} AND place = :place"
            " ORDER BY part",
            [{"list": number, "place": place} for number, place in of_day],
        )
        for at, parts in zip(of_day, found, strict=True):
            lines[at] = "".join(rows for rows, _ in parts), "".join(each for _, each in parts)
    return [lines[key.number, place] for key, place in places]


def delete_some(db: Database, key: ListKey) -> bool:
    """Delete some lines of a list; whether there were any."""
    which = _of_list(key.day)
    some = f"SELECT place, part FROM list_lines WHERE {which} ORDER BY place, part LIMIT :most"
    deleted = db.change(
        f"DELETE FROM list_lines WHERE {which} AND (place, part) IN ({some})",
        {"list": key.number, "most": DELETED_MAX},
    )
    return deleted > 0


# what pages and downloads read


def read_chunks(db: Database, list_id: str, *, first: int, limit: int) -> list[ListChunk]:
    """Return chunks with addresses in order, from the place `first`, with their results."""
    key = key_of(db, list_id)
    if key is None:
        return []
    rows = db.all(
        "SELECT place, units FROM list_chunks WHERE list = :list AND place >= :first"
        " ORDER BY place LIMIT :limit",
        {"list": key.number, "first": max(0, first), "limit": min(limit, CHUNKS_READ_MAX)},
    )
    return _with_lines(db, key, rows)


def read_places(db: Database, list_id: str, places: Sequence[int]) -> list[ListChunk]:
    """Return the chunks at these places, at most CHUNKS_READ_MAX, in order."""
    key = key_of(db, list_id)
    if key is None:
        return []
    found = db.all_each(
        "SELECT place, units FROM list_chunks WHERE list = :list AND place = :place",
        [{"list": key.number, "place": place} for place in sorted(set(places[:CHUNKS_READ_MAX]))],
    )
    return _with_lines(db, key, [row for rows in found for row in rows])


def _with_lines(db: Database, key: ListKey, chunks: Sequence[tuple[int, int]]) -> list[ListChunk]:
    lines = read(db, [(key, place) for place, _ in chunks])
    return [ListChunk(*chunk, *each) for chunk, each in zip(chunks, lines, strict=True)]


def read_results(db: Database, list_id: str, places: Sequence[int]) -> list[tuple[int, str]]:
    """Return the results of the chunks at these places, at most CHUNKS_READ_MAX, with the places.

    Only of those that are whole: a deletion takes rows first.
    """
    places = places[:CHUNKS_READ_MAX]
    key = key_of(db, list_id)
    if key is None:
        return []
    found = db.all_each(
        "SELECT part, results FROM list_lines"
        f" WHERE {_of_list(key.day)} AND place = :place ORDER BY part",
        [{"list": key.number, "place": place} for place in places],
    )
    return [
        (place, "".join(results for _, results in parts))
        for place, parts in zip(places, found, strict=True)
        if parts and parts[0][0] == ROWS_PART
    ]


def find_places(db: Database, list_id: str, pattern: str, *, first: int) -> list[int]:
    """Return the places whose rows are like the pattern, of PLACES_SEARCHED_MAX from `first`.

    The pattern is one of LIKE, in lower case; "!" escapes.
    """
    first = max(0, first)
    key = key_of(db, list_id)
    if key is None:
        return []
    rows = db.all(
        f"SELECT place FROM list_lines WHERE {_of_list(key.day)} AND place >= :first"
        " AND place < :end AND part = :part AND lower(list_lines.rows) LIKE :pattern ESCAPE '!'"
        " ORDER BY place",
        {
            "list": key.number, "first": first, "end": first + PLACES_SEARCHED_MAX,
            "part": ROWS_PART, "pattern": pattern,
        },
    )  # fmt: skip
    return [place for (place,) in rows]
