"""Statistics of WebSocket sessions over REST. Source: WebSocket sheet, section 1.

The shapes are Pulsar's.
"""

from collections.abc import Callable, Iterable

from fastapi import APIRouter
from pydantic import BaseModel, Field

from magnetar.broker.base import naming
from magnetar.broker.base.errors import TopicNotFoundError
from magnetar.broker.http.late_routes import late_router
from magnetar.broker.websocket.session import SessionStats

_PATH = "/admin/v2/proxy-stats"


class ProducerStats(BaseModel):
    """Statistics of a producer's session."""

    remoteConnection: str
    numberOfMsgDelivered: int


class ConsumerStats(ProducerStats):
    """Statistics of a consumer's or reader's session; a reader has no subscription."""

    subscriptionName: str
    subscriptionType: str


class TopicStats(BaseModel):
    """Sessions on one topic."""

    producerStats: list[ProducerStats] = Field(default_factory=list)
    consumerStats: list[ConsumerStats] = Field(default_factory=list)


class SessionMetrics(BaseModel):
    """Rates of one namespace: averages over the lifetimes of the open sessions."""

    metrics: dict[str, float]
    dimensions: dict[str, str]


def by_topic(sessions: Iterable[SessionStats]) -> dict[str, TopicStats]:
    """Return the sessions by topic; a session on several topics counts with each."""
    found: dict[str, TopicStats] = {}
    for session in sessions:
        for topic in session.topics:
            stats = found.setdefault(topic, TopicStats())
            count = session.traffic.messages
            if session.is_producer:
                stats.producerStats.append(
                    ProducerStats(remoteConnection=session.remote, numberOfMsgDelivered=count)
                )
            else:
                stats.consumerStats.append(
                    ConsumerStats(
                        remoteConnection=session.remote,
                        numberOfMsgDelivered=count,
                        subscriptionName=session.subscription,
                        subscriptionType=session.subscription_type,
                    )
                )
    return found


def by_namespace(sessions: Iterable[SessionStats]) -> list[SessionMetrics]:
    """Return rates per second by namespace; a session in several namespaces counts with the
    first."""
    found: dict[str, dict[str, float]] = {}
    for session in sessions:
        if not session.namespaces:
            continue
        rates = found.setdefault(
            session.namespaces[0],
            dict.fromkeys(
                (
                    "ns_msg_publish_rate",
                    "ns_byte_publish_rate",
                    "ns_msg_deliver_rate",
                    "ns_byte_deliver_rate",
                ),
                0.0,
            ),
        )
        kind = "publish" if session.is_producer else "deliver"
        age_s = max(session.age_s, 1.0)
        rates[f"ns_msg_{kind}_rate"] += session.traffic.messages / age_s
        rates[f"ns_byte_{kind}_rate"] += session.traffic.payload_bytes / age_s
    return [
        SessionMetrics(metrics=rates, dimensions={"namespace": namespace})
        for namespace, rates in sorted(found.items())
    ]


def proxy_stats_router(sessions: Callable[[], Iterable[SessionStats]]) -> APIRouter:
    """Return the routes. `sessions` returns the open sessions."""
    router = late_router(tags=["proxy-stats"], prefix=_PATH)

    @router.get("/metrics")
    async def metrics() -> list[SessionMetrics]:
        """Return the rates of this broker's WebSocket sessions, by namespace."""
        return by_namespace(sessions())

    @router.get("/stats")
    async def stats() -> dict[str, TopicStats]:
        """Return the WebSocket sessions of this broker, by topic."""
        return by_topic(sessions())

    @router.get("/{domain}/{tenant}/{namespace}/{topic}/stats")
    async def topic_stats(domain: str, tenant: str, namespace: str, topic: str) -> TopicStats:
        """Return the WebSocket sessions of this broker on one topic; 404 if there are none."""
        name = naming.topic_of(f"{domain}://{tenant}/{namespace}/{topic}")
        found = by_topic(sessions()).get(str(name))
        if found is None:
            raise TopicNotFoundError(f"{name} has no WebSocket session on this broker")
        return found

    return router
