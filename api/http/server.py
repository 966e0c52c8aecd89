"""The HTTP server: accepts connections, bounds them, admits their requests, and drains.

`serve_app` runs an ASGI application on given listeners until `drain` is set.
One `HttpConnection` serves one client, see `api/http/connection.py`.

Of hypercorn it uses the configuration (`Config`: the fields of every answer, the requests
that a connection may make), the context of a worker (`WorkerContext`: is it ending?) and the
form of socket addresses in ASGI. hypercorn's protocols lack the deadlines and limits that
this server promises; tests/api/http/test_exchange.py lists what they would break.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence

import trio

from mailprobe.engine.background import running_loops, supervised

from ..admission.overload import AdmissionQueue
from ..admission.request_bodies import BodyBudget
from ..signals import drain_signals
from .connection import HttpConnection
from .encoder import ErrorBody
from .exchange import UpgradeHandler
from .received_request import Application
from .shared import HttpServer, Limits

logger = logging.getLogger("mailprobe.http")


async def drain_on_signals(
    drain: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Set `drain` at one of `drain_signals`. Runs until cancelled; more signals change nothing."""
    with trio.open_signal_receiver(*drain_signals()) as signals:
        task_status.started()
        async for _ in signals:
            drain.set()


async def serve_app(
    app: Application,
    listeners: Sequence[trio.SocketListener],
    *,
    drain: trio.Event,
    error_body: ErrorBody,
    limits: Limits | None = None,
    admission_queue: AdmissionQueue | None = None,
    intake: BodyBudget | None = None,
    vital: Iterable[bytes] = (),
    upgrades: Mapping[bytes, UpgradeHandler] | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the application on these listeners; return when `drain` is set and all has ended.

    A POST waits in the `admission_queue` from its last byte until the application calls
    `admission_of(scope).admitted()` or answers; a full queue rejects it with 503. Without a
    queue, all are admitted. `intake` bounds the memory of bodies. A GET of a `vital` path is always served.
    A request for a WebSocket goes to the handler of its path in `upgrades`, else to the application.

    Draining closes the listeners and idle connections at once, gives open requests
    `limits.drain_s`, then cancels them. Whatever a client sends or an application raises
    ends at most its own connection, and so does a bug in this server. The ASGI lifespan
    protocol is not supported: the caller nests what the application needs around this.
    """
    server = HttpServer(
        app,
        error_body,
        limits or Limits(),
        admission_queue,
        intake or BodyBudget(),
        vital,
        upgrades or {},
        HttpConnection,
    )
    try:
        async with running_loops(server.hang_ups.run, server.resume_unread):
            await _serve_until_drained(server, listeners, drain, task_status)
    finally:
        server.hang_ups.close()


async def _serve_until_drained(
    server: HttpServer,
    listeners: Sequence[trio.SocketListener],
    drain: trio.Event,
    task_status: trio.TaskStatus[None],
) -> None:
    async with trio.open_nursery() as connections:
        try:
            async with trio.open_nursery() as accepting:
                for listener in listeners:
                    accepting.start_soon(supervised, server.accept, listener, connections)
                task_status.started()
                await drain.wait()
                accepting.cancel_scope.cancel()
        finally:
            for listener in listeners:
                listener.socket.close()
        server.drain()
        connections.cancel_scope.deadline = trio.current_time() + server.limits.drain_s
    if connections.cancel_scope.cancelled_caught:
        logger.warning("requests cut off: drain_s=%g", server.limits.drain_s)
