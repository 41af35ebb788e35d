"""Transactions in the metadata of entries: the transaction of a message, or its outcome. Pure.

Markers, which end a transaction, have the form of messages without a payload. The broker refuses
`marker_type` in the metadata of clients' messages (protocol sheet, section 13).
"""

from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from magnetar.broker.features.transactions.ids import TransactionId
from magnetar.sdk.wire import (
    MalformedPayloadError,
    MessageMetadata,
    encode_payload,
    extend_metadata,
    split_payload,
)

COMMITTED: Final = 21
ABORTED: Final = 22


class Sender(NamedTuple):
    """Identity of a sent message, by which a repetition is recognised."""

    name: str
    order: tuple[int, int]
    """Sequence id and chunk number."""


class Mark(NamedTuple):
    """The transaction that an entry belongs to or ends."""

    transaction: TransactionId
    is_committed: bool | None
    """Outcome of the transaction; None if the entry is a message in it."""
    sender: Sender


def encode_marker(txn: TransactionId, *, commits: bool, now_ms: int) -> bytes:
    """Return the entry that ends a transaction on a topic."""
    metadata = MessageMetadata(
        producer_name="",
        sequence_id=0,
        publish_time=now_ms,
        marker_type=COMMITTED if commits else ABORTED,
        txnid_most_bits=txn.most,
        txnid_least_bits=txn.least,
    )
    return encode_payload(metadata.SerializeToString(), b"")


def with_transaction(entry: bytes, txn: TransactionId) -> bytes:
    """Return the entry with the transaction's id in its metadata, under a checksum of its own.

    Clients in Go put the id only into SEND, which is not stored. Without the id in the entry, the
    next owner of the topic and direct readers of the ledgers would show the message. The caller has
    verified the checksum that came with the entry.
    """
    added = MessageMetadata(txnid_most_bits=txn.most, txnid_least_bits=txn.least)
    return extend_metadata(entry, added)


def mark_of(entry: bytes) -> Mark | None:
    """Return the mark of a stored entry; None if it concerns no transaction."""
    try:
        metadata, _ = split_payload(entry)
    except (DecodeError, MalformedPayloadError):
        return None
    return mark_in(metadata)


def mark_in(metadata: MessageMetadata) -> Mark | None:
    """Return the mark of an entry with this metadata; None if it concerns no transaction."""
    txn = id_in(metadata)
    if txn is None:
        return None
    if not metadata.HasField("marker_type"):
        return Mark(txn, None, sender_in(metadata))
    if metadata.marker_type in (COMMITTED, ABORTED):
        return Mark(txn, metadata.marker_type == COMMITTED, sender_in(metadata))
    return None


def id_in(metadata: MessageMetadata) -> TransactionId | None:
    """Return the transaction that the metadata name, or None."""
    if metadata.HasField("txnid_most_bits") and metadata.HasField("txnid_least_bits"):
        return TransactionId(metadata.txnid_most_bits, metadata.txnid_least_bits)
    return None


def sender_in(metadata: MessageMetadata) -> Sender:
    """Return producer name, sequence id and chunk number of a message."""
    chunk = metadata.chunk_id if metadata.num_chunks_from_msg > 1 else 0
    sequence_id = max(metadata.sequence_id, metadata.highest_sequence_id)
    return Sender(metadata.producer_name, (sequence_id, chunk))
