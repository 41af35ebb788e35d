"""A producer: one client's handle to publish to a topic, and the order of its answers.

Receipts leave strictly in the order of the SENDs, errors included: clients compare each receipt
with their oldest pending message and drop the connection when it does not fit. The log answers
batches in order; refusals in between wait for the batches before them, and so do the answers to
messages that a topic with deduplication knows already.

After a failed publish the producer is closed. The client resends what has no receipt through a new
one; publishes that were under way behind the failed one must not be answered any more, or a later
message could be receipted while an earlier one is lost.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import structlog

from magnetar.broker import replies
from magnetar.broker.deduplication.sequence_ids import Verdict
from magnetar.broker.errors import BrokerPersistenceError, NotAllowedError, RequestError
from magnetar.broker.message_checks import EncryptionCheck, MessageCheck
from magnetar.broker.meter import Meter
from magnetar.broker.ownership.protocol import Destination
from magnetar.broker.peer import Probed
from magnetar.ledger.errors import (
    LedgerError,
    LogClosedError,
    LogFencedError,
    LogTerminatedError,
    MessageTooLargeError,
)
from magnetar.sdk.wire import encode_send_receipts
from magnetar.sdk.wire.pulsar_pb2 import ProducerAccessMode

if TYPE_CHECKING:
    from magnetar.broker.topic import Topic
    from magnetar.broker.tracing import PublishTrace
    from magnetar.broker.transactions.ids import TransactionId
    from magnetar.broker.transactions.markers import Sender

_log = structlog.get_logger()


class PublishBatch:
    """The SENDs of one producer in one read: an append to the log, and the receipts it owes."""

    # What few batches have is only set where it is so: there is a batch for nearly every message.
    error: LedgerError | None = None
    arrived_s = 0.0
    """When it was handed to the log, by the monotonic clock."""
    has_highest_ids = False
    """One of `highest_ids` is set."""
    is_plain = True
    """None of the entries is delayed, a chunk or a marker."""
    chunks: Sequence[int] = ()
    """Indexes of the entries that are chunks."""
    open_chunks: set[int] | None = None
    """Indexes of entries that are chunks before the last of their message; only noted for topics
    with deduplication."""
    traces: "list[tuple[int, PublishTrace]] | None" = None
    """Of messages that are traced, with the indexes of their entries."""
    transactions: "list[tuple[int, TransactionId, Sender]] | None" = None
    """Of messages that are in one, with the indexes of their entries."""
    handed_over = 0
    """The number by which the topic's transactions know it, if it has any."""
    highest = -1
    """The highest sequence id, for deduplication; -1: none that counts."""
    answer: bytes | None = None
    """What is answered instead of storing the entries."""

    def __init__(self, producer: "Producer") -> None:
        self._producer = producer
        self.checks = producer.checks
        """What looks at the metadata of each message, if anything does."""
        self.payloads: list[bytes] = []
        """The entries: what the client sent, from the 0x0e01 magic on."""
        self.counts: list[int] = []
        """Messages in each entry."""
        self.sequence_ids: list[int] = []
        self.highest_ids: list[int] = []
        """highest_sequence_id of each SEND, 0 where it was not set."""
        self.messages = 0
        self.size_bytes = 0

    def note_chunk(self) -> None:
        """Note that the entry that comes next is a chunk."""
        self.chunks = [*self.chunks, len(self.payloads)]
        self.is_plain = False

    def note_open_chunk(self) -> None:
        """The entry that comes next is a chunk before the last of its message."""
        if self.open_chunks is None:
            self.open_chunks = set()
        self.open_chunks.add(len(self.payloads))

    def note_transaction(self, txn: "TransactionId", sender: "Sender") -> None:
        """The entry that comes next is in a transaction."""
        if self.transactions is None:
            self.transactions = []
        self.transactions.append((len(self.payloads), txn, sender))

    def part(self, start: int, stop: int) -> "PublishBatch":
        """A batch of the entries from `start` to before `stop`."""
        part = PublishBatch(self._producer)
        part.arrived_s = self.arrived_s
        part.payloads = self.payloads[start:stop]
        part.counts = self.counts[start:stop]
        part.sequence_ids = self.sequence_ids[start:stop]
        part.highest_ids = self.highest_ids[start:stop]
        part.has_highest_ids = any(part.highest_ids)
        part.is_plain = self.is_plain
        part.messages = sum(part.counts)
        part.size_bytes = sum(map(len, part.payloads))
        if self.open_chunks is not None:
            part.open_chunks = {at - start for at in self.open_chunks if start <= at < stop}
        if self.chunks:
            part.chunks = [at - start for at in self.chunks if start <= at < stop]
        if self.traces is not None:
            part.traces = [(at - start, each) for at, each in self.traces if start <= at < stop]
        if self.transactions is not None:
            within = [
                (at - start, txn, sender)
                for at, txn, sender in self.transactions
                if start <= at < stop
            ]
            part.transactions = within or None
        return part

    def on_appended(self, ledger_id: int, first_entry_id: int) -> None:
        """The log has the entries durably, at consecutive ids."""
        self._producer.batch_appended(self, ledger_id, first_entry_id)

    @property
    def producer_id(self) -> int:
        return self._producer.producer_id

    @property
    def producer_name(self) -> str:
        return self._producer.name

    def answered(self, frames: bytes, *, dropped: int) -> None:
        """Answer with these frames: the topic keeps nothing. `dropped`: messages not taken."""
        self._producer.batch_answered(self, frames, dropped=dropped)

    def on_failed(self, error: LedgerError) -> None:
        """The log could not store the entries, or does not know whether it did."""
        self._producer.batch_failed(self, error)


