"""Traces: exports the spans of a process by OpenTelemetry, if its variables ask for that.

Spans wait in a bounded queue for a thread that sends them (OTEL_BSP_MAX_QUEUE_SIZE, 2048). A collector that is
slow, wrong or gone costs spans, some lines of the log and FLUSH_S of a stop, and nothing else.
"""

import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from math import inf

import trio

from ..settings import TRACES_PROTOCOL
from .spans import traced_by

log = logging.getLogger("mailprobe.traces")

NEEDED = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
# Of a stop that may take 9 s, in which open requests use up to 6, background writes 2.
FLUSH_S = 0.5
LOGGED_EVERY_S = 60.0  # a collector that is gone fails every export, and each again and again
MESSAGE_CHARACTERS_MAX = 300  # of an HTTP client's error, which nests several
# Others parse what clients sent, and log it.
EXPORTING = ("opentelemetry.exporter.", "opentelemetry.sdk.")
SILENT = logging.CRITICAL + 1
QUERY = re.compile(r"\?[^\s)]*")  # of the collector's URL, which may hold a key


def traces_missing(protocol: str | None) -> str | None:
    """Why there are no traces although they are wanted, for the operator; None: nothing is missing.

    `protocol` is that of the settings; None if no traces are wanted.
    """
    if protocol is None:
        return None
    if protocol != TRACES_PROTOCOL:
        return (
            f"traces are off: OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}; "
            f"mailprobe sends {TRACES_PROTOCOL}, to port 4318 of most collectors"
        )
    if not _is_installed():
        return (
            "traces are off: OTEL_EXPORTER_OTLP_ENDPOINT is set, and OpenTelemetry is not installed; "
            "install it with: pip install '.[otel]' in the checkout"
        )
    return None


def _is_installed() -> bool:
    try:
        return find_spec(NEEDED) is not None
    except ModuleNotFoundError:  # of a package above it
        return False


@asynccontextmanager
async def open_traces(protocol: str | None, *, flush_s: float = FLUSH_S) -> AsyncIterator[None]:
    """Trace what this process does for the duration of the block, if `protocol` is one that it knows.

    Leaving it waits up to `flush_s` for the export of what is left. Raises nothing.
    """
    if protocol is None or traces_missing(protocol) is not None:
        yield
        return
    from . import open_telemetry

    try:
        exporter = open_telemetry.new_exporter()
        provider = open_telemetry.new_provider(exporter)
    except Exception as error:  # a value that it cannot use, a certificate that it cannot read
        log.error("traces are off: error=%s", error)
        yield
        return
    with _export_trouble_limited():
        try:
            with traced_by(open_telemetry.OpenTelemetryTracer(provider)):
                yield
        finally:
            with trio.move_on_after(flush_s, shield=True) as flush:
                await trio.to_thread.run_sync(provider.shutdown, abandon_on_cancel=True)
            if flush.cancelled_caught:
                open_telemetry.end_exporter(exporter)
                log.warning("traces cut off: flush_s=%g", flush_s)


@contextmanager
def _export_trouble_limited() -> Iterator[None]:
    """Let ExportTrouble alone handle the log of OpenTelemetry, which is silent after the block.

    The thread that exports may go on after a stop that was cut off, until the process ends.
    """
    theirs, handler = logging.getLogger("opentelemetry"), ExportTrouble()
    theirs.propagate = False
    theirs.addHandler(handler)
    try:
        yield
    finally:
        handler.setLevel(SILENT)


class ExportTrouble(logging.Handler):
    """Logs warnings about an export as ours: one in LOGGED_EVERY_S, for all of that time. Any thread's.

    Other lines of OpenTelemetry's are not logged.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.WARNING)
        self._clock = clock
        self._logged_at = -inf
        self._count = 0  # since that line

    def emit(self, record: logging.LogRecord) -> None:  # under the handler's lock
        if not record.name.startswith(EXPORTING):
            return
        self._count += 1
        now = self._clock()
        if now - self._logged_at < LOGGED_EVERY_S:
            return
        counted = {"times": self._count} if self._count > 1 else {}
        self._logged_at, self._count = now, 0
        why = QUERY.sub("?…", record.getMessage())[:MESSAGE_CHARACTERS_MAX]
        log.warning("traces not exported: error=%s", why, extra=counted)
