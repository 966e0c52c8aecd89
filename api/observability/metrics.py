"""Counts what one worker does; `catalogue` lists all metrics.

`Metrics` is the engine's observer and the service's request log. It times the store, and
samples the gauges once a second.
"""

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, cast

import trio
from msgspec import Struct

from mailprobe.engine.background import FAULTS, log_fault
from mailprobe.engine.egress import ONE_EGRESS, Egresses
from mailprobe.engine.reasons import verdict_cause
from mailprobe.engine.verdict import Outcome
from mailprobe.storage.contract import StoreUnavailable
from mailprobe.storage.store import Store

from ..egress.control import EgressNow
from .catalogue import (
    EGRESS_STATES,
    GONE,
    OUR_FAULT,
    TESTS,
    Operations,
    families,
    rung_labels,
)
from .request_context import RequestContext, RequestLog
from .shared_counters import (
    CounterRow,
    Numbers,
    SharedCounters,
    open_shared_counters,
)

if TYPE_CHECKING:
    from mailprobe.engine.observer import EngineStatistics, Recalled

QUEUES_EVERY_S = 15.0  # as often as Prometheus reads the page by default
POLL_EVERY_S = 1.0  # the maximum age of other workers' gauges in a page


class Load(Struct, frozen=True):
    """What one worker has under way: its gauges."""

    engine: "EngineStatistics"
    addresses: int
    addresses_max: int
    writes_pending: int
    blind: bool  # its lists pause: see mailprobe.api.quota.self_protection
    egresses: Sequence[EgressNow] = ()  # of the file
    drained: bool = False  # it claims no more of lists: see mailprobe.api.quota.pauses


def open_metrics(
    workers: int, operations: Operations, egresses: Egresses = ONE_EGRESS
) -> AbstractContextManager[SharedCounters]:
    """Open the counters of a service with so many workers; call it before they are forked."""
    return open_shared_counters(families(operations, egresses), workers)


