"""For stories about trimming: a topic whose ledgers are consumed, and trimming it now."""

import asyncio

from magnetar.broker.features.retention import trimming
from magnetar.broker.topic import Topic
from magnetar.ledger.ledger_manager import LedgerManager
from magnetar.ledger.orphans import OrphanSweep, Verdict, log_refers
from tests.simulation.cluster.broker import SimBroker
from tests.simulation.cluster.cluster import Cluster

SMALL_LEDGERS: dict[str, object] = {"ledger_entries_max": 1}
"""Each message fills a ledger. The last full one stays until something follows it."""

_LATER_MS = 100 * 60 * 60 * 1000


async def consumed_topic(sim: Cluster, messages: int = 4) -> SimBroker:
    """A topic "t" whose subscription "s" has acknowledged everything, durably; its owner."""
    consumer = await sim.user("c").consumer("t")
    await fill(sim, messages)
    await consumer.take(messages)
    consumer.ack(*consumer.got)
    await sim.settle()
    return sim.owner_of("t")


async def fill(sim: Cluster, messages: int) -> None:
    """Publish messages to the topic, each into a ledger of its own."""
    producer = await sim.user("p").producer("t")
    for number in range(1, messages + 1):
        await producer.publish(1)

        def is_rotated(count: int = number) -> bool:
            ledgers = sim.log_metadata("t").ledgers
            return len(ledgers) == count + 1 and all(each.is_closed for each in ledgers[:-1])

        await sim.until(is_rotated)


def loaded_topic(owner: SimBroker) -> Topic:
    """The topic "t", as its owner has it."""
    topic = owner.topic("t")
    assert topic is not None
    return topic


def trim_soon(owner: SimBroker) -> "asyncio.Task[int]":
    """Begin to trim the topic, as the ticker would."""
    assert owner.process is not None
    return owner.process.spawn(trimming.trim(loaded_topic(owner)), "trim")


def listed(sim: Cluster) -> list[int]:
    """The ledgers of the topic's list."""
    return [ledger.ledger_id for ledger in sim.log_metadata("t").ledgers]


def existing(sim: Cluster) -> set[int]:
    """Ledgers of the topic that have metadata."""
    return {
        ledger_id
        for ledger_id in sim.store.ledger_ids.values()
        if (metadata := sim.store.metadata(ledger_id)) is not None
        and metadata.custom_metadata.get("log") == sim.log_path("t")
        and metadata.custom_metadata.get("component") == "managed-log"
    }


async def swept(sim: Cluster) -> list[int]:
    """Sweep the orphans of managed logs, long after; which ledgers were deleted."""
    client = sim.clients.get("y") or await sim.client("y")

    async def sweep() -> list[int]:
        now_ms = client.clock.wall_ms() + _LATER_MS
        owners = {"managed-log": log_refers(client.store)}
        manager = LedgerManager(client.store, random=client.random, clock=client.clock)
        found = OrphanSweep(manager, owners, now_ms=now_ms)
        return [
            each.ledger_id
            async for each in found.run(delete=True)
            if each.verdict is Verdict.DELETED
        ]

    return await client.run(sweep())
