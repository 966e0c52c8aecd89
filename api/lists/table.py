"""A page of the answered addresses of a list, whatever its length: counted and filtered by marks.

The marks of a million addresses are two megabytes, so they are read whole; rows are read of
the page's chunks only. A text is searched in the rows, some chunks at a time, for SEARCH_S; the
next page goes on where this one has ended.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import trio
from msgspec import Struct

from mailprobe.storage.list_jobs.list_lines import PLACES_SEARCHED_MAX
from mailprobe.storage.list_jobs.list_results import MARKS_READ_MAX
from mailprobe.storage.list_records import ListChunk, StoredList
from mailprobe.storage.store import Store

from ..results.chunk_lines import found_at, results_in
from ..results.marks import KINDS, LIGHTS, ResultKind, counts_of, mark_of
from ..results.row_filter import RowFilter
from ..results.row_result import RowResult

PAGE_ROWS = 50
CHUNKS_AT_ONCE = 10  # a MiB each at most
SEARCH_S = 0.2  # then the page shows what was found, and where the search goes on

Order = Literal["file", "best", "worst"]
ORDERS: tuple[Order, ...] = ("file", "best", "worst")


class Marks(Struct, frozen=True):
    """The marks of a list by place."""

    places: Mapping[int, str]
    counts: Counter[ResultKind]


class ShownRow(Struct, frozen=True):
    """An answered address: where it is, the row that has it first, and what was found."""

    place: int
    number: int
    address: str
    cells: Sequence[str]
    result: RowResult


class FoundRows(Struct, frozen=True):
    """What a search has found, and at which place it goes on; None at the end."""

    rows: Sequence[ShownRow]
    next_place: int | None


async def read_marks(store: Store, source: StoredList) -> Marks:
    """Read the marks of a list; make those of results that an earlier version has stored."""
    places = await _read_places(store, source.id)
    counts = await trio.to_thread.run_sync(_counted, places)
    if counts.total() < source.answered:
        await _make_marks(store, source.id, places)
        places = await _read_places(store, source.id)
        counts = await trio.to_thread.run_sync(_counted, places)
    return Marks(places, counts)


async def _read_places(store: Store, list_id: str) -> dict[int, str]:
    places: dict[int, str] = {}
    first = 0
    while read := await store.list_marks(list_id, first=first):
        places.update(read)
        first = read[-1][0] + 1
        if len(read) < MARKS_READ_MAX:
            break
    return places


def _counted(places: Mapping[int, str]) -> Counter[ResultKind]:
    return counts_of("".join(places.values()))


async def _make_marks(store: Store, list_id: str, marked: Mapping[int, str]) -> None:
    first = 0
    while True:
        asked = [place for place in range(first, first + CHUNKS_AT_ONCE) if place not in marked]
        found = await store.list_results(list_id, asked)
        marks = await trio.to_thread.run_sync(_marks_in, found)
        await store.keep_marks(list_id, marks)
        if len(found) < len(asked):
            return
        first += CHUNKS_AT_ONCE


def _marks_in(found: Sequence[tuple[int, str]]) -> dict[int, dict[int, str]]:
    marks = {
        place: {number: mark_of(result, result.reason) for number, result in results.items()}
        for place, lines in found
        for results in [results_in(lines)]
    }
    return {place: each for place, each in marks.items() if each}


def places_of_page(
    marks: Marks, only: RowFilter, order: Order, offset: int
) -> list[tuple[int, int]]:
    """The place and number of each address of the page that begins at `offset`."""
    found: list[tuple[int, int]] = []
    for wanted in _groups(only, order):
        here = sum(marks.counts[KINDS[mark]] for mark in wanted)
        if offset >= here:
            offset -= here
            continue
        found += _positions(marks.places, wanted, offset, PAGE_ROWS - len(found))
        offset = 0
        if len(found) == PAGE_ROWS:
            break
    return found


def _groups(only: RowFilter, order: Order) -> list[frozenset[str]]:
    """The marks of the rows that come one after the other."""
    if order == "file":
        return [only.marks]
    lights = LIGHTS if order == "best" else LIGHTS[::-1]
    return [
        frozenset(mark for mark in only.marks if KINDS[mark].light == light) for light in lights
    ]


def _positions(
    places: Mapping[int, str], wanted: frozenset[str], offset: int, most: int
) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    finds = re.compile(f"[{''.join(sorted(wanted))}]")
    for place, marks in places.items():
        here = finds.findall(marks)
        if offset >= len(here):
            offset -= len(here)
            continue
        numbers = [match.start() for match in finds.finditer(marks)]
        found += [(place, number) for number in numbers[offset:]][: most - len(found)]
        offset = 0
        if len(found) == most:
            break
    return found


async def read_rows(
    store: Store, list_id: str, wanted: Sequence[tuple[int, int]]
) -> list[ShownRow]:
    """Read the rows at these places and numbers, in their order."""
    numbers: dict[int, list[int]] = {}
    for place, number in wanted:
        numbers.setdefault(place, []).append(number)
    places = [*numbers]
    found: dict[tuple[int, int], ShownRow] = {}
    for first in range(0, len(places), CHUNKS_AT_ONCE):
        chunks = await store.chunks_at(list_id, places[first : first + CHUNKS_AT_ONCE])
        for row in await trio.to_thread.run_sync(_rows_of, chunks, numbers):
            found[row.place, row.number] = row
    return [found[each] for each in wanted if each in found]


def _rows_of(chunks: Iterable[ListChunk], numbers: Mapping[int, Sequence[int]]) -> list[ShownRow]:
    return [
        ShownRow(chunk.place, number, result.email, row.cells, result)
        for chunk in chunks
        for number, row, result in found_at(chunk, numbers[chunk.place])
    ]


async def search_rows(
    store: Store, list_id: str, marks: Marks, only: RowFilter, first: int
) -> FoundRows:
    """Search rows with the filter's text from the place `first` on, in the order of the file."""
    finds = re.compile(f"[{''.join(sorted(only.marks))}]")
    end = max(marks.places, default=-1) + 1
    rows: list[ShownRow] = []
    until = trio.current_time() + SEARCH_S
    while first < end:
        places = await store.find_places(list_id, only.pattern, first=first)
        numbers = {
            place: [match.start() for match in finds.finditer(marks.places.get(place, ""))]
            for place in places
        }
        places = [place for place in places if numbers[place]]
        for each in range(0, len(places), CHUNKS_AT_ONCE):
            chunks = await store.chunks_at(list_id, places[each : each + CHUNKS_AT_ONCE])
            for chunk in chunks:
                found = await trio.to_thread.run_sync(_rows_of, [chunk], numbers)
                rows += [row for row in found if only.has_text(row.cells)]
                if len(rows) >= PAGE_ROWS:
                    return FoundRows(rows, _or_end(chunk.place + 1, end))
        first += PLACES_SEARCHED_MAX
        if trio.current_time() > until:
            break
    return FoundRows(rows, _or_end(first, end))


def _or_end(place: int, end: int) -> int | None:
    return place if place < end else None
