"""Every metric of a broker, by what it is about: for documentation, and for tests. Pure."""

from collections.abc import Mapping, Sequence

from magnetar.broker.http.metrics.broker_values import (
    BALANCE,
    BUNDLE,
    CACHE,
    CONNECTIONS,
    ENTRY_SIZE,
    LEFT_OUT,
    LOAD,
    OWNERSHIP,
    PLAIN,
    PUBLISH_LATENCY,
    SPLITS,
    TOPICS_COUNT,
    UNLOADS,
    WRITE_LATENCY,
    total_metrics,
)
from magnetar.broker.http.metrics.page import NAMESPACE_TOPICS
from magnetar.broker.http.metrics.text import Named
from magnetar.broker.http.metrics.topic_values import COMPACTION, CONSUMER, SUBSCRIPTION, TOPIC
from magnetar.broker.http.metrics.transaction_values import BUFFERS, COORDINATOR

CATALOGUE: Mapping[str, Sequence[Named]] = {
    "broker": (
        *(metric for metric, _ in PLAIN),
        PUBLISH_LATENCY,
        *LEFT_OUT,
    ),
    "cluster": (TOPICS_COUNT, *total_metrics(), *CACHE, *WRITE_LATENCY, *ENTRY_SIZE),
    "connection": tuple(metric for metric, _ in CONNECTIONS),
    "ownership": (*(metric for metric, _ in OWNERSHIP), *BALANCE),
    "load": (*LOAD, *UNLOADS, *SPLITS),
    "bundle": BUNDLE,
    "transaction": (*COORDINATOR, *BUFFERS),
    "namespace": (NAMESPACE_TOPICS,),
    "topic": (*TOPIC, *COMPACTION),
    "subscription": SUBSCRIPTION,
    "consumer": CONSUMER,
}
"""By the name of its table in docs/metrics.md."""