class ProducerPeer(Probed, Protocol):
    """The publishing side of one client connection, seen from its producers. `Publishing` is the
    real one."""

    @property
    def address(self) -> str:
        """host:port of the client, for logs and statistics."""
        ...

    @property
    def client_version(self) -> str:
        """What the client calls itself."""
        ...

    @property
    def is_partial_producer(self) -> bool:
        """Whether the client makes producers of the partitions it needs only."""
        ...

    def write(self, data: bytes) -> None:
        """Send bytes; nothing happens if the connection is gone."""
        ...

    def on_publishes_done(self, batch: PublishBatch) -> None:
        """Publishes are durable, or have failed: there is room for more."""
        ...

    def producer_closed(self, producer: "Producer", destination: Destination | None) -> None:
        """The broker closed the producer: tell the client, and where to go; forget the id."""
        ...


class Producer:
    """One producer of a topic. Not thread safe; everything happens on the event loop."""

    __slots__ = (
        "_on_drained",
        "_waiting",
        "access_mode",
        "bytes_in",
        "chunks_in",
        "connected_at_ms",
        "epoch",
        "is_closed",
        "is_encrypted",
        "messages_dropped",
        "messages_in",
        "metadata",
        "meter",
        "name",
        "peer",
        "producer_id",
        "schema_version",
        "topic",
        "topic_epoch",
    )

    def __init__(
        self,
        peer: ProducerPeer,
        producer_id: int,
        *,
        topic: "Topic",
        name: str,
        epoch: int,
        is_encrypted: bool = False,
    ) -> None:
        self.peer = peer
        self.producer_id = producer_id
        self.topic = topic
        self.name = name
        self.epoch = epoch
        self.is_encrypted = is_encrypted
        self.access_mode = ProducerAccessMode.Shared
        """What its client asked for."""
        self.connected_at_ms = topic.clock.wall_ms()
        self.topic_epoch: int | None = None
        """Of a producer that has the topic for itself."""
        self.schema_version = b""
        """As its messages say it; empty: it has no schema."""
        self.metadata: dict[str, str] = {}
        """What its client says of it, for who looks at the statistics."""
        self.is_closed = False
        self.messages_in = 0
        self.bytes_in = 0
        self.chunks_in = 0
        self.messages_dropped = 0
        """Messages that a topic without a store took no notice of: too many at once."""
        self.meter = Meter(0, 0, 0, 0, since_ms=self.connected_at_ms)
        """Of those four."""
        # Batches under way, and encoded SEND_ERRORs that wait for the batches before them.
        self._waiting: deque[PublishBatch | bytes] = deque()
        self._on_drained: Callable[[], None] | None = None

    @property
    def checks(self) -> tuple[MessageCheck, ...]:
        """What looks at the metadata of each of its messages."""
        topic = self.topic
        if self.is_encrypted and not topic.policies.encryption_required:
            return (EncryptionCheck(str(topic.name)), *topic.checks)
        return topic.checks

    def sample(self, now_ms: int) -> None:
        """Note the counters for the rates, once per interval."""
        self.meter.sample(now_ms, *self._counters)

    def rates(self, now_ms: int) -> tuple[float, ...]:
        """Messages, bytes and chunks published, and messages dropped, per second of the last
        minute."""
        return self.meter.per_s(now_ms, *self._counters)

    @property
    def _counters(self) -> tuple[int, int, int, int]:
        return self.messages_in, self.bytes_in, self.chunks_in, self.messages_dropped

    def publish(self, batch: PublishBatch) -> None:
        """Append the batch to the topic; if that moves, the client sends it again elsewhere."""
        if self.topic.is_draining:
            batch.error = LogClosedError(f"{self.topic.name} moves to another broker")
            self.peer.on_publishes_done(batch)
            return
        deduplication = self.topic.deduplication
        if deduplication is None or deduplication.accept(batch):
            self._waiting.append(batch)
            self.topic.publish(batch)
        else:
            self._publish_parts(deduplication.take_apart(batch))

    def _publish_parts(self, parts: Iterable[tuple[Verdict, PublishBatch]]) -> None:
        """Store what is new; what was sent before is answered in its place."""
        for verdict, part in parts:
            if verdict is Verdict.NEW:
                self._waiting.append(part)
                self.topic.publish(part)
                continue
            if verdict is Verdict.DUPLICATE:
                part.answer = self._duplicate_receipts(part)
            else:
                text = f"{self.topic.name}: the same message is being stored: send it again"
                part.answer = self._errors(part, BrokerPersistenceError(text))
            self._waiting.append(part)
            self._go_on()

    def _duplicate_receipts(self, batch: PublishBatch) -> bytes:
        return encode_send_receipts(
            self.producer_id,
            batch.sequence_ids,
            ledger_id=-1,
            entry_ids=[-1] * len(batch.sequence_ids),
            highest_sequence_ids=batch.highest_ids if batch.has_highest_ids else None,
        )

    def _errors(self, batch: PublishBatch, error: RequestError) -> bytes:
        text = str(error)
        return b"".join(
            replies.send_error(self.producer_id, max(sequence_id, highest_id), error.code, text)
            for sequence_id, highest_id in zip(batch.sequence_ids, batch.highest_ids, strict=True)
        )

    def reject(self, sequence_id: int, error: RequestError) -> None:
        """Answer one SEND with an error, after the answers to everything before it."""
        frame = replies.send_error(self.producer_id, sequence_id, error.code, str(error))
        if self._waiting:
            self._waiting.append(frame)
        else:
            self.peer.write(frame)

    def receipt_again(self, sequence_id: int, highest_id: int) -> None:
        """Answer a SEND of what is stored already, after the answers to everything before it."""
        frame = encode_send_receipts(
            self.producer_id,
            [sequence_id],
            ledger_id=-1,
            entry_ids=[-1],
            highest_sequence_ids=[highest_id] if highest_id else None,
        )
        if self._waiting:
            self._waiting.append(frame)
        elif self.topic.tenure.holds():
            self.peer.write(frame)

    def batch_appended(self, batch: PublishBatch, ledger_id: int, first_entry_id: int) -> None:
        """Hand the entries to the topic, send the receipts, make room.

        A broker whose tenure has ended sends none: it is told about that, and closes the producer.
        """
        head = self._waiting.popleft()
        assert head is batch, "the log answers appends in order"
        # First: dispatchers then wake before what is written here leaves, and it leaves together.
        self.topic.entries_appended(batch, ledger_id, first_entry_id)
        sequence_ids = batch.sequence_ids
        count = len(sequence_ids)
        if not self.is_closed and self.topic.tenure.holds():
            self.messages_in += batch.messages
            self.bytes_in += batch.size_bytes
            self.chunks_in += len(batch.chunks)
            receipts = encode_send_receipts(
                self.producer_id,
                sequence_ids,
                ledger_id=ledger_id,
                entry_ids=range(first_entry_id, first_entry_id + count),
                highest_sequence_ids=batch.highest_ids if batch.has_highest_ids else None,
            )
            self.peer.write(receipts)
        self.peer.on_publishes_done(batch)
        if self._waiting or self._on_drained is not None:
            self._go_on()

    def batch_answered(self, batch: PublishBatch, frames: bytes, *, dropped: int = 0) -> None:
        """Send what the topic answers, after the answers to everything before it. `dropped`:
        messages of the batch that the topic took no notice of."""
        self.messages_in += batch.messages
        self.bytes_in += batch.size_bytes
        self.chunks_in += len(batch.chunks)
        self.messages_dropped += dropped
        batch.answer = frames
        self._go_on()

    def batch_failed(self, batch: PublishBatch, error: LedgerError) -> None:
        """Report the failure, once everything before it has been answered.

        A log that refuses an append outright may do so before it has answered earlier ones.
        """
        batch.error = error
        if batch.traces is not None:
            for _, trace in batch.traces:
                trace.failed(str(error))
        if batch.handed_over and self.topic.transactions is not None:
            self.topic.transactions.buffer.failed(batch, error)
        self.topic.on_publish_failed(batch.messages)
        self.peer.on_publishes_done(batch)
        self._go_on()

    def _fail(self, batch: PublishBatch, error: LedgerError) -> None:
        """Tell the client what failed and close the producer: see the module's theory."""
        if self.is_closed:
            return
        # A fenced or closed log says nothing about the message: the client is told to look the
        # topic up again, and resends by itself. So it does to a terminated one, and hears of that.
        if not isinstance(error, (LogFencedError, LogClosedError, LogTerminatedError)):
            _log.warning(
                "publish_failed",
                topic=str(self.topic.name),
                producer_id=self.producer_id,
                messages=batch.messages,
                error=str(error),
            )
            text = f"{self.topic.name}: the message could not be stored: {error}"
            # What never passes is not to be sent again.
            is_final = isinstance(error, MessageTooLargeError)
            refusal = NotAllowedError(text) if is_final else BrokerPersistenceError(text)
            self.peer.write(self._errors(batch, refusal))
        self.close_by_broker()

    def _go_on(self) -> None:
        """Answer what waited for the answers before it; report when nothing is under way."""
        waiting = self._waiting
        while waiting:
            head = waiting[0]
            if isinstance(head, bytes):
                if not self.is_closed:
                    self.peer.write(head)
            elif head.error is not None:
                self._fail(head, head.error)
            elif head.answer is not None:
                # A duplicate's receipt says that the message is stored.
                if not self.is_closed and self.topic.tenure.holds():
                    self.peer.write(head.answer)
                waiting.popleft()
                self.peer.on_publishes_done(head)
                continue
            else:
                return
            waiting.popleft()
        if self._on_drained is not None:
            on_drained, self._on_drained = self._on_drained, None
            on_drained()

    def close_by_client(self, on_drained: Callable[[], None]) -> None:
        """Take no more; call back when every publish under way has been answered."""
        if self._waiting:
            self._on_drained = on_drained
        else:
            on_drained()

    def close(self) -> None:
        """Leave the topic. Publishes under way go on, but nobody is told."""
        if not self.is_closed:
            self.is_closed = True
            self.topic.remove_producer(self)

    def close_by_broker(self, destination: Destination | None = None) -> None:
        """Leave the topic and tell the client, which goes to `destination`, or looks it up."""
        if not self.is_closed:
            self.close()
            self.peer.producer_closed(self, destination)
