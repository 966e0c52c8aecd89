"""One request from its coming to its end, as the log and the metrics tell of it.

A door opens a `Visit` for each request; whatever runs on the request's behalf
finds it with `present()`, so that a line in the log can say where it belongs.
When the visit ends, one line tells what became of it. A visit never holds what
was sent: neither a key, nor an address, nor a body.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import trio

from storage.records import Caller

log = logging.getLogger("mailprobe.access")

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


@contextmanager
def visiting(porter: Porter, request_id: str, *, lingers: bool = False) -> Iterator[Visit]:
    """The visit of this request, which ends with the block of whoever came first.

    `lingers`: what the task writes afterwards belongs to it too. For a door that
    has a task for each request.
    """
    visit = _present.get()
    if visit is not None and visit.request_id == request_id:
        yield visit
        return
    visit = Visit(request_id, trio.current_time())
    token = _present.set(visit)
    porter.came()
    try:
        yield visit
    finally:
        seconds = trio.current_time() - visit.began
        porter.left(visit, seconds)
        _tell(visit, seconds)
        if not lingers:
            _present.reset(token)


def turned_away(porter: Porter, code: str, status: int) -> None:
    """The HTTP server itself refuses a request, before any operation or in the midst of one."""
    visit = _present.get()
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
