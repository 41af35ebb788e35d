"""Settings of traces."""

from pydantic import Field

from magnetar.broker.base.settings.section import Section


class TracingSettings(Section):
    """A part of `BrokerSettings`."""

    tracing: bool = Field(
        default=False,
        description="Whether messages are traced with OpenTelemetry; needs magnetar[otel]. Where "
        "spans go is told by OpenTelemetry's own variables (OTEL_TRACES_EXPORTER and others).",
    )
    tracing_sample_ratio: float = Field(
        default=0.001,
        ge=0,
        le=1,
        description="Share of the messages that are traced of those that bring no trace of their "
        "own; what a client traces is traced, and what it decided not to is not.",
    )
    tracing_messages_max: int = Field(
        default=100,
        ge=1,
        description="Messages of one subscription whose trace waits for its dispatch or its "
        "acknowledgement; beyond it the oldest ones end there.",
    )
