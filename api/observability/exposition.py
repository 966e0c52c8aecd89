"""`GET /metrics`: the metrics of all workers in Prometheus's text format 0.0.4.

Any worker answers for all. Reading the counters and formatting the page take some
milliseconds, so a thread does it. prometheus_client writes the format; it is imported with
the first page, as no other part of the service needs it.
"""

import platform
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

import trio

from ..http.received_request import Message, Receive, Send
from ..http.server import serve_app
from ..http.shared import Limits
from .shared_counters import Family, SeriesTotal, SharedCounters

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PATH = "/metrics"
MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
METHODS = ("GET", "HEAD")

# A scraper or two; a page is made by one thread at a time.
LIMITS = Limits(connections_max=20, in_flight_max=20, body_octets_max=1024, drain_s=2.0)


def page(counters: SharedCounters, version: str, commit: str) -> bytes:
    """Return the whole page. Blocks for some milliseconds."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(counters, version, commit))
    return generate_latest(registry)


class _Collector:
    """Shared counters as prometheus_client's metrics."""

    def __init__(self, counters: SharedCounters, version: str, commit: str) -> None:
        self._counters = counters
        self._version = version
        self._commit = commit

    def describe(self) -> list["Metric"]:
        return []

    def collect(self) -> Iterator["Metric"]:
        yield from self._about()
        for family, readings in self._counters.read():
            yield _rendered(family, readings)

    def _about(self) -> Iterator["Metric"]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        counters = self._counters
        so_far = counters.workers_so_far  # read before `workers_alive`, so that it is never smaller
        release = GaugeMetricFamily(
            "mailprobe_build_info",
            "Always 1; the labels give the versions.",
            labels=("version", "commit", "python"),
        )
        release.add_metric((self._version, self._commit, platform.python_version()), 1.0)
        yield release
        yield GaugeMetricFamily(
            "process_start_time_seconds",
            "When the service started, since 1970.",
            counters.started_at,
        )
        yield GaugeMetricFamily(
            "mailprobe_workers", "Workers that are alive.", counters.workers_alive
        )
        yield CounterMetricFamily(
            "mailprobe_workers_started",
            "Workers started, including replacements.",
            so_far,
        )


def _rendered(family: Family, readings: Sequence[SeriesTotal]) -> "Metric":
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    if family.kind == "histogram":
        return _histogram(family, readings)
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    reported = kind(family.name, family.help, labels=family.labels)
    for reading in readings:
        reported.add_metric(reading.labels, reading.cells[0])
    return reported


def _histogram(family: Family, readings: Sequence[SeriesTotal]) -> "Metric":
    from prometheus_client.core import HistogramMetricFamily

    reported = HistogramMetricFamily(family.name, family.help, labels=family.labels)
    bounds = [*map(repr, family.bounds), "+Inf"]
    for reading in readings:
        *buckets, total = reading.cells
        reported.add_metric(
            reading.labels, list(zip(bounds, accumulate(buckets), strict=True)), total
        )
    return reported


async def serve_page(
    sample: Callable[[], None],
    render: Callable[[], bytes],
    listeners: Sequence[trio.SocketListener],
    *,
    drain: trio.Event,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve only the page on these listeners until `drain` is set.

    For each request `sample` is called, then `render` in a thread, one at a time.
    """
    await serve_app(
        partial(_answer, sample, render, trio.CapacityLimiter(1)),
        listeners,
        drain=drain,
        error_body=str.encode,  # the code alone: only the operator's machines connect here
        limits=LIMITS,
        task_status=task_status,
    )


async def _answer(
    sample: Callable[[], None],
    render: Callable[[], bytes],
    one_at_a_time: trio.CapacityLimiter,
    scope: Message,
    receive: Receive,
    send: Send,
) -> None:
    if scope["path"] != PATH:
        await _send(send, 404, b"the metrics are at /metrics\n")
    elif scope["method"] not in METHODS:
        await _send(send, 405, b"the metrics are read with GET\n", (b"allow", b"GET, HEAD"))
    else:
        sample()
        body = await trio.to_thread.run_sync(render, limiter=one_at_a_time)
        await _send(send, 200, b"" if scope["method"] == "HEAD" else body)


async def _send(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    content = ((b"content-type", MEDIA_TYPE.encode()), (b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": [*content, *headers]})
    await send({"type": "http.response.body", "body": body})
