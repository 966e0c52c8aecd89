"""The composition root: builds the service's parts as nested blocks.

Store, payments, alerts, background writes, connection leases, engine, webhook sender, jobs,
then the listeners: each stays open as long as those after it need it. The shutdown runs in
the reverse order. Background tasks run in nurseries around the listeners, never in the web
framework's; a task that crashes is restarted (`engine/background.py`).
"""

import logging
import random
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path

import trio
from msgspec import Struct
from msgspec.structs import replace
from trio.lowlevel import checkpoint

from mailprobe.engine import Engine, open_engine
from mailprobe.engine.background import contained, running_loops, supervised
from mailprobe.engine.egress import ONE_EGRESS
from mailprobe.engine.lists.lists import Lists
from mailprobe.engine.observer import NO_OBSERVER, Observer
from mailprobe.engine.smtp.connection_budget import ConnectionBudget
from mailprobe.engine.smtp.leases.ledger import RefusalLedger
from mailprobe.engine.smtp.operators import load_operators
from mailprobe.release import commit, version
from mailprobe.storage import StoreSize, is_postgres, newest_schema, open_store, shown, utc_now
from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.list_records import PATIENCE_S
from mailprobe.storage.store import Store

from .admission.connections import LiveConnections
from .alerts.sender import Alerts, open_alerts
from .billing.billing import open_payments
from .doctor.checks import Check
from .doctor.egresses import examine_machine
from .doctor.latest import MachineChecks
from .downloads.disposable_hosts import download_hosts, keep_fresh
from .egress.control import StoredControl, open_control
from .egress.ways import dial_of
from .error_table import Links, octets_of_code
from .gc_tuning import tune_collector
from .http.encoder import PROTOCOL_ERRORS, ErrorBody
from .http.listeners import listeners_on
from .http.server import drain_on_signals, serve_app
from .http.shared import Limits
from .jobs.delivery import WebhookSender, open_webhook_sender
from .jobs.worker import open_jobs
from .lists.worker import open_lists
from .live.server import LiveServer
from .mcp.app import create_tools_app
from .mcp.jsonrpc import error_body as rpc_error_body
from .observability import request_context
from .observability.exposition import page, serve_page
from .observability.metrics import Metrics
from .observability.reputation import ReputationCounter
from .observability.request_context import request_rejected
from .observability.shared_counters import SharedCounters
from .observability.throughput import Throughput
from .observability.traces import open_traces
from .operations.health import HEALTH
from .operations.list_jobs import LISTS
from .operations.table import description
from .operations.verify import LIVE
from .pages.about_probes import about_probes
from .pages.dashboard.documentation_key import reader_of
from .pages.dashboard.frame import LISTS_PAGE, Frame
from .pages.dashboard.roles import Operators
from .pages.dashboard.sign_ins import SignIns
from .pages.dashboard.views import dashboard_blueprint
from .pages.examples import Places
from .pages.views import Documentation, pages_blueprint
from .quota.background_writes import open_background_writes
from .quota.connection_leases import is_shared, open_leases
from .quota.list_limits import ListLimits
from .quota.pauses import FleetPauses
from .quota.plans import Plans
from .quota.refusal_leases import open_refusal_leases
from .quota.self_probe import PROVIDERS, is_greeted
from .quota.self_protection import SelfProtection
from .quota.shared_cache import StoredSharedCache, exchanging
from .rest.app import ApiApp, create_api
from .service import (
    Build,
    Deployment,
    OpenIdService,
    Payments,
    Service,
    SignInMailService,
    new_service,
)
from .setting_values import Bind
from .settings import Settings
from .sign_in.check import examine_sign_in
from .sign_in.mails import open_sign_in_mails
from .sign_in.openid import open_openid, openid_settings
from .watchdog import Watchdog

log = logging.getLogger("mailprobe.serve")

UPLOADS = (LISTS.encode(), LISTS_PAGE.encode())  # paths whose body is a list
RETENTION_EVERY_S = 60.0  # units of a dead reservation are free again within a minute
BEAT_S = 1.0  # between two heartbeats of a worker


class Listeners(Struct, frozen=True):
    """The listening sockets, opened before any fork; none where that server is not wanted."""

    api: Sequence[socket.socket]
    tools: Sequence[socket.socket] = ()
    metrics: Sequence[socket.socket] = ()

    def all(self) -> list[socket.socket]:
        return [*self.api, *self.tools, *self.metrics]


