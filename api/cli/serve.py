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
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import click

from api.cli.account import check_database, read_settings
from api.cli.running import raise_open_files
from api.cli.trouble import Misuse, Trouble, say

if TYPE_CHECKING:
    import trio

    from api.errors import Places
    from api.metrics import Metrics
    from api.metrics_board import Board
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
    from api.logs import log_to_standard_error
    from api.plans import read_plans

    settings = read_settings()
    if bind is not None:
        settings = replace(settings, bind=bind)
    plans = read_plans(settings.plans_file)
    check_database(settings)
    raise_open_files()
    log_to_standard_error(settings.log)
    sockets = _listening(settings.bind, _api_cannot_listen)
    settings = replace(settings, bind=replace(settings.bind, port=sockets[0].getsockname()[1]))
    with _measured(settings.metrics_bind, workers) as measured:
        prepare_store(settings, apart=workers > 1)
        _say_what_comes_later(settings, tools_bind)
        _serve(settings, plans, sockets, measured, workers)


def _serve(
    settings: "Settings",
    plans: "Plans",
    sockets: Sequence[socket.socket],
    measured: "Measured | None",
    workers: int,
) -> None:
    from api.workers import supervise

    share = replace(settings, engine=_share(settings, workers))
    if workers == 1:
        ready = partial(_announce, settings, measured, workers)
        serve_until_told(share, plans, sockets, ready, measured)
        return

    def work(ready: Callable[[], None]) -> None:
        try:
            serve_until_told(share, plans, sockets, ready, measured)
        except Trouble as trouble:
            trouble.show()
            sys.exit(trouble.exit_code)
        except Exception:
            log.critical("a crash", exc_info=True)
            sys.exit(1)

    _load_lists()
    _announce(settings, measured, workers)
    scraped = measured.sockets if measured else ()
    sys.exit(supervise(work, workers, sockets=[*sockets, *scraped]))


def _listening(bind: "Bind", in_words: "Callable[[Bind, str], Trouble]") -> list[socket.socket]:
    from api.server import open_sockets

    try:
        return open_sockets(bind.host, bind.port)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise in_words(bind, reason) from None


def _api_cannot_listen(bind: "Bind", reason: str) -> Trouble:
    return Trouble(f"{bind} cannot be listened on: {reason}; name another address with --bind")


def _metrics_cannot_listen(bind: "Bind", reason: str) -> Trouble:
    return Misuse(f"MAILPROBE_METRICS_BIND is '{bind}': it cannot be listened on: {reason}")


@dataclass(frozen=True, slots=True)
class Measured:
    """What all workers count, and where it is read."""

    board: "Board"
    sockets: Sequence[socket.socket]

    @property
    def url(self) -> str:
        from api.settings import Bind

        return f"{Bind(*self.sockets[0].getsockname()[:2]).url}/metrics"


@contextmanager
def _measured(bind: "Bind | None", workers: int) -> Iterator[Measured | None]:
    """The board and its sockets, opened before any fork; None where nobody wants to know."""
    if bind is None:
        yield None
        return
    from api.metrics import open_metrics

    sockets = _listening(bind, _metrics_cannot_listen)
    with open_metrics(workers) as board:
        yield Measured(board, sockets)


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
    }
    for name, said in later.items():
        if said:
            say(f"{name} has no effect in this version")


def _announce(settings: "Settings", measured: Measured | None, workers: int) -> None:
    from api.logs import release

    if measured:
        say(f"metrics on {measured.url}")
    by = "" if workers == 1 else f" with {workers} workers"
    say(f"serving on {settings.bind.url}{by}, database {settings.database}")
    log.info("started", extra={"version": release(), "workers": workers})


def _load_lists() -> None:
    """Before the fork: what is loaded here is shared by all workers."""
    from engine.lists import load_lists

    load_lists()


def serve_until_told(
    settings: "Settings",
    plans: "Plans",
    sockets: Sequence[socket.socket],
    ready: Callable[[], None],
    measured: Measured | None = None,
) -> None:
    """One process's service, until SIGTERM or SIGINT; Trouble where the store cannot be opened."""
    import trio

    from api.server import drain_on_signals
    from storage.store import StoreUnavailable

    metrics = _claim(measured)

    async def main() -> None:
        drain = trio.Event()
        async with trio.open_nursery() as nursery:
            await nursery.start(drain_on_signals, drain)
            opening = open_service(settings, plans, metrics)
            async with opening as service, trio.open_nursery() as serving:
                if measured and metrics:
                    await serving.start(serve_metrics, service, metrics, measured, drain)
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


def _claim(measured: Measured | None) -> "Metrics | None":
    """This process's own part of what is counted."""
    if measured is None:
        return None
    from api.metrics import Metrics

    return Metrics(measured.board.claim())


@asynccontextmanager
async def open_service(
    settings: "Settings", plans: "Plans", metrics: "Metrics | None" = None
) -> AsyncIterator["Service"]:
    """The parts of the service, without its sockets; `metrics` counts what they do."""
    from api import visits
    from api.recorder import open_recorder
    from api.service import new_service
    from engine import open_engine, watcher
    from storage import open_store

    async with (
        open_store(settings.database, secret_key=settings.secret_key) as store,
        open_recorder() as recorder,
        open_engine(settings.engine, watcher=metrics or watcher.NOBODY) as engine,
    ):
        yield new_service(
            store=metrics.timed(store) if metrics else store,
            engine=engine,
            recorder=recorder,
            places=places_of(settings),
            plans=plans,
            porter=metrics or visits.NOBODY,
        )


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
    from api.asgi import REFUSALS
    from api.errors import body_of_code
    from api.server import listeners_on, serve_app
    from api.visits import turned_away

    def error_body(code: str) -> bytes:
        turned_away(service.porter, code, REFUSALS[code].status)
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


async def serve_metrics(
    service: "Service",
    metrics: "Metrics",
    measured: Measured,
    drain: "trio.Event",
    *,
    task_status: "trio.TaskStatus[None]",
) -> None:
    """Serve what all workers count, until `drain` is set; see that this one's states are told."""
    import trio

    from api.logs import release
    from api.metrics_page import page, serve_page
    from api.server import listeners_on

    async with trio.open_nursery() as background:
        background.start_soon(metrics.watch, service)
        await serve_page(
            partial(metrics.look, service),
            partial(page, measured.board, release()),
            listeners_on(measured.sockets),
            drain=drain,
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
