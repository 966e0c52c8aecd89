"""Request context: what the log and the metrics record of one request.

Each listener opens a `RequestContext` per request; code that runs for the request gets it
with `present()`, so that log lines can name their request. When the request ends, one
access line is logged. Of what the client sent, a context holds the path alone: no key, address or body.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf

import trio
from msgspec import Struct

from mailprobe.storage.records import Caller

from .spans import NO_SPAN, NO_TRACE, Attribute, Span, TraceHeaders, start_span, trace_of

log = logging.getLogger("mailprobe.access")

LOGGED_EVERY_S = 1.0
# Refusals that come in floods, of a client that repeats what cannot succeed or of a service in trouble.
# Others are a client's single mistakes, each with a line of its own.
FLOODS = frozenset({401, 404, 429, 503})
UNROUTED = "none"  # the operation of a request without a route
# Others are what a client made up, and would be as many names of spans.
METHODS = frozenset(
    {"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"}
)
PARAMETER = re.compile(r"<(?:\w+:)?(\w+)>")  # of Quart's routes


class RequestContext(Struct):
    """A request under way; fields are set as they become known."""

    request_id: str
    began: float  # trio's clock
    operation: str = UNROUTED
    method: str = ""
    path: str = ""
    scheme: str = ""  # of the public URL
    route: str = ""  # the template that its path matched
    caller: Caller | None = None
    addresses: int = 0  # asked for
    status: int | None = None  # None: no answer has begun
    code: str | None = None  # of the error body
    lines: int | None = None  # of a stream, so far; None: the answer is not a stream
    cut: bool = False  # the client did not get the whole answer
    trace: str = ""  # of the request's span, else of the client: see trace_of()

    @property
    def trace_id(self) -> str:
        return self.trace.partition("-")[0]

    def count_lines(self, count: int) -> None:
        """So many lines of a stream are sent; 0 at its beginning."""
        self.lines = (self.lines or 0) + count


class RequestLog:
    """Notified of every request, and does nothing; a subclass that counts them overrides all methods.

    They are fast, never wait and never raise.
    """

    def request_started(self) -> None:
        """A request has begun."""

    def streams(self) -> None:
        """A request's answer begins, and it is a stream."""

    def request_finished(self, request_context: RequestContext, seconds: float) -> None:
        """A request has ended, so many seconds after it began."""

    def request_rejected(self, operation: str, code: str, status: int | None) -> None:
        """The HTTP server itself refused a request.

        `status` is None if an operation had begun: then `request_finished` has reported the
        request, as one without an answer.
        """


NO_REQUEST_LOG = RequestLog()

_present: ContextVar[RequestContext | None] = ContextVar("request_context", default=None)


def present() -> RequestContext | None:
    """The context of the request that the running task works for, if any."""
    return _present.get()


def present_trace() -> str | None:
    """The trace of the present request: see trace_of(); None without one."""
    request_context = present()
    return (request_context.trace or None) if request_context else None


@contextmanager
def request_scope(
    request_log: RequestLog,
    request_id: str,
    *,
    lingers: bool = False,
    method: str = "",
    path: str = "",
    scheme: str = "",
    route: str = "",
    sent: TraceHeaders = NO_TRACE,
) -> Iterator[RequestContext]:
    """Open the context of a request and its span for the duration of the block.

    `sent` is what trace_headers() returns. `lingers`: keep the context after the block, for
    what the task logs afterwards. For listeners with a task per request.
    """
    traceparent, state = sent
    trace = trace_of(traceparent) if traceparent else ""
    span = start_span("request", "server", trace, state=state)
    request_context = RequestContext(
        request_id, trio.current_time(),
        method=method, path=path, scheme=scheme, route=route, trace=span.trace or trace,
    )  # fmt: skip
    token = _present.set(request_context)
    request_log.request_started()
    try:
        yield request_context
    finally:
        seconds = trio.current_time() - request_context.began
        request_log.request_finished(request_context, seconds)
        log_access(request_context, seconds)
        if span is not NO_SPAN:
            _end_span(span, request_context)
        if not lingers:
            _present.reset(token)


