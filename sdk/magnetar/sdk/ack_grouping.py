"""Pending acknowledgements: collected, merged, and handed out as few commands. Pure; no I/O.

A whole entry is acknowledged by its ids alone. Messages of a batch are either acknowledged one by
one (batch index acks: the words of what remains), or counted here until the entry is complete. Some
messages are not for this consumer to acknowledge, because the broker calls them done or a
transaction has them. They are left to the broker: their entry is always acknowledged by the words
of what remains.

A cumulative acknowledgement must not cover the first chunks of a message that ends behind it, or is
not complete yet: after a failover the last chunks alone would be delivered. It then ends before
that message, and the entries between are acknowledged singly.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from magnetar.sdk.batch import words_from_mask
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.wire.hot_commands import encode_acks
from magnetar.sdk.wire.pulsar_pb2 import BaseCommand, CommandAck, MessageIdData

ALL_MESSAGES = -1
"""Bit mask of all messages of an entry, however many it has."""
ENTRIES_PER_ACK_MAX = 1_000
"""Ids in one ACK command: about 20 KB."""
CHUNKED_MESSAGES_MAX = 10_000
"""Chunked messages remembered until they are acknowledged. Of an older one only the last chunk is
acknowledged; its other chunks are delivered again, and given up as incomplete."""
PASSED_ENTRIES_MAX = 50_000
"""Entries remembered that were delivered while a chunked message was not acknowledged. An older one
is acknowledged only when nothing before it is open any more."""
PARTIAL_ENTRIES_MAX = 50_000
"""Partly acknowledged batches remembered on subscriptions that share entries. By default brokers
allow a consumer no more unacknowledged messages, so another consumer has completed the older ones.
If none has, all messages of such a batch are delivered again."""


@dataclass(slots=True)
class AckCommands:
    """Acknowledgements to send."""

    entries: list[tuple[int, int]] = field(default_factory=list)
    """Whole entries: ledger id, entry id."""
    others: list[CommandAck] = field(default_factory=list)
    """Partly acknowledged entries, and the cumulative acknowledgement."""

    def commands(self, consumer_id: int) -> list[CommandAck]:
        """Return all acknowledgements as protobuf messages."""
        some = ENTRIES_PER_ACK_MAX
        chunks = [self.entries[at : at + some] for at in range(0, len(self.entries), some)]
        return self.others + [
            CommandAck(
                consumer_id=consumer_id,
                ack_type=CommandAck.Individual,
                message_id=[_data_of(*each) for each in chunk],
            )
            for chunk in chunks
        ]

    def encode_entries(self, consumer_id: int) -> list[bytes]:
        """Return the frames that acknowledge the whole entries."""
        some = ENTRIES_PER_ACK_MAX
        return [
            encode_acks(consumer_id, self.entries[at : at + some])
            for at in range(0, len(self.entries), some)
        ]


@dataclass(slots=True)
class _Part:
    """A partly acknowledged batch. Messages in neither mask are acknowledged here."""

    open: int
    """Bit mask of the messages that this consumer still has to acknowledge."""
    kept: int = 0
    """Bit mask of messages that are not for this consumer to acknowledge: the broker has not
    delivered them, or a transaction acknowledges them."""


class AckGrouping:
    """Collects the acknowledgements of one consumer.

    The rest of a partly acknowledged batch is remembered until it is acknowledged, too. A consumer
    that does not share entries completes each batch, so this is no more than the application
    received and has not finished. Nothing may be forgotten while no other consumer takes its place
    (`forget_parts`), or finished batches would stay unacknowledged. Where entries are shared, parts
    of batches that another consumer completes would stay for ever: at most `PARTIAL_ENTRIES_MAX`
    are remembered, and the oldest is forgotten.
    """

    def __init__(self, *, batch_index_ack: bool, shares_entries: bool = False) -> None:
        """Create an empty grouping.

        `shares_entries`: other consumers may complete a batch that was begun here (Shared,
        Key_Shared).
        """
        self._batch_index_ack = batch_index_ack
        self._shares_entries = shares_entries
        self._entries: list[tuple[int, int]] = []
        self._cumulative: MessageId | None = None
        # Ordered, because finding the first key of a dict takes longer the more keys were removed.
        self._parts: OrderedDict[tuple[int, int], _Part] = OrderedDict()
        self._forgotten: OrderedDict[tuple[int, int], None] = OrderedDict()
        """Batches forgotten most recently, at most `PARTIAL_ENTRIES_MAX`."""
        self._touched: dict[tuple[int, int], int] = {}
        """Remaining messages of each batch whose partial acknowledgement is to be sent; includes
        batches that were forgotten meanwhile."""
        self._chunks: OrderedDict[tuple[int, int], list[tuple[int, int]]] = OrderedDict()
        self._passed: OrderedDict[tuple[int, int], None] = OrderedDict()
        """Entries that are no chunks, delivered since a message in chunks began; at most
        `PASSED_ENTRIES_MAX`."""
        self.first_incomplete: Callable[[], tuple[int, int] | None] = lambda: None
        """Returns the first chunk of the oldest message that is not complete yet."""

    def __len__(self) -> int:
        """Return the number of acknowledgements waiting to be sent."""
        return len(self._entries) + len(self._touched) + (self._cumulative is not None)

    @property
    def has_partial(self) -> bool:
        """Whether some entries are acknowledged only in part."""
        return bool(self._parts)

    def remaining(self, ledger_id: int, entry_id: int) -> int | None:
        """Return the bit mask of the messages of a batch that are still to be acknowledged; None if
        nothing is known of the batch."""
        part = self._parts.get((ledger_id, entry_id))
        return None if part is None else part.open

    def deliver(self, ledger_id: int, entry_id: int, batch_size: int, mask: int | None) -> int:
        """Record the delivery of a batch, or of those of its messages whose bit is in `mask`.

        Returns the bit mask of the delivered messages that are not acknowledged yet.
        """
        key, whole = (ledger_id, entry_id), (1 << batch_size) - 1
        if mask is None and key not in self._parts:
            return whole
        part = self._known(key, whole)
        left = part.open | part.kept
        told = whole if mask is None else mask
        if told & left:
            self._set(key, _Part(told & left, left & ~told))
        return told & left

    def leave_out(self, ledger_id: int, entry_id: int, batch_size: int, left: int) -> None:
        """Record that only the messages of a batch whose bit is in `left` can still be delivered.
        Compaction removed the others, or they lie before the position of a seek."""
        key = (ledger_id, entry_id)
        part = self._known(key, (1 << batch_size) - 1)
        if left:
            self._set(key, _Part(part.open & left, part.kept & left))

    def _set(self, key: tuple[int, int], part: _Part) -> None:
        parts = self._parts
        parts[key] = part
        if not self._shares_entries or len(parts) <= PARTIAL_ENTRIES_MAX:
            return
        forgotten, _ = parts.popitem(last=False)
        if key in self._forgotten:
            # This batch cannot be completed any more. If it became the newest, the batch that it
            # drives out would come back in the same way, and so on, and none would be completed.
            parts.move_to_end(key, last=False)
        self._forgotten[forgotten] = None
        if len(self._forgotten) > PARTIAL_ENTRIES_MAX:
            self._forgotten.popitem(last=False)

    def add_entry(self, ledger_id: int, entry_id: int) -> None:
        """Acknowledge a whole entry."""
        key = (ledger_id, entry_id)
        if self._parts:
            self._parts.pop(key, None)
        if self._touched:
            self._touched.pop(key, None)
        if self._forgotten:
            self._forgotten.pop(key, None)
        self._entries.append(key)
        if self._passed:
            self._passed.pop(key, None)
        if self._chunks:
            self._entries += self._chunks.pop(key, ())

    def set_chunks(self, key: tuple[int, int], others: list[tuple[int, int]]) -> None:
        """Record that `key` is the last chunk of a message: acknowledging it acknowledges `others`,
        too."""
        self._chunks.pop(key, None)
        self._chunks[key] = others
        if len(self._chunks) > CHUNKED_MESSAGES_MAX:
            self._chunks.popitem(last=False)

    def add_chunk(self, key: tuple[int, int], other: tuple[int, int]) -> bool:
        """Add one more chunk to those given to `set_chunks`.

        Returns false if the message is acknowledged already. Only for messages of which fewer than
        `CHUNKED_MESSAGES_MAX` came later.
        """
        others = self._chunks.get(key)
        if others is None:
            return False
        if other not in others:
            others.append(other)
        return True

    @property
    def has_chunks(self) -> bool:
        """Whether a complete message in chunks is not known to be acknowledged."""
        return bool(self._chunks)

    def pass_entry(self, ledger_id: int, entry_id: int) -> None:
        """Record an entry that is no chunk, and is delivered while a message in chunks is
        incomplete or not acknowledged."""
        self._passed[(ledger_id, entry_id)] = None
        if len(self._passed) > PASSED_ENTRIES_MAX:
            self._passed.popitem(last=False)

    def begun_before(self, last: MessageId) -> tuple[int, int] | None:
        """Return the first chunk of the oldest message that began before `last`, and ends behind it
        or is not complete yet; None if there is none."""
        incomplete = self.first_incomplete()
        if incomplete is None and not self._chunks:
            return None  # nearly always
        place = (last.ledger_id, last.entry_id)
        begun = [others[0] for end, others in self._chunks.items() if others[0] <= place < end]
        if incomplete is not None and incomplete <= place:
            begun.append(incomplete)
        return min(begun, default=None)

    def resume_id(self, last: MessageId) -> MessageId:
        """Return the id for a reader to continue behind `last`: its `first_chunk` is where to
        begin, if a message in chunks began before `last` and is still to come."""
        begun = self.begun_before(last)
        first = None if begun is None else MessageId(*begun, -1, last.partition)
        return replace(last, first_chunk=first)

    def with_chunks(self, entries: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the entries and, for each last chunk of a message, its other chunks; sorted."""
        if not self._chunks:
            return entries
        return sorted({*entries, *(o for each in entries for o in self._chunks.get(each, ()))})

    def add(self, ledger_id: int, entry_id: int, batch_index: int, batch_size: int) -> bool:
        """Acknowledge one message; the whole entry if the size of the batch is unknown.

        Returns whether nothing of the entry is left to acknowledge.
        """
        if batch_index < 0 or batch_size <= 0:
            self.add_entry(ledger_id, entry_id)
            return True
        return self._add_bits((ledger_id, entry_id), 1 << batch_index, batch_size)

    def _add_bits(self, key: tuple[int, int], bits: int, batch_size: int) -> bool:
        """Acknowledge the messages of a batch whose bits are set; see `add`."""
        part = self._parts.get(key)
        if part is None:
            part = self._known(key, (1 << batch_size) - 1)
            self._set(key, part)
        left = part.open | part.kept
        part.open &= ~bits
        part.kept &= ~bits
        if not part.open:
            self._complete(key, part.kept)
            return True
        if self._batch_index_ack and left & bits:
            self._touched[key] = left & ~bits
        return False

    def _complete(self, key: tuple[int, int], kept: int) -> None:
        """Acknowledge a batch of which this consumer has nothing left to acknowledge."""
        if not kept:
            self.add_entry(*key)
            return
        self._parts.pop(key, None)
        self._forgotten.pop(key, None)
        self._touched[key] = kept

    def add_in_transaction(self, key: tuple[int, int], bits: int, batch_size: int) -> None:
        """Leave messages of an entry to a transaction; this consumer acknowledges the others."""
        if batch_size <= 0 or bits == ALL_MESSAGES:
            self._parts.pop(key, None)
            return
        part = self._known(key, (1 << batch_size) - 1)
        acknowledged = (1 << batch_size) - 1 & ~(part.open | part.kept)
        part = _Part(part.open & ~bits, part.kept | part.open & bits)
        if part.open:
            self._set(key, part)
        elif acknowledged:
            self._complete(key, part.kept)
        else:
            self._parts.pop(key, None)

    def _known(self, key: tuple[int, int], otherwise: int) -> _Part:
        """Return what is left of a batch; the bits of `otherwise` if nothing is known of it."""
        part = self._parts.get(key)
        return _Part(self._touched.get(key, otherwise)) if part is None else part

    def add_cumulative(self, message_id: MessageId) -> None:
        """Acknowledge everything up to and including a message; but no chunks of a message that
        ends behind it, or is not complete yet."""
        begun = self.begun_before(message_id)
        if begun is not None:
            self._add_between(begun, message_id)
            return
        place = (message_id.ledger_id, message_id.entry_id)
        for known in (self._chunks, self._passed):
            while known and next(iter(known)) <= place:
                known.popitem(last=False)
        self._raise_cumulative(message_id)

    def _raise_cumulative(self, message_id: MessageId) -> None:
        if self._cumulative is None or _end_of(self._cumulative) < _end_of(message_id):
            self._cumulative = message_id

    def _add_between(self, begun: tuple[int, int], last: MessageId) -> None:
        """Acknowledge everything before a chunk, and what is known of the entries from there up to
        and including `last`."""
        ledger_id, entry_id = begun
        # The entry before the first one of a ledger is not known here: it waits for the next
        # cumulative acknowledgement.
        if entry_id > 0:
            self._raise_cumulative(MessageId(ledger_id, entry_id - 1))
        place = (last.ledger_id, last.entry_id)
        for key in [key for key in self._passed if key < place]:
            self.add_entry(*key)
        for key in [key for key in self._chunks if key < place]:
            self.add_entry(*key)
        if last.batch_index >= 0 and last.batch_size > 0:
            self._add_bits(place, (2 << last.batch_index) - 1, last.batch_size)
        else:
            self.add_entry(*place)

    def drop(self, ledger_id: int, entry_id: int) -> None:
        """Forget the parts of an entry that will be delivered again as a whole."""
        self._parts.pop((ledger_id, entry_id), None)
        self._touched.pop((ledger_id, entry_id), None)

    def forget_parts(self) -> None:
        """Forget partly acknowledged batches: they are delivered again from the start, here or to
        another consumer.

        Waiting acknowledgements are still sent. The chunks of each chunked message stay known.
        """
        self._parts.clear()
        self._forgotten.clear()

    def clear(self) -> None:
        """Forget all acknowledgements, because the subscription was moved. The chunks of each
        chunked message stay known."""
        self._entries = []
        self._cumulative = None
        self._touched.clear()
        self._passed.clear()
        self.forget_parts()

    def take(self, consumer_id: int) -> AckCommands:
        """Return all waiting acknowledgements and forget them."""
        result = AckCommands(self._entries)
        self._entries = []
        cumulative, self._cumulative = self._cumulative, None
        if cumulative is not None:
            data = self._cumulative_data(cumulative)
            if data is not None:
                result.others.append(
                    CommandAck(
                        consumer_id=consumer_id,
                        ack_type=CommandAck.Cumulative,
                        message_id=[data],
                    )
                )
        if self._touched:
            touched, self._touched = self._touched, {}
            result.others.append(
                CommandAck(
                    consumer_id=consumer_id,
                    ack_type=CommandAck.Individual,
                    message_id=[
                        _data_of(*entry, words_from_mask(mask))
                        for entry, mask in sorted(touched.items())
                    ],
                )
            )
        return result

    def _cumulative_data(self, message_id: MessageId) -> MessageIdData | None:
        ledger_id, entry_id = message_id.ledger_id, message_id.entry_id
        known = {*self._parts, *self._touched} if self._touched else self._parts
        passed = [key for key in known if key < (ledger_id, entry_id)]
        for key in passed:
            self.drop(*key)
        index, size = message_id.batch_index, message_id.batch_size
        mask = 0
        if index >= 0 and size > 0:
            part = self._known((ledger_id, entry_id), (1 << size) - 1)
            mask = (part.open | part.kept) & (1 << size) - (2 << index)
        if not mask:
            self.drop(ledger_id, entry_id)
            return _data_of(ledger_id, entry_id)
        part = _Part(part.open & mask, part.kept & mask)
        if part.open:
            self._set((ledger_id, entry_id), part)
        else:
            self._parts.pop((ledger_id, entry_id), None)
        if self._batch_index_ack or not part.open:
            self._touched.pop((ledger_id, entry_id), None)  # covered by this command
            return _data_of(ledger_id, entry_id, words_from_mask(mask))
        # In the middle of a batch without index acks: acknowledge all before the batch. The entry
        # before the first one of a ledger is in another ledger, whose entries are not known here.
        if entry_id == 0:
            return None
        return _data_of(ledger_id, entry_id - 1)


def _data_of(ledger_id: int, entry_id: int, words: Sequence[int] = ()) -> MessageIdData:
    """Return an id with its ack set. Applications may acknowledge ids that are negative, such as
    that of a duplicate: they must not keep the other acknowledgements from being sent."""
    data = MessageId(ledger_id, entry_id).to_data()
    data.ack_set.extend(words)
    return data


def _end_of(message_id: MessageId) -> tuple[int, int, float]:
    """Return a sort key by which a whole entry ends after each of its messages."""
    index = message_id.batch_index
    return message_id.ledger_id, message_id.entry_id, index if index >= 0 else math.inf


def ack_frame(command: CommandAck) -> BaseCommand:
    """Return the base command that carries an ACK."""
    return BaseCommand(type=BaseCommand.ACK, ack=command)
