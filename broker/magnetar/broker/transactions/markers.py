"""Markers: entries of a topic's log that say how a transaction ended. Pure.

They are shaped like messages without a payload; `marker_type` in their metadata keeps them from
clients (protocol sheet, section 13).
"""

from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from magnetar.broker.transactions.ids import TransactionId
from magnetar.sdk.wire import (
    MalformedPayloadError,
    MessageMetadata,
    encode_payload,
    split_payload,
)

COMMITTED: Final = 21
ABORTED: Final = 22


class Sender(NamedTuple):
    """Who sent a message, and the how manieth it is of theirs: to know one that comes again."""

    name: str
    order: tuple[int, int]
    """Sequence id, and the number of the chunk."""


class Mark(NamedTuple):
    """What an entry says of transactions."""

    transaction: TransactionId
    is_committed: bool | None
    """How it has ended; None: the entry is a message in it."""
    sender: Sender


def encode_marker(txn: TransactionId, *, commits: bool, now_ms: int) -> bytes:
    """The entry that ends a transaction on a topic."""
    metadata = MessageMetadata(
        producer_name="",
        sequence_id=0,
        publish_time=now_ms,
        marker_type=COMMITTED if commits else ABORTED,
        txnid_most_bits=txn.most,
        txnid_least_bits=txn.least,
    )
    return encode_payload(metadata.SerializeToString(), b"")


def mark_of(entry: bytes) -> Mark | None:
    """What a stored entry says of transactions; None: nothing."""
    try:
        metadata, _ = split_payload(entry)
    except (DecodeError, MalformedPayloadError):
        return None
    return mark_in(metadata)


def mark_in(metadata: MessageMetadata) -> Mark | None:
    """The same of its metadata."""
    if not metadata.HasField("txnid_most_bits") or not metadata.HasField("txnid_least_bits"):
        return None
    txn = TransactionId(metadata.txnid_most_bits, metadata.txnid_least_bits)
    if not metadata.HasField("marker_type"):
        return Mark(txn, None, sender_in(metadata))
    if metadata.marker_type in (COMMITTED, ABORTED):
        return Mark(txn, metadata.marker_type == COMMITTED, sender_in(metadata))
    return None


def sender_in(metadata: MessageMetadata) -> Sender:
    """Whose message it is."""
    chunk = metadata.chunk_id if metadata.num_chunks_from_msg > 1 else 0
    sequence_id = max(metadata.sequence_id, metadata.highest_sequence_id)
    return Sender(metadata.producer_name, (sequence_id, chunk))
