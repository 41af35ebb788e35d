"""A topic that hosts everything there is, in memory, and what happens on it, in order."""

from collections.abc import Mapping
from typing import Any

import pytest

from magnetar.broker.features.tracing import Attributes, Span
from magnetar.broker.features.transactions.buffer_state import BufferState
from magnetar.broker.protocol.link import Link
from magnetar.broker.topic import Topic
from magnetar.broker.topic.tail_cache import TailCache
from magnetar.ledger.position import Position
from magnetar.sdk.wire import FRAME_BYTES_MAX, BaseCommand, FrameDecoder
from tests.unit.broker.harness import Client, Harness, entry, send_frame
from tests.unit.broker.memory_log import MemoryLog
from tests.unit.broker.memory_parts import TOPIC, MemorySnapshot

TXN: dict[str, Any] = {"txnid_most_bits": 0, "txnid_least_bits": 1}


class _Span:
    def __init__(self, name: str, happened: list[str]) -> None:
        self._name = name
        self._happened = happened

    def event(self, name: str) -> None:
        """Nothing that is looked at."""

    def end(self, *, error: str = "") -> None:
        self._happened.append(f"span {self._name} ends" + (" in an error" if error else ""))


class _Spans:
    """Samples every message."""

    def __init__(self, happened: list[str]) -> None:
        self._happened = happened

    def begin(
        self,
        name: str,
        *,
        attributes: Attributes,
        parent: Span | None = None,
        carrier: Mapping[str, str] | None = None,
    ) -> Span | None:
        self._happened.append(f"span {name} begins")
        return _Span(name, self._happened)


class _Snapshot(MemorySnapshot):
    def __init__(self, log: MemoryLog, happened: list[str]) -> None:
        super().__init__(log)
        self._happened = happened

    def ack_cumulative(self, position: Position) -> bool:
        self._happened.append("deduplication takes a snapshot")
        return super().ack_cumulative(position)


class Everything:
    """One topic with deduplication, transactions, delays and traces, and a client of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.happened: list[str] = []
        self.reloads: list[str] = []
        """The reasons for which the topic was to be loaded again."""
        settings = {"deduplication": True, "dedup_snapshot_entries": 1, **settings}
        self.harness = Harness(**settings)
        self.harness.topics.has_transactions = True
        self.harness.topics.spans = _Spans(self.happened)
        self.harness.topics.snapshots[TOPIC] = _Snapshot(self.harness.log, self.happened)
        self._listen(monkeypatch)
        self.client = self.harness.client()

    def _listen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have what passes noted; all of it passes as it would otherwise."""
        happened, decoder = self.happened, FrameDecoder(FRAME_BYTES_MAX + 1024)
        on_entry, add, write = BufferState.on_entry, TailCache.add, Link.write

        def noting_on_entry(state: BufferState, *args: Any, **more: Any) -> None:
            happened.append("transactions note the entry")
            on_entry(state, *args, **more)

        def noting_add(cache: TailCache, run: Any) -> None:
            happened.append("the tail cache has the entry")
            add(cache, run)

        def noting_write(link: Link, data: bytes) -> None:
            for command, _ in decoder.feed(data):
                happened.append(BaseCommand.Type.Name(command.type))
            write(link, data)

        monkeypatch.setattr(BufferState, "on_entry", noting_on_entry)
        monkeypatch.setattr(TailCache, "add", noting_add)
        monkeypatch.setattr(Link, "write", noting_write)

    @property
    def topic(self) -> Topic:
        return self.harness.topic

    async def start(self, *, subscribes: bool = True) -> None:
        """A consumer and a producer, and the topic ready for transactions."""
        if subscribes:
            answer = await self.client.subscribe(subType=1)
            assert answer.type == BaseCommand.SUCCESS, answer
            self.client.flow(100)
        answer = await self.client.produce(producer_name="p", txn_enabled=True)
        assert answer.type == BaseCommand.PRODUCER_SUCCESS, answer
        self.topic.reload = self._note_reload
        self.harness.log.is_immediate = False
        self.happened.clear()

    def _note_reload(self, reason: str) -> None:
        self.reloads.append(reason)
        self.topic.disconnect_all()

    def send(self, sequence_id: int, *, in_transaction: bool = False, **metadata: Any) -> None:
        """One message in a read of its own; `metadata` are fields of its metadata."""
        self.client.send_bytes(self.frame(sequence_id, in_transaction=in_transaction, **metadata))

    def frame(self, sequence_id: int, *, in_transaction: bool = False, **metadata: Any) -> bytes:
        """One SEND; `metadata` are fields of its metadata."""
        txn: dict[str, Any] = TXN if in_transaction else {}
        payload = entry(
            metadata.pop("body", b"body"),
            sequence_id=metadata.pop("inner_id", sequence_id),
            **txn,
            **metadata,
        )
        return send_frame(0, sequence_id, payload=payload, **txn)


def answers(client: Client) -> list[tuple[str, int]]:
    """What each SEND was answered with, in order: the kind of the answer and the sequence id."""
    found = []
    for command, _ in client.received():
        if command.type == BaseCommand.SEND_RECEIPT:
            receipt = command.send_receipt
            kind = "receipt" if receipt.message_id.entryId < 1 << 63 else "duplicate"
            found.append((kind, receipt.sequence_id))
        elif command.type == BaseCommand.SEND_ERROR:
            found.append(("error", command.send_error.sequence_id))
    return found
