"""The tasks of one egress: connections, and what they leave behind. Each is contained."""

from collections.abc import Callable
from typing import Any

import trio

from ..background import contained_until


class ConnectionTasks:
    """Begins tasks, and knows when all have ended."""

    __slots__ = ("_all_done", "_nursery", "count")

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.count = 0
        self._all_done = trio.Event()

    def start(self, task: Callable[..., Any], *args: Any) -> None:
        self.count += 1
        self._nursery.start_soon(contained_until, self._ended, task, *args)

    def _ended(self) -> None:
        self.count -= 1
        if not self.count:
            self._all_done.set()

    async def wait(self) -> None:
        """Wait until none is left."""
        while self.count:
            self._all_done = trio.Event()
            await self._all_done.wait()
