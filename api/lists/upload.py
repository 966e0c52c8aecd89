"""Reads an uploaded list from disk (`api/lists/spool.py`) into chunks for the store, in turns.

The file is read as `mailprobe clean` reads it, by a process with bounds of its own: what a
file makes of its reader costs no other request anything.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec import Struct

from mailprobe.storage.list_records import ListChunk, LoadedList
from mailprobe.storage.records import Account

from ..admission.turns import FairTurns
from ..listfile.opening import ReadOptions
from ..quota.list_limits import (
    ACCOUNT_READ_MAX,
    READ_AT_ONCE_MAX,
    READ_BEGUN_MAX,
    WAITING_S_MAX,
    WAITING_UPLOADS_MAX,
)
from ..reader.bounds import UPLOAD
from ..reader.client import ReaderOrder, ReaderTask, open_reader
from ..reader.forks import is_short_text
from ..reader.frames import Chunk, Loaded, ReadUpload
from ..results.list_reading import encode_reading
from .reader_trouble import refusing_trouble
from .spool import Upload

# In one transaction: some 30 ms, so that neither requests nor other uploads of the account, which
# wait for each other, wait long.
CHUNKS_STORED = 10
STORED_OCTETS = 1 << 20  # with these no more is taken

_turns = FairTurns(
    READ_AT_ONCE_MAX,
    account_max=ACCOUNT_READ_MAX,
    begun_max=READ_BEGUN_MAX,
    waiting_max=WAITING_UPLOADS_MAX,
    wait_s=WAITING_S_MAX,
)

# The types of the API's uploads, and the extension that the reader knows them by.
EXTENSIONS = {
    "text/csv": ".csv",
    "text/tab-separated-values": ".tsv",
    "application/x-ndjson": ".ndjson",
    "application/json": ".json",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": ".xlsx",
    "text/plain": ".txt",
    "application/octet-stream": "",
}


@asynccontextmanager
async def open_list_reader(
    account: Account, upload: Upload, ending: str, name: str, reading: ReadOptions, rows_max: int
) -> AsyncIterator["ListReader"]:
    """Read an uploaded list by a process of its own, once it is the account's turn.

    Raises InvalidRequest, Overloaded, StorageFull, also for what the block does with the reader.
    """
    descriptor = upload.file.fileno()
    work = ReaderOrder(name, UPLOAD, descriptor, ReadUpload(name, ending, reading, rows_max))
    with refusing_trouble("The list cannot be read"):
        async with _turns.turn(account.id) as turn:
            upload.begin_reading()
            is_short = is_short_text(descriptor)
            async with open_reader(work, turn, is_short_text=is_short) as reader:
                yield ListReader(reader)


class ListReader(Struct):
    """Reads a list into chunks. `loaded` is complete once all chunks were read."""

    reader: ReaderTask
    loaded: LoadedList | None = None

    async def next_chunks(self) -> list[ListChunk]:
        """The next chunks, none at the end. Raises CommandError, OSError."""
        chunks: list[ListChunk] = []
        octets = 0
        while len(chunks) < CHUNKS_STORED and octets < STORED_OCTETS and self.loaded is None:
            match await self.reader.receive():
                case Chunk(place=place, units=units, rows=rows):
                    chunks.append(ListChunk(place, units, rows))
                    octets += len(rows)
                case Loaded(columns, rows_in_all, addresses, blank_rows, reading):
                    self.loaded = LoadedList(
                        columns, rows_in_all, addresses, blank_rows, encode_reading(reading)
                    )
        return chunks
