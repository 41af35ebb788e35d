"""What statistics say of producers and consumers."""

from magnetar.broker.http.topic_stats import topic_stats
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Harness

METADATA = [pb.KeyValue(key="app", value="billing"), pb.KeyValue(key="host", value="a1")]


async def test_what_clients_say_of_themselves_is_shown() -> None:
    harness = Harness()
    client = harness.client()
    await client.subscribe(metadata=METADATA)
    await client.produce(metadata=METADATA)
    told = topic_stats(harness.topic, now_ms=1, owner="b")
    (consumer,) = told["subscriptions"]["s"]["consumers"]
    (producer,) = told["publishers"]
    assert consumer["metadata"] == producer["metadata"] == {"app": "billing", "host": "a1"}


async def test_metadata_that_is_no_text_is_refused() -> None:
    harness = Harness()
    client = harness.client()
    odd = pb.KeyValue.FromString(b"\x0a\x01k\x12\x02\xff\xfe")
    assert (await client.subscribe(metadata=[odd])).type == BaseCommand.ERROR
    assert (await client.produce(1, metadata=[odd])).type == BaseCommand.ERROR
