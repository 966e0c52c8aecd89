"""What must be true of an engine in which nothing is under way, and of one that works."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from mailprobe.engine import Engine
from mailprobe.engine.smtp.egress.hosts import EgressHosts

ROUNDS_MAX = 100_000  # of the event loop at one instant; 40,000 addresses take a tenth of it


class _RoundsWatch(trio.abc.Instrument):
    """Counts the rounds of the event loop at one instant; beyond ROUNDS_MAX it cancels."""

    def __init__(self, scope: trio.CancelScope) -> None:
        self._scope = scope
        self._at, self._rounds = trio.current_time(), 0

    def before_io_wait(self, timeout: float) -> None:
        now = trio.current_time()
        self._rounds = self._rounds + 1 if now == self._at else 0
        self._at = now
        if self._rounds > ROUNDS_MAX:
            self._scope.cancel()


@asynccontextmanager
async def time_passing() -> AsyncIterator[None]:
    """A block that fails, and does not last for ever, if tasks follow each other without time."""
    with trio.CancelScope() as scope:
        watch = _RoundsWatch(scope)
        trio.lowlevel.add_instrument(watch)
        try:
            yield
        finally:
            trio.lowlevel.remove_instrument(watch)
    assert not scope.cancelled_caught, "the event loop runs on without time passing"


def assert_whole(engine: Engine) -> None:
    """No seat taken, no question clocked or waiting, no test pending, no connection open."""
    probing = engine.probing
    assert probing.turn.under_way == 0
    assert not probing.turn.is_due
    assert not any(map(len, probing.turn.clocks))
    assert not len(probing.turn.waiting)
    assert not probing.address_lookups.pending
    assert probing.relief is None or probing.relief.held.pop() is None
    for hosts in probing.egresses:
        assert_hosts_whole(hosts)


def assert_hosts_whole(hosts: EgressHosts) -> None:
    """Likewise of one egress."""
    assert not hosts.permits.in_use
    assert hosts.tasks.count == 0
    for probed in hosts.all_hosts():
        assert probed.staffing.connections.now == 0
        assert not probed.staffing.connections.left
        assert not probed.staffing.sessions.open
        assert all(question.settled for question in probed.waiting)
    for domain in hosts.domains.records.values():
        assert not domain.testing
        assert all(question.settled for question in domain.awaiting)
