"""Spans by OpenTelemetry, which the extra `otel` installs; no other module imports it.

OpenTelemetry's own variables configure it: https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/.
Every span has an explicit parent: OpenTelemetry's ambient context is neither read nor written, so no task
of trio's inherits a parent by accident. The provider is not made the global one: what libraries trace
may hold URLs and statements, and is not exported.
"""

from collections.abc import Mapping
from random import getrandbits
from types import TracebackType

from opentelemetry import trace as api
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from mailprobe.release import version

from .logs import covered
from .spans import Attributes, Span, SpanKind

SERVICE = "mailprobe"  # unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES name it
UNNAMED = "unknown_service"  # how the SDK's name begins then
STATE_CHARACTERS_MAX = 512  # of `tracestate`; W3C Trace Context 3.3.1.5 asks for no more
KINDS: Mapping[SpanKind, api.SpanKind] = {
    "server": api.SpanKind.SERVER,
    "client": api.SpanKind.CLIENT,
    "consumer": api.SpanKind.CONSUMER,
}


def new_exporter() -> OTLPSpanExporter:
    """The exporter that the environment describes. Raises for a value that it cannot use."""
    return OTLPSpanExporter()


def end_exporter(exporter: OTLPSpanExporter) -> None:
    """Let the thread that exports end soon: what it has not sent is lost. Does not wait."""
    exporter.shutdown()  # type: ignore[no-untyped-call]  # of the library


def new_provider(exporter: SpanExporter) -> TracerProvider:
    """A provider that the environment describes; a thread of its own exports. Raises as new_exporter()."""
    resource = Resource.create({SERVICE_VERSION: version()})
    if str(resource.attributes[SERVICE_NAME]).startswith(UNNAMED):
        resource = resource.merge(Resource({SERVICE_NAME: SERVICE}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


class OpenTelemetryTracer:
    """Makes spans of a provider's."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("mailprobe", version())

    def start(
        self,
        name: str,
        kind: SpanKind,
        parent: str,
        attributes: Attributes,
        state: str,
        linked: bool,
    ) -> Span:
        before = None if not parent else _span_context(parent, state)
        context = Context()
        if before is not None and not linked:
            context = api.set_span_in_context(api.NonRecordingSpan(before), context)
        span = self._tracer.start_span(
            name,
            context,
            KINDS[kind],
            _covered(attributes),
            links=[api.Link(before)] if before is not None and linked else None,
        )
        return _OpenSpan(span)


def _span_context(trace: str, state: str) -> api.SpanContext:
    """The span that a trace names. Rows of earlier versions have no span: then some other is named."""
    trace_id, *between, flags = trace.split("-")
    span_id = int(between[0], 16) if between else getrandbits(64) or 1
    return api.SpanContext(
        int(trace_id, 16), span_id, True, api.TraceFlags(int(flags, 16)), _state_of(state)
    )


def _state_of(sent: str) -> api.TraceState | None:
    """`tracestate` without what looks like an address or a key: a member may be left out (3.5)."""
    if not sent or len(sent) > STATE_CHARACTERS_MAX:
        return None
    state = api.TraceState.from_header([sent])
    for name, value in list(state.items()):
        if covered(value) != value:
            state = state.delete(name)
    return state


def _covered(attributes: Attributes) -> dict[str, str | int | bool]:
    """The last resort, as for lines of the log."""
    return {
        name: covered(value) if isinstance(value, str) else value
        for name, value in attributes.items()
    }


class _OpenSpan(Span):
    """One of OpenTelemetry's spans."""

    def __init__(self, span: api.Span) -> None:
        self._span = span
        own = span.get_span_context()
        self.trace = f"{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags:02x}"
        self.is_recorded = span.is_recording()

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def note(self, attributes: Attributes) -> None:
        self._span.set_attributes(_covered(attributes))

    def failed(self, kind: str, why: str = "") -> None:
        self._span.set_attribute("error.type", kind)
        self._span.set_status(api.StatusCode.ERROR, covered(why) or None)

    def end(self) -> None:
        self._span.end()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:  # its text may hold anything
            self.failed(kind.__name__)
        self.end()