async def serve_until_drained(
    settings: Settings,
    plans: Plans,
    listeners: Listeners,
    ready: Callable[[], None],
    counters: SharedCounters | None,
    *,
    throughput: Throughput | None,
    workers: int,
    watchdog: Watchdog,
    beat: Callable[[], None],
) -> None:
    """Run one process's service on all its listeners until SIGTERM, SIGINT or SIGHUP.

    Calls `ready` when it accepts requests, and `beat` as long as the event loop does not hang.
    From `ready` on the watchdog ends a process that hangs. `counters` and `throughput` are shared by
    all workers. Raises StoreUnavailable, in a group, if the store cannot be opened.
    """
    metrics = Metrics(counters.attach()) if counters else None
    drain = trio.Event()
    async with trio.open_nursery() as nursery:
        await nursery.start(drain_on_signals, drain)
        nursery.start_soon(watchdog.limit_stop, drain)
        nursery.start_soon(_beating, beat)
        deployment = deployment_of(settings, workers, counters, throughput)
        opening = open_composed(settings, plans, metrics, deployment, drain)
        async with opening as service, trio.open_nursery() as serving:
            if counters and metrics:
                await serving.start(
                    serve_metrics, service, metrics, counters, listeners.metrics, drain
                )
            if listeners.tools:
                await serving.start(
                    serve_tools, service, tools_url_of(settings), listeners.tools, drain
                )
            await serving.start(serve_service, service, listeners.api, drain)
            tune_collector()
            ready()
            nursery.start_soon(watchdog.watch)
            nursery.start_soon(_log_stop, service, drain)
        log.info("stopped", extra={"version": version(), "commit": commit()})
        nursery.cancel_scope.cancel()


async def _beating(beat: Callable[[], None]) -> None:
    while True:
        beat()
        await trio.sleep(BEAT_S)


async def _log_stop(service: Service, drain: trio.Event) -> None:
    """Log what is under way when the stop begins; what is cut off has lines of its own."""
    await drain.wait()
    addresses = service.capacity.addresses + service.quota.list_capacity.addresses
    log.info("stopping", extra={"version": version(), "commit": commit(), "addresses": addresses})


@asynccontextmanager
async def open_composed(
    settings: Settings,
    plans: Plans,
    metrics: Metrics | None,
    deployment: Deployment,
    drain: trio.Event,
) -> AsyncIterator[Service]:
    """Open the whole service of a process, except for its listeners.

    Jobs and lists stop at `drain`, which must be set before the block ends. Raises as
    `open_service()`, in a group or not.
    """
    async with (
        open_traces(settings.traces_protocol),
        open_service(settings, plans, metrics, deployment) as service,
        trio.open_nursery() as beside,
    ):
        beside.start_soon(_stop_jobs, service, drain)
        beside.start_soon(supervised, _keep_hosts_fresh, settings, service.quota.engine.lists)
        yield service
        beside.cancel_scope.cancel()


@asynccontextmanager
async def open_service(
    settings: Settings,
    plans: Plans,
    metrics: Metrics | None = None,
    deployment: Deployment | None = None,
) -> AsyncIterator[Service]:
    """Open the service without its listeners; `metrics` counts what it does.

    Other processes may use the same store, so the engine's connections are leased from it.
    At the end jobs finish while engine and store are open; pending writes come last.
    Raises StoreUnavailable if the store lacks one of its connections.
    """
    rng, links = random.Random(), links_of(settings)
    throughput = deployment.throughput if deployment else None
    reputation = ReputationCounter(
        metrics or NO_OBSERVER, throughput.attach() if throughput else None
    )
    async with (
        open_store(
            settings.database,
            secret_key=settings.secret_key,
            size=StoreSize(settings.database_readers, settings.database_writers),
        ) as opened,
        _open_payments_and_alerts(settings, opened, plans, links, rng) as (payments, alerts),
        _open_sign_in(settings, links) as (sign_in_mails, openid),
        open_background_writes() as background_writes,
        nullcontext(metrics.timed(opened) if metrics else opened) as store,
        _open_engine(settings, store, metrics, deployment, reputation.observer) as (
            engine,
            control,
        ),
        open_webhook_sender(
            engine.routes.addresses_now,
            allow_private=settings.engine.allow_private,
            ca_file=settings.webhook_ca_file,
        ) as webhook_sender,
    ):
        await opened.check()
        service = new_service(
            store=store,
            engine=engine,
            background_writes=background_writes,
            links=links,
            plans=plans,
            payments=payments,
            reports_usage=settings.stripe_key is not None,
            watch=alerts.watch,
            request_log=metrics or request_context.NO_REQUEST_LOG,
            takes_test_keys=not settings.production,
            operators=None if settings.operators is None else frozenset(settings.operators),
            form_proof_bits=settings.form_proof_bits,
            protection=SelfProtection(load_operators(), refuses=settings.refuses_when_blind),
            pauses=FleetPauses(socket.gethostname()),
        )
        service = replace(
            await _as_set(service, settings),
            alerts=alerts,
            sign_in_mails=sign_in_mails,
            openid=openid,
            reputation=reputation,
            deployment=deployment,
            egress_control=control,
        )
        async with _running(service, settings, webhook_sender, rng) as running:
            yield running


