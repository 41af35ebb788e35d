"""The spans of a message, from its publish to its acknowledgement, as OpenTelemetry keeps them."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from magnetar.broker.broker import Broker
from magnetar.broker.features.tracing import TopicTrace
from magnetar.deploy.otel import sampler_of, spans_of
from magnetar.sdk import (
    Client,
    ConsumerSettings,
    ProducerSettings,
    SubscriptionType,
)
from tests.integration.broker.broker_on_bookies import TOPIC, broker_on
from tests.integration.ledger.cluster import cluster_of
from tests.waiting import until

_TRACE, _PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
_WAIT_S = 10.0


class _Kept:
    """Spans that have ended."""

    def __init__(self, ratio: float) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler=sampler_of(ratio))
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.spans = spans_of(provider)

    def ended(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [each for each in self.ended() if each.name == name]


async def _publish(broker: Broker, properties: dict[str, str], *, count: int = 1) -> None:
    async with Client(f"pulsar://127.0.0.1:{broker.port}") as client:
        producer = await client.producer(TOPIC, ProducerSettings(batching=False))
        for _ in range(count):
            await producer.send(b"body", properties=properties)


def _traceparent(flags: str) -> dict[str, str]:
    return {"traceparent": f"00-{_TRACE}-{_PARENT}-{flags}"}


@pytest.mark.parametrize("kind", [SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED])
async def test_a_traced_message_has_spans_from_publish_to_ack_below_its_clients(
    tmp_path: Path, kind: SubscriptionType
) -> None:
    kept = _Kept(0.0)
    async with (
        cluster_of(1, tmp_path) as cluster,
        broker_on(cluster, spans=kept.spans) as broker,
        Client(f"pulsar://127.0.0.1:{broker.port}") as client,
    ):
        await client.consumer(TOPIC, kind.name, ConsumerSettings(subscription_type=kind))
        await _publish(broker, _traceparent("01"))
        await until(lambda: bool(kept.named("dispatch")), "a span of the dispatch")
        assert kept.named("ack") == [], "nobody has acknowledged"
    names = [each.name for each in kept.ended()]
    assert sorted(names) == ["ack", "dispatch", "publish", "store"]
    by_name = {each.name: each for each in kept.ended()}
    assert {each.context.trace_id for each in kept.ended()} == {int(_TRACE, 16)}
    publish = by_name["publish"]
    assert publish.parent is not None
    assert publish.parent.span_id == int(_PARENT, 16)
    for name, above in (("store", "publish"), ("dispatch", "publish"), ("ack", "dispatch")):
        parent = by_name[name].parent
        assert parent is not None
        assert parent.span_id == by_name[above].context.span_id
    assert publish.attributes is not None
    assert publish.attributes["messaging.destination.name"] == TOPIC
    assert by_name["dispatch"].attributes is not None
    told = by_name["dispatch"].attributes["messaging.destination.subscription.name"]
    assert told == kind.name
    assert not by_name["ack"].status.is_ok, "it was closed, not acknowledged"


async def test_an_acknowledgement_ends_the_trace(tmp_path: Path) -> None:
    kept = _Kept(1.0)
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster, spans=kept.spans) as broker:
        for kind in (SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED):
            async with Client(f"pulsar://127.0.0.1:{broker.port}") as client:
                settings = ConsumerSettings(subscription_type=kind)
                consumer = await client.consumer(TOPIC, kind.name, settings)
                before = len(kept.named("ack"))
                await _publish(broker, {})
                consumer.acknowledge(await consumer.receive(timeout_s=_WAIT_S))
                await consumer.flush_acks()
                await until(lambda before=before: len(kept.named("ack")) == before + 1)  # type: ignore[misc]
        assert all(each.status.is_ok is not False for each in kept.named("publish"))
        assert [each.status.description for each in kept.named("ack")] == [None, None]


async def test_what_the_client_decided_counts_and_else_the_ratio(tmp_path: Path) -> None:
    kept = _Kept(0.0)
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster, spans=kept.spans) as broker:
        await _publish(broker, {})
        await _publish(broker, _traceparent("00"))
        await _publish(broker, {"traceparent": "no such thing"})
        assert kept.ended() == ()
        await _publish(broker, _traceparent("01"))
        assert [each.name for each in kept.ended()] == ["store", "publish"]


async def test_messages_that_nobody_takes_are_not_followed_for_ever(tmp_path: Path) -> None:
    kept = _Kept(1.0)
    async with (
        cluster_of(1, tmp_path) as cluster,
        broker_on(cluster, spans=kept.spans, tracing_messages_max=3) as broker,
    ):
        async with Client(f"pulsar://127.0.0.1:{broker.port}") as client:
            await client.consumer(TOPIC, "s", ConsumerSettings())
        await _publish(broker, {}, count=5)
        assert len(kept.named("publish")) == 5
        given_up = kept.named("dispatch")
        assert len(given_up) == 2
        assert all("too many" in str(each.status.description) for each in given_up)


async def test_a_broker_without_tracing_looks_at_no_message(tmp_path: Path) -> None:
    async with cluster_of(1, tmp_path) as cluster, broker_on(cluster) as broker:
        await _publish(broker, _traceparent("01"))
        (topic,) = broker.services.topics.loaded
        assert topic.find(TopicTrace) is None
        assert topic.line.checks == ()
