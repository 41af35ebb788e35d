"""Checks an entry, and reads its metadata: how many messages it holds, and when it was sent.

An entry is what a producer sent, from the 0x0e01 magic to the end of the frame
(docs/formats/pulsar-frame.md). The broker reads only the metadata, and changes nothing but one
field: it adds the transaction's id to metadata that lack it (`features/transactions/markers.py`).
`admit` checks every published message. It reads the fixed head, computes one CRC, and matches or
parses the metadata.
"""

import re
import struct
from collections.abc import Sequence

from google.protobuf.message import DecodeError

from magnetar.broker.base.chunks import CHUNKS_FIRST, CHUNKS_TAG
from magnetar.broker.base.entry_metadata import metadata_in
from magnetar.broker.base.errors import MessageChecksumError
from magnetar.cursors import words_from_bits
from magnetar.sdk.wire import (
    MESSAGES_PER_ENTRY_MAX,
    MalformedPayloadError,
    MessageMetadata,
    check_checksum,
    checksum,
    split_payload,
)

MARKER = 0
"""Number of messages in a broker-internal entry, which is never delivered."""

SUBSCRIPTION_MARKERS = range(10, 14)
"""Types of the markers that keep replicated subscriptions of several clusters in step."""

ACKS_MARKER = 4001
"""Type of the marker by which Magnetar clusters tell each other single acknowledgements. It is
ours: Pulsar has no such marker. Stored on disk, never renumber."""

TRANSACTION_MARKERS = range(20, 23)
"""Types of the markers that end transactions; they concern one cluster only."""

_CHECKSUM_MAGIC = 0x0E01
_PREFIX_MAGIC = 0x0E02
_HEAD = struct.Struct(">HII")  # magic, checksum, size of the metadata
_HEAD_BYTES = _HEAD.size
_CHECKED_FROM = 6
_parse_metadata = MessageMetadata.FromString

# The protobuf tags of num_messages_in_batch (field 11) and marker_type (field 20), both varints.
_BATCH_TAG = b"\x58"
_MARKER_TAG = b"\xa0\x01"
_DELIVER_AT_TAG = b"\x98\x01"
"""Protobuf tag of deliver_at_time (field 19, a varint)."""
# Python finds one byte among bytes several times as fast as a longer pattern.
_BATCH_FIRST, _MARKER_FIRST = _BATCH_TAG[0], _MARKER_TAG[0]
_DELIVER_AT_FIRST = _DELIVER_AT_TAG[0]

_VARINT = rb"[\x80-\xff]{0,8}[\x00-\x7f]"
_match_usual = re.compile(
    #  0a SIZE producer_name, 10 sequence_id, 18 publish_time, 32 SIZE partition_key?,
    #  48 uncompressed_size?; from a client of Pulsar 5 also 88 02 entry_hash_min,
    #  90 02 entry_hash_max
    rb"\x0a[\x00-\x7f]([\x20-\x7e]{0,127})\x10%b\x18%b"
    rb"(?:\x32[\x00-\x7f]([\x20-\x7e]{0,127}))?(?:\x48%b)?"
    rb"(?:\x88\x02%b\x90\x02%b)?" % ((_VARINT,) * 5)
).fullmatch


def _is_usual(entry: bytes, start: int, end: int) -> bool:
    """Whether the metadata at `start` to `end` hold only the usual fields.

    These are producer name, sequence id and publish time, perhaps with a key and the range of its
    hash. Most metadata are like that. Proving it takes a third of the time that protobuf needs to
    parse and check them.
    """
    found = _match_usual(entry, start, end)
    if found is None or found.end(1) - found.start(1) != entry[start + 1]:
        return False
    key_at, key_end = found.span(2)
    return key_at < 0 or key_end - key_at == entry[key_at - 1]


def admit(entry: bytes) -> MessageMetadata | None:
    """Check a published entry; return its metadata.

    Return None if the metadata hold only the usual fields; the entry is then one message. Callers
    that need more use `metadata_of`. An entry without a checksum has nothing to verify, but must be
    readable all the same.

    Raises:
        MessageChecksumError: the entry does not match its checksum, or has no valid metadata:
            consumers could do nothing with it.
    """
    try:
        magic, expected, size = _HEAD.unpack_from(entry)
        if magic == _CHECKSUM_MAGIC:
            if checksum(entry[_CHECKED_FROM:]) != expected:
                raise MessageChecksumError("the message does not match its checksum")
            end = _HEAD_BYTES + size
            if end > len(entry):
                raise MessageChecksumError(f"the message ends in its metadata of {size} bytes")
            if _is_usual(entry, _HEAD_BYTES, end):
                return None
            metadata = _parse_metadata(entry[_HEAD_BYTES:end])
        else:
            if magic == _PREFIX_MAGIC:
                raise MessageChecksumError(
                    "the message begins with broker entry metadata, which a broker alone writes"
                )
            if not check_checksum(entry):
                raise MessageChecksumError("the message does not match its checksum")
            metadata, _ = split_payload(entry)
    except (struct.error, DecodeError, MalformedPayloadError) as error:
        raise MessageChecksumError(f"the message has no readable metadata: {error}") from error
    if not metadata.IsInitialized():
        raise MessageChecksumError("the message's metadata lacks required fields")
    return metadata


