"""The sticky key of an entry, and its hash, by which Key_Shared assigns entries to consumers.

Only the outer metadata counts. A batch has one key, that of its first message, which is why
producers for Key_Shared batch by key. The chunks of a message share producer and sequence id, so
they go to one consumer even without a key. Source: protocol sheet section 11. Pure.
"""

import base64
import binascii
from collections.abc import Sequence

from google.protobuf.message import DecodeError

from magnetar.sdk.wire import MalformedPayloadError, MessageMetadata, split_payload
from magnetar.sdk.wire.key_hashes import murmur3_hash

AUTO_SPLIT_HASHES = 65_535
"""Highest hash of AUTO_SPLIT; the lowest is 1."""

STICKY_HASHES = 65_536
"""Bound of STICKY ranges, which lie within 0 to one less. A key never has the hash 0."""

NO_KEY = b"NONE_KEY"
"""Key of an entry that cannot be parsed."""

_parse = MessageMetadata.FromString
_HASH_WITHOUT_KEY = murmur3_hash(NO_KEY)


def sticky_key_of(metadata: MessageMetadata) -> bytes:
    """Return the bytes to hash. A key declared as base64 that is not valid base64 is used
    unchanged."""
    if metadata.HasField("ordering_key"):
        return metadata.ordering_key
    if metadata.HasField("partition_key"):
        key = metadata.partition_key.encode()
        if metadata.partition_key_b64_encoded:
            try:
                return base64.b64decode(key, validate=True)
            except binascii.Error:
                return key
        return key
    return b"%s-%d" % (metadata.producer_name.encode(), metadata.sequence_id)


def key_hash_of(entry: bytes) -> int:
    """Return the Murmur3 hash of the entry's sticky key; `NO_KEY` if the entry cannot be parsed."""
    try:
        if entry[:2] == b"\x0e\x01":
            metadata = _parse(entry[10 : 10 + int.from_bytes(entry[6:10], "big")])
        else:
            metadata, _ = split_payload(entry)
        return murmur3_hash(sticky_key_of(metadata))
    except (DecodeError, MalformedPayloadError, UnicodeError):
        return _HASH_WITHOUT_KEY


def entry_hash_of(entry: bytes) -> int:
    """Return the hash that assigns an entry as a whole to an entry bucket.

    It is the lowest hash of its messages, if a client of Pulsar 5 has set it; otherwise the lower
    16 bits of its key's hash.

    Source: sheet of Pulsar 5, sections 1.5 and 3.5.
    """
    try:
        if entry[:2] == b"\x0e\x01":
            metadata = _parse(entry[10 : 10 + int.from_bytes(entry[6:10], "big")])
        else:
            metadata, _ = split_payload(entry)
        if metadata.HasField("entry_hash_min"):
            return metadata.entry_hash_min % STICKY_HASHES
        return murmur3_hash(sticky_key_of(metadata)) % STICKY_HASHES
    except (DecodeError, MalformedPayloadError, UnicodeError):
        return _HASH_WITHOUT_KEY % STICKY_HASHES


def entry_hashes_of(entries: Sequence[bytes]) -> list[int]:
    """Return `entry_hash_of` each entry."""
    return list(map(entry_hash_of, entries))


def key_hashes_of(entries: Sequence[bytes]) -> list[int]:
    """Return `key_hash_of` each entry."""
    return list(map(key_hash_of, entries))


def auto_split_hash(key_hash: int) -> int:
    """Return the place of a key on the AUTO_SPLIT ring: 1 to 65535."""
    return key_hash % AUTO_SPLIT_HASHES + 1


def sticky_range_hash(key_hash: int) -> int:
    """Return the hash that is compared with the ranges of STICKY consumers: 1 to 65535."""
    return key_hash % STICKY_HASHES or 1
