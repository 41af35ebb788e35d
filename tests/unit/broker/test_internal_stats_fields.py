"""Every field of Pulsar's internal statistics is computed, or is named with a reason."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from magnetar.broker.http.internal_stats import (
    INTERNAL_ABSENT,
    INTERNAL_CONSTANTS,
    topic_internal_stats,
)
from magnetar.broker.topic import Feature
from magnetar.cursors import Cursor
from magnetar.cursors.ack_state import AckState
from magnetar.cursors.saver import CursorSaver
from magnetar.cursors.settings import CursorSettings
from magnetar.ledger.managed_log.log_objects import LedgerObject, ObjectState
from magnetar.ledger.position import EARLIEST, Position
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Harness, consuming, entry
from tests.waiting import settle

PULSAR: Mapping[str, frozenset[str]] = {
    level: frozenset(fields.split())
    for level, fields in {
        "topic": """
            entriesAddedCounter numberOfEntries totalSize currentLedgerEntries currentLedgerSize
            lastLedgerCreatedTimestamp lastLedgerCreationFailureTimestamp waitingCursorsCount
            pendingAddEntriesCount lastConfirmedEntry state ledgers cursors schemaLedgers
            compactedLedger""",
        "ledger": "ledgerId entries size offloaded metadata underReplicated",
        "cursor": """
            markDeletePosition readPosition waitingReadOp pendingReadOps messagesConsumedCounter
            cursorLedger cursorLedgerLastEntry individuallyDeletedMessages
            lastLedgerSwitchTimestamp state active numberOfEntriesSinceFirstNotAckedMessage
            totalNonContiguousDeletedMessagesRange subscriptionHavePendingRead
            subscriptionHavePendingReplayRead properties""",
    }.items()
}
BEYOND = {"messagesAddedCounter", "removedThrough"}
"""Fields that Pulsar does not have; `transactions` is another, where there are some."""


class Seen:
    """The values that each field has had."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], set[str]] = defaultdict(set)

    def look(self, harness: Harness, *schema_ledgers: int) -> None:
        stats = topic_internal_stats(harness.topic, schema_ledgers=schema_ledgers)
        self._add("topic", stats)
        for ledger in (*stats["ledgers"], *stats["schemaLedgers"], stats["compactedLedger"]):
            self._add("ledger", ledger)
        for cursor in stats["cursors"].values():
            self._add("cursor", cursor)

    def _add(self, level: str, stats: Mapping[str, Any]) -> None:
        for field, value in stats.items():
            self.values[level, field].add(repr(value))


class Compacted(Feature):
    """Shows what compaction shows."""

    def shown(self) -> Mapping[str, Any]:
        return {"compacted_ledger": {"ledgerId": 30, "entries": 2}}


async def all_scenarios() -> Seen:
    seen = Seen()
    harness = Harness()
    harness.log.store(entry(), entry(), entry())
    client = await consuming(harness, permits=0, subType=pb.CommandSubscribe.Shared)
    seen.look(harness)
    client.flow(10)
    seen.look(harness)  # it is being read
    await client.produce()
    client.publish(0)
    await settle()
    client.ack(Position(7, 1))
    seen.look(harness)
    harness.topic.tail.cache.clear()
    client.redeliver(Position(7, 2))
    seen.look(harness, 40, 41)  # and again
    await settle()
    client.ack(Position(7, 0), Position(7, 2), Position(7, 3))
    seen.look(harness)
    harness.log.roll(9)
    harness.log.copied[7] = LedgerObject(ObjectState.COPIED, "ab" * 16, 0)
    log = cast(Any, harness.log)
    log.pending_batches, log.ledger_created_ms, log.removed_through = 1, 5, 3
    harness.log.terminated = Position(9, -1)
    topic = harness.topic
    topic.host(*topic.features, Compacted())
    context = topic.subscriptions["s"].context
    assert context is not None
    node = SimpleNamespace(properties={}, cursor_ledger_id=5)
    saver = SimpleNamespace(node=node, last_entry=1, switched_ms=2, record_bytes=9)
    cursor = Cursor(
        "s",
        AckState(topic.log, EARLIEST),
        cast(CursorSaver, saver),
        path="p",
        position_properties={"a": 1},
        settings=CursorSettings(),
        pace=None,
        clock=topic.clock,
    )
    topic.subscriptions["s"].context = replace(context, cursor=cursor)
    seen.look(harness)
    client.connection.lost()
    seen.look(harness)
    return seen


async def test_every_field_of_pulsars_is_computed_or_named_with_a_reason() -> None:
    seen = await all_scenarios()
    for level, fields in PULSAR.items():
        shown = {field for at, field in seen.values if at == level}
        assert fields - shown == {each for each in INTERNAL_ABSENT if each in fields}, level
        assert shown - fields <= BEYOND, level
        fixed = {field for field in shown if len(seen.values[level, field]) < 2}
        assert fixed == {each for each in INTERNAL_CONSTANTS if each in fields}, level
    assert all(reason for _, reason in INTERNAL_CONSTANTS.values())
