"""Connections that we left while the mail host still had to answer.

A host that delays a reply notices only afterwards that we have gone (Exchange sleeps 5 s
before a refusal), and counts the connection until then. So it keeps its permit until the
host closes it, and counts among its connections.
"""

from collections.abc import Callable

import trio
from msgspec import Struct, field

from ..connection import SmtpConnection
from .host import Host
from .openings import RELEASE_S
from .permits import Permits

LEFT_S = (
    30.0  # hosts hardly delay a reply for longer; one that hangs must not hold permits for good
)
LEFT_MAX = 1_000  # each has a file descriptor: half as many as the probes under way


class LeftConnections(Struct, eq=False):
    """The left connections of one egress. Each has a task that waits for its end."""

    _permits: Permits
    _start: Callable[..., None]  # begins a contained task
    _scopes: dict[trio.CancelScope, None] = field(default_factory=dict)  # the oldest first
    _closed: bool = False

    def add(self, host: Host, connection: SmtpConnection, address: str) -> None:
        """Take over the connection and its permit, until the host closes it or LEFT_S have passed."""
        scope = trio.CancelScope()
        if self._closed:
            scope.cancel()
        if len(self._scopes) >= LEFT_MAX:
            oldest = next(iter(self._scopes))
            del self._scopes[oldest]
            oldest.cancel()
        self._scopes[scope] = None
        host.staffing.connections.leave_one()
        self._start(self._wait, scope, host, connection, address)

    async def _wait(
        self, scope: trio.CancelScope, host: Host, connection: SmtpConnection, address: str
    ) -> None:
        try:
            with scope, self._permits.holding(address):
                # Opening takes several round trips: in that time a host that noticed would close.
                soon_s = max(RELEASE_S, host.staffing.openings.opening_s)
                noticed = await connection.ended(soon_s)
                host.times.late.left(noticed=noticed)
                if not noticed:
                    await connection.ended(LEFT_S - soon_s)
        finally:
            with trio.CancelScope(shield=True):
                await connection.close()
            self._scopes.pop(scope, None)
            host.staffing.connections.left_ended(host.now())
            self._permits.release(address)
            host.connection_ended()
            host.turn.mark_freed(host)
            host.turn.run()

    def close(self) -> None:
        """Close all of them, and whatever is added later."""
        self._closed = True
        for scope in list(self._scopes):
            scope.cancel()
