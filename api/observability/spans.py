"""Spans: the pieces of work that traces show. Without traces nothing is made for any of them.

    with start_span("verify job", "consumer", job.trace or "", {"mailprobe.job.id": job.id}) as span:
        ...

`traces.py` says when there are traces. A trace is written as `trace_of()` returns it.
No span holds an address, a key, a body, or a path or query that a client sent.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Literal, Protocol

import trio

# What the work is to its parent (OpenTelemetry's SpanKind): it serves its request, sends one, or works off
# what it left in a queue.
SpanKind = Literal["server", "client", "consumer"]
Attribute = str | int | bool
Attributes = Mapping[str, Attribute]
TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})"
)
SAMPLED = 1  # the only flag of version 00
TraceHeaders = tuple[str, str]  # traceparent, tracestate; empty where there is none
NO_TRACE: TraceHeaders = ("", "")
TRACE_NAMES = (b"traceparent", b"tracestate")


def trace_headers(headers: Iterable[tuple[bytes, bytes]]) -> TraceHeaders:
    """The headers of W3C Trace Context; several of a name are joined by commas (RFC 9110 5.3)."""
    sent = [(name, value.decode("latin-1")) for name, value in headers if name in TRACE_NAMES]
    if not sent:
        return NO_TRACE
    parents = ",".join(value for name, value in sent if name == b"traceparent")
    return parents, ",".join(value for name, value in sent if name == b"tracestate")


def trace_of(traceparent: str) -> str:
    """The trace in a `traceparent` (W3C Trace Context 3.2): its id, the span's, and 01 if it is sampled.

    Joined by hyphens; empty if the header is not valid.
    """
    found = TRACEPARENT.fullmatch(traceparent)
    return f"{found[1]}-{found[2]}-{int(found[3], 16) & SAMPLED:02x}" if found else ""


class Span:
    """A piece of work; its block, or `end()`, ends it. Its methods are fast and never raise.

    This one is for no traces, and does nothing; one that is made overrides all of it.
    """

    trace = ""  # what work that follows from this is a child of; empty without traces
    is_recorded = False  # does what is noted arrive anywhere? There are traces, and this is sampled

    def rename(self, name: str) -> None:
        """Give it another name; names are few."""

    def note(self, attributes: Attributes) -> None:
        """Add attributes."""

    def failed(self, kind: str, why: str = "") -> None:
        """Mark it as failed. Kinds of errors are few: a status, or the name of an exception."""

    def end(self) -> None:
        """End it, once."""

    def __enter__(self) -> "Span":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class Tracer(Protocol):
    """Makes spans."""

    def start(
        self,
        name: str,
        kind: SpanKind,
        parent: str,
        attributes: Attributes,
        state: str,
        linked: bool,
    ) -> Span:
        """Start a span: see start_span()."""


NO_SPAN = Span()
NO_ATTRIBUTES: Attributes = {}

_tracer: trio.lowlevel.RunVar[Tracer | None] = trio.lowlevel.RunVar("tracer", None)


def start_span(
    name: str,
    kind: SpanKind,
    parent: str,
    attributes: Attributes = NO_ATTRIBUTES,
    *,
    state: str = "",
    linked: bool = False,
) -> Span:
    """Start a span of `parent`'s trace; without a parent, of a new one.

    `state` is the parent's `tracestate`. `linked`: it begins a trace of its own, which refers to the
    parent, because a parent may have thousands of these.
    """
    tracer = _tracer.get()
    if tracer is None:
        return NO_SPAN
    return tracer.start(name, kind, parent, attributes, state, linked)


@contextmanager
def traced_by(tracer: Tracer) -> Iterator[None]:
    """Let `tracer` make the spans of this event loop for the duration of the block."""
    token = _tracer.set(tracer)
    try:
        yield
    finally:
        _tracer.reset(token)
