"""The machine of the service as its operator sees it: processes, versions, disks."""

import os
import platform
import shutil
from datetime import datetime
from functools import cache
from pathlib import Path

import trio
from msgspec import Struct

from mailprobe.release import version

from ....reader.client import forks
from ....reader.forks import ReaderCounts
from ....service import Deployment

DISK_FREE_LEAST = 0.1  # a disk with less is marked: SQLite's log of a large list needs some


class Disk(Struct, frozen=True):
    """The file system of a folder, in octets."""

    what: str  # is in the folder
    free: int
    total: int

    @property
    def is_low(self) -> bool:
        return self.free < DISK_FREE_LEAST * self.total


class Machine(Struct, frozen=True):
    """What a page says of the process that makes it, and of what it runs on."""

    version: str
    python: str
    process: int
    started_at: datetime
    workers: int
    workers_alive: int | None
    readers: ReaderCounts
    database: str
    database_octets: int | None  # None: it is on another machine
    disks: tuple[Disk, ...]


async def machine_of(deployment: Deployment) -> Machine:
    """Look at the machine now."""
    disks, octets = await trio.to_thread.run_sync(_disks_of, deployment)
    alive = deployment.workers_alive
    return Machine(
        _version(), platform.python_version(), os.getpid(), deployment.started_at,
        deployment.workers, None if alive is None else alive(), forks.statistics(),
        deployment.database, octets, disks,
    )  # fmt: skip


@cache
def _version() -> str:
    """As of the start: an upgrade beside a running service does not change it."""
    return version()


def _disks_of(deployment: Deployment) -> tuple[tuple[Disk, ...], int | None]:
    """The disks, and the octets of the database's files. May take a while on a slow disk."""
    disks = []
    for what, folder in deployment.folders.items():
        try:
            usage = shutil.disk_usage(folder)
        except OSError:
            continue
        disks.append(Disk(what, usage.free, usage.total))
    if "://" in deployment.database:
        return tuple(disks), None
    path = Path(deployment.database)
    files = (path, path.with_name(f"{path.name}-wal"))
    octets = [file.stat().st_size for file in files if file.exists()]
    return tuple(disks), sum(octets) if octets else None


def size_of(octets: int) -> str:
    """`512 KB`, `1.4 GB`: in powers of 1,000, as disks are sold."""
    size = float(octets)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if size >= 10 or unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
