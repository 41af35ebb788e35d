"""Traces with OpenTelemetry, an extra: `pip install magnetar[otel]`. Imported late.

OpenTelemetry's own variables decide where spans go. OTEL_TRACES_EXPORTER names an installed
exporter (`otlp`, with the package opentelemetry-exporter-otlp; `console` comes with the SDK).
OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_RESOURCE_ATTRIBUTES and so on work as usual.
"""

import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from importlib.metadata import entry_points

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
from opentelemetry.trace import Span as OtelSpan
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from magnetar.broker.features.tracing import Attributes, Span
from magnetar.deploy.errors import SettingsError

_KINDS = {"publish": SpanKind.SERVER, "dispatch": SpanKind.PRODUCER, "ack": SpanKind.CLIENT}
_EXPORTERS = "opentelemetry_traces_exporter"


class OpenTelemetrySpan:
    """A span, on top of OpenTelemetry's."""

    __slots__ = ("span",)

    def __init__(self, span: OtelSpan) -> None:
        self.span = span

    def event(self, name: str) -> None:
        self.span.add_event(name)

    def end(self, *, error: str = "") -> None:
        if error:
            self.span.set_status(Status(StatusCode.ERROR, error))
        self.span.end()


class OpenTelemetrySpans:
    """`Spans` of one OpenTelemetry tracer."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._propagator = TraceContextTextMapPropagator()

    def begin(
        self,
        name: str,
        *,
        attributes: Attributes,
        parent: Span | None = None,
        carrier: Mapping[str, str] | None = None,
    ) -> OpenTelemetrySpan | None:
        context = Context()
        if isinstance(parent, OpenTelemetrySpan):
            context = set_span_in_context(parent.span, context)
        elif carrier:
            context = self._propagator.extract(carrier, context)
        span = self._tracer.start_span(
            name, context, kind=_KINDS.get(name, SpanKind.INTERNAL), attributes=attributes
        )
        return OpenTelemetrySpan(span) if span.is_recording() else None


def spans_of(
    provider: TracerProvider,
) -> OpenTelemetrySpans:
    """Return the spans of a provider."""
    return OpenTelemetrySpans(provider.get_tracer("magnetar.broker"))


def sampler_of(ratio: float) -> ParentBasedTraceIdRatio:
    """Return a sampler that follows the client's decision; without one it samples this share of
    messages."""
    return ParentBasedTraceIdRatio(ratio)


def start_tracing(ratio: float, opened: AsyncExitStack) -> OpenTelemetrySpans:
    """Start traces that go where OpenTelemetry's variables say; `opened` flushes them at the end.

    Raises:
        SettingsError: the exporter in OTEL_TRACES_EXPORTER is not installed.
    """
    name = os.environ.get("OTEL_TRACES_EXPORTER", "otlp")
    resource = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "magnetar")})
    provider = TracerProvider(sampler=sampler_of(ratio), resource=resource)
    if name != "none":
        provider.add_span_processor(BatchSpanProcessor(_exporter(name)))
    opened.callback(provider.shutdown)
    return spans_of(provider)


def _exporter(name: str) -> SpanExporter:
    for found in entry_points(group=_EXPORTERS, name=name):
        made: SpanExporter = found.load()()
        return made
    known = sorted({each.name for each in entry_points(group=_EXPORTERS)})
    raise SettingsError(
        f"OTEL_TRACES_EXPORTER={name}: no such exporter is installed (there are: "
        f"{', '.join(known) or 'none'}); install its package, as opentelemetry-exporter-otlp"
    )
