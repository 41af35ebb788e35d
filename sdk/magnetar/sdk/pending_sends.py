"""Pending sends: what a producer has sent without a receipt so far. Pure; no I/O, no time.

Sends are kept in the order of their sequence ids, which is the order of the calls and of the
receipts. A receipt for something older than the oldest pending send was seen before, or is late for
a send that was given up. A receipt for something newer means that the broker skipped a message.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from magnetar.sdk.errors import SdkError
from magnetar.sdk.message_id import MessageId, signed
from magnetar.sdk.wire.pulsar_pb2 import CommandSendReceipt

OnSent = Callable[[MessageId | None, SdkError | None], None]
"""Called with the id of the stored message, or with the error if it is not confirmed."""


Tell = Callable[[OnSent, MessageId | None, SdkError | None], None]
"""Calls an `OnSent`, and handles what it raises."""


def call(on_sent: OnSent, message_id: MessageId | None, error: SdkError | None) -> None:
    """Call `on_sent` without handling what it raises: the simplest `Tell`."""
    on_sent(message_id, error)


@dataclass(slots=True)
class ChunkedSend:
    """State shared by the sends of one message's chunks."""

    first: MessageId | None = None
    """Id of the first stored chunk; None before its receipt."""

    def stored(self, chunk: MessageId) -> MessageId:
        """Return the id of the message if `chunk` is its last one."""
        if self.first is None:
            self.first = chunk
        return chunk if chunk.ledger_id < 0 else replace(chunk, first_chunk=self.first)


@dataclass(slots=True)
class PendingSend:
    """One SEND frame, which holds a single message or a batch."""

    sequence_id: int
    highest_sequence_id: int
    prefix: bytes
    """The frame up to its body."""
    body: bytes
    messages: int
    is_batch: bool
    payload_bytes: int
    sent_at_s: float
    """Monotonic time, in seconds, of the (first) call that sent it."""
    on_sent: Sequence[OnSent | None] = ()
    """One callback for each message; empty if there are none."""
    chunked: ChunkedSend | None = None
    """State of the chunked message; None if the send is no chunk."""

    def finish(
        self, message_id: MessageId | None, error: SdkError | None, tell: Tell = call
    ) -> None:
        """Call the callbacks. `message_id` is that of the entry."""
        if self.chunked is not None and message_id is not None:
            message_id = self.chunked.stored(message_id)
        for index, on_sent in enumerate(self.on_sent):
            if on_sent is None:
                continue
            if message_id is None or not self.is_batch or message_id.ledger_id < 0:
                tell(on_sent, message_id, error)
            else:
                tell(
                    on_sent,
                    MessageId(
                        message_id.ledger_id,
                        message_id.entry_id,
                        index,
                        message_id.partition,
                        self.messages,
                    ),
                    None,
                )


class PendingSends:
    """A queue of `PendingSend`, with their total messages and bytes."""

    def __init__(self) -> None:
        self._queue: deque[PendingSend] = deque()
        self.messages = 0
        self.payload_bytes = 0

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[PendingSend]:
        return iter(self._queue)

    @property
    def oldest(self) -> PendingSend | None:
        return self._queue[0] if self._queue else None

    @property
    def newest_sequence_id(self) -> int:
        """Highest pending sequence id; -1 if nothing is pending."""
        return self._queue[-1].highest_sequence_id if self._queue else -1

    def add(self, send: PendingSend) -> None:
        queue = self._queue
        # Chunks of one message share its sequence id; all but the last count no messages.
        last = queue[-1] if queue else None
        assert (
            last is None
            or last.highest_sequence_id < send.sequence_id
            or (not last.messages and last.sequence_id == send.sequence_id)
        )
        queue.append(send)
        self.messages += send.messages
        self.payload_bytes += send.payload_bytes

    def take(
        self, receipts: Sequence[CommandSendReceipt]
    ) -> tuple[list[tuple[PendingSend, CommandSendReceipt]], bool]:
        """Take out the sends that the receipts confirm, in order, each with its receipt.

        The flag is false if a receipt is ahead of the oldest pending send: that receipt and those
        after it were not used.
        """
        queue = self._queue
        taken: list[tuple[PendingSend, CommandSendReceipt]] = []
        messages = payload_bytes = 0
        well = True
        for receipt in receipts:
            sequence_id = receipt.sequence_id
            if not queue or sequence_id < queue[0].sequence_id:
                continue
            # A broker may answer a batch with any of its sequence ids.
            if sequence_id > queue[0].highest_sequence_id:
                well = False
                break
            send = queue.popleft()
            messages += send.messages
            payload_bytes += send.payload_bytes
            taken.append((send, receipt))
        self.messages -= messages
        self.payload_bytes -= payload_bytes
        return taken, well

    def take_sequence(self, sequence_id: int) -> list[PendingSend]:
        """Take out the send that holds a sequence id, or the chunks of a message, at any
        position."""
        found: list[PendingSend] = []
        rest: deque[PendingSend] = deque()
        for send in self._queue:
            holds = send.sequence_id <= sequence_id <= send.highest_sequence_id
            (found if holds else rest).append(send)
        if found:
            self._queue = rest
            for send in found:
                self.messages -= send.messages
                self.payload_bytes -= send.payload_bytes
        return found

    def take_older(self, sent_before_s: float) -> list[PendingSend]:
        """Take out the oldest sends, as far as they were sent at or before a time."""
        queue = self._queue
        taken: list[PendingSend] = []
        while queue and queue[0].sent_at_s <= sent_before_s:
            send = queue.popleft()
            self.messages -= send.messages
            self.payload_bytes -= send.payload_bytes
            taken.append(send)
        return taken


def receipt_id(receipt: CommandSendReceipt, partition: int) -> MessageId:
    """Return the id of the entry that a receipt names; -1:-1 for a duplicate."""
    data = receipt.message_id
    return MessageId(signed(data.ledgerId), signed(data.entryId), -1, partition)
