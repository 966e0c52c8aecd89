"""`mailprobe serve`: settings, sockets and workers. `mailprobe.api.serve` composes the service."""

import logging
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from mmap import mmap
from typing import TYPE_CHECKING, NoReturn

import click
from msgspec import structs

from ..errors import CommandError, Misuse, print_error
from ..gc_tuning import collector_paused
from ..starting.database import (
    DATABASE_TRY_S,
    DATABASE_WAIT_S,
    await_database,
    check_database,
)
from ..starting.open_files import raise_open_files
from .operator_store import read_settings
from .runner import ending_at_once
from .shell.options import read_bind_option, read_port_option

if TYPE_CHECKING:
    from mailprobe.engine import EngineSettings
    from mailprobe.engine.egress import Egresses
    from mailprobe.storage.store import Store

    from ..observability.shared_counters import SharedCounters
    from ..observability.throughput import Throughput
    from ..quota.plans import Plans
    from ..serve import Listeners
    from ..setting_values import Bind
    from ..settings import Settings

log = logging.getLogger("mailprobe.serve")

WORKERS_MAX = 256


@click.command()
@click.option(
    "--bind", metavar="H:P", callback=read_bind_option, help="Address and port of the API."
)
@click.option(
    "--port",
    metavar="P",
    callback=read_port_option,
    help="Port of the API, at the address of MAILPROBE_BIND.",
)
@click.option(
    "--tools-bind",
    metavar="H:P",
    callback=read_bind_option,
    help="Address and port of the tool server.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, WORKERS_MAX),
    default=1,
    show_default=True,
    help="Number of processes.",
)
@collector_paused()
def serve(bind: "Bind | None", port: int | None, tools_bind: "Bind | None", workers: int) -> None:
    """Run the API and the tool server. SIGTERM finishes open requests, then stops.

    The first start creates the database.
    """
    with ending_at_once():  # also at SIGTERM, which the first process of a container has to ask for
        import mailprobe.api.serve
        import mailprobe.api.watchdog
        import mailprobe.api.workers  # noqa: F401 - as a whole, these: a Ctrl-C could be lost in an import

        from ..observability.throughput import open_throughput

        settings, plans = _read(bind, port, tools_bind)
        await_database(settings.database)  # before it listens: clients take another service
        listeners = _open_listeners(settings)
    settings = _with_ports(settings, listeners)
    with (
        _counters(listeners, workers, settings.engine.egresses) as counters,
        open_throughput(workers) as throughput,
    ):
        prepare_store(settings, apart=workers > 1)
        _serve(settings, plans, listeners, counters, throughput, workers)


def _read(
    bind: "Bind | None", port: int | None, tools_bind: "Bind | None"
) -> "tuple[Settings, Plans]":
    """The settings with those of the command, and the plans. What cannot be used ends the command here."""
    from ..observability.logs import log_to_standard_error
    from ..quota.plans import read_plans

    if bind is not None and port is not None:
        raise Misuse(
            f"--bind has a port, too: give --bind {structs.replace(bind, port=port)} alone"
        )
    settings = read_settings()
    if bind is None and port is not None:
        bind = structs.replace(settings.bind, port=port)
    settings = replace(
        settings, bind=bind or settings.bind, tools_bind=tools_bind or settings.tools_bind
    )
    plans = read_plans(settings.plans_file)
    check_database(settings)
    raise_open_files()
    log_to_standard_error(settings.log)
    return settings, plans


