"""Sends hostile files to a service, downloads them, and watches what becomes of it and of a neighbour.

The neighbour is another account, which verifies a malformed address every 20 ms: its waits are
those of the service alone.
"""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from http.client import HTTPConnection, IncompleteRead
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

from msgspec import Struct, field

from ...lab.hostile_files import HostileFile

AT_ONCE = 2  # as many as a service reads
LISTS_OF_AN_ACCOUNT = 8  # ten that have not ended are its limit
AGAIN_S = 0.1  # after a 503
EVERY_S = 0.02
WATCHED_EVERY_S = 0.1
ANSWER_S = 130.0  # without an answer: longer than a reader may take
MALFORMED = json.dumps({"email": "not an address"})
# How an accepted list is downloaded, and the answers that this may have.
DOWNLOADS = {"csv": {200}, "xlsx": {200, 400}}
PIECE_OCTETS = 1 << 16
STATUS = {"accepted": 202, "too large to store": 400, "refused": 400}
TYPES = {
    ".csv": "text/csv",
    ".ndjson": "application/x-ndjson",
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    ".gz": "application/octet-stream",
}

At = tuple[str, int]
MadeFile = tuple[HostileFile, bytes]


class Download(Struct, frozen=True):
    """A download of an accepted list: an answer of other than 200 is read as JSON."""

    format: str
    status: int
    is_whole: bool

    @property
    def is_as_expected(self) -> bool:
        return self.is_whole and self.status in DOWNLOADS[self.format]


class SentFile(Struct, frozen=True):
    """A file, its answer, and the downloads of what was accepted."""

    hostile: HostileFile
    octets: int
    status: int
    body: dict[str, Any]
    took_s: float
    downloads: tuple[Download, ...] = ()

    @property
    def is_as_expected(self) -> bool:
        return self.status == STATUS[self.hostile.expected] and all(
            each.is_as_expected for each in self.downloads
        )


class WatchedService(Struct):
    """What was seen meanwhile."""

    waits_ms: list[float] = field(default_factory=list)
    loop_ms_max: float = 0.0  # that the event loop's thread computed in one of them
    failures: list[str] = field(default_factory=list)  # of the neighbour and of /health
    rss_mib_before: float = 0.0
    rss_mib_most: float = 0.0

    @property
    def wait_ms(self) -> float:
        """The median."""
        return median(self.waits_ms)

    @property
    def wait_ms_max(self) -> float:
        return max(self.waits_ms)

    @property
    def grown_mib(self) -> float:
        return self.rss_mib_most - self.rss_mib_before


def made(files: Sequence[HostileFile]) -> list[MadeFile]:
    """Make the files, which is computing that would delay the neighbour."""
    return [(each, each.make()) for each in files]


def accounts_for(files: Sequence[MadeFile]) -> int:
    """How many accounts send these files: each within the limits of lists."""
    return -(-len(files) // LISTS_OF_AN_ACCOUNT)


def send_files(at: At, keys: Sequence[str], files: Sequence[MadeFile]) -> list[SentFile]:
    """Send each file as a list and download it, some at a time; the accounts by turns."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(partial(send_file, at), cycle(keys), files))


def send_file(at: At, key: str, file: MadeFile) -> SentFile:
    hostile, octets = file
    began = time.perf_counter()
    headers = {"Content-Type": TYPES[Path(hostile.file).suffix]}
    with closing(HTTPConnection(*at, timeout=ANSWER_S)) as connection:
        status, body = _send(connection, "POST", "/v1/lists", key, octets, headers)
        took_s = time.perf_counter() - began
        downloads = tuple(
            _download(connection, f"/v1/lists/{body['list_id']}/results", key, each)
            for each in (DOWNLOADS if status == 202 else ())
        )
    return SentFile(hostile, len(octets), status, body, took_s, downloads)


@contextmanager
def watching(at: At, key: str, pid: int) -> Iterator[WatchedService]:
    """Watch the service of this process, as the neighbour with this key, for the block."""
    watched, ended = WatchedService(rss_mib_before=_rss_mib(pid)), threading.Event()
    with ThreadPoolExecutor(2) as threads:
        watches = [
            threads.submit(_verify, at, key, pid, watched, ended),
            threads.submit(_watch, at, pid, watched, ended),
        ]
        try:
            yield watched
        finally:
            ended.set()
    for each in watches:
        each.result()


def database_octets(path: Path) -> int:
    """What an SQLite database takes on the disk, with its log."""
    files = (path, path.with_name(f"{path.name}-wal"))
    return sum(file.stat().st_size for file in files if file.exists())


def _verify(at: At, key: str, pid: int, watched: WatchedService, ended: threading.Event) -> None:
    with closing(HTTPConnection(*at, timeout=ANSWER_S)) as connection:
        while not ended.is_set():
            computed_ms, began = _computed_ms(pid), time.perf_counter()
            status, body = _send(connection, "POST", "/v1/email/verify", key, MALFORMED.encode())
            took_s = time.perf_counter() - began
            if status != 200:
                watched.failures.append(f"{status} {body}")
            watched.waits_ms.append(took_s * 1000)
            watched.loop_ms_max = max(watched.loop_ms_max, _computed_ms(pid) - computed_ms)
            ended.wait(max(0.0, EVERY_S - took_s))


def _watch(at: At, pid: int, watched: WatchedService, ended: threading.Event) -> None:
    with closing(HTTPConnection(*at, timeout=ANSWER_S)) as connection:
        while not ended.wait(WATCHED_EVERY_S):
            watched.rss_mib_most = max(watched.rss_mib_most, _rss_mib(pid))
            status, body = _send(connection, "GET", "/health")
            if status != 200:
                watched.failures.append(f"/health: {status} {body}")


def _download(connection: HTTPConnection, path: str, key: str, kind: str) -> Download:
    """Fetch the rows, which are not kept."""
    connection.request("GET", f"{path}?format={kind}", headers={"Authorization": f"Bearer {key}"})
    answer = connection.getresponse()
    try:
        while answer.read(PIECE_OCTETS):
            pass
    except IncompleteRead:
        connection.close()
        return Download(kind, answer.status, is_whole=False)
    return Download(kind, answer.status, is_whole=True)


def _send(
    connection: HTTPConnection,
    method: str,
    path: str,
    key: str = "",
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, dict[str, Any]]:
    """Ask until the answer is another than 503, as a client does on a busy machine."""
    said = {"Authorization": f"Bearer {key}"} if key else {}
    until = time.monotonic() + ANSWER_S
    while True:
        connection.request(method, path, body, said | (headers or {}))
        answer = connection.getresponse()
        read: dict[str, Any] = json.loads(answer.read())
        if answer.status != 503 or time.monotonic() > until:
            return answer.status, read
        time.sleep(AGAIN_S)


def _computed_ms(pid: int) -> float:
    """The processor time of the event loop's thread (schedstat)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text("ascii").split()[0]) / 1e6


def _rss_mib(pid: int) -> float:
    """The resident memory of a process, without its children: readers have a limit of their own."""
    return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * 4096 / 2**20
