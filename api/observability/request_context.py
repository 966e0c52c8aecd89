"""One request from its coming to its end, as the log and the metrics tell of it.

A door opens a `RequestContext` for each request; whatever runs on the request's behalf
finds it with `present()`, so that a line in the log can say where it belongs.
When the visit ends, one line tells what became of it. A visit never holds what
was sent: neither a key, nor an address, nor a body.
"""

import logging
from contextvars import ContextVar, Token
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

import trio

from mailprobe.storage.records import Caller

log = logging.getLogger("mailprobe.access")

CROWD_LOGGED_EVERY_S = 1.0
UNROUTED = "none"  # the operation of a request for which none was found


@dataclass(slots=True)
class RequestContext:
    """A request under way; filled in as more is known of it."""

    request_id: str
    began: float  # trio's clock
    operation: str = UNROUTED
    caller: Caller | None = None
    addresses: int = 0  # asked for
    status: int | None = None  # None: no answer has begun
    code: str | None = None  # of the error body
    lines: int | None = None  # of a stream, so far; None: the answer is no stream
    cut: bool = False  # the caller has not got the whole answer


class RequestLog(Protocol):
    """Told of every visit; quick, waits for nothing and raises nothing."""

    def request_started(self) -> None:
        """A request is under way."""

    def streams(self) -> None:
        """A request's answer is a stream, and it begins."""

    def request_finished(self, request_context: RequestContext, seconds: float) -> None:
        """A request has ended, so long after it came."""

    def request_rejected(self, operation: str, code: str, status: int | None) -> None:
        """The HTTP server itself gave the answer.

        With no `status` where the request had come to an operation: its visit has
        been told of, as one that got no answer.
        """


class _NoRequestLog:
    def request_started(self) -> None: ...
    def streams(self) -> None: ...
    def request_finished(self, request_context: RequestContext, seconds: float) -> None: ...
    def request_rejected(self, operation: str, code: str, status: int | None) -> None: ...


NO_REQUEST_LOG: RequestLog = _NoRequestLog()

_present: ContextVar[RequestContext | None] = ContextVar("visit", default=None)


def present() -> RequestContext | None:
    """The visit that the running task belongs to."""
    return _present.get()


class request_scope:
    """The visit of this request, which ends with the block of whoever came first.

    `lingers`: what the task writes afterwards belongs to it too. For a door that
    has a task for each request.
    """

    __slots__ = ("_context", "_lingers", "_request_id", "_request_log", "_token")

    def __init__(self, request_log: RequestLog, request_id: str, *, lingers: bool = False) -> None:
        self._request_log = request_log
        self._request_id = request_id
        self._lingers = lingers
        self._token: Token[RequestContext | None] | None = None  # of who came first

    def __enter__(self) -> RequestContext:
        request_context = _present.get()
        if request_context is None or request_context.request_id != self._request_id:
            request_context = RequestContext(self._request_id, trio.current_time())
            self._token = _present.set(request_context)
            self._request_log.request_started()
        self._context = request_context
        return request_context

    def __exit__(self, *_: object) -> None:
        if self._token is None:
            return
        seconds = trio.current_time() - self._context.began
        self._request_log.request_finished(self._context, seconds)
        _log(self._context, seconds)
        if not self._lingers:
            _present.reset(self._token)


class RejectedRequests:
    """Requests that overload control rejected: counted each, and logged once a second.

    A line for each would cost more than the rejection.
    """

    def __init__(self) -> None:
        self._count = 0  # since the last line
        self._logged_at = -inf

    def log(self, code: str, status: int) -> None:
        self._count += 1
        now = trio.current_time()
        if now - self._logged_at < CROWD_LOGGED_EVERY_S:
            return
        reported = {"operation": UNROUTED, "status": status, "code": code, "times": self._count}
        log.info("access", extra=reported)
        self._count, self._logged_at = 0, now


def request_rejected(
    request_log: RequestLog, crowd: RejectedRequests, code: str, status: int
) -> None:
    """The HTTP server itself refuses a request, before any operation or in the midst of one."""
    request_context = _present.get()
    if code == "overloaded" and (request_context is None or request_context.status is not None):
        request_log.request_rejected(UNROUTED, code, status)
        crowd.log(code, status)
        return
    if request_context is None or request_context.status is not None:
        request_log.request_rejected(UNROUTED, code, status)
        log.info("access", extra={"operation": UNROUTED, "status": status, "code": code})
    else:
        request_log.request_rejected(request_context.operation, code, None)
        log.info("cut off", extra={"status": status, "code": code})


def _log(request_context: RequestContext, seconds: float) -> None:
    """The access line: everything that is told of a request, once."""
    if not log.isEnabledFor(logging.INFO):
        return
    reported: dict[str, Any] = {
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
    log.info("access", extra=reported)
