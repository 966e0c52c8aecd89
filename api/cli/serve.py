"""`mailprobe serve`: the service, put together and taken apart in the order of the blocks.

Settings, sockets, store, recorder, engine, app: each is open as long as the one
after it needs it, so that reading upwards gives the order of the shutdown. What
runs in the background runs in a nursery around the server: where it crashes, the
process ends with its traceback.
"""

import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import click

from api.cli.account import check_database, read_settings
from api.cli.running import raise_open_files
from api.cli.trouble import Trouble, say

if TYPE_CHECKING:
    import trio

    from api.errors import Places
    from api.plans import Plans
    from api.service import Service
    from api.settings import Bind, Settings
    from storage.store import Store

log = logging.getLogger("mailprobe.serve")

TIDY_EVERY_S = 60.0  # a reservation that died is given back within a minute
WORKERS_MAX = 256


def _bind(ctx: click.Context, param: click.Parameter, text: str | None) -> "Bind | None":
    from api.settings import BIND_TAKES, read_bind

    if text is None:
        return None
    try:
        return read_bind(text)
    except ValueError:
        raise click.BadParameter(f"{text!r}: it takes {BIND_TAKES}") from None


@click.command()
@click.option("--bind", metavar="H:P", callback=_bind, help="Where the API listens.")
@click.option("--tools-bind", metavar="H:P", help="Where the tool server listens.")
@click.option("--workers", type=click.IntRange(1, WORKERS_MAX), default=1, show_default=True)
def serve(bind: "Bind | None", tools_bind: str | None, workers: int) -> None:
    """Run the API until SIGTERM, which ends it in good order.

    The database is made at the first start.
    """
    from api.plans import read_plans
    from api.workers import supervise

    settings = read_settings()
    if bind is not None:
        settings = replace(settings, bind=bind)
    plans = read_plans(settings.plans_file)
    check_database(settings)
    raise_open_files()
    log_to_standard_error(settings.log)
    sockets = _listening(settings.bind)
    settings = replace(settings, bind=replace(settings.bind, port=sockets[0].getsockname()[1]))
    share = replace(settings, engine=_share(settings, workers))
    prepare_store(settings, apart=workers > 1)
    _say_what_comes_later(settings, tools_bind)
    if workers == 1:
        serve_until_told(share, plans, sockets, lambda: _announce(settings, workers))
        return

    def work(ready: Callable[[], None]) -> None:
        try:
            serve_until_told(share, plans, sockets, ready)
        except Trouble as trouble:
            trouble.show()
            sys.exit(trouble.exit_code)

    _load_before_the_fork()
    _announce(settings, workers)
    sys.exit(supervise(work, workers, sockets=sockets))


def _listening(bind: "Bind") -> list[socket.socket]:
    from api.server import open_sockets

    try:
        return open_sockets(bind.host, bind.port)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Trouble(
            f"{bind} cannot be listened on: {reason}; name another address with --bind"
        ) from None


