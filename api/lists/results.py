"""The results of a list, row by row: NDJSON, CSV or a workbook; also while it runs."""

import csv
import io
import tempfile
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec
import trio

from mailprobe.api.cli.listfile.results import ResultColumns
from mailprobe.api.cli.listfile.workbook.new_workbook import (
    CellType,
    add_types,
    open_new_workbook,
)
from mailprobe.api.cli.output.counts import ResultCounts
from mailprobe.api.cli.output.lights import Light, light_of
from mailprobe.api.cli.output.results import RowResult
from mailprobe.api.lists.rows import StoredRow, results_of, rows_of
from mailprobe.storage.lists.records import ListChunk, StoredList
from mailprobe.storage.store import Store

CHUNKS_READ = 5  # at a time
EARLIER_MAX = 200  # chunks whose results are held, for rows whose address was there first
PART_OCTETS = 256 * 1024

Lights = frozenset[Light] | None  # None: all rows, those without an address too
Row = tuple[list[str], RowResult | None]

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class ListResults:
    """Reads the rows of a list with their results."""

    store: Store
    source: StoredList
    lights: Lights = None
    _earlier: "OrderedDict[int, dict[int, RowResult]]" = field(default_factory=OrderedDict)

    async def rows(self) -> AsyncIterator[list[Row]]:
        """Yield the rows of each chunk, without those of other lights."""
        first = 0
        while chunks := await self.store.chunks(self.source.id, first=first, limit=CHUNKS_READ):
            for chunk in chunks:
                yield [row async for row in self._rows_of(chunk)]
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
    async for rows in results.rows():
        lines = []
        for cells, result in rows:
            padded = [*cells, *[""] * (len(own) - len(cells))]
            lines.append(_encode(dict(zip(names, [*padded, *columns.values(result)], strict=True))))
        yield b"".join(line + b"\n" for line in lines)
        await trio.lowlevel.checkpoint()


async def csv_parts(results: ListResults) -> AsyncIterator[bytes]:
    own, columns = list(results.source.columns), ResultColumns()
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow([*own, *columns.names(own)])
    async for rows in results.rows():
        for cells, result in rows:
            padded = [*cells, *[""] * (len(own) - len(cells))]
            writer.writerow([*padded, *columns.defused(columns.cells(result))])
        yield text.getvalue().encode()
        text.seek(0)
        text.truncate()
        await trio.lowlevel.checkpoint()
    if tail := text.getvalue():  # the list has no rows, or none of these lights
        yield tail.encode()


async def workbook_parts(results: ListResults) -> AsyncIterator[bytes]:
    """A workbook, made in a file before its first part is sent."""
    own, columns = list(results.source.columns), ResultColumns()
    types: list[CellType] = ["blank"] * len(own)
    async for rows in ListResults(results.store, results.source).rows():
        for cells, _ in rows:
            add_types(types, cells)
    counts = ResultCounts()
    with tempfile.TemporaryFile() as file:
        book = open_new_workbook(file, [*own, *columns.names(own)], types, counts)
        add = book.__enter__()
        async for rows in results.rows():
            await trio.to_thread.run_sync(_add_rows, add, rows, columns, counts)
        await trio.to_thread.run_sync(partial(book.__exit__, None, None, None))
        file.seek(0)
        while octets := await trio.to_thread.run_sync(file.read, PART_OCTETS):
            yield octets


def _add_rows(
    add: Callable[..., None], rows: Sequence[Row], columns: ResultColumns, counts: ResultCounts
) -> None:
    for cells, result in rows:
        if result is not None:
            counts.count(result)
        add(cells, columns.values(result))
