from magnetar.bookie.journaling.journal_format import (
    FILE_HEADER_BYTES,
    FileHeader,
    LastMark,
    NewRecord,
    RecordType,
    decode_file_header,
    decode_mark,
    decode_record,
    encode_file_header,
    encode_group,
    encode_mark,
    file_ids,
    file_name,
    owner_of,
    records_bytes,
)

RECORDS = [
    NewRecord(RecordType.MASTER_KEY, 7, b"k" * 20),
    NewRecord(RecordType.ENTRY_BLOCK, 7, b"block"),
    NewRecord(RecordType.FENCE, 7, b""),
]


def test_a_record_as_it_lies_on_disk() -> None:
    record = NewRecord(RecordType.ENTRY_BLOCK, 7, b"block")
    head, body = encode_group([record], file_id=1, start=64)
    assert body == b"block"
    assert head.hex(" ", -4) == "4d4a5243 6fafabae 00000005 00000000 017666ad 00000000 00000007"


def test_a_group_is_read_back_in_order() -> None:
    data = b"".join(encode_group(RECORDS, file_id=1, start=64))
    assert len(data) == records_bytes(RECORDS)
    at, found = 0, []
    while at < len(data):
        record = decode_record(data, at, file_id=1, offset=64 + at)
        assert record is not None
        assert record.group_start == 64
        found.append(NewRecord(record.type, record.ledger_id, record.body))
        at = record.end - 64
    assert found == RECORDS


def test_b19_a_record_is_valid_in_its_own_place_only() -> None:
    data = b"".join(encode_group(RECORDS, file_id=1, start=64))
    assert decode_record(data, 0, file_id=1, offset=64) is not None
    assert decode_record(data, 0, file_id=2, offset=64) is None
    assert decode_record(data, 0, file_id=1, offset=65) is None


def test_the_bodies_are_not_copied() -> None:
    buffers = encode_group(RECORDS, file_id=1, start=64)
    assert all(buffer is record.body for buffer, record in zip(buffers[1::2], RECORDS, strict=True))


def test_a_file_header_round_trip() -> None:
    header = FileHeader(3, 2, 4711, owner_of(instance_id="i", bookie_id="b"))
    data = encode_file_header(header)
    assert len(data) == FILE_HEADER_BYTES
    assert decode_file_header(data) == header


def test_any_changed_byte_spoils_a_file_header() -> None:
    data = encode_file_header(FileHeader(3, 2, 4711, b"o" * 16))
    for at in range(len(data)):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert decode_file_header(changed) is None, at


def test_owners_differ_by_cluster_and_bookie() -> None:
    owners = {owner_of(instance_id=i, bookie_id=b) for i in ("a", "ab") for b in ("b", "bb")}
    assert len(owners) == 4


def test_file_names_sort_like_their_ids() -> None:
    ids = [1, 255, 1 << 41]
    assert sorted(map(file_name, ids)) == [file_name(file_id) for file_id in ids]
    assert file_ids([*map(file_name, ids), "last-mark", "xyz.journal", "lock"]) == ids


def test_a_mark_is_checked() -> None:
    data = encode_mark(LastMark(3, 4711))
    assert decode_mark(data) == LastMark(3, 4711)
    assert decode_mark(data[:-1]) is None
    assert decode_mark(bytes([data[0] ^ 1]) + data[1:]) is None


def test_marks_are_ordered_by_file_then_offset() -> None:
    assert LastMark(1, 900) < LastMark(2, 64) < LastMark(2, 65)