def _share(settings: "Settings", workers: int) -> Any:
    """One worker's part of the engine's bounds, which hold for all of them together."""
    engine = settings.engine
    if workers > engine.host_connections:
        say(
            f"{workers} workers make {workers} connections to one exchange, "
            f"although MAILPROBE_HOST_CONNECTIONS is {engine.host_connections}"
        )
    return replace(
        engine,
        host_connections=max(1, engine.host_connections // workers),
        probes_max=max(1, engine.probes_max // workers),
    )


def prepare_store(settings: "Settings", *, apart: bool) -> None:
    """Make or migrate the database, and say how to begin where nobody has an account.

    `apart`: in a process of its own, for the threads that a store leaves behind
    would keep the parent of the workers from forking safely.
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
    """All that a forked process does."""
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
        log.exception("a bug of ours")
    finally:
        os._exit(code)


def _prepare_store(settings: "Settings") -> None:
    from api.cli.account import ask_store

    async def anybody(store: "Store") -> bool:
        return bool(await store.accounts())

    if not ask_store(settings, anybody):
        say(
            "there is no account yet; make one with: "
            "mailprobe account create --email you@example.org --tier free"
        )


def _say_what_comes_later(settings: "Settings", tools_bind: str | None) -> None:
    later = {
        "--tools-bind": tools_bind,
        "MAILPROBE_TOOLS_URL": settings.tools_url,
        "MAILPROBE_METRICS_BIND": settings.metrics_bind,
    }
    for name, said in later.items():
        if said:
            say(f"{name} has no effect in this version")


def _announce(settings: "Settings", workers: int) -> None:
    by = "" if workers == 1 else f" with {workers} workers"
    say(f"serving on {settings.bind.url}{by}, database {settings.database}")


def _load_before_the_fork() -> None:
    """What is loaded here is there in every worker, in the same memory."""
    from engine import load_rules_and_lists

    load_rules_and_lists()


def serve_until_told(
    settings: "Settings",
    plans: "Plans",
    sockets: Sequence[socket.socket],
    ready: Callable[[], None],
) -> None:
    """One process's service, until SIGTERM or SIGINT; Trouble where the store cannot be opened."""
    import trio

    from api.server import drain_on_signals
    from storage.store import StoreUnavailable

    async def main() -> None:
        drain = trio.Event()
        async with trio.open_nursery() as nursery:
            await nursery.start(drain_on_signals, drain)
            async with open_service(settings, plans) as service, trio.open_nursery() as serving:
                await serving.start(serve_service, service, sockets, drain)
                ready()
            nursery.cancel_scope.cancel()

    gone: BaseException | None = None
    try:
        trio.run(main)
    except* StoreUnavailable as group:
        gone = group
    if gone is not None:
        while isinstance(gone, BaseExceptionGroup):
            gone = gone.exceptions[0]
        raise Trouble(str(gone)) from gone


@asynccontextmanager
async def open_service(settings: "Settings", plans: "Plans") -> AsyncIterator["Service"]:
    """The parts of the service, without its sockets.

    Each is closed before those above it: jobs finish what they can while the engine
    and the store are there, and what is to be written is written last.
    """
    import random

    from api.callbacks import open_courier
    from api.jobs import open_jobs
    from api.recorder import open_recorder
    from api.service import new_service, utc_now
    from engine import open_engine
    from storage import open_store

    rng = random.Random()
    async with (
        open_store(settings.database, secret_key=settings.secret_key) as store,
        open_recorder() as recorder,
        open_engine(settings.engine) as engine,
        open_courier(
            engine.routes.addresses_now,
            allow_private=settings.engine.allow_private,
            ca_file=settings.webhook_ca_file,
        ) as courier,
    ):
        service = new_service(
            store=store,
            engine=engine,
            recorder=recorder,
            places=places_of(settings),
            plans=plans,
        )
        async with open_jobs(
            store, service.meter, courier, retry_s=settings.webhook_retry_s, now=utc_now, rng=rng
        ) as jobs:
            yield replace(service, jobs=jobs)


async def serve_service(
    service: "Service",
    sockets: Sequence[socket.socket],
    drain: "trio.Event",
    *,
    task_status: "trio.TaskStatus[None]",
) -> None:
    """Serve on these sockets, which are closed at the end, until `drain` is set and all is done."""
    import msgspec
    import trio

    from api.app import create_app
    from api.errors import body_of_code
    from api.server import listeners_on, serve_app

    def error_body(code: str) -> bytes:
        return msgspec.json.encode(body_of_code(code, service.places))

    app, listeners = create_app(service), listeners_on(sockets)
    async with trio.open_nursery() as background:
        background.start_soon(_tidy, service)
        await serve_app(
            app,  # type: ignore[arg-type]  # Quart's own names for the same three arguments
            listeners,
            drain=drain,
            error_body=error_body,
            task_status=task_status,
        )
        background.cancel_scope.cancel()


async def _tidy(service: "Service") -> None:
    """Every minute: rows past their retention, leases that have ended."""
    import trio

    from storage.store import StoreUnavailable

    while True:
        try:
            await service.store.tidy(
                {tier: plan.retention_days for tier, plan in service.plans.items()}
            )
        except StoreUnavailable:
            log.warning("the store was not tidied: it cannot be asked")
        await trio.sleep(TIDY_EVERY_S)


def places_of(settings: "Settings") -> "Places":
    """The public addresses, as the operator says or as the bind makes them."""
    from api.errors import Places

    base_url = settings.base_url or settings.bind.url
    return Places(
        base_url,
        settings.docs_url or f"{base_url}/docs",
        settings.dashboard_url or f"{base_url}/dashboard",
    )


def log_to_standard_error(level: str) -> None:
    """JSON lines, or for a terminal lines that a person can read."""
    import structlog

    terminal = sys.stderr.isatty()
    shown: list[Any] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.dev.ConsoleRenderer()
        if terminal
        else structlog.processors.JSONRenderer(ensure_ascii=False),
    ]
    if not terminal:
        shown.insert(1, structlog.processors.format_exc_info)
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
                structlog.stdlib.ExtraAdder(),
                structlog.processors.TimeStamper(fmt="iso", utc=True),
            ],
            processors=shown,
        )
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in ("httpx", "httpcore", "hpack"):  # a line a look-up, each with its address
        logging.getLogger(name).setLevel(logging.WARNING)
