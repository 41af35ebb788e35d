"""Settings of what operators see: health, metrics, traces."""

from pydantic import Field

from magnetar.broker.base.settings.section import Section


class ObservingSettings(Section):
    """Health checks, metrics and traces."""

    # Health checks.

    health_check_timeout_ms: int = Field(
        default=3_000,
        ge=1,
        description="A broker is unhealthy if it cannot write and read a heartbeat within this "
        "time. Below the timeouts of probes, 4 s and 5 s.",
    )
    health_check_interval_ms: int = Field(
        default=2_000,
        ge=0,
        description="Health checks within this time share one heartbeat.",
    )

    # Metrics. The first three are named as in Pulsar.

    expose_topic_level_metrics: bool = Field(
        default=True,
        description="Whether topics and subscriptions have their own series; if not, one series "
        "per namespace sums them up.",
    )
    expose_consumer_level_metrics: bool = Field(
        default=False,
        description="Whether consumers have their own series, if their subscriptions do.",
    )
    expose_bundles_metrics: bool = Field(
        default=False, description="Whether the bundles of this broker have their own series."
    )
    metrics_topics_max: int = Field(
        default=1_000,
        ge=0,
        description="Topics with series of their own; others are summed up per namespace. Also the "
        "limit for namespaces.",
    )
    metrics_subscriptions_max: int = Field(
        default=2_000, ge=0, description="Subscriptions, and consumers, with series of their own."
    )
    metrics_rate_interval_ms: int = Field(
        default=60_000,
        ge=10,
        description="Rates are averages over this interval, and updated once per interval.",
    )

    # Traces.

    tracing: bool = Field(
        default=False,
        description="Whether messages are traced with OpenTelemetry; needs magnetar[otel]. "
        "OpenTelemetry's own variables (OTEL_TRACES_EXPORTER and others) choose the exporter.",
    )
    tracing_sample_ratio: float = Field(
        default=0.001,
        ge=0,
        le=1,
        description="Share of traced messages among those without a trace context; for others the "
        "client's decision applies.",
    )
    tracing_messages_max: int = Field(
        default=100,
        ge=1,
        description="Traced messages of one subscription that wait for dispatch or "
        "acknowledgement; above it the oldest traces end.",
    )
