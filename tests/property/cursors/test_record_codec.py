"""Codecs of the cursor record and the cursor node."""

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.cursors.ack_state import AckRange, AckSnapshot, BatchAck
from magnetar.cursors.errors import CursorError, CursorRecordError, InvalidCursorNodeError
from magnetar.cursors.node import CursorNode, decode_node, encode_node
from magnetar.cursors.record import CursorRecord, decode_record, encode_record, fit_record
from magnetar.ledger.position import Position

i64 = st.integers(-(1 << 63), (1 << 63) - 1)
ids = st.integers(0, (1 << 62))


@st.composite
def snapshots(draw: st.DrawFn) -> AckSnapshot:
    ranges: list[AckRange] = []
    for ledger_id in sorted(draw(st.sets(ids, max_size=4))):
        end = -2
        for gap, length in draw(
            st.lists(st.tuples(st.integers(2, 1 << 40), st.integers(0, 1 << 40)), min_size=1)
        ):
            ranges.append(AckRange(ledger_id, end + gap, end + gap + length))
            end += gap + length
    batches = [
        BatchAck(ledger_id, entry_id, draw(st.integers(1, 1 << 200)))
        for ledger_id, entry_id in sorted(draw(st.sets(st.tuples(ids, ids), max_size=6)))
    ]
    mark = Position(draw(i64), draw(st.integers(-1, 1 << 62)))
    return AckSnapshot(mark, tuple(ranges), tuple(batches))


records = st.builds(
    CursorRecord, snapshots(), i64, st.dictionaries(st.text(max_size=20), i64, max_size=4)
)


@given(records)
def test_a_record_survives_the_round_trip(record: CursorRecord) -> None:
    assert decode_record(encode_record(record)) == record


@given(records, st.integers(100, 2000))
def test_a_fitted_record_fits_and_is_a_prefix(record: CursorRecord, bytes_max: int) -> None:
    try:
        fitted = fit_record(record, bytes_max=bytes_max)
    except CursorError:
        bare = CursorRecord(
            AckSnapshot(record.snapshot.mark_delete), record.saved_ms, record.position_properties
        )
        assert len(encode_record(bare)) > bytes_max
        return
    assert len(encode_record(fitted)) <= bytes_max
    whole, kept = record.snapshot, fitted.snapshot
    assert kept.ranges == whole.ranges[: len(kept.ranges)]
    assert kept.batches == whole.batches[: len(kept.batches)]
    assert kept.ranges_dropped == len(whole.ranges) - len(kept.ranges)
    assert kept.batches_dropped == len(whole.batches) - len(kept.batches)
    if len(encode_record(record)) <= bytes_max:
        assert fitted is record


@given(st.binary(max_size=300))
def test_arbitrary_bytes_give_our_error(data: bytes) -> None:
    with pytest.raises(CursorRecordError):
        decode_record(data)


@given(st.binary(max_size=300))
@settings(max_examples=300)
def test_arbitrary_bodies_with_a_right_crc_give_a_value_or_our_error(body: bytes) -> None:
    body = b"\x00\x01" + body
    data = b"MCUR" + google_crc32c.value(body).to_bytes(4, "big") + body
    try:
        record = decode_record(data)
    except CursorRecordError:
        return
    assert decode_record(encode_record(record)) == record


@given(records, st.data())
def test_every_damaged_byte_is_noticed(record: CursorRecord, data: st.DataObject) -> None:
    encoded = bytearray(encode_record(record))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CursorRecordError):
        decode_record(bytes(encoded))


@given(records, st.data())
def test_every_cut_is_noticed(record: CursorRecord, data: st.DataObject) -> None:
    encoded = encode_record(record)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(CursorRecordError):
        decode_record(encoded[:cut])


@given(snapshots(), st.integers(1, 1 << 40), st.dictionaries(st.text(), st.text(), max_size=4))
def test_a_node_survives_the_round_trip(
    snapshot: AckSnapshot, epoch: int, properties: dict[str, str]
) -> None:
    node = CursorNode(epoch=epoch, mark_delete=(0, -1), properties=properties)
    node = node.with_snapshot(snapshot)
    assert decode_node(encode_node(node)) == node
    assert decode_node(encode_node(node)).snapshot() == snapshot


@given(st.one_of(st.binary(), st.text().map(str.encode)))
def test_arbitrary_bytes_are_no_node(data: bytes) -> None:
    with pytest.raises(InvalidCursorNodeError):
        decode_node(data)