async def _as_set(service: Service, settings: Settings) -> Service:
    """The service with what the settings say of itself, its limits and its surroundings."""
    found = await trio.to_thread.run_sync(commit)
    return replace(
        service,
        build=Build(version(), found, newest_schema(settings.database)),
        list_limits=list_limits_of(settings),
        about_probes=settings.about_probes,
        trusted_proxies=settings.trusted_proxies,
        tools_url=tools_url_of(settings),
    )


@asynccontextmanager
async def _open_sign_in(
    settings: Settings, links: Links
) -> AsyncIterator[tuple[SignInMailService | None, OpenIdService | None]]:
    """The ways to sign in without a key: mails with links, and an OpenID provider."""
    async with (
        open_sign_in_mails(
            links, now=utc_now, url=settings.alert_smtp_url, sender=settings.alert_from
        ) as mails,
        open_openid(openid_settings(settings), links.dashboard_url, utc_now) as openid,
    ):
        yield mails, openid


@asynccontextmanager
async def _open_payments_and_alerts(
    settings: Settings, store: Store, plans: Plans, links: Links, rng: random.Random
) -> AsyncIterator[tuple[Payments | None, Alerts]]:
    """What leaves for the billing provider, and the mails about reached thresholds."""
    async with (
        open_payments(
            store,
            key=settings.stripe_key,
            webhook_secret=settings.stripe_webhook_secret,
            api_base=settings.stripe_api_base,
            dashboard_url=links.dashboard_url,
            now=utc_now,
            rng=rng,
        ) as payments,
        open_alerts(
            store,
            plans,
            links,
            now=utc_now,
            url=settings.alert_smtp_url,
            sender=settings.alert_from,
            rng=rng,
        ) as alerts,
    ):
        yield payments, alerts


@asynccontextmanager
async def _open_engine(
    settings: Settings,
    store: Store,
    metrics: Metrics | None,
    deployment: Deployment | None,
    observer: Observer,
) -> AsyncIterator[tuple[Engine, StoredControl | None]]:
    """The engine, and what it shares with other processes: connections, refusals, egresses and facts."""
    facts = shared_cache_of(settings, store, metrics, deployment)
    async with (
        leases_of(settings, store, facts) as leases,
        _open_refusal_leases(settings, store) as refusals,
        _open_control(settings, store) as control,
        open_engine(
            settings.engine,
            observer=observer,
            permits=leases,
            egress_control=control,
            exchange=facts,
            refusals=refusals,
        ) as engine,
        exchanging(facts),
    ):
        yield engine, control


@asynccontextmanager
async def _running(
    service: Service, settings: Settings, webhook_sender: WebhookSender, rng: random.Random
) -> AsyncIterator[Service]:
    """Let jobs, lists and what they depend on run for the duration of the block."""
    quota = service.quota
    await quota.pauses.start(service.store, quota.engine.pauses)
    async with (
        _watching(quota.engine, quota.protection, service.egress_control),
        open_jobs(quota, webhook_sender, retry_s=settings.webhook_retry_s, rng=rng) as jobs,
        open_lists(
            quota, rng=rng, wake_jobs=jobs.wake, chunks_at_once=settings.list_chunks
        ) as lists,
        running_loops(
            partial(
                quota.pauses.watch,
                quota.store,
                quota.engine.pauses,
                now=quota.now,
                wake_lists=lists.wake,
            )
        ),
    ):
        yield replace(service, jobs=jobs, lists=lists)


