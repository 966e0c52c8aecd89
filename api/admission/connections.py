"""The live connections of a process: sockets and event streams, limited in all and for each account."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from ..refusals import Overloaded

CONNECTIONS_MAX = 500
EACH_MAX = 20  # of an account


class LiveConnections:
    """Counts the open connections. Each ends at `drain`, when the process stops."""

    def __init__(self, drain: trio.Event, *, each_max: int = EACH_MAX) -> None:
        self.drain = drain
        self._each_max = each_max
        self._open: Counter[str] = Counter()  # by account

    def check_room(self, account_id: str) -> None:
        """Raise Overloaded if the account may open no further one."""
        if self._open.total() >= CONNECTIONS_MAX or self._open[account_id] >= self._each_max:
            raise Overloaded

    @contextmanager
    def counted(self, account_id: str) -> Iterator[None]:
        """Count an open connection of an account for the duration of the block."""
        self._open[account_id] += 1
        try:
            yield
        finally:
            self._open[account_id] -= 1
            if not self._open[account_id]:
                del self._open[account_id]
