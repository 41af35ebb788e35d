"""`/broker-stats/topics`: every field that Pulsar has there, also those with names of former times.

Fields that a topic's own statistics have as well are tested with those (`test_stats_fields.py`).
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from magnetar.broker.http.brokers import OLD_CONSTANTS, with_old_names
from magnetar.broker.http.topic_stats import topic_stats
from magnetar.ledger.position import Position
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Harness, consuming, entry
from tests.unit.broker.pulsar_stats import PULSAR
from tests.waiting import settle

BROKER_TOPICS: Mapping[str, frozenset[str]] = {
    level: frozenset(fields.split())
    for level, fields in {
        "topic": """
            publishers replication subscriptions producerCount averageMsgSize msgRateIn msgRateOut
            msgInCount bytesInCount msgOutCount bytesOutCount msgThroughputIn msgThroughputOut
            storageSize backlogSize pendingAddEntriesCount filteredEntriesCount""",
        "publisher": """
            msgRateIn msgThroughputIn averageMsgSize address producerId producerName connectedSince
            clientVersion metadata""",
        "subscription": """
            consumers msgBacklog msgRateExpired msgRateOut messageAckRate msgThroughputOut
            msgRateRedeliver numberOfEntriesSinceFirstNotAckedMessage
            totalNonContiguousDeletedMessagesRange type filterProcessedMsgCount
            filterAcceptedMsgCount filterRejectedMsgCount filterRescheduledMsgCount
            blockedSubscriptionOnUnackedMsgs unackedMessages""",
        "consumer": """
            address consumerName availablePermits connectedSince msgRateOut msgThroughputOut
            msgRateRedeliver avgMessagesPerEntry messageAckRate unackedMessages
            blockedConsumerOnUnackedMsgs clientVersion metadata""",
    }.items()
}


class Seen:
    """The values that each field has had."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], set[str]] = defaultdict(set)

    def look(self, harness: Harness) -> dict[str, Any]:
        topic = harness.topic
        stats = with_old_names(topic, topic_stats(topic, now_ms=topic.clock.wall_ms(), owner="a"))
        self._add("topic", stats)
        for publisher in stats["publishers"]:
            self._add("publisher", publisher)
        for subscription in stats["subscriptions"].values():
            self._add("subscription", subscription)
            for consumer in subscription["consumers"]:
                self._add("consumer", consumer)
        return stats

    def _add(self, level: str, stats: Mapping[str, Any]) -> None:
        for field, value in stats.items():
            self.values[level, field].add(repr(value))


async def test_every_field_of_pulsars_is_there_and_computed_or_a_constant() -> None:
    seen = Seen()
    harness = Harness()
    harness.log.store(entry(), entry(), entry())
    client = await consuming(harness, permits=10, subType=pb.CommandSubscribe.Shared)
    seen.look(harness)
    await client.produce()
    client.publish(0)
    harness.log.pending_batches = 1  # type: ignore[attr-defined]
    await settle()
    client.ack(Position(7, 1))
    stats = seen.look(harness)
    shown = stats["subscriptions"]["s"]
    assert shown["numberOfEntriesSinceFirstNotAckedMessage"] == 4
    assert shown["totalNonContiguousDeletedMessagesRange"] == 1
    assert (stats["producerCount"], stats["msgInCount"], stats["msgOutCount"]) == (1, 1, 4)
    for level, fields in BROKER_TOPICS.items():
        assert fields <= {field for at, field in seen.values if at == level}, level
        for field in fields - PULSAR[level]:
            values = seen.values[level, field]
            if field in OLD_CONSTANTS:
                value, reason = OLD_CONSTANTS[field]
                assert reason
                assert values == {repr(value)}
            else:
                assert len(values) > 1, field