@asynccontextmanager
async def _watching(
    engine: Engine, protection: SelfProtection, control: StoredControl | None
) -> AsyncIterator[None]:
    """Let self-protection probe for the duration of the block; a lab has no providers."""
    settings = engine.settings
    dials = {row.name: dial_of(row, settings) for row in settings.egresses.rows}
    providers = () if settings.allow_private else PROVIDERS

    async def probe(domains: Sequence[str]) -> bool | None:
        active = [name for name in dials if control is None or control.state(name) == "active"]
        dial = dials[random.choice(active or list(dials))]
        return await is_greeted(engine, dial, domains, providers)

    async with running_loops(partial(protection.watch, probe)):
        yield


def leases_of(
    settings: Settings, store: Store, facts: StoredSharedCache | None
) -> AbstractAsyncContextManager[ConnectionBudget | None]:
    if not is_shared(settings.database):
        return nullcontext()
    before_use = checkpoint if facts is None else facts.refresh
    return open_leases(store, settings.engine.host_connections, before_use)


def _open_refusal_leases(
    settings: Settings, store: Store
) -> AbstractAsyncContextManager[RefusalLedger | None]:
    """What hosts tolerate of all processes together; a store in memory has one, and ends with it."""
    return open_refusal_leases(store) if is_shared(settings.database) else nullcontext()


def _open_control(
    settings: Settings, store: Store
) -> AbstractAsyncContextManager[StoredControl | None]:
    """What processes share of their egresses; without a file there is one, of this process alone."""
    if settings.engine.egresses is ONE_EGRESS:
        return nullcontext()
    return open_control(settings.engine.egresses, store, utc_now)


def shared_cache_of(
    settings: Settings, store: Store, metrics: Metrics | None, deployment: Deployment | None
) -> StoredSharedCache | None:
    """This process's side of the fleet's knowledge; None for the only process of a store.

    A file of SQLite is used by the workers of one service.
    """
    workers = 1 if deployment is None else deployment.workers
    if not is_postgres(settings.database) and workers == 1:
        return None
    if metrics is None:
        return StoredSharedCache(store)
    return StoredSharedCache(store, metrics.facts_shared, metrics.facts_absorbed)


def create_app(service: Service, connections: LiveConnections | None = None) -> ApiApp:
    """The operations and the pages as one ASGI application. It opens and closes nothing.

    `connections` are the process's; None: its own, that never drain.
    """
    app = create_api(service)
    frame = Frame(
        service, SignIns(service.store, service.now), Operators(service.store, service.operators)
    )
    connections = connections or LiveConnections(trio.Event())
    app.register_blueprint(dashboard_blueprint(frame, connections))
    documentation = Documentation(
        lambda: description(service.links),
        lambda: service.about_probes or about_probes(service.quota.engine.settings),
        Places(service.links.base_url, service.tools_url),
        lambda: reader_of(frame),
    )
    app.register_blueprint(pages_blueprint(documentation))
    return app


def error_body_of(service: Service) -> ErrorBody:
    """What makes the bodies of answers that no operation gives; each use is counted and logged."""

    def error_body(code: str) -> bytes:
        request_rejected(service.request_log, code, PROTOCOL_ERRORS[code].status)
        return octets_of_code(code, service.links)

    return error_body


async def examine_all(settings: Settings) -> list[Check]:
    """Run all checks of `mailprobe doctor`, within 10 s."""
    provider: list[Check] = []

    async def examine_provider() -> None:
        provider.append(await examine_sign_in(settings))

    async with trio.open_nursery() as nursery:
        if settings.oidc_issuer is not None:
            nursery.start_soon(examine_provider)
        checks = await examine_machine(settings)
    return [*checks, *provider]


def deployment_of(
    settings: Settings,
    workers: int,
    counters: SharedCounters | None,
    throughput: Throughput | None,
) -> Deployment:
    """What the operator's page says of this process and its machine."""
    folders = {"uploads": Path(tempfile.gettempdir())}
    if not is_postgres(settings.database):
        folders["the database"] = Path(settings.database).absolute().parent
    alive = None if counters is None else lambda: counters.workers_alive
    checks = MachineChecks(partial(examine_all, settings))
    database = shown(settings.database)
    return Deployment(utc_now(), workers, database, folders, alive, checks, throughput)


