"""A topic that is copied to another cluster, in memory: its log and cursor, and a broker there that
answers when the test says so."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

from magnetar.broker.features.replication.remotes import RemoteCluster
from magnetar.broker.features.replication.sending import Sending, SendingSurroundings
from magnetar.broker.topic import Topic
from magnetar.cursors import CursorError
from magnetar.ledger.position import Position
from magnetar.sdk.errors import BrokerUnavailableError
from magnetar.sdk.wire import BaseCommand, FrameDecoder, MessageMetadata, TopicName, split_payload
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Harness, send_frame
from tests.unit.broker.memory_log import ManualClock, MemoryLog
from tests.unit.broker.memory_parts import TOPIC
from tests.waiting import settle


class MemoryCursor:
    """The replicator's cursor. Saves at once."""

    def __init__(self, log: MemoryLog, mark: Position) -> None:
        self._log = log
        self.name = "pulsar.repl.west"
        self.mark_delete = mark
        self.position_properties: Mapping[str, int] = {}
        self.properties: Mapping[str, str] = {}
        self.persists = 0
        self.error: CursorError | None = None
        """Error of a deletion."""

    @property
    def persisted_mark_delete(self) -> Position:
        return self.mark_delete

    @property
    def backlog_entries(self) -> int:
        return self._log.entries_between(self.mark_delete, self._log.last_confirmed)

    @property
    def is_caught_up(self) -> bool:
        return not self.backlog_entries

    def next_unacked(self, position: Position) -> Position:
        return self._log.next_position(max(position, self.mark_delete))

    def ack_cumulative(self, position: Position) -> bool:
        if position <= self.mark_delete:
            return False
        self.mark_delete = position
        return True

    def set_position_properties(self, properties: Mapping[str, int]) -> None:
        self.position_properties = dict(properties)

    async def delete(self) -> None:
        """Nothing is stored."""
        if self.error is not None:
            raise self.error

    async def persist(self) -> None:
        self.persists += 1


class There:
    """The other cluster: one connection to a broker of ours."""

    name = "west"

    def __init__(self) -> None:
        self.is_away = False
        self.defect: Exception | None = None
        self.server_version = "Magnetar-test"
        self.deduplicates_copies = True
        self.message_bytes_max = 5 << 20
        self.is_open = True
        self.producers: dict[int, Any] = {}
        self.copies: list[MessageMetadata] = []
        """Metadata of what arrived, in order."""
        self._decoder = FrameDecoder(6 << 20)
        self._ids = 0

    def next_producer_id(self) -> int:
        self._ids += 1
        return self._ids

    next_request_id = next_producer_id

    async def find(self, topic: str) -> "There":
        if self.defect is not None:
            raise self.defect
        if self.is_away:
            raise BrokerUnavailableError("west is away")
        return self

    async def request(self, _id: int, command: BaseCommand, *, timeout_ms: int) -> BaseCommand:
        return command

    def send(self, command: BaseCommand) -> None:
        """CLOSE_PRODUCER."""

    def write(self, buffers: list[bytes]) -> None:
        for _, payload in self._decoder.feed(b"".join(buffers)):
            metadata, _ = split_payload(payload)
            self.copies.append(metadata)

    # What a test does

    @property
    def places(self) -> list[int]:
        """Entry ids of what arrived."""
        return [each.magnetar_source.entry_id for each in self.copies]

    def receipt(self, *entry_ids: int) -> None:
        """Answer the copies of these entries."""
        receipts = [
            pb.CommandSendReceipt(producer_id=0, sequence_id=7, highest_sequence_id=each)
            for each in entry_ids
        ]
        for producer in list(self.producers.values()):
            producer.on_receipts(receipts)

    def lose(self) -> None:
        """End all producers, as a lost connection does."""
        for producer in list(self.producers.values()):
            producer.on_session_lost(self)


class CopiedTopic:
    """The topic of the harness with a sender to the cluster `west`. `begin`, `end`."""

    def __init__(self, **settings: Any) -> None:
        pauses = {"replication_retry_s": 0.001, "replication_retry_s_max": 0.001}
        self.harness = Harness(**{**pauses, **settings})
        self.clock = ManualClock()
        self.harness.topics.clock = self.clock
        self.there = There()
        self.log = self.harness.log

    async def begin(self, *, mark: int = -1) -> None:
        self.topic: Topic = await self.harness.services.topics.get(TopicName.parse(TOPIC))
        self.cursor = MemoryCursor(self.log, Position(7, mark))
        self.sender = Sending(
            self.topic,
            self.log,
            cast(Any, self.cursor),
            cast(RemoteCluster, self.there),
            SendingSurroundings(
                "east", self.clock, cast(Any, None), cast(Any, None), self.harness.settings
            ),
            incarnation=5,
        )
        self.sender.start()
        await asyncio.sleep(0)

    def set(self, **policies: Any) -> None:
        """Change the topic's policies."""
        self.topic.apply_policies(self.topic.policies.with_values(**policies))
        self.sender.policies_changed()

    def store(self, *entries: bytes) -> None:
        """Entries that are published now."""
        self.log.store(*entries)
        self.sender.on_stored()

    async def publish(self, *entries: bytes) -> None:
        """Entries that a client publishes, in one read."""
        client = self.harness.client()
        await client.produce()
        client.send_bytes(
            b"".join(send_frame(0, at, payload=each) for at, each in enumerate(entries))
        )
        await settle()
        self.sender.on_stored()
        await settle()

    async def end(self) -> None:
        self.sender.close()
        await self.sender.stopped()
