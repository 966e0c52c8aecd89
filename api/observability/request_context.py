"""One request from its coming to its end, as the log and the metrics tell of it.

A door opens a `Visit` for each request; whatever runs on the request's behalf
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

CROWD_TOLD_EVERY_S = 1.0
UNROUTED = "none"  # the operation of a request for which none was found


@dataclass(slots=True)
class Visit:
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


class Porter(Protocol):
    """Told of every visit; quick, waits for nothing and raises nothing."""

    def came(self) -> None:
        """A request is under way."""

    def streams(self) -> None:
        """A request's answer is a stream, and it begins."""

    def left(self, visit: Visit, seconds: float) -> None:
        """A request has ended, so long after it came."""

    def turned_away(self, operation: str, code: str, status: int | None) -> None:
        """The HTTP server itself gave the answer.

        With no `status` where the request had come to an operation: its visit has
        been told of, as one that got no answer.
        """


class _Nobody:
    def came(self) -> None: ...
    def streams(self) -> None: ...
    def left(self, visit: Visit, seconds: float) -> None: ...
    def turned_away(self, operation: str, code: str, status: int | None) -> None: ...


NOBODY: Porter = _Nobody()

_present: ContextVar[Visit | None] = ContextVar("visit", default=None)


def present() -> Visit | None:
    """The visit that the running task belongs to."""
    return _present.get()


class visiting:
    """The visit of this request, which ends with the block of whoever came first.

    `lingers`: what the task writes afterwards belongs to it too. For a door that
    has a task for each request.
    """

    __slots__ = ("_lingers", "_porter", "_request_id", "_token", "_visit")

    def __init__(self, porter: Porter, request_id: str, *, lingers: bool = False) -> None:
        self._porter = porter
        self._request_id = request_id
        self._lingers = lingers
        self._token: Token[Visit | None] | None = None  # of who came first

    def __enter__(self) -> Visit:
        visit = _present.get()
        if visit is None or visit.request_id != self._request_id:
            visit = Visit(self._request_id, trio.current_time())
            self._token = _present.set(visit)
            self._porter.came()
        self._visit = visit
        return visit

    def __exit__(self, *_: object) -> None:
        if self._token is None:
            return
        seconds = trio.current_time() - self._visit.began
        self._porter.left(self._visit, seconds)
        _tell(self._visit, seconds)
        if not self._lingers:
            _present.reset(self._token)


class Crowd:
    """Requests that overload control rejected: counted each, and logged once a second.

    A line for each would cost more than the rejection.
    """

    def __init__(self) -> None:
        self._count = 0  # since the last line
        self._told_at = -inf

    def tell(self, code: str, status: int) -> None:
        self._count += 1
        now = trio.current_time()
        if now - self._told_at < CROWD_TOLD_EVERY_S:
            return
        told = {"operation": UNROUTED, "status": status, "code": code, "times": self._count}
        log.info("access", extra=told)
        self._count, self._told_at = 0, now


def turned_away(porter: Porter, crowd: Crowd, code: str, status: int) -> None:
    """The HTTP server itself refuses a request, before any operation or in the midst of one."""
    visit = _present.get()
    if code == "overloaded" and (visit is None or visit.status is not None):
        porter.turned_away(UNROUTED, code, status)
        crowd.tell(code, status)
        return
    if visit is None or visit.status is not None:
        porter.turned_away(UNROUTED, code, status)
        log.info("access", extra={"operation": UNROUTED, "status": status, "code": code})
    else:
        porter.turned_away(visit.operation, code, None)
        log.info("cut off", extra={"status": status, "code": code})


def _tell(visit: Visit, seconds: float) -> None:
    """The access line: everything that is told of a request, once."""
    if not log.isEnabledFor(logging.INFO):
        return
    told: dict[str, Any] = {
        "status": visit.status,
        "duration_ms": round(seconds * 1000, 1),
        "addresses": visit.addresses,
    }
    if visit.caller is not None:
        told |= {"account": visit.caller.account.id, "key": visit.caller.key.prefix}
    if visit.code is not None:
        told["code"] = visit.code
    if visit.lines is not None:
        told["lines"] = visit.lines
    if visit.cut:
        told["cut"] = True
    log.info("access", extra=told)
