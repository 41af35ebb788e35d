"""A producer: one client's handle to publish to a topic, and the order of its answers.

Receipts are sent strictly in the order of the SENDs, errors included. Clients compare each receipt
with their oldest pending message, and drop the connection if it does not fit. The log answers
batches in order. Refusals wait for the batches before them, and so do answers to duplicates on a
topic with deduplication.

After a failed publish the producer is closed, and the client resends everything without a receipt
through a new one. Pending publishes after the failed one must not be answered any more: a later
message could get a receipt while an earlier one is lost.
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
    InvariantError,
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
    """The publishing side of a client connection, as its producers see it.

    `Publishing` implements it.
    """

    @property
    def address(self) -> str:
        """host:port of the client, for logs and statistics."""
        ...

    @property
    def client_version(self) -> str:
        """Name and version that the client reports."""
        ...

    @property
    def is_closed(self) -> bool:
        """Whether the connection is lost; some of its producers may leave in later turns."""
        ...

    @property
    def is_partial_producer(self) -> bool:
        """Whether the client creates producers only for the partitions that it needs."""
        ...

    def write(self, data: bytes) -> None:
        """Send bytes; do nothing if the connection is gone."""
        ...

    def on_publishes_done(self, batch: "PublishBatch") -> None:
        """Make room for more publishes: those of the batch are durable, or have failed."""
        ...

    def producer_leaves(self, producer: "Producer") -> None:
        """Take no more messages of the producer: it is closed once earlier ones are answered."""
        ...

    def producer_closed(self, producer: "Producer", destination: Destination | None) -> None:
        """Tell the client that the broker closed the producer, and where to connect; forget the
        id."""
        ...


class Producer:
    """One producer of a topic. Not thread-safe; all methods run on the event loop."""

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
        """`line`: the publish line of the topic. `on_closed`: called when the producer leaves the
        topic."""
        self.peer = peer
        self.producer_id = producer_id
        self.line = line
        self._on_closed = on_closed
        self.name = name
        self.epoch = epoch
        self.is_encrypted = is_encrypted
        self.access_mode = ProducerAccessMode.Shared
        """Access mode that the client requested."""
        self.connected_at_ms = line.clock.wall_ms()
        self.topic_epoch: int | None = None
        """Epoch of a producer with exclusive access to the topic."""
        self.schema_version = b""
        """Schema version as in its messages; empty if the producer has no schema."""
        self.metadata: dict[str, str] = {}
        """Properties that the client reports, for statistics."""
        self.is_closed = False
        self.messages_in = 0
        self.bytes_in = 0
        self.chunks_in = 0
        self.messages_dropped = 0
        """Messages that a non-persistent topic dropped: too many were pending."""
        self.meter = Meter(0, 0, 0, 0, since_ms=self.connected_at_ms)
        """Rates of messages, bytes, chunks and dropped messages."""
        # Pending batches, and encoded SEND_ERRORs that wait for the batches before them.
        self._waiting: deque[PublishBatch | bytes] = deque()
        self._on_drained: Callable[[], None] | None = None

    @property
    def checks(self) -> "tuple[MessageCheck, ...]":
        """Checks of the metadata of each of its messages."""
        if not self.is_encrypted:
            return self.line.checks
        return self.line.checks_of(is_encrypted=True)

    def sample(self, now_ms: int) -> None:
        """Sample the counters for the rates; called once per interval."""
        self.meter.sample(now_ms, *self._counters)

    def rates(self, now_ms: int) -> tuple[float, ...]:
        """Return messages, bytes and chunks published, and messages dropped, per second of the last
        minute."""
        return self.meter.per_s(now_ms, *self._counters)

    @property
    def _counters(self) -> tuple[int, int, int, int]:
        return self.messages_in, self.bytes_in, self.chunks_in, self.messages_dropped

    def publish(self, batch: "PublishBatch") -> None:
        """Append the batch to the topic; if the topic moves, the client sends it again
        elsewhere."""
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
        """Run the gates in order. The batch, or each part of it, is then stored, or answered in its
        place."""
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
        """Answer a batch that is not stored, after the answers to all earlier ones."""
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
        """Answer one SEND with an error, after the answers to all earlier ones."""
        frame = replies.send_error(self.producer_id, sequence_id, error.code, str(error))
        if self._waiting:
            self._waiting.append(frame)
        else:
            self.peer.write(frame)

    def receipt_again(self, sequence_id: int, highest_id: int) -> None:
        """Answer a SEND that is stored already, after the answers to all earlier ones."""
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
        """Hand the entries to the topic, send the receipts, and make room.

        A broker whose tenure has ended sends no receipts; the end of the tenure closes the
        producer.
        """
        head = self._waiting.popleft()
        if head is not batch:
            raise InvariantError(f"producer {self.name}: an append was answered out of order")
        # First: dispatchers then wake before this write is sent, so that both leave together.
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
        """Send the topic's own answer, after the answers to all earlier SENDs.

        `dropped`: messages of the batch that the topic dropped.
        """
        self.messages_in += batch.messages
        self.bytes_in += batch.size_bytes
        self.chunks_in += len(batch.chunks)
        self.messages_dropped += dropped
        batch.answer = frames
        self._go_on()

    def batch_failed(self, batch: "PublishBatch", error: LedgerError) -> None:
        """Report the failure, after the answers to all earlier batches.

        A log that refuses an append outright may do so before it has answered earlier ones. Until
        then nothing more is taken: the client sends the failed messages again, and later ones
        would be stored ahead of them.
        """
        batch.error = error
        self.line.failed(batch, error)
        self.peer.on_publishes_done(batch)
        self._go_on()
        if not self.is_closed:
            self.peer.producer_leaves(self)

    def _fail(self, batch: "PublishBatch", error: LedgerError) -> None:
        """Tell the client what failed, and close the producer, for the reason in the module
        docstring."""
        if self.is_closed:
            return
        # A fenced or closed log says nothing about the message: the client looks the topic up again
        # and resends by itself. A client of a terminated topic does so too, and then learns of the
        # termination.
        if not isinstance(error, (LogFencedError, LogClosedError, LogTerminatedError)):
            _log.warning(
                "publish_failed",
                topic=str(self.line.name),
                producer_id=self.producer_id,
                messages=batch.messages,
                error=str(error),
            )
            text = f"{self.line.name}: the message could not be stored: {error}"
            # A message that can never be stored must not be sent again.
            is_final = isinstance(error, MessageTooLargeError)
            refusal = NotAllowedError(text) if is_final else BrokerPersistenceError(text)
            self.peer.write(self._errors(batch, refusal))
        self.close_by_broker()

    def _go_on(self) -> None:
        """Send the answers that waited for earlier ones; report when none is pending."""
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
        """Accept no more; call back when every pending publish has been answered."""
        if self._waiting:
            self._on_drained = on_drained
        else:
            on_drained()

    def close(self) -> None:
        """Leave the topic. Pending publishes continue, but get no answer."""
        if not self.is_closed:
            self.is_closed = True
            self._on_closed(self)

    def close_by_broker(self, destination: Destination | None = None) -> None:
        """Leave the topic and notify the client.

        It connects to `destination`; without one, it looks the topic up again.
        """
        if not self.is_closed:
            self.close()
            self.peer.producer_closed(self, destination)
