"""Takes a list from a request to the store: to disk, then read, then stored in chunks.

The file is read as `mailprobe clean` reads it. Reading runs in a thread, a chunk at a time,
with a pause as long as the work, so that a large list leaves the process to other requests.
"""

import logging
import os
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from time import thread_time

import trio

from mailprobe.api.cli.errors import CommandError
from mailprobe.api.cli.listfile import List, ReadOptions, open_list
from mailprobe.api.cli.listfile.bounds import ROW_OCTETS_MAX
from mailprobe.api.http.request_bodies import stored
from mailprobe.api.lists.limits import (
    CHUNK_OCTETS_MAX,
    CHUNK_ROWS_MAX,
    CHUNK_UNITS,
    READ_AT_ONCE_MAX,
    UPLOAD_S_MAX,
    UPLOADS_MAX,
)
from mailprobe.api.lists.rows import StoredRow, encode_row
from mailprobe.api.rest.refusals import InvalidRequest, Overloaded, PayloadTooLarge, SlowBody
from mailprobe.storage.lists.commands import (
    LoadedList,
)
from mailprobe.storage.lists.records import ListChunk

log = logging.getLogger("mailprobe.lists")

SEEN_CACHE_KIB = 16 * 1024

LINE_OCTETS_MAX = 2 * ROW_OCTETS_MAX + 100  # a row's cells, its address again, and its place

CHUNKS_STORED = 10  # in one transaction

_threads = trio.CapacityLimiter(READ_AT_ONCE_MAX)
_reading = trio.CapacityLimiter(READ_AT_ONCE_MAX)
_uploads = trio.CapacityLimiter(UPLOADS_MAX)

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
async def spooled(
    receive: Callable[[], Awaitable[bytes]], extension: str, octets_max: int
) -> AsyncIterator[Path]:
    """Put the body of a request into a temporary file, and wait for the turn to read it.

    Raises PayloadTooLarge; SlowBody; Overloaded, also if the disk is full.
    """
    if not _uploads.available_tokens:
        raise Overloaded
    async with _uploads:
        with tempfile.TemporaryDirectory(prefix="mailprobe-list-") as folder:
            path = Path(folder) / f"list{extension}"
            try:
                with trio.fail_after(UPLOAD_S_MAX):
                    await _spool(receive, path, octets_max)
            except trio.TooSlowError:
                raise SlowBody(UPLOAD_S_MAX) from None
            except OSError as error:
                log.error("an upload cannot be kept in %s: %s", folder, error)
                raise Overloaded from None
            async with _reading:
                yield path


async def _spool(receive: Callable[[], Awaitable[bytes]], path: Path, octets_max: int) -> None:
    octets = 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        while part := await receive():
            octets += len(part)
            if octets > octets_max:
                raise PayloadTooLarge(octets_max)
            await trio.to_thread.run_sync(file.write, part)
            stored(len(part))


@dataclass(slots=True)
class ListReader:
    """Reads a list into chunks. `loaded` is complete once all chunks were read."""

    path: Path
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
            words = error.message.replace(str(self.path), self.name)
            raise InvalidRequest(f"The list cannot be read: {words}.", "lists") from None

    def _read(self) -> Iterator[ListChunk]:
        with open_list(self.path, self.reading) as source, _seen_addresses() as seen:
            rows = addresses = place = 0
            lines: list[str] = []
            units = octets = 0
            for row in source.rows():
                rows += 1
                if rows > self.rows_max:
                    raise InvalidRequest(
                        f"The list has more than {self.rows_max:,} rows, the limit of your tier.",
                        "lists",
                        fix="Split the list, or ask for a higher tier.",
                    )
                cells = without_trailing_blanks(row.cells() or [row.address])
                if not row.address:
                    lines.append(encode_row(StoredRow(None, None, None, cells)))
                else:
                    at = seen.place_of(row.address, (place, units))
                    is_new = at == (place, units)
                    units += is_new
                    lines.append(encode_row(StoredRow(*at, row.address if is_new else None, cells)))
                octets += len(lines[-1].encode())
                is_full = units == CHUNK_UNITS or len(lines) == CHUNK_ROWS_MAX
                if is_full or octets > CHUNK_OCTETS_MAX - LINE_OCTETS_MAX:
                    addresses += units
                    yield ListChunk(place, units, "".join(lines))
                    place, units, octets = place + 1, 0, 0
                    lines.clear()
            if lines:
                addresses += units
                yield ListChunk(place, units, "".join(lines))
            self.loaded = LoadedList(_columns_of(source), rows, addresses)


def without_trailing_blanks(cells: list[str]) -> list[str]:
    """The cells up to the last that is not empty: a thousand commas are no content."""
    stop = len(cells)
    while stop and not cells[stop - 1]:
        stop -= 1
    return cells[:stop]


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
