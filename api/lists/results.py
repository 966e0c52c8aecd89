"""The results of a list, row by row: NDJSON, CSV or a workbook; also while it runs."""

import csv
import io
import tempfile
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import TypeVar

import msgspec
import trio

from mailprobe.api.cli.listfile.results import ResultColumns
from mailprobe.api.cli.output.counts import ResultCounts
from mailprobe.api.cli.output.lights import Light, light_of
from mailprobe.api.cli.output.results import RowResult
from mailprobe.api.lists.limits import MADE_AT_ONCE_MAX
from mailprobe.api.lists.rows import results_of, rows_of
from mailprobe.api.lists.stored_row import StoredRow
from mailprobe.api.reader.bounds import workbook_bounds
from mailprobe.api.reader.client import open_reader
from mailprobe.api.reader.frames import BookEnd, BookRows, MakeWorkbook
from mailprobe.api.reader.turns import FairTurns
from mailprobe.storage.lists.records import ListChunk, StoredList
from mailprobe.storage.store import Store

CHUNKS_READ = 5  # at a time
EARLIER_MAX = 200  # chunks whose results are held, for rows whose address was there first
PART_OCTETS = 256 * 1024
PAUSE_S_MAX = 0.1

T = TypeVar("T")

Lights = frozenset[Light] | None  # None: all rows, those without an address too
Row = tuple[list[str], RowResult | None]

_encode = msgspec.json.Encoder().encode


_turn = trio.Lock()  # of all downloads
_workbook_turns = FairTurns(MADE_AT_ONCE_MAX)


@dataclass(slots=True)
class ListResults:
    """Reads the rows of a list with their results.

    All downloads together take at most half of the time: they work one at a time, a chunk
    each, and each pauses as long as it has worked.
    """

    store: Store
    source: StoredList
    lights: Lights = None
    _earlier: "OrderedDict[int, dict[int, RowResult]]" = field(default_factory=OrderedDict)

    async def each_chunk(self, make: Callable[[list[Row]], T]) -> AsyncIterator[T]:
        """Yield what is made of the rows of each chunk, without those of other lights."""
        first = 0
        while chunks := await self.store.chunks(self.source.id, first=first, limit=CHUNKS_READ):
            for chunk in chunks:
                async with _turn:
                    began_s = perf_counter()
                    rows = [row async for row in self._rows_of(chunk)]
                    made = make(rows)
                    await trio.sleep(min(perf_counter() - began_s, PAUSE_S_MAX))
                yield made
            first = chunks[-1].place + 1

    async def _rows_of(self, chunk: ListChunk) -> AsyncIterator[Row]:
        self._remember(chunk)
        for row in rows_of(chunk):
            result = await self._result_of(row)
            if self.lights is None or (result is not None and light_of(result) in self.lights):
                yield row.cells, result

    async def _result_of(self, row: StoredRow) -> RowResult | None:
        if row.place is None or row.number is None:
            return None
        if row.place not in self._earlier:
            for chunk in await self.store.chunks(self.source.id, first=row.place, limit=1):
                self._remember(chunk)
        return self._earlier.get(row.place, {}).get(row.number)

    def _remember(self, chunk: ListChunk) -> None:
        self._earlier[chunk.place] = results_of(chunk)
        self._earlier.move_to_end(chunk.place)
        while len(self._earlier) > EARLIER_MAX:
            self._earlier.popitem(last=False)


async def ndjson_parts(results: ListResults) -> AsyncIterator[bytes]:
    """Each row as an object: its own members, then the result's, null while there is none."""
    own, columns = list(results.source.columns), ResultColumns()
    names = [*own, *columns.names(own)]

    def make(rows: list[Row]) -> bytes:
        return b"".join(
            _encode(dict(zip(names, [*_padded(cells, own), *columns.values(result)], strict=True)))
            + b"\n"
            for cells, result in rows
        )

    async for octets in results.each_chunk(make):
        yield octets


async def csv_parts(results: ListResults) -> AsyncIterator[bytes]:
    """A table with a header."""
    own, columns = list(results.source.columns), ResultColumns()

    def encoded(rows: Iterable[Sequence[str]]) -> bytes:
        text = io.StringIO(newline="")
        csv.writer(text).writerows(rows)
        return text.getvalue().encode()

    def make(rows: list[Row]) -> bytes:
        return encoded(
            [*_padded(cells, own), *columns.defused(columns.cells(result))]
            for cells, result in rows
        )

    yield encoded([[*own, *columns.names(own)]])
    async for octets in results.each_chunk(make):
        yield octets


async def workbook_parts(results: ListResults) -> AsyncIterator[bytes]:
    """A workbook, made in a file by a process of its own before its first part is sent."""
    source, columns, counts = results.source, ResultColumns(), ResultCounts()
    own = list(source.columns)

    def made(rows: list[Row]) -> BookRows:
        for _, result in rows:
            if result is not None:
                counts.count(result)
        return BookRows([(cells, columns.values(result)) for cells, result in rows])

    with tempfile.TemporaryFile() as file:
        descriptor, bounds = file.fileno(), workbook_bounds(source.rows)
        async with (
            _workbook_turns.turn(source.account_id),
            open_reader("the workbook", bounds, [descriptor]) as maker,
        ):
            await maker.send(MakeWorkbook(descriptor, [*own, *columns.names(own)], len(own)))
            async for rows in results.each_chunk(made):
                await maker.send(rows)
            await maker.send(BookEnd(counts.lights, counts.statuses, counts.reasons))
            await maker.receive()
        file.seek(0)
        while octets := await trio.to_thread.run_sync(file.read, PART_OCTETS):
            yield octets


def _padded(cells: list[str], own: Sequence[str]) -> list[str]:
    return [*cells, *[""] * (len(own) - len(cells))]
