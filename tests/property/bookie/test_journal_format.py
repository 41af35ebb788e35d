from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookie.journaling.journal_format import (
    FileHeader,
    LastMark,
    NewRecord,
    decode_file_header,
    decode_mark,
    decode_record,
    encode_file_header,
    encode_group,
    encode_mark,
)

u64 = st.integers(0, (1 << 64) - 1)
offsets = st.integers(0, 1 << 40)
records = st.builds(
    NewRecord,
    type=st.integers(0, 255),
    ledger_id=st.integers(-(1 << 63), (1 << 63) - 1),
    body=st.binary(max_size=200),
)


@given(records, u64, offsets)
def test_a_record_round_trip(record: NewRecord, file_id: int, offset: int) -> None:
    data = b"".join(encode_group([record], file_id=file_id, start=offset))
    found = decode_record(b"xx" + data, 2, file_id=file_id, offset=offset)
    assert found is not None
    assert NewRecord(found.type, found.ledger_id, found.body) == record
    assert found.end == offset + len(data)


@given(records, st.data())
def test_a_changed_or_shortened_record_is_invalid(record: NewRecord, data: st.DataObject) -> None:
    whole = b"".join(encode_group([record], file_id=1, start=64))
    at = data.draw(st.integers(0, len(whole) - 1))
    flip = data.draw(st.integers(1, 255))
    changed = whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :]
    assert decode_record(changed, 0, file_id=1, offset=64) is None
    assert decode_record(whole[:at], 0, file_id=1, offset=64) is None


@given(st.binary(max_size=200), st.integers(0, 300))
def test_arbitrary_bytes_are_no_record(data: bytes, at: int) -> None:
    assert decode_record(data, at, file_id=1, offset=64) is None


@given(st.binary(max_size=100))
def test_arbitrary_bytes_are_no_header_and_no_mark(data: bytes) -> None:
    assert decode_file_header(data) is None
    assert decode_mark(data) is None


@given(u64, u64, u64, st.binary(min_size=16, max_size=16))
def test_a_file_header_round_trip(
    file_id: int, previous: int, previous_length: int, owner: bytes
) -> None:
    header = FileHeader(file_id, previous, previous_length, owner)
    assert decode_file_header(encode_file_header(header)) == header


@given(u64, u64)
def test_a_mark_round_trip(file_id: int, offset: int) -> None:
    assert decode_mark(encode_mark(LastMark(file_id, offset))) == LastMark(file_id, offset)
