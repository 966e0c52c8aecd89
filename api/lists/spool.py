"""Puts uploaded lists on disk: so many arrive at a time, fair by account, and none too slowly.

An upload that is whole holds octets of the disk, and no place, until it was read.

A spooled file has no name (O_TMPFILE, else it is unlinked at once), so that nothing is left of it
whatever ends the process.
"""

import logging
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import trio
from msgspec import Struct, field

from ..quota.list_limits import (
    ACCOUNT_UPLOADS_MAX,
    UPLOAD_OCTETS_MIN,
    UPLOAD_S_MAX,
    UPLOAD_WINDOW_S,
    UPLOADS_MAX,
    WAITING_OCTETS_MAX,
)
from ..refusals import Overloaded, PayloadTooLarge, SlowBody, SlowUpload
from .reader_trouble import refusal_of

log = logging.getLogger("mailprobe.lists")

MEASURED_S = 1.0  # of an upload, before it may be found to be the slowest
PLACE_S = 10.0  # to find a place

Receive = Callable[[], Awaitable[bytes]]
Stored = Callable[[int], None]


class Upload(Struct, eq=False):
    """One upload: it arrives, waits for its turn to be read, and is read."""

    account_id: str
    began_at: float
    file: BinaryIO
    octets: int = 0
    is_arriving: bool = True
    is_read: bool = False
    block: trio.CancelScope = field(default_factory=trio.CancelScope)

    def begin_reading(self) -> None:
        """From now on it is not ended for others that wait."""
        self.is_read = True

    def rate(self, now: float) -> float:
        """Octets per second so far."""
        return self.octets / (now - self.began_at)


class UploadPlaces:
    """The places for uploads that arrive, and the octets of those that wait to be read."""

    def __init__(
        self, places_max: int = UPLOADS_MAX, waiting_octets_max: int = WAITING_OCTETS_MAX
    ) -> None:
        self._places_max = places_max
        self._waiting_octets_max = waiting_octets_max
        self._uploads: dict[Upload, None] = {}  # ordered: the newest is the last

    @asynccontextmanager
    async def taken(self, account_id: str, file: BinaryIO) -> AsyncIterator[Upload]:
        """Hold a place until the upload is whole. Raises Overloaded.

        If all are taken, the slowest upload of the account with most of them is ended.
        """
        await self._find_place(account_id)
        upload = Upload(account_id, trio.current_time(), file)
        self._uploads[upload] = None
        try:
            with upload.block:
                yield upload
        finally:
            self._uploads.pop(upload, None)
        if upload.block.cancelled_caught:
            raise Overloaded

    def leave(self, upload: Upload) -> None:
        """The upload is whole: it needs no place any more.

        If too many octets wait to be read, the newest that waits of the account with most is ended.
        """
        upload.is_arriving = False
        while sum(each.octets for each in self._whole()) > self._waiting_octets_max:
            waiting = [each for each in self._whole() if not each.is_read]
            octets: Counter[str] = Counter()
            for each in self._whole():
                octets[each.account_id] += each.octets
            if not waiting:
                return
            most = max(octets[each.account_id] for each in waiting)
            self._end([each for each in waiting if octets[each.account_id] == most][-1])

    def _whole(self) -> list[Upload]:
        return [each for each in self._uploads if not each.is_arriving]

    async def _find_place(self, account_id: str) -> None:
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(PLACE_S):
            while True:
                if self._count(account_id) >= ACCOUNT_UPLOADS_MAX:
                    raise Overloaded
                arriving = [each for each in self._uploads if each.is_arriving]
                if len(arriving) < self._places_max:
                    return
                counts = Counter(each.account_id for each in arriving)
                most = max(counts.values())
                if most <= counts[account_id]:
                    raise Overloaded
                now = trio.current_time()
                candidates = [each for each in arriving if counts[each.account_id] == most]
                measured = [each for each in candidates if now - each.began_at >= MEASURED_S]
                if measured:
                    self._end(min(measured, key=lambda each: each.rate(now)))
                    return
                await trio.sleep_until(min(each.began_at for each in candidates) + MEASURED_S)
        raise Overloaded

    def _count(self, account_id: str) -> int:
        """The uploads of the account, those that wait or are read included."""
        return sum(each.account_id == account_id for each in self._uploads)

    def _end(self, upload: Upload) -> None:
        upload.block.cancel()
        self._uploads.pop(upload, None)


upload_places = UploadPlaces()


@asynccontextmanager
async def spooled(
    receive: Receive,
    account_id: str,
    octets_max: int,
    stored: Stored = lambda octets: None,
    folder: Path | None = None,
) -> AsyncIterator[Upload]:
    """Put the body of a request into a file in `folder`; `stored` learns what is on disk.

    The file is open at its begin. Raises PayloadTooLarge; SlowBody; SlowUpload; StorageFull;
    Overloaded, also for a block that is ended because others wait.
    """
    with ExitStack() as stack:
        with _refusing_trouble(folder):
            file = stack.enter_context(_unnamed_file(folder))
        async with upload_places.taken(account_id, file) as upload:
            with _refusing_trouble(folder):
                await _spool(receive, upload, octets_max, stored)
            upload_places.leave(upload)
            yield upload


@contextmanager
def _refusing_trouble(folder: Path | None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        directory = folder or tempfile.gettempdir()
        log.error("upload not stored: directory=%s error=%s", directory, error)
        raise refusal_of(error) from None


@contextmanager
def _unnamed_file(folder: Path | None) -> Iterator[BinaryIO]:
    file = tempfile.TemporaryFile(prefix="mailprobe-list-", dir=folder)  # noqa: SIM115 - closed below
    try:
        yield file
    finally:
        with suppress(OSError):  # of what a full disk did not take
            file.close()


async def _spool(receive: Receive, upload: Upload, octets_max: int, stored: Stored) -> None:
    paced, file = _Paced(receive), upload.file
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
