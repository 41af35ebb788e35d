"""Copies and their metadata: which entries are copied, and the place of a copy at its source. Pure.

`replicated_from` names the source cluster. The place is in a field of our own (`magnetar_source`),
which consumers do not see. Apache Pulsar writes it as a property, `ledger:entry`, which they see.

Source: geo-replication sheet, sections 5, 6 and 18.2.
"""

from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from magnetar.broker.base.entry import ACKS_MARKER, SUBSCRIPTION_MARKERS
from magnetar.broker.base.errors import BrokerMetadataError
from magnetar.broker.features.replication.source_marks import (
    NO_INCARNATION,
    START,
    CopyPlace,
    Source,
)
from magnetar.ledger.position import Position
from magnetar.sdk.wire import (
    MalformedPayloadError,
    MessageMetadata,
    encode_payload,
    extend_metadata,
    split_payload,
)
from magnetar.sdk.wire.pulsar_pb2 import KeyValue, SourcePosition

POSITION_PROPERTY: Final = "__MSG_PROP_REPL_SOURCE_POSITION"
"""Property in which Apache Pulsar stores a copy's place, as `ledger:entry`."""

MARKER_RECEIPT: Final = 1 << 63
"""highest_sequence_id of the receipt of a marker without a place: the smallest int64, as it is
written."""

_COPIED_MARKERS = frozenset({*SUBSCRIPTION_MARKERS, ACKS_MARKER})

_INT64_MAX = (1 << 63) - 1


class Copy(NamedTuple):
    """Source of a copy, and its place there."""

    source: Source
    place: CopyPlace


def copy_in(metadata: MessageMetadata) -> Copy | None:
    """Return the source and place of a copy; None if the message is no copy, or names no place.

    Raises:
        BrokerMetadataError: the place is not valid.
    """
    if not metadata.HasField("replicated_from"):
        return None
    cluster = metadata.replicated_from
    if metadata.HasField("magnetar_source"):
        said = metadata.magnetar_source
        place = CopyPlace(
            _position(said.ledger_id, said.entry_id),
            _position(said.previous_ledger_id, said.previous_entry_id)
            if said.HasField("previous_ledger_id")
            else START,
        )
        return Copy(Source(cluster, said.incarnation), place)
    for each in metadata.properties:
        if each.key == POSITION_PROPERTY:
            ledger_id, _, entry_id = each.value.partition(":")
            if not (_is_number(ledger_id) and _is_number(entry_id)):
                raise BrokerMetadataError(
                    f"a copy of cluster {cluster} has the property {POSITION_PROPERTY} with "
                    f"{each.value!r}; it must be ledger:entry"
                )
            position = _position(int(ledger_id), int(entry_id))
            return Copy(Source(cluster, NO_INCARNATION), CopyPlace(position))
    return None


def copy_in_entry(entry: bytes) -> Copy | None:
    """Return the source and place of a stored entry; None if it is no copy with a valid place."""
    try:
        metadata, _ = split_payload(entry)
        return copy_in(metadata)
    except (DecodeError, MalformedPayloadError, BrokerMetadataError):
        return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 20


def _position(ledger_id: int, entry_id: int) -> Position:
    if ledger_id > _INT64_MAX or entry_id > _INT64_MAX:
        raise BrokerMetadataError(f"{ledger_id}:{entry_id} is no place in a log")
    return Position(ledger_id, entry_id)


def goes_to(remote: str, metadata: MessageMetadata) -> bool:
    """Whether an entry with this metadata is copied to a cluster.

    Copies are never copied on, whatever their lists say, so there are no loops. Of the broker's
    markers, those of replicated subscriptions are copied as their lists say. Single
    acknowledgements are copied only to clusters that understand them; the caller checks that.
    """
    if metadata.HasField("replicated_from"):
        return False
    if metadata.HasField("marker_type") and metadata.marker_type not in _COPIED_MARKERS:
        return False
    return not metadata.replicate_to or remote in metadata.replicate_to


def as_copy(
    entry: bytes, metadata: MessageMetadata, source: Source, place: CopyPlace, *, schema: bytes
) -> bytes:
    """Return the copy of an entry of this cluster for another one, with the payload unchanged.

    Args:
        metadata: metadata of the entry.
        schema: version of the message's schema in the other cluster; empty if it has none.

    Transaction ids are left out: only committed messages are copied.

    Raises:
        MalformedPayloadError: the entry is truncated.
    """
    previous = place.previous
    has_previous = previous is not None and previous != START
    said = SourcePosition(
        incarnation=source.incarnation,
        ledger_id=place.position.ledger_id,
        entry_id=place.position.entry_id,
        previous_ledger_id=previous.ledger_id if previous is not None and has_previous else None,
        previous_entry_id=previous.entry_id if previous is not None and has_previous else None,
    )
    added = MessageMetadata(replicated_from=source.cluster, magnetar_source=said)
    if source.incarnation == NO_INCARNATION:
        added.ClearField("magnetar_source")
        added.properties.append(KeyValue(key=POSITION_PROPERTY, value=str(place.position)))
    if not metadata.HasField("txnid_most_bits") and not metadata.HasField("schema_version"):
        return extend_metadata(entry, added)
    changed = MessageMetadata()
    changed.CopyFrom(metadata)
    for field in ("txnid_most_bits", "txnid_least_bits", "schema_version"):
        changed.ClearField(field)
    if schema:
        changed.schema_version = schema
    changed.MergeFrom(added)
    _, body_at = split_payload(entry)
    return encode_payload(changed.SerializeToString(), entry[body_at:])
