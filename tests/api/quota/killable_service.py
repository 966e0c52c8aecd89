"""A `forking_service` that SIGKILL ends before a chosen write.

    python -m tests.api.quota.killable_service FILE

FILE is a `Countdown`: the test sets the number of writes after which the process
dies. Each writing statement counts, each commit, and each batch's answer after its
commit. The leases of a killed process end after half a second, not a minute.
"""

import fcntl
import mmap
import os
import re
import signal
import struct
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import trio
from msgspec.structs import replace

from mailprobe.api import serve
from mailprobe.api.jobs import worker
from mailprobe.api.quota import list_limits
from mailprobe.api.rest import idempotency
from mailprobe.storage.postgres.driver.database_thread import BatchExecutor
from mailprobe.storage.postgres.driver.server import TransactionConnection
from mailprobe.storage.sqlite.database_thread import Writer
from tests.api import forking_service

WRITES = re.compile(r"\s*(WITH\b.*\b)?(INSERT|UPDATE|DELETE|REPLACE|COMMIT)\b", re.I | re.S)
LEASE_S = 0.5
OFF, REACHED = -1, -2
FORMAT = "q"


class Countdown:
    """The number of writes left, in a file that the test and the service share."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(struct.pack(FORMAT, OFF))
        self._file = os.open(path, os.O_RDWR)  # the lock between the processes is that of this
        self._memory = mmap.mmap(self._file, struct.calcsize(FORMAT))
        self._lock = threading.Lock()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Neither another thread nor the other process reads or writes it meanwhile.

        A process that is killed loses its lock, which is not its parent's either (unlike flock).
        """
        with self._lock:
            fcntl.lockf(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)

    @property
    def left(self) -> int:
        (left,) = struct.unpack(FORMAT, self._memory[:])
        return int(left)

    @left.setter
    def left(self, left: int) -> None:
        self._memory[:] = struct.pack(FORMAT, left)

    def stop(self) -> bool:
        """Stop counting writes; return True if the service has been killed."""
        with self._alone():  # or it is killed after it was found alive
            was_reached = self.left == REACHED
            self.left = OFF
        return was_reached

    def count(self) -> None:
        """A write comes next."""
        with self._alone():
            left = self.left
            if left == 0:
                self.left = REACHED
                os.kill(os.getpid(), signal.SIGKILL)
            if left > 0:
                self.left = left - 1

    def count_statement(self, statement: Any) -> None:
        if isinstance(statement, str) and WRITES.match(statement):
            self.count()


def doom_sqlite(countdown: Countdown) -> None:
    # Private: the store's contract has commands, and nothing of the writes that they are made of.
    configure, answer = Writer._configure, Writer._answer

    def configure_killable(self: Writer, db: Any) -> None:
        configure(self, db)
        db.set_trace_callback(countdown.count_statement)

    def answer_killable(self: Writer, those: list[Any]) -> None:
        countdown.count()
        answer(self, those)

    Writer._configure = configure_killable  # type: ignore[method-assign]
    Writer._answer = answer_killable  # type: ignore[method-assign,assignment]


def doom_postgres(countdown: Countdown) -> None:
    execute, do = TransactionConnection.execute, BatchExecutor.do

    def execute_killable(self: TransactionConnection, statement: str, values: Any = None) -> Any:
        countdown.count_statement(statement)
        return execute(self, statement, values)

    def do_killable(self: Any, work: Any, asked: Sequence[Any], until: float) -> list[Any]:
        outcomes = do(self, work, asked, until)
        if work.repeatable:  # what only reads is not
            countdown.count()
        return outcomes

    TransactionConnection.execute = execute_killable  # type: ignore[method-assign]
    BatchExecutor.do = do_killable  # type: ignore[method-assign]


async def no_upkeep(service: object) -> None:
    """Run no upkeep: its writes would come at unpredictable times."""
    await trio.sleep_forever()


def main(words: list[str]) -> None:
    countdown = Countdown(Path(words[0]))
    doom_sqlite(countdown)
    doom_postgres(countdown)
    serve.apply_retention = no_upkeep
    # a killed process's connection leases would delay the next one for 12 s
    serve.leases_of = lambda settings, store, facts: nullcontext()
    idempotency.LEASE_S = idempotency.UPLOAD_LEASE_S = worker.LEASE_S = LEASE_S
    list_limits.BOUNDS = replace(list_limits.BOUNDS, per_minute_max=1000)
    serve.list_limits_of = lambda settings: list_limits.ListLimits(active_max=1000)
    worker.EXTEND_EVERY_S = worker.POLL_S = LEASE_S / 4
    forking_service.main([])


if __name__ == "__main__":
    main(sys.argv[1:])