def _end_span(span: Span, request_context: RequestContext) -> None:
    """End a request's span, by the semantic conventions for HTTP spans (1.23 and later).

    It has no `url.path`, which may hold what a client should not have written into it.
    """
    if span.is_recorded:
        status = request_context.status
        span.rename(_span_name(request_context))
        span.note(_span_attributes(request_context))
        if status is not None and status >= 500:  # others are the client's errors
            span.failed(str(status))
    span.end()


def _span_name(request_context: RequestContext) -> str:
    if not request_context.method:  # of a tool's call
        return request_context.operation
    method = request_context.method if request_context.method in METHODS else "HTTP"
    return f"{method} {_template(request_context.route)}".rstrip()


def _template(route: str) -> str:
    """A route as the API's description writes it."""
    return PARAMETER.sub(r"{\1}", route)


def _span_attributes(request_context: RequestContext) -> dict[str, Attribute]:
    """What is known of the request."""
    method = request_context.method
    attributes = {
        "http.request.method": method if method in METHODS else method and "_OTHER",
        "http.route": _template(request_context.route),
        "url.scheme": request_context.scheme,
        "http.response.status_code": request_context.status,
        "mailprobe.operation": request_context.operation,
        "mailprobe.request.id": request_context.request_id,
        "mailprobe.addresses": request_context.addresses,
        "mailprobe.error": request_context.code,
        "mailprobe.cut": request_context.cut,
    }
    return {name: value for name, value in attributes.items() if value}


class LineLimit:
    """At most one line a second of a kind: a line for each costs more than the refusal itself.

    Kinds are named by the program, never by a client, so they are few.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[str, ...], int] = {}  # since the kind's last line
        self._logged_at: dict[tuple[str, ...], float] = {}

    def times(self, *kind: str) -> int:
        """Count one; return how many a line now stands for, or 0 if there is to be none."""
        count = self._counts.get(kind, 0) + 1
        now = trio.current_time()
        is_silent = now - self._logged_at.get(kind, -inf) < LOGGED_EVERY_S
        self._counts[kind] = count if is_silent else 0
        if is_silent:
            return 0
        self._logged_at[kind] = now
        return count


_lines: trio.lowlevel.RunVar[LineLimit] = trio.lowlevel.RunVar("lines")


def line_limit() -> LineLimit:
    """The limit of this process: of its event loop, whose clock it reads."""
    try:
        return _lines.get()
    except LookupError:
        _lines.set(limit := LineLimit())
        return limit


def request_rejected(request_log: RequestLog, code: str, status: int) -> None:
    """The HTTP server itself refuses a request, before or during an operation."""
    request_context = _present.get()
    if code == "overloaded" and (request_context is None or request_context.status is not None):
        request_log.request_rejected(UNROUTED, code, status)
        if times := line_limit().times(UNROUTED, code):
            reported = {"operation": UNROUTED, "status": status, "code": code, "times": times}
            log.info("access", extra=reported)
        return
    if request_context is None or request_context.status is not None:
        request_log.request_rejected(UNROUTED, code, status)
        log.info("access", extra={"operation": UNROUTED, "status": status, "code": code})
    else:
        request_log.request_rejected(request_context.operation, code, None)
        log.info("cut off", extra={"status": status, "code": code})


def log_access(request_context: RequestContext, seconds: float) -> None:
    """Write the access line of a request."""
    if not log.isEnabledFor(logging.INFO):
        return
    times = 1
    if request_context.code is not None and request_context.status in FLOODS:
        times = line_limit().times(request_context.operation, request_context.code)
        if not times:
            return
    reported: dict[str, object] = {
        "status": request_context.status,
        "duration_ms": round(seconds * 1000, 1),
        "addresses": request_context.addresses,
    }
    if request_context.caller is not None:
        reported |= {
            "account": request_context.caller.account.id,
            "key": request_context.caller.key.prefix,
        }
    if request_context.code is not None:
        reported["code"] = request_context.code
    if request_context.lines is not None:
        reported["lines"] = request_context.lines
    if request_context.cut:
        reported["cut"] = True
    if times > 1:
        reported["times"] = times
    log.info("access", extra=reported)
