"""Receiver queue: entries delivered to a consumer, and the permits that they cost. Pure; no I/O.

Entries stay as they came until the application takes them; only then are they checked, decompressed
and split. Permits (FLOW) count messages, and are returned when half of the queue was taken.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from magnetar.sdk.ack_grouping import AckGrouping
from magnetar.sdk.batch import EntrySource, MessageBatch, mask_from_words
from magnetar.sdk.errors import CorruptMessageError
from magnetar.sdk.message import Message
from magnetar.sdk.message_id import MessageId, signed
from magnetar.sdk.wire.errors import MalformedPayloadError
from magnetar.sdk.wire.frames import messages_in, split_payload
from magnetar.sdk.wire.pulsar_pb2 import CommandMessage, MessageIdData

Delivery = tuple[CommandMessage, bytes]
"""A MESSAGE command and its payload."""


@dataclass(slots=True)
class _Held:
    """State set aside while the queue is held."""

    ready: deque[Message]
    incoming: deque[Delivery]
    taken: Message | MessageBatch | MessageId | None


class ReceiverQueue:
    """Entries that were delivered to one consumer and not taken yet."""

    def __init__(
        self,
        source: EntrySource,
        acks: AckGrouping,
        *,
        messages_max: int,
        is_reader: bool,
        grant: Callable[[int], bool],
    ) -> None:
        """Create an empty queue.

        `acks` knows what is left of entries. `grant` gives permits to the broker, or returns false
        if it cannot now. `messages_max` is the permits of a fresh queue.
        """
        self.messages_max = messages_max
        self.skip: tuple[MessageId, bool] | None = None
        """Messages up to this id are skipped; the message itself, too, unless the flag is set. On a
        subscription that others can move, it holds only for the attachment that a seek leads to.
        Chunks up to it are opened, because their message may end behind it."""
        self.taken: Message | MessageBatch | MessageId | None = None
        """What the application took last, or its position."""
        self.epoch = 0
        """How often everything was requested again. Deliveries of an earlier epoch are dropped."""
        self._source = source
        self._acks = acks
        self._is_reader = is_reader
        self._grant = grant
        self._incoming: deque[Delivery] = deque()
        self._ready: deque[Message] = deque()
        self._corrupt: CorruptMessageError | None = None
        self._opened_last: MessageIdData | None = None
        """Id of the entry that was opened last, whatever its outcome; None if that entry is
        redelivered."""
        self._held: _Held | None = None
        self._round = object()
        """Identity of the delivery round: replaced with each attachment, seek, and redelivery of
        everything unacknowledged."""
        self._credit_due = 0
        self._credit_step = max(1, messages_max // 2)
        self._is_paused = False
        self.open_entry: Callable[[MessageBatch], MessageBatch | None] | None = None
        """Called for each entry before it is delivered. The result is delivered instead; None
        delivers nothing for now. May raise CorruptMessageError."""
        self.on_cleared: Callable[[], None] | None = None
        """Called when everything is redelivered, to drop what `open_entry` keeps."""
        self._ahead_bytes = 0
        """Bytes of payloads that `open_ahead` opened since no opened message was queued."""
        self._opened_bytes = 0
        """Bytes of all payloads that were opened, after decompression."""
        self._opened_entries = 0
        self._opened_through: int | None = None
        """What had arrived when the wait began that `has_waited` tells of. Entries that are dropped
        are never opened: then the wait takes longer."""
        self.received_messages = 0
        self.received_bytes = 0
        """Bytes of entries as received, before decompression."""

    @property
    def has_some(self) -> bool:
        """Whether anything is queued; it may turn out to be skipped."""
        return bool(self._ready or self._incoming)

    def has_waited(self) -> bool:
        """Whether all that had arrived by the beginning of a wait was opened and taken, so that
        whatever is missing had not arrived by then. If so, the next wait begins.

        A wait begins with the first call, too. It ends at once if the queue is empty, which always
        has permits at the broker. Otherwise it ends when an entry was opened that came later: the
        application may be slow, and must have taken enough for the broker to have permits.
        """
        if self._is_paused or self.is_held:
            return False
        if self._opened_through is None:
            self._opened_through = self._arrived
        if self.has_some and self._opened_entries <= self._opened_through:
            return False
        self._opened_through = self._arrived if self.has_some else None
        return True

    @property
    def _arrived(self) -> int:
        """Entries that were opened, or are queued."""
        return self._opened_entries + len(self._incoming)

    @property
    def has_entries(self) -> bool:
        """Whether `take_batches` has an entry to return, or an error to raise."""
        return bool(self._incoming) or self._corrupt is not None

    def has_message(self) -> bool:
        """Whether a message is queued that is not to be skipped."""
        incoming = self._incoming
        while self.skip is not None and incoming and _is_skipped(incoming[0], self.skip):
            if not _is_chunk(incoming[0]):
                self._return_credit(_credit_of(incoming.popleft()))
            elif self._corrupt is None:
                self._fill_early()  # adds no message, but one that begins here may end later
            else:
                break
        return bool(self._ready or incoming or self._corrupt is not None)

    def has_opened(self, last: MessageId) -> bool:
        """Whether the entry of an id, or a later one, was opened.

        The messages of an opened entry are queued or were taken; otherwise the entry is incomplete,
        cannot be read, or is not to be delivered.
        """
        opened = self._opened_last
        if opened is None:
            return False
        place = signed(opened.ledgerId), signed(opened.entryId)
        return place >= (last.ledger_id, last.entry_id)

    @property
    def last_taken(self) -> MessageId | None:
        """Id of the last message that the application took; None before the first."""
        taken = self.taken
        if isinstance(taken, MessageBatch):
            last = taken.batch_size - 1 if taken.batch_size else -1
            return MessageId(
                taken.ledger_id, taken.entry_id, last, taken.partition, taken.batch_size
            )
        return taken if taken is None or isinstance(taken, MessageId) else taken.message_id

    # -- filling and emptying

    def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Add the deliveries of one network read."""
        if self.epoch:
            deliveries = self._of_this_epoch(deliveries)
        (self._incoming if self._held is None else self._held.incoming).extend(deliveries)
        self.received_bytes += sum([len(payload) for _, payload in deliveries])

    @property
    def is_held(self) -> bool:
        """Whether the queue is held, so that nothing is given out."""
        return self._held is not None

    def hold(self) -> None:
        """Give out nothing, queued or new, until `release` or `clear`: the subscription is about to
        be moved, which may fail."""
        if self._held is None:
            self._held = _Held(self._ready, self._incoming, self.taken)
            self._ready, self._incoming, self.taken = deque(), deque(), None

    def release(self) -> None:
        """Give out what was held: the subscription was not moved."""
        if self._held is not None:
            held, self._held = self._held, None
            self._ready, self._incoming, self.taken = held.ready, held.incoming, held.taken

    def clear(self) -> None:
        """Drop everything, and the permits, too: the broker begins again."""
        if not self._is_reader or self.is_held:  # a reader begins after what was taken
            self._round = object()
        self._held = self._corrupt = self._opened_last = None
        self._incoming.clear()
        self._ready.clear()
        self._credit_due = 0
        if self.on_cleared is not None:
            self.on_cleared()

    def drop(self) -> None:
        """Drop everything and return its permits: the broker sends it again."""
        self._round = object()
        is_held = self.is_held
        self.release()
        dropped = len(self._ready) + sum(map(_credit_of, self._incoming))
        self._ready.clear()
        self._incoming.clear()
        self._corrupt = self._opened_last = None
        if is_held:
            self.hold()
        if self.on_cleared is not None:
            self.on_cleared()
        self._return_credit(dropped)

    def drop_entries(self, entries: Collection[tuple[int, int]], *, of_before: bool) -> None:
        """Drop the queued messages of entries that are requested again, and return their permits.

        `of_before`: the entries may have been taken before the last attachment, and redelivered
        since.
        """
        ready = self._ready
        kept = [each for each in ready if (each.ledger_id, each.entry_id) not in entries]
        dropped = len(ready) - len(kept)
        if dropped:
            self._ready = deque(kept)
        if of_before:
            incoming, self._incoming = self._incoming, deque()
            for each in incoming:
                place = each[0].message_id
                if (place.ledgerId, place.entryId) in entries:
                    dropped += _credit_of(each)
                else:
                    self._incoming.append(each)
        if dropped:
            self._return_credit(dropped)

    def _of_this_epoch(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Return the deliveries that the broker sent after the last redelivery request."""
        current: list[Delivery] = []
        for message, payload in deliveries:
            if message.HasField("consumer_epoch") and message.consumer_epoch < self.epoch:
                self._return_credit(_credit_of((message, payload)))
            else:
                current.append((message, payload))
        return current

    # -- taking

    def take(self) -> Message | None:
        """Take and return the next message; None if none is queued.

        Raises:
            CorruptMessageError: the message cannot be read; the next call continues after it.
        """
        ready = self._ready
        while not ready:
            if self._corrupt is None and not self._incoming:
                return None
            self._fill_ready()
        message = ready.popleft()
        self.taken = message
        self._return_credit(1)
        return message

    def open_ahead(self) -> None:
        """Open queued entries up to a corrupt one, because some are not for the application.

        It ends when the payloads opened ahead of the application exceed the bound on one payload.
        The entries behind them are opened when the application takes messages.
        """
        if not self._ready:
            self._ahead_bytes = 0
        bytes_max = self._source.decompressed_bytes_max
        while self._incoming and self._corrupt is None and self._ahead_bytes < bytes_max:
            before = self._opened_bytes
            self._fill_early()
            self._ahead_bytes += self._opened_bytes - before

    def _fill_early(self) -> None:
        """Open the next entry before it is taken. A corrupt one is kept for `take` to raise."""
        try:
            self._fill_ready()
        except CorruptMessageError as error:
            self._corrupt = error

    def next_schema_version(self) -> bytes | None:
        """Return the schema version of the next message for `take`; None if there is none.

        A corrupt message is kept for `take` to raise.
        """
        while not self._ready and self._corrupt is None and self._incoming:
            self._fill_early()
        return self._ready[0].schema_version if self._ready else None

    def is_current(self, what: Message | MessageBatch) -> bool:
        """Whether a message was delivered in the current round. One that was not is redelivered by
        itself, unless it is acknowledged or the subscription was moved past it."""
        return what.round is self._round

    def put_back(self, messages: Sequence[Message]) -> None:
        """Return to the queue the messages taken last, in this round: they are next again."""
        if not messages:
            return
        self._credit_due -= len(messages)
        held, before = self._held, _place_before(messages[0].message_id)
        if held is None:
            self._ready.extendleft(reversed(messages))
            self.taken = before
        else:
            held.ready.extendleft(reversed(messages))
            held.taken = before

    def take_more(self, messages: list[Message], messages_max: int) -> None:
        """Append queued messages to `messages`, until it has `messages_max`.

        A corrupt message ends it, and is raised by the next call.
        """
        ready = self._ready
        while len(messages) < messages_max:
            if ready:
                some = min(len(ready), messages_max - len(messages))
                messages += [ready.popleft() for _ in range(some)]
                self.taken = messages[-1]
                self._return_credit(some)
                continue
            try:
                message = self.take()
            except CorruptMessageError as error:
                self._corrupt = error
                return
            if message is None:
                return
            messages.append(message)

    def _fill_ready(self) -> None:
        """Split the next entry into messages for `take`.

        Raises:
            CorruptMessageError: the entry cannot be read; the next call continues after it.
        """
        batch = self._open_next()
        if batch is not None:
            charged = batch.count
            try:
                messages = batch.messages()
            except MalformedPayloadError as error:
                self._return_credit(charged)
                raise CorruptMessageError(batch.message_id, str(error)) from error
            # Messages that compaction removed from a batch cost permits and are not delivered.
            self._ready.extend(messages)
            self._return_credit(charged - len(messages))

    def take_batches(self, entries_max: int) -> list[MessageBatch]:
        """Return up to `entries_max` entries, undecoded, as far as the first corrupt one.

        Raises:
            CorruptMessageError: the first one cannot be read; the next call continues after it.
        """
        result: list[MessageBatch] = []
        incoming = self._incoming
        while (incoming or self._corrupt is not None) and len(result) < entries_max:
            try:
                batch = self._open_next()
            except CorruptMessageError as error:
                if not result:
                    raise
                self._corrupt = error
                break
            if batch is not None:
                self.taken = batch
                self._return_credit(batch.count)
                result.append(batch)
        return result

    def _open_next(self) -> MessageBatch | None:
        """Return the next entry with its metadata; None if nothing of it is to be delivered."""
        error, self._corrupt = self._corrupt, None
        if error is not None:
            raise error
        message, payload = self._incoming.popleft()
        self._opened_entries += 1
        self._opened_last = data = message.message_id
        ledger_id, entry_id = data.ledgerId, data.entryId
        try:
            batch = MessageBatch(
                payload,
                self._source,
                ledger_id,
                entry_id,
                message.redelivery_count,
                message.ack_set,
            )
        except MalformedPayloadError as failure:
            self._return_credit(_credit_of((message, payload)))
            if self.skip is not None and (ledger_id, entry_id) < _place(self.skip[0]):
                return None  # reported when it came first
            message_id = MessageId(signed(ledger_id), signed(entry_id), -1, self._source.partition)
            raise CorruptMessageError(message_id, str(failure)) from failure
        self._opened_bytes += batch.payload_bytes
        batch.round = self._round
        # Only rarely do parts of entries have to be left out.
        if self.skip is not None or self._acks.has_partial:
            charged = batch.count
            self._leave_out(batch)
            if batch.count < charged:
                self._return_credit(charged - batch.count)
            if not batch.count:
                return None
        elif batch.remaining is not None:
            self._leave_out(batch)
        self.received_messages += batch.count
        return batch if self.open_entry is None else self._opened(batch, self.open_entry)

    def _opened(
        self, batch: MessageBatch, open_entry: Callable[[MessageBatch], MessageBatch | None]
    ) -> MessageBatch | None:
        """Pass an entry to `open_entry` and settle the permits: what is delivered is charged when
        taken. A chunked message that ends before the beginning is not delivered."""
        is_passed = self.skip is not None and _is_passed(batch, self.skip)
        try:
            opened = open_entry(batch)
        except Exception as error:
            self._return_credit(batch.count)
            if is_passed and isinstance(error, CorruptMessageError):
                return None  # reported when it came first
            raise
        if is_passed:
            opened = None
        if opened is not batch:
            self._return_credit(batch.count - (0 if opened is None else opened.count))
        return opened

    def _leave_out(self, batch: MessageBatch) -> None:
        """Restrict an entry to the messages that are still to be delivered."""
        place = (batch.ledger_id, batch.entry_id)
        if self._is_reader:
            # A reader acknowledges up to a message: what the broker leaves out does not matter.
            known = self._acks.remaining(*place)
        elif batch.batch_size:
            known = self._acks.deliver(*place, batch.batch_size, batch.remaining)
        else:
            known = None
        if known is not None:
            batch.restrict(known)
        if self.skip is None:
            return
        start, is_inclusive = self.skip
        if place > _place(start) or batch.metadata.num_chunks_from_msg > 1:
            return
        if place < _place(start):
            batch.restrict(0)
        elif batch.batch_size and start.batch_index >= 0:
            batch.restrict(-1 << (start.batch_index + (0 if is_inclusive else 1)))
        elif not is_inclusive:
            batch.restrict(0)
        if batch.batch_size and batch.remaining and not self._is_reader:
            self._acks.leave_out(*place, batch.batch_size, batch.remaining)

    # -- permits

    def resize(self, messages_max: int) -> None:
        """Set the maximum of queued messages; queued ones beyond it are used up first."""
        self._credit_step = max(1, messages_max // 2)
        more, self.messages_max = messages_max - self.messages_max, messages_max
        self._return_credit(more)

    def pause(self) -> None:
        """Give no permits until `resume`."""
        self._is_paused = True

    def resume(self) -> None:
        """Give the permits that became due during the pause."""
        self._is_paused = False
        self._return_credit(0)

    def begin(self) -> None:
        """Give the permits of a fresh queue."""
        self._credit_due = self.messages_max
        self._return_credit(0)

    def _return_credit(self, count: int) -> None:
        self._credit_due += count
        if self._is_paused or self._credit_due < self._credit_step:
            return
        if self._grant(self._credit_due):
            self._credit_due = 0


def _is_skipped(entry: Delivery, skip: tuple[MessageId, bool]) -> bool:
    """Whether a whole entry lies before the position where a reader begins."""
    data, payload = entry[0].message_id, entry[1]
    start, is_inclusive = skip
    place = (data.ledgerId, data.entryId)
    if place != (start.ledger_id, start.entry_id):
        return place < (start.ledger_id, start.entry_id)
    if start.batch_index < 0:
        return not is_inclusive
    try:
        metadata, _ = split_payload(payload)
    except MalformedPayloadError:
        return False  # the application must get the error
    size = metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else 0
    if not size:
        return not is_inclusive
    return start.batch_index + (0 if is_inclusive else 1) >= size


def _place(message_id: MessageId) -> tuple[int, int]:
    return message_id.ledger_id, message_id.entry_id


def _is_passed(batch: MessageBatch, skip: tuple[MessageId, bool]) -> bool:
    """Whether an entry is a chunk before the position where a reader begins."""
    start, is_inclusive = skip
    place = (batch.ledger_id, batch.entry_id)
    is_before = place < _place(start) or (place == _place(start) and not is_inclusive)
    return is_before and batch.metadata.num_chunks_from_msg > 1


def _is_chunk(entry: Delivery) -> bool:
    try:
        metadata, _ = split_payload(entry[1])
    except MalformedPayloadError:
        return False
    return metadata.num_chunks_from_msg > 1


def _place_before(message_id: MessageId) -> MessageId:
    """Return the position just before a message, as if everything up to it were taken. The other
    chunks of a chunked message lie before that position, and are known to the acknowledgements."""
    if message_id.batch_index > 0:
        return replace(message_id, batch_index=message_id.batch_index - 1)
    return MessageId(message_id.ledger_id, message_id.entry_id - 1, -1, message_id.partition)


def _credit_of(entry: Delivery) -> int:
    """Return the permits that an entry cost: its unacknowledged messages, or 1 if damaged."""
    message, payload = entry
    try:
        count = messages_in(payload)
    except MalformedPayloadError:
        return 1
    if not message.ack_set:
        return count
    words = message.ack_set[: -(-count // 64)]
    return (mask_from_words(words) & ((1 << count) - 1)).bit_count()
