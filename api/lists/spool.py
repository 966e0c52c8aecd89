"""Puts uploaded lists on disk: so many at a time, fair by account, and none too slowly.

A spooled file has no name (O_TMPFILE, else it is unlinked at once), so that nothing is left of it
whatever ends the process.
"""

import logging
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import trio

from mailprobe.api.quota.list_limits import (
    ACCOUNT_UPLOADS_MAX,
    UPLOAD_OCTETS_MIN,
    UPLOAD_S_MAX,
    UPLOAD_WINDOW_S,
    UPLOADS_MAX,
)
from mailprobe.api.refusals import Overloaded, PayloadTooLarge, SlowBody, SlowUpload

log = logging.getLogger("mailprobe.lists")

MEASURED_S = 1.0  # of an upload, before it may be found to be the slowest

Receive = Callable[[], Awaitable[bytes]]
Stored = Callable[[int], None]


@dataclass(eq=False, slots=True)
class Upload:
    """One upload that has a place, until its list was read."""

    account_id: str
    began_at: float
    octets: int = 0
    is_arriving: bool = True
    work: trio.CancelScope = field(default_factory=trio.CancelScope)

    def rate(self, now: float) -> float:
        """Octets per second so far."""
        return self.octets / (now - self.began_at)


class UploadPlaces:
    """The places for uploads in a process: each may hold UPLOAD_OCTETS_MAX of the disk."""

    def __init__(self, places_max: int = UPLOADS_MAX) -> None:
        self._places_max = places_max
        self._uploads: set[Upload] = set()

    @contextmanager
    def taken(self, account_id: str) -> Iterator[Upload]:
        """Hold a place. If all are taken, the slowest upload is ended. Raises Overloaded."""
        now = trio.current_time()
        if sum(each.account_id == account_id for each in self._uploads) >= ACCOUNT_UPLOADS_MAX:
            raise Overloaded
        if len(self._uploads) >= self._places_max:
            self._end_slowest(now)
        upload = Upload(account_id, now)
        self._uploads.add(upload)
        try:
            yield upload
        finally:
            self._uploads.discard(upload)

    def _end_slowest(self, now: float) -> None:
        """End one that still arrives; those that are whole wait only for their turn."""
        arriving = [
            each for each in self._uploads if each.is_arriving and now - each.began_at >= MEASURED_S
        ]
        if not arriving:
            raise Overloaded
        slowest = min(arriving, key=lambda each: each.rate(now))
        slowest.work.cancel()
        self._uploads.discard(slowest)


_places = UploadPlaces()


@asynccontextmanager
async def spooled(
    receive: Receive,
    account_id: str,
    octets_max: int,
    stored: Stored = lambda octets: None,
    folder: Path | None = None,
) -> AsyncIterator[BinaryIO]:
    """Put the body of a request into a file in `folder`; `stored` learns what is on disk.

    The file is open at its begin. Raises PayloadTooLarge; SlowBody; SlowUpload; Overloaded, also
    if the disk is full.
    """
    with _places.taken(account_id) as upload, ExitStack() as stack:
        try:
            file = stack.enter_context(_unnamed_file(folder))
            with upload.work:
                await _spool(receive, file, upload, octets_max, stored)
        except OSError as error:
            directory = folder or tempfile.gettempdir()
            log.error("upload not stored: directory=%s error=%s", directory, error)
            raise Overloaded from None
        if upload.work.cancelled_caught:
            raise Overloaded
        upload.is_arriving = False
        yield file


@contextmanager
def _unnamed_file(folder: Path | None) -> Iterator[BinaryIO]:
    file = tempfile.TemporaryFile(prefix="mailprobe-list-", dir=folder)  # noqa: SIM115 - closed below
    try:
        yield file
    finally:
        with suppress(OSError):  # of what a full disk did not take
            file.close()


async def _spool(
    receive: Receive, file: BinaryIO, upload: Upload, octets_max: int, stored: Stored
) -> None:
    paced = _Paced(receive)
    while part := await paced.receive():
        upload.octets += len(part)
        if upload.octets > octets_max:
            raise PayloadTooLarge(octets_max)
        await trio.to_thread.run_sync(file.write, part)
        stored(len(part))
    file.seek(0)  # writes what is buffered, some KiB


class _Paced:
    """Receives a body that keeps the least rate; only the time that it is waited for counts."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._whole_left_s: float = UPLOAD_S_MAX
        self._begin_window()

    def _begin_window(self) -> None:
        self._octets, self._window_left_s = 0, UPLOAD_WINDOW_S

    async def receive(self) -> bytes:
        """The next part; none at the end. Raises SlowUpload, SlowBody."""
        began_at = trio.current_time()
        with trio.move_on_after(min(self._window_left_s, self._whole_left_s)) as waiting:
            part = await self._receive()
        waited_s = trio.current_time() - began_at
        self._window_left_s -= waited_s
        self._whole_left_s -= waited_s
        if waiting.cancelled_caught:
            if self._whole_left_s <= 0:
                raise SlowBody(UPLOAD_S_MAX)
            raise SlowUpload(UPLOAD_OCTETS_MIN // 1024, int(UPLOAD_WINDOW_S))
        self._octets += len(part)
        if self._octets >= UPLOAD_OCTETS_MIN:
            self._begin_window()
        return part
