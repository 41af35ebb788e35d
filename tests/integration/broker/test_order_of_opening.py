"""In which order a topic takes up again what is stored beside its log."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.broker import Broker
from magnetar.broker.features.compaction import Compaction, compaction_of
from magnetar.broker.features.deduplication.deduplication import Deduplication
from magnetar.broker.features.delayed.delayed_delivery import DelayedDelivery
from magnetar.broker.features.transactions.acknowledging import TransactionalAcks
from magnetar.broker.features.transactions.coordinator import Coordinator
from magnetar.broker.features.transactions.ids import coordinator_topic
from magnetar.broker.features.transactions.topic_transactions import TopicTransactions
from magnetar.broker.topic import TopicSubscriptions
from magnetar.ledger.log import ManagedLog
from magnetar.sdk import Client, ConsumerSettings
from magnetar.sdk.wire import TopicName, parse_topic_name
from tests.integration.broker.broker_on_bookies import TOPIC, broker_on
from tests.integration.ledger.cluster import cluster_of

_STEPS: list[tuple[object, str, str]] = [
    (ManagedLog, "open", "log"),
    (DelayedDelivery, "restore", "delayed delivery"),
    (TopicTransactions, "restore", "transactions"),
    (TransactionalAcks, "drop_all_but", "acknowledgements of subscriptions that are gone"),
    (Compaction, "_adopt", "compaction"),
    (TopicSubscriptions, "ensure", "subscription"),
    (Deduplication, "restore", "deduplication"),
    (Coordinator, "restore", "coordinator"),
]


def _note(steps: list[str], step: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def noting(*args: Any, **more: Any) -> Any:
        steps.append(step)
        return original(*args, **more)

    return noting


async def _reload(broker: Broker, name: TopicName) -> None:
    topics = broker.services.topics
    await topics.ends.hand_over([name], None, timeout_s=30)
    await topics.get(name)


async def test_a_topic_takes_up_what_is_stored_in_this_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What hides or withholds entries comes before subscriptions, what answers producers behind."""
    steps: list[str] = []
    async with (
        cluster_of(1, tmp_path) as cluster,
        broker_on(cluster, deduplication=True, transaction_coordinators=1) as broker,
    ):
        name = parse_topic_name(TOPIC)
        async with Client(f"pulsar://127.0.0.1:{broker.port}") as client:
            await client.consumer(TOPIC, "s", ConsumerSettings())
            producer = await client.producer(TOPIC)
            await producer.send(b"body", key="k")
        topic = await broker.services.topics.get(name)
        compaction_of(topic).start()
        await compaction_of(topic).finished()
        await broker.services.coordinators.get(0)
        for owner, function, step in _STEPS:
            original = getattr(owner, function)
            monkeypatch.setattr(owner, function, _note(steps, step, original))
        await _reload(broker, name)
        assert steps == [
            "log",
            "delayed delivery",
            "transactions",
            "acknowledgements of subscriptions that are gone",
            "compaction",
            "subscription",
            "deduplication",
        ]
        steps.clear()
        await _reload(broker, coordinator_topic(0))
        assert steps == [
            "log",
            "delayed delivery",
            "transactions",
            "acknowledgements of subscriptions that are gone",
            "deduplication",
            "coordinator",
        ]
