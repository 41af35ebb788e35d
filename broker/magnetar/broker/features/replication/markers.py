"""Markers of replicated subscriptions: their bodies, and the entries that carry them. Pure.

| type | marker | written by | copied to |
|---|---|---|---|
| 10 | request | the cluster that takes a snapshot | all clusters |
| 11 | response | a cluster that stored a request | the cluster that asked |
| 12 | snapshot | the cluster that took it | no cluster |
| 13 | update | a cluster whose subscription moved on | all clusters |
| 4001 | acknowledgements (`acks.py`) | a Magnetar whose subscription has holes | Magnetars |

A marker is an entry of the topic's log, so it comes after everything that its cluster stored
before, and replicators keep that order. `marker_type` in its metadata hides it from consumers.

Source: geo-replication sheet, sections 1 and 11.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError, Message

from magnetar.broker.base.entry import ACKS_MARKER, SUBSCRIPTION_MARKERS
from magnetar.broker.base.errors import BrokerMetadataError
from magnetar.broker.features.replication.acks import Acks, decode_acks, encode_acks
from magnetar.ledger.position import Position
from magnetar.sdk.wire import MessageMetadata, encode_payload
from magnetar.sdk.wire import pulsar_pb2 as pb

REQUEST: Final = 10
RESPONSE: Final = 11
SNAPSHOT: Final = 12
UPDATE: Final = 13

MARKER_PRODUCER: Final = "pulsar.marker"
"""Producer name in the metadata of a marker."""

MARKER_BYTES_MAX: Final = 64 << 10
"""Largest body that is decoded, in bytes. A body with 64 clusters of long names has a tenth of
it."""

CLUSTERS_MAX: Final = 64
"""Most clusters that one marker may name; a topic is copied between fewer."""

NAME_BYTES_MAX: Final = 1_000
"""Longest id of a snapshot, and longest name of a cluster or subscription, in bytes."""

_INT64_MAX = (1 << 63) - 1
_UINT64_MAX = (1 << 64) - 1


class Request(NamedTuple):
    """Question of a cluster to all others: how far have their logs come?"""

    snapshot_id: str
    cluster: str
    """Cluster that asks; empty if the marker does not name it."""


class Response(NamedTuple):
    """Answer of a cluster: the last entry of its log."""

    snapshot_id: str
    cluster: str
    position: Position


class Snapshot(NamedTuple):
    """Positions in the logs of several clusters that belong together.

    A reader of the whole local log up to `local` has all of each other log up to its position, too.
    """

    snapshot_id: str
    local: Position
    positions: Mapping[str, Position]
    """Positions by cluster, without the one that took the snapshot."""


class Update(NamedTuple):
    """A subscription has acknowledged everything up to these positions."""

    subscription: str
    positions: Mapping[str, Position]
    """Positions by cluster."""


Marker = Request | Response | Snapshot | Update | Acks


def decode_marker(marker_type: int, body: bytes) -> Marker | None:
    """Return the content of a marker; None if it is no marker of replicated subscriptions.

    Raises:
        BrokerMetadataError: the body is not that of a marker of this type. A retry does not help.
    """
    if marker_type == ACKS_MARKER:
        return decode_acks(body)
    if marker_type not in SUBSCRIPTION_MARKERS:
        return None
    if len(body) > MARKER_BYTES_MAX:
        raise BrokerMetadataError(
            f"a marker of type {marker_type} has {len(body)} bytes; the limit is {MARKER_BYTES_MAX}"
        )
    try:
        return _decode(marker_type, body)
    except DecodeError as error:
        raise BrokerMetadataError(
            f"a marker of type {marker_type} is malformed: {error}"
        ) from error


def _decode(marker_type: int, body: bytes) -> Marker:
    """Decode the body of a marker of `SUBSCRIPTION_MARKERS`.

    Raises:
        DecodeError, BrokerMetadataError: the body is malformed.
    """
    if marker_type == REQUEST:
        request = pb.SnapshotRequestMarker.FromString(body)
        return Request(_name(request.snapshot_id), _name(request.source_cluster, may_lack=True))
    if marker_type == RESPONSE:
        response = pb.SnapshotResponseMarker.FromString(body)
        ((cluster, position),) = _positions([response.cluster]).items()
        return Response(_name(response.snapshot_id), cluster, position)
    if marker_type == SNAPSHOT:
        snapshot = pb.SnapshotMarker.FromString(body)
        return Snapshot(
            _name(snapshot.snapshot_id),
            _position(snapshot.local_message_id),
            _positions(snapshot.clusters),
        )
    assert marker_type == UPDATE
    update = pb.SubscriptionUpdateMarker.FromString(body)
    return Update(_name(update.subscription_name), _positions(update.clusters))


def _name(text: str, *, may_lack: bool = False) -> str:
    if not isinstance(text, str):
        raise BrokerMetadataError("a name in a marker is not valid UTF-8")
    if not (text or may_lack) or len(text.encode()) > NAME_BYTES_MAX:
        raise BrokerMetadataError(
            f"a name in a marker has {len(text.encode())} bytes; it must have 1 to {NAME_BYTES_MAX}"
        )
    return text


def _positions(found: Iterable[pb.ClusterPosition]) -> dict[str, Position]:
    positions = {_name(each.cluster): _position(each.message_id) for each in found}
    if not 0 < len(positions) <= CLUSTERS_MAX:
        raise BrokerMetadataError(
            f"a marker names {len(positions)} clusters; it must name 1 to {CLUSTERS_MAX}"
        )
    return positions


def _position(found: pb.EntryPosition) -> Position:
    """Return a position; an entry id of 2^64-1 becomes -1: before the first entry of a ledger."""
    if not found.HasField("ledger_id") or not found.HasField("entry_id"):
        raise BrokerMetadataError("a marker lacks the position in a log")
    entry_id = found.entry_id if found.entry_id <= _INT64_MAX else found.entry_id - (1 << 64)
    if found.ledger_id > _INT64_MAX or entry_id < -1:
        raise BrokerMetadataError(f"{found.ledger_id}:{found.entry_id} is no position in a log")
    return Position(found.ledger_id, entry_id)


def encode_marker(marker: Marker, *, goes_to: Sequence[str] = (), now_ms: int) -> bytes:
    """Return the entry that carries a marker of this cluster.

    Args:
        goes_to: clusters that the marker is copied to; empty for all.
        now_ms: publish time, ms since 1970.
    """
    marker_type, body = _encode(marker)
    metadata = MessageMetadata(
        producer_name=MARKER_PRODUCER,
        sequence_id=0,
        publish_time=now_ms,
        marker_type=marker_type,
        replicate_to=goes_to,
    )
    return encode_payload(metadata.SerializeToString(), body)


def _encode(marker: Marker) -> tuple[int, bytes]:
    if isinstance(marker, Acks):
        return ACKS_MARKER, encode_acks(marker)
    marker_type, body = _encode_pulsars(marker)
    return marker_type, body.SerializeToString()


def _encode_pulsars(marker: Request | Response | Snapshot | Update) -> tuple[int, Message]:
    match marker:
        case Request(snapshot_id, cluster):
            return REQUEST, pb.SnapshotRequestMarker(
                snapshot_id=snapshot_id, source_cluster=cluster
            )
        case Response(snapshot_id, cluster, position):
            return RESPONSE, pb.SnapshotResponseMarker(
                snapshot_id=snapshot_id, cluster=_of_cluster(cluster, position)
            )
        case Snapshot(snapshot_id, local, positions):
            return SNAPSHOT, pb.SnapshotMarker(
                snapshot_id=snapshot_id,
                local_message_id=_entry_position(local),
                clusters=[_of_cluster(*each) for each in sorted(positions.items())],
            )
        case Update(subscription, positions):
            return UPDATE, pb.SubscriptionUpdateMarker(
                subscription_name=subscription,
                clusters=[_of_cluster(*each) for each in sorted(positions.items())],
            )


def _of_cluster(cluster: str, position: Position) -> pb.ClusterPosition:
    return pb.ClusterPosition(cluster=cluster, message_id=_entry_position(position))


def _entry_position(position: Position) -> pb.EntryPosition:
    return pb.EntryPosition(
        ledger_id=max(0, position.ledger_id), entry_id=position.entry_id & _UINT64_MAX
    )
