"""The ASGI application of `mailprobe.asgi`: in its lifespan it is what `mailprobe serve` composes.

At `lifespan.startup` (ASGI's lifespan specification, 2.0) a process reads the settings and composes
the service, at `lifespan.shutdown` it stops jobs and lists, writes what is pending and closes the
store. Each process of a server has a service of its own; what must hold over all of them (limits,
quotas, connections to a mail host) is kept in the database, as for several machines.
"""

import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import click
import msgspec
import trio

from mailprobe.engine.background import sole_exception
from mailprobe.engine.lists.updated_lists import current_version
from mailprobe.release import commit, version
from mailprobe.storage.contract import StoreUnavailable

from ..admission.connections import LiveConnections
from ..error_table import Links, body_of, row_of
from ..errors import CommandError, cannot_use, is_of_file
from ..gc_tuning import tune_collector
from ..http.encoder import ErrorBody
from ..http.received_request import Application, Receive, Scope, Send
from ..live.server import LiveServer
from ..observability.logs import log_to_standard_error
from ..observability.throughput import open_throughput
from ..observability.traces import traces_missing
from ..operations.verify import LIVE
from ..quota.plans import read_plans
from ..refusals import NoSuchRoute
from ..serve import (
    applying_retention,
    create_app,
    deployment_of,
    error_body_of,
    open_composed,
)
from ..service import Service
from ..settings import Settings, WrongSetting
from ..starting.database import await_database, check_database
from ..starting.first_account import welcome_lines
from ..starting.open_files import raise_open_files
from ..terminal import plain
from .listening import read_settings
from .live_socket import AsgiSocket, serve_live
from .requests import serve_request

log = logging.getLogger("mailprobe.serve")

NOT_ON_TRIO = "mailprobe: this server does not run on trio; for hypercorn, give the option --worker-class trio"
NOT_COMPOSED = (
    b"mailprobe is not running: this server has not begun its lifespan, or it has ended\n"
)


class Composed(msgspec.Struct, frozen=True):
    """A process's running service, as requests find it."""

    app: Application
    live: LiveServer
    error_body: ErrorBody
    links: Links


class ServiceApp:
    """The ASGI application of one process, on trio. `environ` has its settings."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._composed: Composed | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope. Raises what the server's own `receive` and `send` raise."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif self._composed is None:
            await _refuse_all(scope, send)
        elif scope["type"] == "http":
            composed = self._composed
            await serve_request(composed.app, scope, receive, send, composed.error_body)
        elif scope["path"] == LIVE:
            await serve_live(scope, receive, send, self._composed.live)
        else:
            await _reject(self._composed.links, scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Run the service from the startup to the shutdown.

        An error of the start is answered with the line that `mailprobe serve` prints.
        """
        await receive()
        if not trio.lowlevel.in_trio_run():
            await send({"type": "lifespan.startup.failed", "message": NOT_ON_TRIO})
            return
        has_started, failure = False, None
        try:
            drain = trio.Event()
            async with self._open(drain):
                has_started = True
                await send({"type": "lifespan.startup.complete"})
                await receive()
                drain.set()
        except Exception as error:
            if has_started:
                raise
            failure = line_of(error)
            if failure is None:
                log.critical("crashed", exc_info=True)
                failure = f"mailprobe: the start failed: {type(error).__name__}; the log says where"
        if failure is None:
            await send({"type": "lifespan.shutdown.complete"})
        else:  # not within the exception, of which hypercorn would print the traceback too
            await send({"type": "lifespan.startup.failed", "message": failure})

    @asynccontextmanager
    async def _open(self, drain: trio.Event) -> AsyncIterator[None]:
        """Compose the service for the duration of the block."""
        settings = read_settings(self._environ)
        plans = read_plans(settings.plans_file)
        check_database(settings)
        raise_open_files()
        _set_up_log(settings.log)
        await trio.to_thread.run_sync(await_database, settings.database, abandon_on_cancel=True)
        if (notice := traces_missing(settings.traces_protocol)) is not None:
            log.warning(notice)
        with open_throughput(1) as throughput:
            deployment = deployment_of(settings, 1, None, throughput)
            opening = open_composed(settings, plans, None, deployment, drain)
            async with opening as service, applying_retention(service):
                await self._serve(service, settings, drain)
                try:
                    yield
                finally:
                    self._composed = None
        log.info("stopped", extra={"version": version(), "commit": commit()})

    async def _serve(self, service: Service, settings: Settings, drain: trio.Event) -> None:
        """From now on requests are answered."""
        for line in await welcome_lines(service.store, settings):
            click.echo(line, err=True)
        tune_collector()
        lists = current_version(settings.engine.own_lists.folder)
        log.info("started", extra={"version": version(), "commit": commit(), "lists": lists})
        self._composed = _composed(service, drain)


def _composed(service: Service, drain: trio.Event) -> Composed:
    connections = LiveConnections(drain)
    live = LiveServer(service, connections)
    return Composed(create_app(service, connections), live, error_body_of(service), service.links)


def line_of(error: BaseException) -> str | None:
    """The line that `mailprobe serve` prints for an error of its start; None for a defect of the service."""
    error = sole_exception(error)
    match error:
        case CommandError(message=message):
            line = message
        case WrongSetting() | StoreUnavailable():
            line = str(error)
        case OSError() if is_of_file(error):
            line = cannot_use(error)
        case _:
            return None
    return f"mailprobe: {plain(line)}"


def _set_up_log(level: str) -> None:
    """Log to standard error as `mailprobe serve` does, unless the server has set up the log."""
    root = logging.getLogger()
    if root.handlers:
        return
    log_to_standard_error(level)
    logging.logProcesses = True  # hypercorn's own lines have the process
    for handler in root.handlers:
        handler.addFilter(lambda record: not record.name.startswith("hypercorn."))  # it logs them


async def _refuse_all(scope: Scope, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1013})  # try again later
        return
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(NOT_COMPOSED))]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": NOT_COMPOSED})


async def _reject(links: Links, scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a WebSocket whose path does not exist."""
    refusal = NoSuchRoute()
    body = msgspec.json.encode(body_of(refusal, links))
    async with trio.open_nursery() as nursery:
        socket = AsgiSocket(scope, receive, send)
        nursery.start_soon(socket.read)
        await socket.reject(row_of(refusal).status, {"Content-Type": "application/json"}, body)
        await socket.finish()
        nursery.cancel_scope.cancel()
