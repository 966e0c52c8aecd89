"""Turns for readers: so many at a time, and accounts in turn."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from mailprobe.engine.fair_queue import FairQueue


class FairTurns:
    """A number of turns at a time; accounts that wait take turns."""

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._waiting: FairQueue[trio.Event] = FairQueue()
        self._gone: set[trio.Event] = set()  # of those that wait no longer

    @asynccontextmanager
    async def turn(self, account_id: str) -> AsyncIterator[None]:
        """Wait for a turn, which lasts for the block."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(account_id)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, account_id: str) -> None:
        event = trio.Event()
        self._waiting.join(account_id, event)
        try:
            await event.wait()
        except trio.Cancelled:
            if event.is_set():
                self._pass_on()
            else:
                self._gone.add(event)
            raise

    def _pass_on(self) -> None:
        while (event := self._waiting.pop()) is not None:
            if event not in self._gone:
                event.set()
                return
            self._gone.discard(event)
        self._free += 1
