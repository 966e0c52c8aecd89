"""Writes that outlive their requests.

A request's task is cancelled when its client hangs up; these writes are not. They run
shielded in that task, or in a task of the service. The service stops only when all are
written or DRAIN_S has passed. A bug in one write is logged and affects no other.
"""

import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import Context

import trio

from mailprobe.engine.background import contained
from mailprobe.storage.contract import StoreUnavailable

log = logging.getLogger("mailprobe.quota")

DRAIN_S = 2.0  # a stop has 10 s in all, of which open requests may use 6
PAUSES_S = (0.1, 0.2, 0.5, 1.0)  # between two tries; the last value repeats

Write = Callable[[], Awaitable[None]]


class BackgroundWrites:
    """Runs writes; made by `open_background_writes()`."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._pending: set[trio.CancelScope] = set()
        self._idle = trio.Event()

    @property
    def pending(self) -> int:
        """How many writes have not ended."""
        return len(self._pending)

    async def write_shielded(self, write: Write) -> None:
        """Try once to write, in the caller's task; a cancellation takes effect afterwards.

        A store answers or gives up within a second. Raises StoreUnavailable.
        """
        scope = trio.CancelScope(shield=True)
        await self._run(scope, write)
        if scope.cancelled_caught:
            raise StoreUnavailable("a write was given up at the end")

    def write_until_durable(self, write: Write) -> trio.Event:
        """Try until it is written; the event is set when it is, or was given up."""
        ended = trio.Event()
        scope = trio.CancelScope(shield=True)
        self._pending.add(scope)  # now, as drain() may begin before the task does
        self._nursery.start_soon(self._run, scope, contained, _try_until_written, write, ended)
        return ended

    def run_beside(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run this in a task of the service, outside any request's context; cancelled at the end."""
        Context().run(self._nursery.start_soon, contained, run)

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
        """Wait up to `seconds` until everything is written; then give up the rest."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + seconds):
            while self._pending:
                await self._idle.wait()
        if self._pending:
            log.error("background writes given up: count=%d", len(self._pending))
        for scope in self._pending:
            scope.cancel()


async def _try_until_written(write: Write, ended: trio.Event) -> None:
    pauses = itertools.chain(PAUSES_S, itertools.repeat(PAUSES_S[-1]))
    try:
        for pause_s in pauses:
            try:
                return await write()
            except StoreUnavailable:
                log.warning("store unavailable: queue=writes retry_in_s=%.1f", pause_s)
            await trio.sleep(pause_s)
    finally:
        ended.set()


@asynccontextmanager
async def open_background_writes() -> AsyncIterator[BackgroundWrites]:
    """Open background writes; leaving the block waits up to DRAIN_S for pending ones."""
    async with trio.open_nursery() as nursery:
        background_writes = BackgroundWrites(nursery)
        try:
            yield background_writes
        finally:
            await background_writes.drain(DRAIN_S)
            nursery.cancel_scope.cancel()