def _serve(
    settings: "Settings",
    plans: "Plans",
    listeners: "Listeners",
    counters: "SharedCounters | None",
    throughput: "Throughput",
    workers: int,
) -> None:
    from mailprobe.release import commit

    from ..workers import supervise

    commit()  # asks git, in a checkout: before any request, and once for all workers
    share = replace(settings, engine=_share(settings, workers))
    announce = partial(_announce, settings, listeners, workers)
    notices = partial(_report_closed_port, settings, mmap(-1, 1))
    if workers == 1:
        serve_until_signal(
            share, plans, listeners, announce, counters, throughput=throughput, notices=notices
        )
        return

    def work(ready: Callable[[], None], beat: Callable[[], None]) -> None:
        try:
            serve_until_signal(
                share, plans, listeners, ready, counters, throughput=throughput,
                workers=workers, beat=beat, notices=notices,
            )  # fmt: skip
        except CommandError as error:
            error.show()
            sys.exit(error.exit_code)
        except Exception:
            log.critical("crashed", exc_info=True)
            sys.exit(1)

    _load_before_the_fork(settings)
    sys.exit(supervise(work, workers, sockets=listeners.all(), ready=announce))


# -- sockets ----------------------------------------------------------------------------------


def _open_listeners(settings: "Settings") -> "Listeners":
    from ..serve import Listeners

    tools, metrics = settings.tools_bind, settings.metrics_bind
    return Listeners(
        _listening(settings.bind, "", "--bind or --port"),
        _listening(
            tools,
            " for the tool server",
            "--tools-bind, or turn it off with MAILPROBE_TOOLS_BIND=",
        )
        if tools
        else (),
        _listening(
            metrics,
            " for the metrics",
            "MAILPROBE_METRICS_BIND, or turn it off with MAILPROBE_METRICS_BIND=",
        )
        if metrics
        else (),
    )


def _listening(bind: "Bind", what_for: str, with_what: str) -> list[socket.socket]:
    from ..http.listeners import open_sockets

    try:
        return open_sockets(bind.host, bind.port)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Misuse(
            f"{bind} cannot be listened on{what_for}: {reason}; name another address with {with_what}"
        ) from None


def _with_ports(settings: "Settings", listeners: "Listeners") -> "Settings":
    """The settings with the actual ports where port 0 was requested."""
    bind = structs.replace(settings.bind, port=listeners.api[0].getsockname()[1])
    tools = settings.tools_bind
    if tools:
        tools = structs.replace(tools, port=listeners.tools[0].getsockname()[1])
    return replace(settings, bind=bind, tools_bind=tools)


@contextmanager
def _counters(
    listeners: "Listeners", workers: int, egresses: "Egresses"
) -> "Iterator[SharedCounters | None]":
    """The workers' shared counters, opened before any fork; None without a metrics listener."""
    if not listeners.metrics:
        yield None
        return
    from ..observability.metrics import open_metrics
    from ..operations.table import OPERATIONS

    with open_metrics(workers, OPERATIONS, egresses) as counters:
        yield counters


# -- before the service -----------------------------------------------------------------------