class Metrics(RequestLog):
    """The counters of one worker; implements the engine's `Observer` too."""

    def __init__(self, row: CounterRow) -> None:
        self._row = row
        self._numbers = {name: row.numbers(name) for name in row.families}  # made once, for speed
        self._faults_counted = FAULTS.logged

    # -- engine (observer.Observer)

    def text_read(self, began: float) -> None:
        self._numbers["mailprobe_layer_seconds"].observe(trio.current_time() - began, ("text",))

    def route_read(self, began: float) -> None:
        self._numbers["mailprobe_layer_seconds"].observe(trio.current_time() - began, ("mx",))

    def probe_settled(self, began: float) -> None:
        self._numbers["mailprobe_layer_seconds"].observe(trio.current_time() - began, ("smtp",))

    def answer_emitted(self, outcome: Outcome, rule: str, addresses: int, operator: str) -> None:
        self._numbers["mailprobe_verdicts"].add((*rung_labels(outcome), rule), addresses)

    def probe_decided(self, egress: str, operator: str, outcome: Outcome, rule: str) -> None:
        self._numbers["mailprobe_replies"].add(
            (egress, operator, verdict_cause(outcome, rule).reason)
        )

    def recalled(self, what: "Recalled") -> None:
        self._numbers["mailprobe_dns_cache_hits"].add((what,))

    def lookup_done(self, began: float, *, certain: bool) -> None:
        self._numbers["mailprobe_dns_lookups"].add(("certain" if certain else "failed",))
        self._numbers["mailprobe_dns_lookup_seconds"].observe(trio.current_time() - began)

    def connected(self, *, greeted: bool) -> None:
        self._numbers["mailprobe_smtp_connections"].add(("greeted" if greeted else "failed",))

    def session_reused(self) -> None:
        self._numbers["mailprobe_smtp_sessions_reused"].add()

    def limit_lowered(self) -> None:
        self._numbers["mailprobe_smtp_limits_lowered"].add()

    def recipient_refused(self, operator: str) -> None:
        self._numbers["mailprobe_smtp_recipients_refused"].add((operator,))

    def budget_lacking(self, operator: str, *, random: bool) -> None:
        self._numbers["mailprobe_smtp_budget_lacking"].add(
            (operator, "random" if random else "listed")
        )

    def host_backed_off(self, *, refused: bool) -> None:
        self._numbers["mailprobe_smtp_rests"].add(("refused" if refused else "unreachable",))

    def facts_shared(self, kind: str, count: int) -> None:
        self._numbers["mailprobe_facts_shared"].add((kind,), count)

    def facts_absorbed(self, kind: str, count: int) -> None:
        self._numbers["mailprobe_facts_absorbed"].add((kind,), count)

    # -- service (RequestLog)

    def request_started(self) -> None:
        self._numbers["mailprobe_requests_in_flight"].add()

    def streams(self) -> None:
        self._numbers["mailprobe_streams_in_flight"].add()

    def request_finished(self, request_context: RequestContext, seconds: float) -> None:
        self._numbers["mailprobe_requests_in_flight"].add(amount=-1)
        if request_context.lines is not None:
            self._numbers["mailprobe_streams_in_flight"].add(amount=-1)
        status = GONE if request_context.status is None else str(request_context.status)
        caller = request_context.caller
        if caller is not None and caller.key.is_test and request_context.code != OUR_FAULT:
            # an address may ask for a refusal, or for delay
            self._numbers["mailprobe_requests"].add((TESTS, status))
            return
        self._numbers["mailprobe_requests"].add((request_context.operation, status))
        self._numbers["mailprobe_request_seconds"].observe(seconds, (request_context.operation,))
        if request_context.code is not None:
            self._numbers["mailprobe_refusals"].add(
                (request_context.operation, request_context.code)
            )
        if request_context.addresses:
            self._numbers["mailprobe_addresses_asked"].add(
                (request_context.operation,), request_context.addresses
            )

    def request_rejected(self, operation: str, code: str, status: int | None) -> None:
        self._numbers["mailprobe_refusals"].add((operation, code))
        if status is not None:
            self._numbers["mailprobe_requests"].add((operation, str(status)))

    # -- store

    def timed(self, store: Store) -> Store:
        """Return the store with each transaction timed."""
        seconds, unavailable = (
            self._numbers[f"mailprobe_store_{name}"] for name in ("seconds", "unavailable")
        )
        return cast(Store, _Timed(store, seconds, unavailable))

    # -- gauges

    async def watch(self, load: Callable[[], "Load"]) -> None:
        """Sample the gauges every POLL_EVERY_S until cancelled; then reset them."""
        try:
            while True:
                try:
                    self.sample(load())
                except Exception:  # a bug must not end the sampling
                    log_fault(self.sample)
                await trio.sleep(POLL_EVERY_S)
        finally:
            self._row.detach()

    def sample(self, load: "Load") -> None:
        """Set the gauges to this worker's present values."""
        engine = load.engine
        states: dict[str, float] = {
            "mailprobe_smtp_connections_open": engine.connections,
            "mailprobe_smtp_hosts": engine.hosts,
            "mailprobe_smtp_hosts_resting": engine.hosts_backing_off,
            "mailprobe_smtp_hosts_waiting": engine.hosts_waiting,
            "mailprobe_probes": engine.probes,
            "mailprobe_addresses_under_way": load.addresses,
            "mailprobe_addresses_under_way_max": load.addresses_max,
            "mailprobe_background_writes": load.writes_pending,
            "mailprobe_blind": float(load.blind),
            "mailprobe_drained": float(load.drained),
        }
        for name, number in states.items():
            self._numbers[name].put(number)
        waiting = self._numbers["mailprobe_probes_waiting"]
        waiting.put(engine.probes_in_flight, ("places",))
        waiting.put(engine.probes_waiting, ("host",))
        self._sample_egresses(load.egresses)
        self._numbers["mailprobe_background_failures"].add(
            amount=FAULTS.logged - self._faults_counted
        )
        self._faults_counted = FAULTS.logged
        self._row.heartbeat()

    def _sample_egresses(self, egresses: Sequence[EgressNow]) -> None:
        state, asked, most = (
            self._numbers[f"mailprobe_egress_{name}"]
            for name in ("state", "addresses_today", "addresses_limit")
        )
        for each in egresses:
            for name in EGRESS_STATES:
                state.put(float(each.state == name), (each.name, name))
            asked.put(each.asked, (each.name,))
            most.put(each.limit or 0, (each.name,))

    async def watch_queues(self, store: Store) -> None:
        """Read what waits in the store, every QUEUES_EVERY_S until cancelled."""
        due, oldest = (
            self._numbers[f"mailprobe_queue_{name}"] for name in ("due", "oldest_seconds")
        )
        sent = self._numbers["mailprobe_last_sent_timestamp_seconds"]
        while True:
            with suppress(StoreUnavailable):  # the values before it stay
                for state in await store.queues():
                    due.put(state.due, (state.name,))
                    oldest.put(state.oldest_s, (state.name,))
                    if state.last_sent_at is not None:
                        sent.put(state.last_sent_at.timestamp(), (state.name,))
            await trio.sleep(QUEUES_EVERY_S)


class _Timed:
    """Delegates to a store and times its coroutine functions."""

    def __init__(self, store: Store, seconds: Numbers, unavailable: Numbers) -> None:
        self._store = store
        self._seconds = seconds
        self._unavailable = unavailable

    def __getattr__(self, name: str) -> object:
        found = getattr(self._store, name)
        if not inspect.iscoroutinefunction(found):
            return found
        setattr(self, name, self._timed(name, found))  # cached: __getattr__ is not called again
        return getattr(self, name)

    def _timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        seconds, unavailable = self._seconds, self._unavailable

        @wraps(method)
        async def transact(*arguments: object, **named: object) -> object:
            began = trio.current_time()
            try:
                return await method(*arguments, **named)
            except StoreUnavailable:
                unavailable.add((name,))
                raise
            finally:
                seconds.observe(trio.current_time() - began, (name,))

        return transact
