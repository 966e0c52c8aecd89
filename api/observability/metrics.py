"""How each part of the service comes to be counted; what there is stands in `metrics_table`.

A `Metrics` is what one worker counts: it is the engine's Watcher, the service's
Porter, the clock of its store, and once a second it looks at what is under way.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, cast

import trio

from mailprobe.api.observability.catalogue import GONE, families, rung_labels
from mailprobe.api.observability.request_context import Visit
from mailprobe.api.observability.shared_counters import Board, Row, open_board
from mailprobe.engine.background import log_fault
from mailprobe.engine.verdict import Outcome
from mailprobe.storage.contract import Store, StoreUnavailable

if TYPE_CHECKING:
    from mailprobe.api.service import Service
    from mailprobe.engine.observer import Recalled

LOOK_EVERY_S = 1.0  # at what is under way: so old are the states of other workers in an answer


@contextmanager
def open_metrics(workers: int) -> Iterator[Board]:
    """The board of a service with so many workers; to be opened before they are forked."""
    with open_board(families(), workers) as board:
        yield board


class Metrics:
    """What one worker counts: a Watcher of the engine, a Porter of the service."""

    def __init__(self, row: Row) -> None:
        self._row = row
        self._verdicts = row.numbers("mailprobe_verdicts")
        self._layer_s = row.numbers("mailprobe_layer_seconds")
        self._lookups = row.numbers("mailprobe_dns_lookups")
        self._lookup_s = row.numbers("mailprobe_dns_lookup_seconds")
        self._cache_hits = row.numbers("mailprobe_dns_cache_hits")
        self._connections = row.numbers("mailprobe_smtp_connections")
        self._reused = row.numbers("mailprobe_smtp_sessions_reused")
        self._lowered = row.numbers("mailprobe_smtp_limits_lowered")
        self._rests = row.numbers("mailprobe_smtp_rests")
        self._requests = row.numbers("mailprobe_requests")
        self._request_s = row.numbers("mailprobe_request_seconds")
        self._refusals = row.numbers("mailprobe_refusals")
        self._asked = row.numbers("mailprobe_addresses_asked")
        self._in_flight = row.numbers("mailprobe_requests_in_flight")
        self._streams = row.numbers("mailprobe_streams_in_flight")
        self._store_s = row.numbers("mailprobe_store_seconds")
        self._unavailable = row.numbers("mailprobe_store_unavailable")

    # -- what the engine tells (engine.Watcher)

    def text_read(self, began: float) -> None:
        self._layer_s.observe(trio.current_time() - began, ("text",))

    def route_read(self, began: float) -> None:
        self._layer_s.observe(trio.current_time() - began, ("mx",))

    def question_settled(self, began: float) -> None:
        self._layer_s.observe(trio.current_time() - began, ("smtp",))

    def told(self, outcome: Outcome, rule: str, addresses: int) -> None:
        self._verdicts.add((*rung_labels(outcome), rule), addresses)

    def recalled(self, what: "Recalled") -> None:
        self._cache_hits.add((what,))

    def looked_up(self, began: float, *, certain: bool) -> None:
        self._lookups.add(("certain" if certain else "failed",))
        self._lookup_s.observe(trio.current_time() - began)

    def connected(self, *, greeted: bool) -> None:
        self._connections.add(("greeted" if greeted else "failed",))

    def session_reused(self) -> None:
        self._reused.add()

    def limit_lowered(self) -> None:
        self._lowered.add()

    def host_rested(self, *, refused: bool) -> None:
        self._rests.add(("refused" if refused else "unreachable",))

    # -- what the service tells (visits.Porter)

    def came(self) -> None:
        self._in_flight.add()

    def streams(self) -> None:
        self._streams.add()

    def left(self, visit: Visit, seconds: float) -> None:
        self._in_flight.add(amount=-1)
        if visit.lines is not None:
            self._streams.add(amount=-1)
        status = GONE if visit.status is None else str(visit.status)
        self._requests.add((visit.operation, status))
        self._request_s.observe(seconds, (visit.operation,))
        if visit.code is not None:
            self._refusals.add((visit.operation, visit.code))
        if visit.addresses:
            self._asked.add((visit.operation,), visit.addresses)

    def turned_away(self, operation: str, code: str, status: int | None) -> None:
        self._refusals.add((operation, code))
        if status is not None:
            self._requests.add((operation, str(status)))

    # -- what the store does

    def timed(self, store: Store) -> Store:
        """The same store, each transaction of which is timed."""
        return cast(Store, _Timed(store, self))

    def transacted(self, method: str, seconds: float) -> None:
        self._store_s.observe(seconds, (method,))

    def not_transacted(self, method: str) -> None:
        self._unavailable.add((method,))

    # -- what is under way

    async def watch(self, service: "Service") -> None:
        """Look at the service now and then, until cancelled; its states end with that."""
        try:
            while True:
                try:
                    self.look(service)
                except Exception:  # the row is this process's as long as it lives
                    log_fault(self.look)
                await trio.sleep(LOOK_EVERY_S)
        finally:
            self._row.leave()

    def look(self, service: "Service") -> None:
        """Write down what is under way in this worker just now."""
        census = service.meter.engine.prober.census()
        states: dict[str, float] = {
            "mailprobe_smtp_connections_open": census.connections,
            "mailprobe_smtp_hosts": census.hosts,
            "mailprobe_smtp_hosts_resting": census.hosts_resting,
            "mailprobe_smtp_hosts_waiting": census.hosts_waiting,
            "mailprobe_probes": census.questions,
            "mailprobe_addresses_under_way": service.capacity.addresses,
            "mailprobe_addresses_under_way_max": service.capacity.addresses_max,
            "mailprobe_recorder_pending": service.recorder.pending,
        }
        for name, number in states.items():
            self._row.numbers(name).put(number)
        waiting = self._row.numbers("mailprobe_probes_waiting")
        waiting.put(census.questions_outside, ("desk",))
        waiting.put(census.questions_waiting, ("host",))
        self._row.speak()


class _Timed:
    """A store by delegation: whatever it can do, this can."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not inspect.iscoroutinefunction(found):
            return found
        setattr(self, name, self._timed(name, found))  # found there from now on
        return getattr(self, name)

    def _timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        metrics = self._metrics

        @wraps(method)
        async def transact(*arguments: Any, **named: Any) -> Any:
            began = trio.current_time()
            try:
                return await method(*arguments, **named)
            except StoreUnavailable:
                metrics.not_transacted(name)
                raise
            finally:
                metrics.transacted(name, trio.current_time() - began)

        return transact
