"""Settings of metrics: what has series of its own, and how many."""

from pydantic import Field

from magnetar.broker.base.settings.section import Section


class MetricsSettings(Section):
    """What `/metrics` shows. The first three are named as in Pulsar."""

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
