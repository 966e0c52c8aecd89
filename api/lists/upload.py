"""Reads an uploaded list from disk (`api/lists/spool.py`) into chunks for the store.

The file is read as `mailprobe clean` reads it. Reading runs in a thread, a chunk at a time,
with a pause as long as the work, so that a large list leaves the process to other requests.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from time import thread_time
from typing import BinaryIO

import trio

from mailprobe.api.cli.errors import CommandError
from mailprobe.api.cli.listfile import List, ReadOptions, open_list_in
from mailprobe.api.lists.limits import (
    CHUNK_CHARACTERS_MAX,
    CHUNK_ROWS_MAX,
    CHUNK_UNITS,
    READ_AT_ONCE_MAX,
)
from mailprobe.api.lists.rows import StoredRow, encode_row
from mailprobe.api.rest.refusals import InvalidRequest
from mailprobe.storage.lists.commands import (
    LoadedList,
)
from mailprobe.storage.lists.records import ListChunk

SEEN_CACHE_KIB = 16 * 1024

CHUNKS_STORED = 10  # in one transaction

_threads = trio.CapacityLimiter(READ_AT_ONCE_MAX)

# The types of the API's uploads, and the extension that the reader knows them by.
EXTENSIONS = {
    "text/csv": ".csv",
    "text/tab-separated-values": ".tsv",
    "application/x-ndjson": ".ndjson",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": ".xlsx",
    "text/plain": ".txt",
    "application/octet-stream": "",
}


@dataclass(slots=True)
class ListReader:
    """Reads a list into chunks. `loaded` is complete once all chunks were read."""

    file: BinaryIO  # at its begin
    extension: str
    name: str
    reading: ReadOptions
    rows_max: int
    loaded: LoadedList | None = None
    _chunks: Iterator[ListChunk] = field(init=False)

    def __post_init__(self) -> None:
        self._chunks = self._read()

    async def next_chunks(self) -> list[ListChunk]:
        """The next chunks, none at the end. Raises InvalidRequest."""
        chunks: list[ListChunk] = []
        while len(chunks) < CHUNKS_STORED:
            chunk, took_s = await trio.to_thread.run_sync(self._next, limiter=_threads)
            if chunk is None:
                break
            chunks.append(chunk)
            await trio.sleep(took_s)
        return chunks

    def _next(self) -> tuple[ListChunk | None, float]:
        began_s = thread_time()
        try:
            return next(self._chunks, None), thread_time() - began_s
        except CommandError as error:
            raise InvalidRequest(f"The list cannot be read: {error.message}.", "lists") from None

    def _read(self) -> Iterator[ListChunk]:
        opened = open_list_in(self.file, self.name, self.extension, self.reading)
        with opened as source, _seen_addresses() as seen:
            rows = addresses = place = 0
            lines: list[str] = []
            units = characters = 0
            for row in source.rows():
                rows += 1
                if rows > self.rows_max:
                    raise InvalidRequest(
                        f"The list has more than {self.rows_max:,} rows, the limit of your tier.",
                        "lists",
                        fix="Split the list, or ask for a higher tier.",
                    )
                cells = row.cells() or [row.address]
                if not row.address:
                    lines.append(encode_row(StoredRow(None, None, None, cells)))
                else:
                    at = seen.place_of(row.address, (place, units))
                    is_new = at == (place, units)
                    units += is_new
                    lines.append(encode_row(StoredRow(*at, row.address if is_new else None, cells)))
                characters += len(lines[-1])
                is_full = units == CHUNK_UNITS or len(lines) == CHUNK_ROWS_MAX
                if is_full or characters >= CHUNK_CHARACTERS_MAX:
                    addresses += units
                    yield ListChunk(place, units, "".join(lines))
                    place, units, characters = place + 1, 0, 0
                    lines.clear()
            if lines:
                addresses += units
                yield ListChunk(place, units, "".join(lines))
            self.loaded = LoadedList(_columns_of(source), rows, addresses)


def _columns_of(source: List) -> list[str]:
    return source.named_members or ["email"]


class SeenAddresses:
    """Where each address of a list was first, on disk: a list has more than fit in memory."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        db.execute(f"PRAGMA cache_size = -{SEEN_CACHE_KIB}")
        db.execute("CREATE TABLE seen (hash BLOB PRIMARY KEY, place INT, number INT) WITHOUT ROWID")

    def place_of(self, address: str, here: tuple[int, int]) -> tuple[int, int]:
        """Where the address was first: here, if it is new."""
        digest = blake2b(address.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        new = self._db.execute("INSERT OR IGNORE INTO seen VALUES (?, ?, ?)", (digest, *here))
        if new.rowcount:
            return here
        (place, number) = self._db.execute(
            "SELECT place, number FROM seen WHERE hash = ?", (digest,)
        ).fetchone()
        return place, number


@contextmanager
def _seen_addresses() -> Iterator[SeenAddresses]:
    with closing(sqlite3.connect("", isolation_level=None, check_same_thread=False)) as db:
        db.execute("BEGIN")
        yield SeenAddresses(db)
