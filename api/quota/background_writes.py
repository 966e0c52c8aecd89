"""What must be written whatever becomes of the request that it belongs to.

A request's task dies when its caller hangs up; these writes do not. They run
shielded, or in a task of the service for which the request waits only while it
lives. Lasts as long as the service, and is left only when everything is written or
the time for it is up. A write that fails by a fault of ours is lost alone, and logged.
"""

import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import Context

import trio

from mailprobe.engine.background import contained
from mailprobe.storage.contract import StoreUnavailable

log = logging.getLogger("mailprobe.recorder")

DRAIN_S = 2.0  # a stop has 10 seconds in all, and 6 are the open requests'
PAUSES_S = (0.1, 0.2, 0.5, 1.0)  # between two tries; the last one from then on

Write = Callable[[], Awaitable[None]]


class BackgroundWrites:
    """Takes writes from requests; `open_background_writes()` opens one."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._pending: set[trio.CancelScope] = set()
        self._idle = trio.Event()

    @property
    def pending(self) -> int:
        return len(self._pending)

    async def write_shielded(self, write: Write) -> None:
        """Write it, try once; whoever is cancelled meanwhile learns so when it is written.

        In the caller's own task, for a store answers or gives up within a second.
        Raises StoreUnavailable.
        """
        scope = trio.CancelScope(shield=True)
        await self._run(scope, write)
        if scope.cancelled_caught:
            raise StoreUnavailable("a write was given up at the end")

    def write_until_durable(self, write: Write) -> trio.Event:
        """Write it, try until it is written; the event tells that it is, or was given up."""
        ended = trio.Event()
        self._start(_try_until_written, write, ended)
        return ended

    def run_beside(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run this until it ends, or everything is written at the end; it is no request's."""
        Context().run(self._nursery.start_soon, contained, run)

    def _start(self, run: Callable[..., Awaitable[None]], *arguments: object) -> None:
        scope = trio.CancelScope(shield=True)
        self._pending.add(scope)  # now, lest the end come before the task begins
        self._nursery.start_soon(self._run, scope, contained, run, *arguments)

    async def _run(
        self, scope: trio.CancelScope, run: Callable[..., Awaitable[object]], *arguments: object
    ) -> None:
        self._pending.add(scope)
        try:
            with scope:
                await run(*arguments)
        finally:
            self._pending.discard(scope)
            if not self._pending:
                self._idle.set()
                self._idle = trio.Event()

    async def drain(self, seconds: float) -> None:
        """Wait until everything is written, at most so long; then give the rest up."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + seconds):
            while self._pending:
                await self._idle.wait()
        if self._pending:
            log.error("%d writes were given up at the end", len(self._pending))
        for scope in self._pending:
            scope.cancel()


async def _try_until_written(write: Write, ended: trio.Event) -> None:
    pauses = itertools.chain(PAUSES_S, itertools.repeat(PAUSES_S[-1]))
    try:
        for pause_s in pauses:
            try:
                return await write()
            except StoreUnavailable:
                log.warning("the store cannot be asked; trying again in %.1f s", pause_s)
            await trio.sleep(pause_s)
    finally:
        ended.set()


@asynccontextmanager
async def open_background_writes(drain_s: float = DRAIN_S) -> AsyncIterator[BackgroundWrites]:
    """A recorder; leaving the block, in whatever way, waits for what is pending."""
    async with trio.open_nursery() as nursery:
        background_writes = BackgroundWrites(nursery)
        try:
            yield background_writes
        finally:
            await background_writes.drain(drain_s)
            nursery.cancel_scope.cancel()
