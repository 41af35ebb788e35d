"""Acknowledgements on their way: collected, joined, handed out as few commands. Pure; no I/O.

A whole entry is acknowledged by its ids alone. Messages of a batch are either acknowledged one by
one (batch index acks: the words of what remains), or counted here until the entry is complete.
What is not for us to acknowledge, because the broker calls it done or a transaction has it, is
left to the broker: such an entry is always acknowledged by the words of what remains.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass, field

from magnetar.sdk.batch import words_from_mask
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.wire.hot_commands import encode_acks
from magnetar.sdk.wire.pulsar_pb2 import BaseCommand, CommandAck, MessageIdData

ALL_MESSAGES = -1
"""Bits of all messages of an entry, however many it has."""
ENTRIES_PER_ACK_MAX = 1_000
"""Ids in one ACK command: about 20 KB."""
CHUNKED_MESSAGES_MAX = 10_000
"""Messages in chunks that are remembered until they are acknowledged. Of older ones only the last
chunk is; the others come again, and are given up as incomplete."""
PARTIAL_ENTRIES_MAX = 50_000
"""Batches of which a part is acknowledged, on subscriptions that share entries. By default brokers
let a consumer have no more messages, so older ones were completed by another consumer; of one that
was not, all messages come again."""


@dataclass(slots=True)
class AckCommands:
    """What is to be sent."""

    entries: list[tuple[int, int]] = field(default_factory=list)
    """Whole entries: ledger id, entry id."""
    others: list[CommandAck] = field(default_factory=list)
    """Parts of entries, and the cumulative one."""

    def commands(self, consumer_id: int) -> list[CommandAck]:
        """All of it as protobuf messages."""
        some = ENTRIES_PER_ACK_MAX
        chunks = [self.entries[at : at + some] for at in range(0, len(self.entries), some)]
        return self.others + [
            CommandAck(
                consumer_id=consumer_id,
                ack_type=CommandAck.Individual,
                message_id=[MessageIdData(ledgerId=le, entryId=en) for le, en in chunk],
            )
            for chunk in chunks
        ]

    def encode_entries(self, consumer_id: int) -> list[bytes]:
        """Frames for the whole entries."""
        some = ENTRIES_PER_ACK_MAX
        return [
            encode_acks(consumer_id, self.entries[at : at + some])
            for at in range(0, len(self.entries), some)
        ]


@dataclass(slots=True)
class _Part:
    """A batch that is acknowledged in part. Bits that are in neither are acknowledged here."""

    open: int
    """Messages that are to be acknowledged here."""
    kept: int = 0
    """Messages that are not for us to acknowledge: the broker has not delivered them, or a
    transaction acknowledges them."""


class AckGrouping:
    """Collects acknowledgements of one consumer.

    Of a batch that is acknowledged in part, the rest is remembered until it is acknowledged, too.
    Who consumes alone completes each batch, so what is remembered is no more than the application
    was given and has not finished: nothing may be forgotten, or finished batches would stay
    unacknowledged, as long as no other takes its place (`forget_parts`). Where entries are shared,
    parts of batches that another consumer completes would stay for ever: there are
    `PARTIAL_ENTRIES_MAX`, and the oldest is forgotten.
    """

    def __init__(self, *, batch_index_ack: bool, shares_entries: bool = False) -> None:
        """`shares_entries`: others may complete what was begun here (Shared, Key_Shared)."""
        self._batch_index_ack = batch_index_ack
        self._shares_entries = shares_entries
        self._entries: list[tuple[int, int]] = []
        self._cumulative: MessageId | None = None
        # Ordered, because to find the first key of a dict takes longer the more were removed.
        self._parts: OrderedDict[tuple[int, int], _Part] = OrderedDict()
        self._forgotten: OrderedDict[tuple[int, int], None] = OrderedDict()
        """The last ones, as many as are remembered at most."""
        self._touched: dict[tuple[int, int], int] = {}
        """What remains of batches, to be sent; also of those that are forgotten meanwhile."""
        self._chunks: OrderedDict[tuple[int, int], list[tuple[int, int]]] = OrderedDict()

    def __len__(self) -> int:
        """How much waits to be sent."""
        return len(self._entries) + len(self._touched) + (self._cumulative is not None)

    @property
    def has_partial(self) -> bool:
        """Whether there are entries of which only a part is acknowledged."""
        return bool(self._parts)

    def remaining(self, ledger_id: int, entry_id: int) -> int | None:
        """Bits of the messages of a batch that are to be acknowledged; None: nothing is known."""
        part = self._parts.get((ledger_id, entry_id))
        return None if part is None else part.open

    def deliver(self, ledger_id: int, entry_id: int, batch_size: int, mask: int | None) -> int:
        """A batch was delivered, or those messages of it whose bit is in `mask`.

        Returns the bits of those that are not acknowledged yet.
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
        """Only the messages of a batch whose bit is in `left` can come: the others are gone by
        compaction, or lie before the place of a seek."""
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
            # It cannot be completed any more: were it the newest now, what it drove out would come
            # back in the same way, and so on, and none would be completed.
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
        if self._chunks:
            self._entries += self._chunks.pop(key, ())

    def set_chunks(self, key: tuple[int, int], others: list[tuple[int, int]]) -> None:
        """The entry `key` ends a message in chunks: what happens to it happens to `others` too."""
        self._chunks.pop(key, None)
        self._chunks[key] = others
        if len(self._chunks) > CHUNKED_MESSAGES_MAX:
            self._chunks.popitem(last=False)

    def add_chunk(self, key: tuple[int, int], other: tuple[int, int]) -> bool:
        """One more entry for `set_chunks`; false: the message is acknowledged already. Only for
        messages of which fewer than `CHUNKED_MESSAGES_MAX` came later."""
        others = self._chunks.get(key)
        if others is None:
            return False
        if other not in others:
            others.append(other)
        return True

    def with_chunks(self, entries: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Entries, and with the end of a message in chunks all others of it; sorted."""
        if not self._chunks:
            return entries
        return sorted({*entries, *(o for each in entries for o in self._chunks.get(each, ()))})

    def add(self, ledger_id: int, entry_id: int, batch_index: int, batch_size: int) -> bool:
        """Acknowledge one message. Of a batch of unknown size, the whole entry.

        Returns whether nothing of the entry is left to acknowledge.
        """
        if batch_index < 0 or batch_size <= 0:
            self.add_entry(ledger_id, entry_id)
            return True
        key, bit = (ledger_id, entry_id), 1 << batch_index
        part = self._parts.get(key)
        if part is None:
            part = self._known(key, (1 << batch_size) - 1)
            self._set(key, part)
        left = part.open | part.kept
        part.open &= ~bit
        part.kept &= ~bit
        if not part.open:
            self._complete(key, part.kept)
            return True
        if self._batch_index_ack and left & bit:
            self._touched[key] = left & ~bit
        return False

    def _complete(self, key: tuple[int, int], kept: int) -> None:
        """All that is for us to acknowledge of a batch is acknowledged."""
        if not kept:
            self.add_entry(*key)
            return
        self._parts.pop(key, None)
        self._forgotten.pop(key, None)
        self._touched[key] = kept

    def add_in_transaction(self, key: tuple[int, int], bits: int, batch_size: int) -> None:
        """A transaction acknowledges these messages of an entry; the others stay for us."""
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
        """What is left of a batch; bits of `otherwise`, if nothing is known."""
        part = self._parts.get(key)
        return _Part(self._touched.get(key, otherwise)) if part is None else part

    def add_cumulative(self, message_id: MessageId) -> None:
        """Acknowledge everything up to and including a message."""
        if self._cumulative is None or _end_of(self._cumulative) < _end_of(message_id):
            self._cumulative = message_id

    def drop(self, ledger_id: int, entry_id: int) -> None:
        """Forget about parts of an entry: it will be delivered again as a whole."""
        self._parts.pop((ledger_id, entry_id), None)
        self._touched.pop((ledger_id, entry_id), None)

    def forget_parts(self) -> None:
        """What is begun is delivered again from the start, here or to another consumer.

        Acknowledgements that wait are still sent; which entries make a message in chunks stays so.
        """
        self._parts.clear()
        self._forgotten.clear()

    def clear(self) -> None:
        """Forget all acknowledgements: the subscription is moved. Which entries make a message in
        chunks stays so."""
        self._entries = []
        self._cumulative = None
        self._touched.clear()
        self.forget_parts()

    def take(self, consumer_id: int) -> AckCommands:
        """Everything that waits; afterwards nothing does."""
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
                        MessageIdData(
                            ledgerId=ledger_id,
                            entryId=entry_id,
                            ack_set=words_from_mask(mask),
                        )
                        for (ledger_id, entry_id), mask in sorted(touched.items())
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
            return MessageIdData(ledgerId=ledger_id, entryId=entry_id)
        part = _Part(part.open & mask, part.kept & mask)
        if part.open:
            self._set((ledger_id, entry_id), part)
        else:
            self._parts.pop((ledger_id, entry_id), None)
        if self._batch_index_ack or not part.open:
            self._touched.pop((ledger_id, entry_id), None)  # this command says it, too
            return MessageIdData(
                ledgerId=ledger_id, entryId=entry_id, ack_set=words_from_mask(mask)
            )
        # In the middle of a batch without index acks: all before it. What came before the first
        # entry of a ledger is in another ledger, whose entries we do not know.
        if entry_id == 0:
            return None
        return MessageIdData(ledgerId=ledger_id, entryId=entry_id - 1)


def _end_of(message_id: MessageId) -> tuple[int, int, float]:
    """To be compared: a whole entry ends behind each of its messages."""
    index = message_id.batch_index
    return message_id.ledger_id, message_id.entry_id, index if index >= 0 else math.inf


def ack_frame(command: CommandAck) -> BaseCommand:
    """The command as a whole."""
    return BaseCommand(type=BaseCommand.ACK, ack=command)
