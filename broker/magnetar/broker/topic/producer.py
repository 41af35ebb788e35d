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
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import structlog

from magnetar.broker.base import replies
from magnetar.broker.base.errors import BrokerPersistenceError, NotAllowedError, RequestError
from magnetar.broker.base.meter import Meter
from magnetar.broker.cluster.ownership.protocol import Destination
from magnetar.broker.topic.peer import Probed
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
    from magnetar.broker.topic.feature import Gate
    from magnetar.broker.topic.publish_batch import MessageCheck, PublishBatch
    from magnetar.broker.topic.publish_line import PublishLine

_log = structlog.get_logger()


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

    def on_publishes_done(self, batch: "PublishBatch") -> None:
        """Publishes are durable, or have failed: there is room for more."""
        ...

    def producer_closed(self, producer: "Producer", destination: Destination | None) -> None:
        """The broker closed the producer: tell the client, and where to go; forget the id."""
        ...


class Producer:
    """One producer of a topic. Not thread safe; everything happens on the event loop."""

    __slots__ = (
        "_on_closed",
        "_on_drained",
        "_waiting",
        "access_mode",
        "bytes_in",
        "chunks_in",
        "connected_at_ms",
        "epoch",
        "is_closed",
        "is_encrypted",
        "line",
        "messages_dropped",
        "messages_in",
        "metadata",
        "meter",
        "name",
        "peer",
        "producer_id",
        "schema_version",
        "topic_epoch",
    )

    def __init__(
        self,
        peer: ProducerPeer,
        producer_id: int,
        *,
        line: "PublishLine",
        on_closed: Callable[["Producer"], None],
        name: str,
        epoch: int,
        is_encrypted: bool = False,
    ) -> None:
        """`line`: of its topic. `on_closed`: it has left the topic."""
        self.peer = peer
        self.producer_id = producer_id
        self.line = line
        self._on_closed = on_closed
        self.name = name
        self.epoch = epoch
        self.is_encrypted = is_encrypted
        self.access_mode = ProducerAccessMode.Shared
        """What its client asked for."""
        self.connected_at_ms = line.clock.wall_ms()
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
        """Rates of messages, bytes, chunks and dropped messages."""
        # Batches under way, and encoded SEND_ERRORs that wait for the batches before them.
        self._waiting: deque[PublishBatch | bytes] = deque()
        self._on_drained: Callable[[], None] | None = None

    @property
    def checks(self) -> "tuple[MessageCheck, ...]":
        """What looks at the metadata of each of its messages."""
        if not self.is_encrypted:
            return self.line.checks
        return self.line.checks_of(is_encrypted=True)

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

    def publish(self, batch: "PublishBatch") -> None:
        """Append the batch to the topic; if that moves, the client sends it again elsewhere."""
        line = self.line
        if line.is_draining:
            batch.error = LogClosedError(f"{line.name} moves to another broker")
            self.peer.on_publishes_done(batch)
        elif line.gates:
            self._pass(batch, line.gates)
        else:
            self._waiting.append(batch)
            line.append(batch)

    def _pass(self, batch: "PublishBatch", gates: "Sequence[Gate]") -> None:
        """Have gates decide in their order: the batch is stored, or answered in its place, or each
        part of it is."""
        for at, gate in enumerate(gates, 1):
            parts = gate.accept(batch)
            if parts is None:
                continue
            for part in parts:
                if part.is_duplicate:
                    self._answer(part, self._duplicate_receipts(part))
                elif part.refusal is not None:
                    self._answer(part, self._errors(part, part.refusal))
                    if part.closes_producer and not self.is_closed:
                        self.close_by_client(self.close_by_broker)
                else:
                    self._pass(part, gates[at:])
            return
        self._waiting.append(batch)
        self.line.append(batch)

    def _answer(self, batch: "PublishBatch", frames: bytes) -> None:
        """Answer a batch that is not stored, after the answers to everything before it."""
        batch.answer = frames
        self._waiting.append(batch)
        self._go_on()

    def _duplicate_receipts(self, batch: "PublishBatch") -> bytes:
        sequence_ids, highest_ids = batch.ids_in_receipts
        return encode_send_receipts(
            self.producer_id,
            sequence_ids,
            ledger_id=-1,
            entry_ids=[-1] * len(sequence_ids),
            highest_sequence_ids=highest_ids,
        )

    def _errors(self, batch: "PublishBatch", error: RequestError) -> bytes:
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
        elif self.line.tenure.holds():
            self.peer.write(frame)

    def batch_appended(self, batch: "PublishBatch", ledger_id: int, first_entry_id: int) -> None:
        """Hand the entries to the topic, send the receipts, make room.

        A broker whose tenure has ended sends none: it is told about that, and closes the producer.
        """
        head = self._waiting.popleft()
        assert head is batch, "the log answers appends in order"
        # First: dispatchers then wake before what is written here leaves, and it leaves together.
        self.line.stored(batch, ledger_id, first_entry_id)
        if not self.is_closed and self.line.tenure.holds():
            self.messages_in += batch.messages
            self.bytes_in += batch.size_bytes
            self.chunks_in += len(batch.chunks)
            sequence_ids, highest_ids = batch.ids_in_receipts
            receipts = encode_send_receipts(
                self.producer_id,
                sequence_ids,
                ledger_id=ledger_id,
                entry_ids=range(first_entry_id, first_entry_id + len(sequence_ids)),
                highest_sequence_ids=highest_ids,
            )
            self.peer.write(receipts)
        self.peer.on_publishes_done(batch)
        if self._waiting or self._on_drained is not None:
            self._go_on()

    def batch_answered(self, batch: "PublishBatch", frames: bytes, *, dropped: int = 0) -> None:
        """Send what the topic answers, after the answers to everything before it. `dropped`:
        messages of the batch that the topic took no notice of."""
        self.messages_in += batch.messages
        self.bytes_in += batch.size_bytes
        self.chunks_in += len(batch.chunks)
        self.messages_dropped += dropped
        batch.answer = frames
        self._go_on()

    def batch_failed(self, batch: "PublishBatch", error: LedgerError) -> None:
        """Report the failure, once everything before it has been answered.

        A log that refuses an append outright may do so before it has answered earlier ones.
        """
        batch.error = error
        self.line.failed(batch, error)
        self.peer.on_publishes_done(batch)
        self._go_on()

    def _fail(self, batch: "PublishBatch", error: LedgerError) -> None:
        """Tell the client what failed and close the producer: see the module's theory."""
        if self.is_closed:
            return
        # A fenced or closed log says nothing about the message: the client is told to look the
        # topic up again, and resends by itself. So it does to a terminated one, and hears of that.
        if not isinstance(error, (LogFencedError, LogClosedError, LogTerminatedError)):
            _log.warning(
                "publish_failed",
                topic=str(self.line.name),
                producer_id=self.producer_id,
                messages=batch.messages,
                error=str(error),
            )
            text = f"{self.line.name}: the message could not be stored: {error}"
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
                if not self.is_closed and self.line.tenure.holds():
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
            self._on_closed(self)

    def close_by_broker(self, destination: Destination | None = None) -> None:
        """Leave the topic and tell the client, which goes to `destination`, or looks it up."""
        if not self.is_closed:
            self.close()
            self.peer.producer_closed(self, destination)
