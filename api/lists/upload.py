"""Reads an uploaded list from disk (`api/lists/spool.py`) into chunks for the store.

The file is read as `mailprobe clean` reads it, by a process with bounds of its own: what a
file makes of its reader costs no other request anything.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import BinaryIO

from mailprobe.api.listfile import ReadOptions
from mailprobe.api.lists.reader_trouble import refusing_trouble
from mailprobe.api.quota.list_limits import READ_AT_ONCE_MAX
from mailprobe.api.reader.bounds import UPLOAD
from mailprobe.api.reader.client import ReaderOrder, ReaderTask, open_reader
from mailprobe.api.reader.forks import is_short_text
from mailprobe.api.reader.frames import Chunk, Loaded, ReadUpload, Report
from mailprobe.api.reader.turns import FairTurns
from mailprobe.api.results.list_reading import encode_reading
from mailprobe.storage.list_records import ListChunk
from mailprobe.storage.lists.commands import LoadedList
from mailprobe.storage.records import Account

# In one transaction: some 30 ms, so that neither requests nor other uploads of the account, which
# wait for each other, wait long.
CHUNKS_STORED = 10
STORED_OCTETS = 1 << 20  # with these no more is taken

_turns = FairTurns(READ_AT_ONCE_MAX)

# The types of the API's uploads, and the extension that the reader knows them by.
EXTENSIONS = {
    "text/csv": ".csv",
    "text/tab-separated-values": ".tsv",
    "application/x-ndjson": ".ndjson",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": ".xlsx",
    "text/plain": ".txt",
    "application/octet-stream": "",
}


@asynccontextmanager
async def open_list_reader(
    file: BinaryIO, ending: str, name: str, reading: ReadOptions, account: Account, rows_max: int
) -> AsyncIterator["ListReader"]:
    """Read an uploaded list by a process of its own, once it is the account's turn."""
    descriptor = file.fileno()
    work = ReaderOrder(name, UPLOAD, descriptor, ReadUpload(name, ending, reading, rows_max))
    async with (
        _turns.turn(account.id),
        open_reader(work, is_short_text=is_short_text(descriptor)) as reader,
    ):
        yield ListReader(reader)


@dataclass(slots=True)
class ListReader:
    """Reads a list into chunks. `loaded` is complete once all chunks were read."""

    reader: ReaderTask
    loaded: LoadedList | None = None

    async def next_chunks(self) -> list[ListChunk]:
        """The next chunks, none at the end. Raises InvalidRequest, Overloaded."""
        chunks: list[ListChunk] = []
        octets = 0
        while len(chunks) < CHUNKS_STORED and octets < STORED_OCTETS and self.loaded is None:
            match await self._received():
                case Chunk(place=place, units=units, rows=rows):
                    chunks.append(ListChunk(place, units, rows))
                    octets += len(rows)
                case Loaded(columns, rows_in_all, addresses, blank_rows, reading):
                    self.loaded = LoadedList(
                        columns, rows_in_all, addresses, blank_rows, encode_reading(reading)
                    )
        return chunks

    async def _received(self) -> Report:
        with refusing_trouble("The list cannot be read"):
            return await self.reader.receive()
