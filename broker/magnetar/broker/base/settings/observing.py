"""Settings of what operators see: health, metrics, traces."""

from pydantic import Field

from magnetar.broker.base.settings.section import Section


class ObservingSettings(Section):
    """Health checks, metrics and traces."""

    # Health checks.

    health_check_timeout_ms: int = Field(
        default=3_000,
        ge=1,
        description="A broker is not well if it cannot write and read a heartbeat within this "
        "long. Below the 4 s and 5 s that probes wait for the answer.",
    )
    health_check_interval_ms: int = Field(
        default=2_000,
        ge=0,
        description="Whoever asks within this long hears of the same heartbeat.",
    )

    # Metrics. The first three are named as in Pulsar.

    expose_topic_level_metrics: bool = Field(
        default=True,
        description="Whether topics and subscriptions have series; else there is one per namespace "
        "that adds them up.",
    )
    expose_consumer_level_metrics: bool = Field(
        default=False,
        description="Whether consumers have series, if their subscriptions have.",
    )
    expose_bundles_metrics: bool = Field(
        default=False, description="Whether the bundles of this broker have series."
    )
    metrics_topics_max: int = Field(
        default=1_000,
        ge=0,
        description="Topics with series of their own; the others are added up by namespace. The "
        "bound counts for namespaces, too.",
    )
    metrics_subscriptions_max: int = Field(
        default=2_000, ge=0, description="Subscriptions, and consumers, with series of their own."
    )
    metrics_rate_interval_ms: int = Field(
        default=60_000,
        ge=10,
        description="Rates are averages over this long, and written anew as often.",
    )

    # Traces.

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
