"""Processes over the same file, and what is on its disk."""

import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio

from tests.warm_process import WarmProcess

ROOT = Path(__file__).parents[2]


@contextmanager
def child(*args: object) -> Iterator[Any]:
    command = ["tests.storage.child_process", *map(str, args)]
    with WarmProcess(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


async def line_of(process: Any) -> str:
    line: str = await trio.to_thread.run_sync(process.stdout.readline)
    return line.strip()


def report(process: Any) -> None:
    process.stdin.write("\n")
    process.stdin.flush()


async def output_of(*args: object) -> str:
    with child(*args) as process:
        return await line_of(process)


def partitions_stored(db: sqlite3.Connection) -> list[Any]:
    partitions = db.execute(
        "SELECT state, account, host, jobs, due_at FROM job_partitions ORDER BY 1, 2, 3"
    )
    backlogs = db.execute("SELECT * FROM job_backlogs WHERE undelivered > 0 ORDER BY 1")
    return [*partitions, *backlogs]


def partitions_true(db: sqlite3.Connection) -> list[Any]:
    """The lanes as they are counted anew from the jobs."""
    first = "min(due_at) FILTER (WHERE lease_until IS NULL"
    partitions = db.execute(
        "SELECT state, account, CASE state WHEN 'pending' THEN '' ELSE host END, count(*),"
        f" {first}) FROM jobs WHERE due_at IS NOT NULL GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"
    )
    backlogs = db.execute(
        "SELECT account, count(*) FILTER (WHERE state = 'pending'), count(*),"
        f" {first} AND state = 'pending'), {first} AND state = 'delivering')"
        " FROM jobs WHERE due_at IS NOT NULL GROUP BY 1 ORDER BY 1"
    )
    return [*partitions, *backlogs]


def octets_in(directory: Path) -> bytes:
    return b"".join(file.read_bytes() for file in directory.rglob("*") if file.is_file())
