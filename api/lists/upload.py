"""Takes a list from a request to the store: to disk, then read, then stored in chunks.

The file is read as `mailprobe clean` reads it, by a process with bounds of its own: what a
file makes of its reader costs no other request anything.
"""

import logging
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import trio

from mailprobe.api.cli.errors import CommandError
from mailprobe.api.cli.listfile import ReadOptions
from mailprobe.api.http.request_bodies import stored
from mailprobe.api.lists.limits import READ_AT_ONCE_MAX, ROWS_MAX, UPLOAD_S_MAX, UPLOADS_MAX
from mailprobe.api.reader.bounds import UPLOAD
from mailprobe.api.reader.client import ReaderFault, ReaderTask, open_reader
from mailprobe.api.reader.frames import Chunk, Loaded, ReadUpload, Report, TooManyRows
from mailprobe.api.reader.turns import FairTurns
from mailprobe.api.rest.refusals import InvalidRequest, Overloaded, PayloadTooLarge, SlowBody
from mailprobe.storage.lists.commands import (
    LoadedList,
)
from mailprobe.storage.lists.records import ListChunk
from mailprobe.storage.records import Account

log = logging.getLogger("mailprobe.lists")

CHUNKS_STORED = 10  # in one transaction

_turns = FairTurns(READ_AT_ONCE_MAX)
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
    """Put the body of a request into a temporary file.

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


@asynccontextmanager
async def open_list_reader(
    file: BinaryIO, ending: str, name: str, reading: ReadOptions, account: Account
) -> AsyncIterator["ListReader"]:
    """Read an uploaded list by a process of its own, once it is the account's turn."""
    descriptor, rows_max = file.fileno(), ROWS_MAX[account.tier]
    async with (
        _turns.turn(account.id),
        open_reader(name, UPLOAD, [descriptor]) as reader,
    ):
        await reader.send(ReadUpload(descriptor, name, ending, reading, rows_max))
        yield ListReader(reader)


@dataclass(slots=True)
class ListReader:
    """Reads a list into chunks. `loaded` is complete once all chunks were read."""

    reader: ReaderTask
    loaded: LoadedList | None = None

    async def next_chunks(self) -> list[ListChunk]:
        """The next chunks, none at the end. Raises InvalidRequest, Overloaded."""
        chunks: list[ListChunk] = []
        while len(chunks) < CHUNKS_STORED and self.loaded is None:
            match await self._received():
                case Chunk(place=place, units=units, rows=rows):
                    chunks.append(ListChunk(place, units, rows))
                case Loaded(columns=columns, rows=rows_in_all, addresses=addresses):
                    self.loaded = LoadedList(columns, rows_in_all, addresses)
        return chunks

    async def _received(self) -> Report:
        try:
            return await self.reader.receive()
        except TooManyRows as error:
            raise InvalidRequest(f"{error.message}.", "lists", fix=error.fix) from None
        except CommandError as error:
            if isinstance(error, ReaderFault):
                log.error("a list's reader failed: %s", error.traceback)
            words = error.message
            raise InvalidRequest(f"The list cannot be read: {words}.", "lists") from None
        except OSError as error:
            log.error("a list's reader has no place: %s", error)
            raise Overloaded from None
