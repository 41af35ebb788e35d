"""When an entry is to be delivered, by its metadata. Pure.

Only the outer metadata counts: clients never put delayed messages into a batch. Source: protocol
sheet section 11.
"""

from collections.abc import Sequence

from google.protobuf.message import DecodeError

from magnetar.sdk.wire import MalformedPayloadError, MessageMetadata, split_payload

_TAG = b"\x98\x01"
"""The protobuf tag of deliver_at_time (field 19, a varint)."""
_TAG_FIRST = _TAG[0]
"""A byte that is found among bytes several times as fast."""

_parse = MessageMetadata.FromString


def deliver_at_ms_of(entry: bytes) -> int:
    """Milliseconds since the epoch; 0: at once, or the entry cannot be read."""
    try:
        if entry[:2] == b"\x0e\x01":
            raw = entry[10 : 10 + int.from_bytes(entry[6:10], "big")]
            if _TAG_FIRST not in raw or _TAG not in raw:
                return 0  # a field that is there has its tag there
            metadata = _parse(raw)
        else:
            metadata, _ = split_payload(entry)
    except (DecodeError, MalformedPayloadError):
        return 0
    return max(0, metadata.deliver_at_time)


def delayed_of(entries: Sequence[bytes]) -> dict[int, int]:
    """`deliver_at_ms_of` the entries that have it, by index."""
    return {
        index: found for index, entry in enumerate(entries) if (found := deliver_at_ms_of(entry))
    }
