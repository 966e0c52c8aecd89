"""The results of a list, row by row: NDJSON, CSV or a workbook; also while it runs.

In memory are the rows of a chunk, the results that they need, and a piece of the answer.
Chunks are decoded and pieces are encoded in a thread, where downloads take turns by account.
"""

import csv
import tempfile
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, aclosing
from itertools import chain, repeat
from pathlib import PurePath
from typing import IO
from urllib.parse import quote

import msgspec
import trio

from mailprobe.storage.list_records import ListChunk, StoredList
from mailprobe.storage.store import Store

from ..admission.turns import FairTurns
from ..listfile.formulas import Formulas, guarded_cells
from ..listfile.results import (
    CellAnswer,
    ResultColumns,
    RowAnswer,
    answer_of,
    best_of,
)
from ..listfile.results import results_in as results_of_row
from ..quota.list_limits import (
    ACCOUNT_MADE_MAX,
    MADE_AT_ONCE_MAX,
    MADE_BEGUN_MAX,
)
from ..reader.bounds import workbook_bounds
from ..reader.client import ReaderLost, ReaderOrder, open_reader
from ..reader.frames import BookEnd, BookRows, MakeWorkbook
from ..refusals import ListNotFound
from ..results.chunk_lines import results_in, results_of, rows_of
from ..results.counts import ResultCounts
from ..results.list_reading import ListReading, decode_reading
from ..results.row_filter import RowFilter
from ..results.row_result import RowResult
from ..results.stored_row import StoredRow
from .downloads import PIECE_OCTETS_MAX, pieces, worked
from .reader_trouble import refusing_trouble

CHUNKS_READ = 5  # at a time, a MiB each at most
HELD_MAX = 200  # chunks whose results are held, for rows whose address was there first
PLACES_MAX = 50  # of them that a group of rows needs: what one call of the store returns

Row = tuple[list[str], RowAnswer]
Results = dict[int, RowResult]  # of a chunk, by the address's number there
Decoded = tuple[list[StoredRow], dict[int, Results]]  # of some chunks, the results by their place

_encode = msgspec.json.Encoder().encode
_workbook_turns = FairTurns(
    MADE_AT_ONCE_MAX, account_max=ACCOUNT_MADE_MAX, begun_max=MADE_BEGUN_MAX
)


async def rows_of_chunks(store: Store, source: StoredList) -> AsyncGenerator[Decoded, None]:
    """Yield the rows of some chunks together, and the results that these have.

    Raises ListNotFound if the list is deleted meanwhile, so that a part of it looks like no whole:
    first its lines go, then its chunks, then itself.
    """
    first, list_id = 0, source.id
    while chunks := await store.chunks(list_id, first=first, limit=CHUNKS_READ):
        if not all(chunk.rows for chunk in chunks):
            raise ListNotFound
        yield await worked(source.account_id, _decoded, chunks)
        first = chunks[-1].place + 1
    if await store.stored_list(list_id) is None:
        raise ListNotFound


def _decoded(chunks: Sequence[ListChunk]) -> Decoded:
    rows = [row for chunk in chunks for row in rows_of(chunk)]
    return rows, {chunk.place: results_of(chunk) for chunk in chunks}


class ListResults(msgspec.Struct):
    """Reads the rows of a list with their results."""

    store: Store
    source: StoredList
    only: RowFilter = msgspec.field(default_factory=RowFilter)
    formulas: Formulas = "guard"  # of the own cells in CSV
    _held: "OrderedDict[int, Results]" = msgspec.field(default_factory=OrderedDict)

    async def groups(self) -> AsyncGenerator[Iterator[Row], None]:
        """Yield the rows in groups, without those that are not wanted; take all of one before the next.

        A group's rows need the results of few chunks, which are read before it is yielded.
        """
        async with aclosing(rows_of_chunks(self.store, self.source)) as chunks:
            async for rows, decoded in chunks:
                self._hold(decoded)
                for group, places in _groups(rows):
                    await self._fetch(places)
                    yield self._joined(group)

    @property
    def columns(self) -> ResultColumns:
        """The columns of the results."""
        reading = decode_reading(self.source.reading) or ListReading()
        return ResultColumns(has_others=bool(reading.several), sources=reading.sources)

    def _joined(self, rows: Sequence[StoredRow]) -> Iterator[Row]:
        reading = decode_reading(self.source.reading) or ListReading()
        cells = max(1, len(reading.sources))
        for row in rows:
            first = None
            if row.place is not None and row.number is not None:
                first = self._held.get(row.place, {}).get(row.number)
            answer: RowAnswer = first
            if row.further or (cells > 1 and first is not None):
                answer = self._answer(row, first, cells)
            if self.only.takes(row.cells, best_of(results_of_row(answer))):
                yield row.cells, answer

    def _answer(self, row: StoredRow, first: RowResult | None, cells: int) -> list[CellAnswer]:
        """What was found for each of the row's cells with addresses, as far as it is known."""
        found: list[list[RowResult]] = [[] for _ in range(cells)]
        if first is not None:
            found[0].append(first)
        for each in row.further:
            result = self._held.get(each.place, {}).get(each.number)
            if result is not None:
                found[each.column].append(result)
        return [answer_of(results) for results in found]

    async def _fetch(self, places: Sequence[int]) -> None:
        """Hold the results of these places."""
        for place in places:
            if place in self._held:
                self._held.move_to_end(place)
        missing = [place for place in places if place not in self._held]
        if not missing:
            return
        found = await self.store.list_results(self.source.id, missing)
        if len(found) < len(missing):  # deleted, as in rows_of_chunks()
            raise ListNotFound
        self._hold(
            await worked(
                self.source.account_id,
                lambda: {place: results_in(lines) for place, lines in found},
            )
        )

    def _hold(self, decoded: Mapping[int, Results]) -> None:
        for place, results in decoded.items():
            self._held[place] = results
            self._held.move_to_end(place)
        while len(self._held) > HELD_MAX:
            self._held.popitem(last=False)