def metadata_of(entry: bytes) -> MessageMetadata:
    """Return the metadata of an admitted entry."""
    return split_payload(entry)[0]


def messages_of(entry: bytes) -> int:
    """Return the number of messages in a stored entry, which is its cost in permits.

    `MARKER` for internal entries. An entry that cannot be read counts as one message: it is
    delivered as it is, and the client, which sees the same damage, discards and acknowledges it.
    """
    try:
        magic, _, size = _HEAD.unpack_from(entry)
        if magic == _CHECKSUM_MAGIC:
            raw = entry[_HEAD_BYTES : _HEAD_BYTES + size]
            if _BATCH_FIRST not in raw and (_MARKER_FIRST not in raw or _MARKER_TAG not in raw):
                return 1  # a field that is present has its tag here: nothing to parse
            metadata = _parse_metadata(raw)
        else:
            metadata, _ = split_payload(entry)
    except (struct.error, DecodeError, MalformedPayloadError):
        return 1
    return messages_in(metadata)


def look_through(entries: Sequence[bytes]) -> tuple[list[int], list[int]]:
    """Return `messages_of` each entry, and the indexes of those that may be chunks.

    One look at each head answers both. Every entry that is read behind the tail passes here.
    """
    counts = [1] * len(entries)
    maybe_chunks: list[int] = []
    unpack = _HEAD.unpack_from
    for at, entry in enumerate(entries):
        if len(entry) >= _HEAD_BYTES:
            magic, _, size = unpack(entry)
            if magic == _CHECKSUM_MAGIC:
                raw = entry[_HEAD_BYTES : _HEAD_BYTES + size]
                if CHUNKS_FIRST in raw and CHUNKS_TAG in raw:
                    maybe_chunks.append(at)
                if _BATCH_FIRST in raw or _MARKER_FIRST in raw:
                    counts[at] = messages_of(entry)
                continue
        maybe_chunks.append(at)
        counts[at] = messages_of(entry)
    return counts, maybe_chunks


def messages_in(metadata: MessageMetadata) -> int:
    """Return the number of messages in an entry with this metadata; `MARKER` for internal ones."""
    if metadata.HasField("marker_type"):
        return MARKER
    count = metadata.num_messages_in_batch
    return min(count, MESSAGES_PER_ENTRY_MAX) if count > 1 else 1


def last_batch_index_of(entry: bytes) -> int:
    """Return the index of the last message of a batch; -1 if the entry is no batch.

    The presence of the field, not its value, makes a batch: a batch of one has index 0.
    """
    try:
        metadata, _ = split_payload(entry)
    except MalformedPayloadError:
        return -1
    if not metadata.HasField("num_messages_in_batch"):
        return -1
    return max(0, metadata.num_messages_in_batch - 1)


def publish_time_ms_of(entry: bytes) -> int | None:
    """Return the publish time that the producer set, ms since the epoch; 0 is 1970.

    Return None if it cannot be read. The age of the entry is then unknown: do not treat it as old.
    """
    try:
        metadata, _ = split_payload(entry)
    except MalformedPayloadError:
        return None
    return metadata.publish_time if metadata.HasField("publish_time") else None


def stored_time_ms_of(entry: bytes) -> int | None:
    """Return when a broker stored an entry, ms since the epoch; None if no time can be read.

    An entry without the broker's time has the publish time of its producer.
    """
    known = metadata_in(entry)
    if known is not None and known.broker_time_ms is not None:
        return known.broker_time_ms
    return publish_time_ms_of(entry)


def deliver_at_ms_of(entry: bytes) -> int:
    """Return when an entry is due, ms since the epoch; 0 if at once or if it cannot be read.

    Only the outer metadata counts: clients never batch delayed messages. Source: protocol sheet,
    section 11.
    """
    try:
        if entry[:2] == b"\x0e\x01":
            raw = entry[10 : 10 + int.from_bytes(entry[6:10], "big")]
            if _DELIVER_AT_FIRST not in raw or _DELIVER_AT_TAG not in raw:
                return 0  # a field that is present has its tag here
            metadata = _parse_metadata(raw)
        else:
            metadata, _ = split_payload(entry)
    except (DecodeError, MalformedPayloadError):
        return 0
    return max(0, metadata.deliver_at_time)


def delayed_of(entries: Sequence[bytes]) -> dict[int, int]:
    """Return `deliver_at_ms_of` the delayed entries, by index."""
    return {
        index: found for index, entry in enumerate(entries) if (found := deliver_at_ms_of(entry))
    }


def kept_words_of(entry: bytes) -> tuple[int, ...]:
    """Return the messages left in a compacted batch, as ack_set words; () if it has lost none.

    Not every official client skips messages marked `compacted_out`. All clients skip what the
    ack_set of a batch calls acknowledged.
    """
    try:
        metadata, _ = split_payload(entry)
    except (DecodeError, MalformedPayloadError):
        return ()
    bits = 0
    for index in metadata.compacted_batch_indexes:
        if 0 <= index < MESSAGES_PER_ENTRY_MAX:
            bits |= 1 << index
    return words_from_bits(bits) if bits else ()
