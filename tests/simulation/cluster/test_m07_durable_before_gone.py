"""Defect M7: trimming relies on, or moves, positions that are in memory only (rule 5.1)."""

from tests.simulation.cluster.cluster import Cluster, story
from tests.simulation.cluster.trimming import (
    SMALL_LEDGERS,
    consumed_topic,
    fill,
    listed,
    loaded_topic,
    trim_soon,
)


@story(settings={**SMALL_LEDGERS, "ack_persist_interval_ms": 600_000})
async def test_m07_what_is_acknowledged_in_memory_only_is_not_trimmed(sim: Cluster) -> None:
    owner = await consumed_topic(sim)
    cursor = loaded_topic(owner).subscriptions["s"].cursor
    assert cursor.is_caught_up
    assert await trim_soon(owner) == 0
    owner.crash()
    await sim.moved("t", away_from=owner)
    again = await sim.user("d").consumer("t", "other")
    assert await again.take(4) == [b"p:0", b"p:1", b"p:2", b"p:3"]
    await sim.inspect()


@story(settings=SMALL_LEDGERS)
async def test_m07_a_cursor_is_durably_behind_a_ledger_before_that_goes(sim: Cluster) -> None:
    consumer = await sim.user("c").consumer("t")
    await fill(sim, 4)
    await consumer.take(4)
    consumer.ack(*consumer.got[:2])  # it stands at the last entry of the second ledger
    await sim.settle()
    owner = sim.owner_of("t")
    before = listed(sim)
    assert await trim_soon(owner) == 2
    owner.crash()
    second = await sim.moved("t", away_from=owner)
    assert listed(sim)[:2] == before[2:4]
    assert await consumer.take(2) == [b"p:2", b"p:3"]
    assert loaded_topic(second).subscriptions["s"].cursor.backlog_entries == 2
    await sim.inspect()