def _share(settings: "Settings", workers: int) -> "EngineSettings":
    """One worker's share of the engine's limits. Connections per mail host are leased from the store."""
    engine = settings.engine
    return replace(engine, probes_max=max(1, engine.probes_max // workers))


def prepare_store(settings: "Settings", *, apart: bool) -> None:
    """Create the database if needed; without any account, print how to create one.

    `apart` does this in a child process: threads that a store leaves behind would make
    it unsafe for the parent of the workers to fork.
    """
    if not apart:
        _prepare_store(settings)
        return
    pid = os.fork()
    if pid == 0:
        _end_with(lambda: _prepare_store(settings))
    _, status = os.waitpid(pid, 0)
    if code := os.waitstatus_to_exitcode(status):
        sys.exit(code if code > 0 else 1)


def _end_with(act: Callable[[], None]) -> NoReturn:
    """Run `act` in a forked process and exit with its code."""
    code = 1
    try:
        act()
        code = 0
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        log.exception("service failed")
    finally:
        os._exit(code)


def _prepare_store(settings: "Settings") -> None:
    from ..starting.first_account import welcome_lines
    from .operator_store import with_store

    async def welcome(store: "Store") -> list[str]:
        return await welcome_lines(store, settings)

    for line in with_store(welcome, settings, may_be_new=True):
        click.echo(line, err=True)


def _announce(settings: "Settings", listeners: "Listeners", workers: int) -> None:
    from mailprobe.engine.lists.updated_lists import current_version
    from mailprobe.release import commit, version
    from mailprobe.storage import shown

    from ..doctor.named_sender import missing_sender
    from ..observability.traces import traces_missing
    from ..serve import tools_url_of, url_of

    if (notice := missing_sender(settings.engine)) is not None:
        log.warning(notice)
    if (notice := traces_missing(settings.traces_protocol)) is not None:
        log.warning(notice)
    if listeners.metrics:
        print_error(f"metrics on {url_of(listeners.metrics)}/metrics")
    if listeners.tools:
        print_error(f"tools on {tools_url_of(settings)}/mcp")
    print_error(f"documentation on {settings.docs_url or f'{settings.bind.url}/docs'}")
    by = "" if workers == 1 else f" with {workers} workers"
    print_error(f"serving on {settings.bind.url}{by}, database {shown(settings.database)}")
    lists = current_version(settings.engine.own_lists.folder)
    extra = {"version": version(), "commit": commit(), "lists": lists, "workers": workers}
    log.info("started", extra=extra)


def _report_closed_port(settings: "Settings", said: mmap) -> "AbstractAsyncContextManager[None]":
    """Say it once: the workers, and those that follow them, share the byte."""
    from .closed_port import saying_closed_port

    if said[0]:
        return nullcontext()
    said[0] = 1
    return saying_closed_port(settings.engine, log.warning)


def _load_before_the_fork(settings: "Settings") -> None:
    """Load rules and lists once; the workers share the memory."""
    from mailprobe.engine import load_rules_and_lists

    load_rules_and_lists(settings.engine.own_lists.folder)


def serve_until_signal(
    settings: "Settings",
    plans: "Plans",
    listeners: "Listeners",
    ready: Callable[[], None],
    counters: "SharedCounters | None" = None,
    *,
    throughput: "Throughput | None" = None,
    workers: int = 1,
    beat: Callable[[], None] = lambda: None,
    notices: "Callable[[], AbstractAsyncContextManager[None]]" = nullcontext,
) -> None:
    """Run one process's service until SIGTERM or SIGINT. Raises CommandError without a store.

    A store that is busy at the start is waited for, DATABASE_WAIT_S at most.

    `notices`: says what the operator should know of this machine, beside the service.

    It calls `beat` every second. Once it serves, if its event loop hangs, or its end takes too
    long, the process ends with exit code 70. So the caller does nothing else afterwards.
    """
    from mailprobe.storage.contract import StoreBroken, StoreFull

    from ..serve import serve_until_drained
    from ..watchdog import Watchdog

    has_started = False

    def started() -> None:
        nonlocal has_started
        has_started = True
        ready()

    async def serve() -> None:
        async with notices():
            await serve_until_drained(
                settings, plans, listeners, started, counters, throughput=throughput,
                workers=workers, watchdog=Watchdog(), beat=beat,
            )  # fmt: skip

    until = time.monotonic() + DATABASE_WAIT_S
    while (failure := _failure_of(serve)) is not None:
        is_passing = not isinstance(failure, StoreBroken | StoreFull)
        if has_started or not is_passing or time.monotonic() >= until:
            raise CommandError(str(failure)) from failure
        # Another process writes: a second worker that starts, a backup, a retention.
        log.warning("the database is busy: retry_in_s=%d error=%s", DATABASE_TRY_S, failure)
        beat()
        time.sleep(DATABASE_TRY_S)


def _failure_of(serve: Callable[[], Awaitable[None]]) -> BaseException | None:
    """Run it to its end; return the error if the store could not be used."""
    import trio

    from mailprobe.storage.contract import StoreUnavailable

    failure: BaseException | None = None
    try:
        trio.run(serve)
    except* StoreUnavailable as group:
        failure = group
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure
