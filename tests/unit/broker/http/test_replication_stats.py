"""What statistics of a topic say of copies that come from other clusters."""

from collections.abc import Mapping
from typing import Any

from magnetar.broker.features.replication.names import replicator_name
from magnetar.broker.http.topic_stats import topic_stats
from magnetar.broker.topic import Feature
from tests.unit.broker.harness import Harness
from tests.unit.broker.replication.sending_parts import CopiedTopic

HERE = "standalone"


class _CopiesTo(Feature):
    """A feature that copies the topic to another cluster."""

    def __init__(self, cluster: str, shown: Mapping[str, Any]) -> None:
        self._shown = {"replication": {cluster: shown}}

    def shown(self) -> Mapping[str, Any]:
        return self._shown


async def _stats(*, copies_to: str) -> Mapping[str, Any]:
    harness = Harness()
    client = harness.client()
    await client.produce(producer_name=replicator_name("west", HERE))
    await client.produce(1, producer_name="mine")
    (copier,) = (each for each in harness.topic.producers.values() if each.name != "mine")
    copier.messages_in, copier.bytes_in = 6, 600
    copied = CopiedTopic()
    await copied.begin()
    feature = _CopiesTo(copies_to, copied.sender.shown())
    await copied.end()
    harness.topic.host(*harness.topic.features, feature)
    return topic_stats(harness.topic, now_ms=copier.connected_at_ms + 3_000, owner="b")


async def test_what_a_cluster_sends_stands_beside_what_it_is_sent() -> None:
    stats = await _stats(copies_to="west")
    west = stats["replication"]["west"]
    assert (west["msgRateIn"], west["msgThroughputIn"]) == (2.0, 200.0)
    assert (west["msgInCount"], west["bytesInCount"]) == (6, 600)
    assert west["inboundConnection"].startswith("client:")
    assert west["inboundConnectedSince"].endswith("+00:00")
    assert [each["producerName"] for each in stats["publishers"]] == ["mine"]


async def test_a_cluster_that_is_sent_nothing_is_a_publisher_like_others() -> None:
    stats = await _stats(copies_to="north")
    assert list(stats["replication"]) == ["north"]
    assert stats["replication"]["north"]["inboundConnection"] is None
    names = [each["producerName"] for each in stats["publishers"]]
    assert names == [replicator_name("west", HERE), "mine"]
