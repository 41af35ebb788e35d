"""Encodes entries of a run as MESSAGE frames for one consumer: the hot loop of dispatch.

The stored bytes are sent unchanged; only the few bytes of the command are made per entry. Entries
that are already acknowledged are left out, and so are internal marker entries. The prefix that a
broker stored in front of a message is sent only to clients that asked for it.
"""

from collections.abc import Callable
from typing import NamedTuple

from magnetar.broker.base.entry import MARKER
from magnetar.broker.base.entry_metadata import bare
from magnetar.broker.topic.consumer import Consumer
from magnetar.broker.topic.run import Run
from magnetar.cursors import SubscriptionCursor
from magnetar.ledger.position import Position
from magnetar.sdk.wire import encode_message_prefix

CHECKSUM_VERSION_MIN = 11
"""Lowest protocol version whose clients are sent the checksum."""

_CHECKSUM_MAGIC = b"\x0e\x01"
_CHECKSUM_BYTES = 6
_WORD_MASK = (1 << 64) - 1


class Encoded(NamedTuple):
    """Result of encoding entries of a run, up to index `stop`, exclusive."""

    stop: int
    messages: int
    size_bytes: int


def open_messages(messages: int, words: tuple[int, ...]) -> int:
    """Return the number of unacknowledged messages of an entry, given its ack_set words (none:
    all)."""
    if not words:
        return messages
    return sum((word & _WORD_MASK).bit_count() for word in words)


def both(words: tuple[int, ...], others: tuple[int, ...]) -> tuple[int, ...]:
    """Return the messages that are unacknowledged in both of two ack_sets; () has all of them."""
    if not words or not others:
        return words or others
    return tuple(one & other for one, other in zip(words, others, strict=False))


def strip_checksum(entry: bytes) -> bytes:
    """Return the entry without magic and checksum, for clients that do not know them."""
    return entry[_CHECKSUM_BYTES:] if entry[:2] == _CHECKSUM_MAGIC else entry


def encode_run(
    parts: list[bytes],
    consumer: Consumer,
    run: Run,
    start: int,
    *,
    messages_max: int,
    bytes_max: int,
    partition: int,
    acks: SubscriptionCursor,
    markers: list[Position],
    wanted: Callable[[int], bool] | None = None,
) -> Encoded:
    """Append frames for entries from index `start` on, while credit and room last.

    An entry is sent whenever some credit is left, so the last batch may exceed the credit.
    Positions of omitted marker entries are added to `markers`. `wanted` gets the hash of each
    entry's key; unwanted entries are left out and stay unacknowledged.
    """
    if (
        wanted is not None
        or run.kept_words is not None
        or acks.has_holes
        or consumer.peer.protocol_version < CHECKSUM_VERSION_MIN
        or (run.prefixes is not None and consumer.peer.takes_entry_metadata)
    ):
        return _encode_filtered(
            parts,
            consumer,
            run,
            start,
            messages_max=messages_max,
            bytes_max=bytes_max,
            partition=partition,
            acks=acks,
            markers=markers,
            wanted=wanted,
        )
    consumer_id, epoch = consumer.consumer_id, consumer.epoch
    ledger_id, first_entry_id = run.ledger_id, run.first_entry_id
    entries, messages = run.entries, run.messages
    credit, room = messages_max, bytes_max
    append = parts.append
    stop = start
    for stop in range(start, len(entries)):
        if credit <= 0 or room <= 0:
            break
        cost = messages[stop]
        if cost == MARKER:
            markers.append(Position(ledger_id, first_entry_id + stop))
            continue
        entry = entries[stop]
        size = len(entry)
        append(
            encode_message_prefix(
                consumer_id,
                ledger_id=ledger_id,
                entry_id=first_entry_id + stop,
                payload_bytes=size,
                partition=partition,
                consumer_epoch=epoch,
            )
        )
        append(entry)
        credit -= cost
        room -= size
    else:
        stop = len(entries)
    return Encoded(stop, messages_max - credit, bytes_max - room)


def _encode_filtered(
    parts: list[bytes],
    consumer: Consumer,
    run: Run,
    start: int,
    *,
    messages_max: int,
    bytes_max: int,
    partition: int,
    acks: SubscriptionCursor,
    markers: list[Position],
    wanted: Callable[[int], bool] | None,
) -> Encoded:
    """Encode entries of which some may be acknowledged or unwanted, checking each."""
    credit, room = messages_max, bytes_max
    entry_of = run.getter(with_prefixes=consumer.peer.takes_entry_metadata)
    messages = run.messages
    stop = start
    for stop in range(start, len(messages)):
        if credit <= 0 or room <= 0:
            break
        position = Position(run.ledger_id, run.first_entry_id + stop)
        cost = messages[stop]
        if cost == MARKER:
            markers.append(position)  # passed once more, even if acknowledged
            continue
        if acks.is_acked(position):
            continue
        if wanted is not None and not wanted(run.key_hashes[stop]):
            continue
        words = acks.remaining_words(position)
        if run.kept_words is not None:
            words = both(words, run.kept_words[stop])
            if words and not any(words):
                markers.append(position)  # its remaining messages were acknowledged
                continue
        room -= append_message(
            parts, consumer, position, entry_of(stop), partition=partition, words=words
        )
        credit -= open_messages(cost, words)
    else:
        stop = len(messages)
    return Encoded(stop, messages_max - credit, bytes_max - room)


def append_message(
    parts: list[bytes],
    consumer: Consumer,
    position: Position,
    entry: bytes,
    *,
    partition: int,
    words: tuple[int, ...] = (),
    redelivery_count: int = 0,
) -> int:
    """Append one MESSAGE frame; return the size of the entry as sent.

    `entry`: with or without its prefix; a client that did not ask for prefixes gets none.
    """
    if not consumer.peer.takes_entry_metadata:
        entry = bare(entry)
    if consumer.peer.protocol_version < CHECKSUM_VERSION_MIN:
        entry = strip_checksum(entry)
    parts.append(
        encode_message_prefix(
            consumer.consumer_id,
            ledger_id=position.ledger_id,
            entry_id=position.entry_id,
            payload_bytes=len(entry),
            redelivery_count=redelivery_count,
            ack_set=words,
            partition=partition,
            consumer_epoch=consumer.epoch,
        )
    )
    parts.append(entry)
    return len(entry)