def _groups(rows: Sequence[StoredRow]) -> Iterator[tuple[list[StoredRow], list[int]]]:
    """Split rows so that each group needs at most PLACES_MAX places; yield both."""
    group: list[StoredRow] = []
    places: dict[int, None] = {}
    for row in rows:
        needed = {each.place for each in row.further}
        if row.place is not None:
            needed.add(row.place)
        new = [place for place in needed if place not in places]
        if new and len(places) + len(new) > PLACES_MAX:
            yield group, [*places]
            group, places = [], {}
        places.update(dict.fromkeys(needed))
        group.append(row)
    yield group, [*places]


async def _pieces_of_rows(
    results: ListResults, line: Callable[[Row], bytes]
) -> AsyncGenerator[bytes, None]:
    """Yield the lines of all rows. A client may leave: what it does not take is closed."""
    async with aclosing(results.groups()) as groups:
        async for group in groups:
            async with aclosing(pieces(results.source.account_id, map(line, group))) as made:
                async for octets in made:
                    yield octets


async def ndjson_parts(results: ListResults) -> AsyncGenerator[bytes, None]:
    """Each row as an object: its own members, then the result's, null while there is none."""
    own = await results.store.list_columns(results.source.id)
    columns = results.columns
    names = [*own, *columns.names(own)]

    def line(row: Row) -> bytes:
        cells, answer = row
        values: Iterator[object] = chain(cells, _absent(cells, own), columns.values(answer))
        return _encode(dict(zip(names, values, strict=True))) + b"\n"

    async with aclosing(_pieces_of_rows(results, line)) as made:
        async for octets in made:
            yield octets


async def csv_parts(results: ListResults) -> AsyncGenerator[bytes, None]:
    """A table with a header."""
    own = await results.store.list_columns(results.source.id)
    columns = results.columns

    is_kept = results.formulas == "keep"

    def line(row: Row) -> bytes:
        cells, answer = row
        shown = cells if is_kept else guarded_cells(cells)
        found = columns.defused(columns.cells(answer))
        return csv_line([*shown, *_absent(cells, own), *found])

    names = [*own, *columns.names(own)]
    yield csv_line(names if is_kept else guarded_cells(names))
    async with aclosing(_pieces_of_rows(results, line)) as made:
        async for octets in made:
            yield octets


class _Echo:
    """A file for `csv.writer`, whose methods then return the text."""

    def write(self, text: str) -> str:
        return text


_write_row = csv.writer(_Echo()).writerow


def csv_line(cells: Sequence[str]) -> bytes:
    """A row of a table, with its line end."""
    text: str = _write_row(cells)
    return text.encode()


def _absent(cells: Sequence[str], own: Sequence[str]) -> Iterator[str]:
    """The empty cells at the end of a row, which are not stored."""
    return repeat("", len(own) - len(cells))


async def workbook_parts(results: ListResults) -> AsyncGenerator[bytes, None]:
    """A workbook, made in a file by a process of its own before its first part is sent.

    Raises InvalidRequest, Overloaded.
    """
    with ExitStack() as stack:
        with refusing_trouble("No workbook can be made of the list", "Fetch the results as CSV."):
            file = stack.enter_context(tempfile.TemporaryFile())
            try:
                await _make_workbook(results, file)
            except ReaderLost:  # once more
                file.seek(0)
                file.truncate()
                await _make_workbook(results, file)
        file.seek(0)
        while octets := await trio.to_thread.run_sync(file.read, PIECE_OCTETS_MAX):
            yield octets


async def _make_workbook(results: ListResults, file: IO[bytes]) -> None:
    source, columns, counts = results.source, results.columns, ResultCounts()
    own = await results.store.list_columns(source.id)

    def made(rows: Iterator[Row]) -> BookRows:
        taken = list(rows)
        for _, answer in taken:
            for result in results_of_row(answer):
                counts.count(result)
        return BookRows([(cells, columns.values(answer)) for cells, answer in taken])

    command = MakeWorkbook([*own, *columns.names(own)], len(own))
    bounds = workbook_bounds(source.rows)
    work = ReaderOrder("the workbook", bounds, file.fileno(), command, "is not made, by our fault")
    async with (
        _workbook_turns.turn(source.account_id) as turn,
        open_reader(work, turn) as maker,
    ):
        async with aclosing(results.groups()) as groups:
            async for group in groups:
                await maker.send(await worked(source.account_id, made, group))
        await maker.send(BookEnd(counts.lights, counts.statuses, counts.reasons))
        await maker.receive()


def disposition(name: str, ending: str, part: str = "verified") -> str:
    """`customers.csv` is downloaded as `customers.verified.csv` (RFC 6266)."""
    base = PurePath(name.replace("\\", "/")).name
    for end in (".gz", ".csv", ".tsv", ".tab", ".txt", ".xlsx", ".ndjson", ".jsonl"):
        base = base.removesuffix(end)
    file = f"{base or 'list'}.{part}.{ending}"
    plain = "".join(
        each if each.isascii() and each.isprintable() and each not in '"\\%' else "_"
        for each in file
    )
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(file, safe='')}"
