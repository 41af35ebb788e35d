"""Markers of replicated subscriptions: the bytes of Pulsar's brokers, and what is malformed."""

import pytest

from magnetar.broker.base.errors import BrokerMetadataError
from magnetar.broker.features.replication.copies import goes_to
from magnetar.broker.features.replication.markers import (
    CLUSTERS_MAX,
    MARKER_BYTES_MAX,
    NAME_BYTES_MAX,
    Marker,
    Request,
    Response,
    Snapshot,
    Update,
    decode_marker,
    encode_marker,
)
from magnetar.ledger.position import Position
from magnetar.sdk.wire import MessageMetadata, open_payload
from magnetar.sdk.wire import pulsar_pb2 as pb

AT_5_300 = bytes.fromhex("08051 0ac02".replace(" ", ""))
"""ledger_id 5, entry_id 300."""
WEST = b"\x0a\x04west\x12\x05" + AT_5_300
"""cluster west, message_id 5:300."""

KNOWN: list[tuple[int, bytes, Marker]] = [
    (10, b"\x0a\x02id\x12\x04east", Request("id", "east")),
    (11, b"\x0a\x02id\x12\x0d" + WEST, Response("id", "west", Position(5, 300))),
    (
        12,
        b"\x0a\x02id\x12\x05" + AT_5_300 + b"\x1a\x0d" + WEST,
        Snapshot("id", Position(5, 300), {"west": Position(5, 300)}),
    ),
    (13, b"\x0a\x01s\x12\x0d" + WEST, Update("s", {"west": Position(5, 300)})),
]


@pytest.mark.parametrize(("marker_type", "body", "marker"), KNOWN)
def test_bodies_are_those_of_pulsar(marker_type: int, body: bytes, marker: Marker) -> None:
    assert decode_marker(marker_type, body) == marker
    entry = encode_marker(marker, goes_to=["west"], now_ms=77)
    metadata, body_at = open_payload(entry)
    assert entry[body_at:] == body
    assert (metadata.producer_name, metadata.sequence_id) == ("pulsar.marker", 0)
    assert (metadata.publish_time, metadata.marker_type) == (77, marker_type)
    assert list(metadata.replicate_to) == ["west"]


def test_an_empty_log_ends_before_its_first_entry() -> None:
    marker = Response("id", "west", Position(5, -1))
    entry = encode_marker(marker, now_ms=0)
    _, body_at = open_payload(entry)
    assert decode_marker(11, entry[body_at:]) == marker


@pytest.mark.parametrize("marker_type", [-1, 0, 9, 14, 20, 21, 22, 1 << 30])
def test_other_types_are_not_known(marker_type: int) -> None:
    assert decode_marker(marker_type, b"whatever") is None


def _of_clusters(count: int) -> bytes:
    each = [b"\x12\x0d\x0a\x04c%03d\x12\x05" % at + AT_5_300 for at in range(count)]
    return b"\x0a\x01s" + b"".join(each)


def _update(ledger_id: int, entry_id: int) -> bytes:
    position = pb.EntryPosition(ledger_id=ledger_id, entry_id=entry_id)
    update = pb.SubscriptionUpdateMarker(subscription_name="s")
    update.clusters.add(cluster="west", message_id=position)
    return update.SerializeToString()


@pytest.mark.parametrize(
    ("marker_type", "body"),
    [
        (10, b""),
        (10, b"\x0a\x00"),
        (10, b"\x0a\x02\xff\xfe"),
        (10, b"\x0a\x09id"),
        (10, b"\x0a\xe9\x07" + b"x" * (NAME_BYTES_MAX + 1)),
        (11, b"\x0a\x02id"),
        (11, b"\x0a\x02id\x12\x02\x0a\x00"),
        (11, b"\x0a\x02id\x12\x06\x0a\x04west"),
        (12, b"\x0a\x02id\x1a\x0d" + WEST),
        (12, b"\x0a\x02id\x12\x05" + AT_5_300),
        (13, b"\x0a\x01s"),
        (13, WEST),
        (13, _update(5, (1 << 64) - 2)),
        (13, _update(1 << 63, 0)),
        (13, _of_clusters(CLUSTERS_MAX + 1)),
        (13, b"\x0a\x01s" + b"\x00" * MARKER_BYTES_MAX),
    ],
)
def test_what_is_malformed_is_said_so(marker_type: int, body: bytes) -> None:
    with pytest.raises(BrokerMetadataError):
        decode_marker(marker_type, body)


def test_as_many_clusters_as_may_be() -> None:
    update = decode_marker(13, _of_clusters(CLUSTERS_MAX))
    assert isinstance(update, Update)
    assert len(update.positions) == CLUSTERS_MAX


@pytest.mark.parametrize(
    ("metadata", "is_copied"),
    [
        ({"marker_type": 10}, True),
        ({"marker_type": 13}, True),
        ({"marker_type": 11, "replicate_to": ["west"]}, True),
        ({"marker_type": 11, "replicate_to": ["north"]}, False),
        ({"marker_type": 12, "replicate_to": ["east"]}, False),
        ({"marker_type": 10, "replicated_from": "north"}, False),
        ({"marker_type": 9}, False),
        ({"marker_type": 14}, False),
        ({"marker_type": 21}, False),
    ],
)
def test_markers_of_subscriptions_alone_are_copied(
    metadata: dict[str, object], is_copied: bool
) -> None:
    """17.18: never those that end transactions; and copies never travel on."""
    assert goes_to("west", MessageMetadata(**metadata)) is is_copied  # type: ignore[arg-type]