def links_of(settings: Settings) -> Links:
    """The public URLs: the operator's settings, else made from the bind address."""
    base_url = settings.base_url or settings.bind.url
    return Links(
        base_url,
        settings.docs_url or f"{base_url}/docs/api",
        settings.dashboard_url or f"{base_url}/dashboard",
    )


def list_limits_of(settings: Settings) -> ListLimits:
    """The limits of lists that the operator has set."""
    return ListLimits(
        settings.list_rows_max,
        settings.list_octets_max,
        settings.lists_active_max,
        settings.upload_folder,
        PATIENCE_S if settings.patience_s is None else round(settings.patience_s),
    )


def tools_url_of(settings: Settings) -> str:
    """The tool server's public URL; empty without a tools bind."""
    return settings.tools_url or (settings.tools_bind.url if settings.tools_bind else "")


# -- listeners --------------------------------------------------------------------------------
# Each returns when `drain` is set and its requests have ended, and closes its sockets.


async def serve_service(
    service: Service,
    sockets: Sequence[socket.socket],
    drain: trio.Event,
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    """Serve the API, and apply retention to its store."""
    connections = LiveConnections(drain)
    app, listeners = create_app(service, connections), listeners_on(sockets)
    async with applying_retention(service):
        await serve_app(
            app,
            listeners,
            drain=drain,
            error_body=error_body_of(service),
            admission_queue=service.admission_queue,
            intake=service.intake,
            vital=(HEALTH.encode(),),
            limits=Limits(uploads=dict.fromkeys(UPLOADS, service.list_limits.octets_max)),
            upgrades={LIVE.encode(): LiveServer(service, connections).serve},
            task_status=task_status,
        )


async def serve_tools(
    service: Service,
    tools_url: str,
    sockets: Sequence[socket.socket],
    drain: trio.Event,
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    await serve_app(
        create_tools_app(service, tools_url, service.links.docs_url),
        listeners_on(sockets),
        drain=drain,
        error_body=partial(rpc_error_body, links=service.links),
        admission_queue=service.admission_queue,
        intake=service.intake,
        task_status=task_status,
    )


async def serve_metrics(
    service: Service,
    metrics: Metrics,
    counters: SharedCounters,
    sockets: Sequence[socket.socket],
    drain: trio.Event,
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    """Serve the metrics of all workers; this one's gauges are sampled for each page."""
    async with running_loops(
        partial(metrics.watch, service.load), partial(metrics.watch_queues, service.store)
    ):
        await serve_page(
            lambda: metrics.sample(service.load()),
            partial(page, counters, version(), commit()),
            listeners_on(sockets),
            drain=drain,
            task_status=task_status,
        )


def url_of(sockets: Sequence[socket.socket]) -> str:
    """The URL of the first socket."""
    return Bind(*sockets[0].getsockname()[:2]).url


async def _keep_hosts_fresh(settings: Settings, lists: Lists) -> None:
    url, folder = settings.disposable_hosts_url, settings.engine.own_lists.folder
    if url is not None and folder is not None:
        fetch = partial(download_hosts, url)
        await keep_fresh(folder, lists, load_operators(), fetch, time.time)


async def _stop_jobs(service: Service, drain: trio.Event) -> None:
    """Stop jobs together with the listeners, not after them: a stop has 10 s in all."""
    await drain.wait()
    for background in (service.jobs, service.lists):
        if background is not None:
            background.stop()


@asynccontextmanager
async def applying_retention(service: Service) -> AsyncIterator[None]:
    """Apply retention to the service's store for the duration of the block."""
    async with running_loops(partial(apply_retention, service)):
        yield
        await contained(_save_counts, service)  # of the last minute


async def apply_retention(service: Service) -> None:
    """Every minute, delete rows past their retention and leases that have ended."""
    while True:
        await contained(_apply_retention_once, service)
        await trio.sleep(RETENTION_EVERY_S)


async def _apply_retention_once(service: Service) -> None:
    try:
        await service.store.apply_retention(
            {tier: plan.retention_days for tier, plan in service.plans.items()}
        )
    except StoreUnavailable:
        log.warning("retention not applied: store unavailable")
    await _save_counts(service)


async def _save_counts(service: Service) -> None:
    try:
        if service.reputation is not None:
            await service.reputation.save(service.store, service.now().date())
        await service.key_uses.save(service.store.note_key_uses)
    except StoreUnavailable:
        log.warning("reputation and uses of keys not stored: store unavailable")
