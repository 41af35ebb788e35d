"""The codec of markers: what is written is read again, and any bytes give a marker or our error."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.base.errors import BrokerMetadataError
from magnetar.broker.features.replication.markers import (
    CLUSTERS_MAX,
    Marker,
    Request,
    Response,
    Snapshot,
    Update,
    decode_marker,
    encode_marker,
)
from magnetar.ledger.position import Position
from magnetar.sdk.wire import open_payload

_INT64_MAX = (1 << 63) - 1
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
POSITIONS = st.builds(Position, st.integers(0, _INT64_MAX), st.integers(-1, _INT64_MAX))
CLUSTERS = st.dictionaries(NAMES, POSITIONS, min_size=1, max_size=CLUSTERS_MAX)
MARKERS = st.one_of(
    st.builds(Request, NAMES, st.one_of(st.just(""), NAMES)),
    st.builds(Response, NAMES, NAMES, POSITIONS),
    st.builds(Snapshot, NAMES, POSITIONS, CLUSTERS),
    st.builds(Update, NAMES, CLUSTERS),
)


@given(MARKERS, st.lists(NAMES, max_size=3))
def test_what_is_written_is_read_again(marker: Marker, goes_to: list[str]) -> None:
    metadata, body_at = open_payload(entry := encode_marker(marker, goes_to=goes_to, now_ms=1))
    assert decode_marker(metadata.marker_type, entry[body_at:]) == marker
    assert list(metadata.replicate_to) == goes_to


@given(st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(9, 14), st.binary(max_size=200))
def test_any_bytes_are_a_marker_or_malformed(marker_type: int, body: bytes) -> None:
    try:
        marker = decode_marker(marker_type, body)
    except BrokerMetadataError:
        return
    assert (marker is None) == (marker_type not in range(10, 14))


@given(MARKERS, st.data())
def test_a_damaged_marker_is_a_marker_or_malformed(marker: Marker, data: st.DataObject) -> None:
    metadata, body_at = open_payload(entry := encode_marker(marker, now_ms=1))
    body = bytearray(entry[body_at:])
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] ^= data.draw(st.integers(1, 255))
    try:
        found = decode_marker(metadata.marker_type, bytes(body))
    except BrokerMetadataError:
        return
    assert type(found) is type(marker)
