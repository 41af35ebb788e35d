"""The object of a ledger: what was copied comes back, and nothing else ever does."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.ledger.digest import codec_for, packet_codec
from magnetar.ledger.errors import (
    DigestMismatchError,
    InvalidLedgerMetadataError,
    ObjectDamagedError,
    ObjectError,
    ObjectIncompleteError,
)
from magnetar.ledger.ledger_metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from magnetar.ledger.offloading.object_builder import ObjectBuilder
from magnetar.ledger.offloading.object_format import (
    HEADER_BYTES,
    RUN_BYTES,
    RUN_ENTRIES_MAX,
    TAIL_BYTES,
    MoreOfTail,
    ObjectFooter,
    ObjectName,
    ObjectVerifier,
    check_header,
    decode_footer,
    open_run,
    ranges_of,
)
from magnetar.ledger.wire import encode_block

LEDGER_ID = 7
ATTEMPT = bytes(range(16))
NAME = ObjectName(LEDGER_ID, ATTEMPT)

Payloads = Sequence[bytes]
payloads = st.lists(st.binary(max_size=40), min_size=1, max_size=30)
cuts = st.lists(st.integers(1, 9), max_size=30)


def closed(
    values: Payloads, *, digest_type: DigestType = DigestType.CRC32C, password: bytes = b""
) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=LEDGER_ID,
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        state=LedgerState.CLOSED,
        last_entry_id=len(values) - 1,
        length=sum(map(len, values)),
        ensembles=(Fragment(0, ("b1",)),),
        digest_type=digest_type,
        password=password,
        created_ms=1,
        creation_token=1,
    )


def builder(metadata: LedgerMetadata, attempt: bytes = ATTEMPT) -> ObjectBuilder:
    return ObjectBuilder(
        metadata,
        codec_for(metadata),
        attempt,
        instance_id="i",
        log="/managed-ledgers/t",
        made_by="test",
    )


def built(
    values: Payloads,
    cut: Sequence[int] = (),
    *,
    attempt: bytes = ATTEMPT,
    metadata: LedgerMetadata | None = None,
) -> tuple[bytes, int]:
    """An object with these payloads, and its check; packets come in blocks of these sizes."""
    metadata = metadata or closed(values)
    making = builder(metadata, attempt)
    packets = codec_for(metadata).seal(0, -1, 0, values)
    pieces: list[bytes] = []
    sizes = iter(cut)
    at = 0
    while at < len(packets):
        size = next(sizes, 5)
        block = packets[at : at + size]
        times = range(at + 1, at + 1 + len(block))
        pieces += making.add(encode_block(block), publish_ms=times)
        at += size
    pieces += making.finish()
    data = b"".join(pieces)
    assert len(data) == making.size_bytes
    return data, making.check


def footer_of(data: bytes, name: ObjectName = NAME) -> ObjectFooter:
    found = decode_footer(data[-TAIL_BYTES:], name, len(data))
    if isinstance(found, MoreOfTail):
        found = decode_footer(data[-found.size_bytes :], name, len(data))
    assert isinstance(found, ObjectFooter)
    return found


def read(data: bytes, metadata: LedgerMetadata, name: ObjectName = NAME) -> list[bytes]:
    """All payloads of an object, with every check that a reader makes."""
    check_header(data[:HEADER_BYTES], name)
    footer = footer_of(data, name)
    found: list[bytes] = []
    for number, run in enumerate(footer.runs):
        block = open_run(data[run.offset : run.offset + run.size_bytes], footer, number)
        opened, error = codec_for(metadata).open_payloads(block, run.first_entry_id, run.entries)
        assert error is None
        found += opened
    return found


@given(payloads, cuts)
def test_what_was_copied_is_read(values: list[bytes], cut: list[int]) -> None:
    data, check = built(values, cut)
    assert read(data, closed(values)) == values
    footer = footer_of(data)
    assert footer.check == check
    assert footer.entries == len(values)
    for entry_id in range(len(values)):
        run = footer.runs[footer.run_of(entry_id)]
        assert run.first_entry_id <= entry_id <= run.last_entry_id


@given(payloads, cuts, st.data())
def test_a_changed_byte_is_refused_wherever_it_is(
    values: list[bytes], cut: list[int], data: st.DataObject
) -> None:
    written, _ = built(values, cut)
    at = data.draw(st.integers(0, len(written) - 1))
    changed = bytearray(written)
    changed[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ObjectError):
        read(bytes(changed), closed(values))


@given(payloads, st.data())
def test_an_object_that_was_cut_or_grew_is_refused(
    values: list[bytes], data: st.DataObject
) -> None:
    written, _ = built(values)
    length = data.draw(st.integers(0, len(written) - 1))
    for damaged in (written[:length], written + bytes(length + 1)):
        with pytest.raises(ObjectError):
            read(damaged, closed(values))


@given(payloads)
def test_neither_the_whole_nor_a_part_of_another_object_is_taken(values: list[bytes]) -> None:
    other = ObjectName(LEDGER_ID, bytes(16))
    data, _ = built(values)
    foreign, _ = built(values, attempt=bytes(16))
    with pytest.raises(ObjectDamagedError):
        read(data, closed(values), other)
    run = footer_of(data).runs[0]
    with pytest.raises(ObjectDamagedError, match="checksum"):
        open_run(foreign[run.offset : run.offset + run.size_bytes], footer_of(data), 0)


def test_a_footer_that_is_longer_than_what_was_read_says_so() -> None:
    data, _ = built([b"x"])
    needed = decode_footer(data[-64:], NAME, len(data))
    assert isinstance(needed, MoreOfTail)
    assert decode_footer(data[-needed.size_bytes :], NAME, len(data)) == footer_of(data)


def test_runs_are_bounded_in_entries_and_bytes() -> None:
    small = [b""] * (2 * RUN_ENTRIES_MAX + 1)
    large = [bytes(RUN_BYTES // 2)] * 3 + [bytes(2 * RUN_BYTES), b"x"]
    small_runs = footer_of(built(small, [5000, 5000])[0]).runs
    assert [run.entries for run in small_runs] == [RUN_ENTRIES_MAX, RUN_ENTRIES_MAX, 1]
    assert [run.entries for run in footer_of(built(large)[0]).runs] == [2, 2, 1]


def test_ranges_are_as_few_as_the_bound_allows() -> None:
    runs = footer_of(built([bytes(RUN_BYTES)] * 4)[0]).runs
    size = runs[0].size_bytes
    assert ranges_of(runs, 2 * size) == [
        (HEADER_BYTES, HEADER_BYTES + 2 * size),
        (HEADER_BYTES + 2 * size, HEADER_BYTES + 4 * size),
    ]
    assert len(ranges_of(runs, 1)) == 4


def test_the_first_run_that_may_hold_a_time_is_found() -> None:
    footer = footer_of(built([bytes(RUN_BYTES)] * 3, [1, 1, 1])[0])
    assert [run.publish_ms_max for run in footer.runs] == [1, 2, 3]
    assert [footer.run_after(time_ms) for time_ms in (0, 1, 2, 3, 4)] == [0, 0, 1, 2, 3]


def test_a_run_does_not_claim_a_time_of_the_next_one() -> None:
    """The entries of one block may lie in two runs. A time of the second run is found there."""
    footer = footer_of(built([bytes(RUN_BYTES // 2)] * 4, [3, 1])[0])
    assert [run.publish_ms_max for run in footer.runs] == [2, 4]
    assert [footer.run_after(time_ms) for time_ms in (2, 3)] == [0, 1]


def test_there_is_a_publish_time_for_each_entry_or_none() -> None:
    values = [b"a", b"b"]
    block = encode_block(codec_for(closed(values)).seal(0, -1, 0, values))
    with pytest.raises(ValueError, match="1 publish times are given for 2 entries"):
        builder(closed(values)).add(block, publish_ms=[5])


def test_a_run_with_one_unknown_time_is_never_passed_over() -> None:
    values = [b"a", b"b", b"c"]
    packets = codec_for(closed(values)).seal(0, -1, 0, values)
    making = builder(closed(values))
    data = b"".join(
        [
            *making.add(encode_block(packets[:1]), publish_ms=[5]),
            *making.add(encode_block(packets[1:2])),
            *making.add(encode_block(packets[2:]), publish_ms=[7]),
            *making.finish(),
        ]
    )
    footer = footer_of(data)
    assert footer.runs[0].publish_ms_max == -1
    assert footer.run_after(100) == 0
    assert (footer.description.first_publish_ms, footer.description.last_publish_ms) == (5, 7)


def test_an_object_is_not_ended_before_its_ledger_is_in_it() -> None:
    values = [b"a", b"b"]
    making = builder(closed(values))
    making.add(encode_block(codec_for(closed(values)).seal(0, -1, 0, values[:1])))
    with pytest.raises(ObjectIncompleteError):
        making.finish()


def test_nor_with_packets_of_another_length() -> None:
    values = [b"a", b"bb"]
    making = builder(closed([b"a", b"b"]))
    making.add(encode_block(codec_for(closed(values)).seal(0, -1, 0, values)))
    with pytest.raises(ObjectIncompleteError):
        making.finish()


def test_of_a_block_with_a_damaged_packet_nothing_is_taken() -> None:
    values = [b"a", b"b"]
    packets = codec_for(closed(values)).seal(0, -1, 0, values)
    making = builder(closed(values))
    with pytest.raises(DigestMismatchError):
        making.add(encode_block([packets[0], packets[1][:-1] + b"x"]))
    assert making.next_entry_id == 0
    making.add(encode_block(packets))
    making.finish()


@pytest.mark.parametrize("first", [1, 2])
def test_packets_that_are_not_the_next_ones_are_refused(first: int) -> None:
    values = [b"a", b"b"]
    packets = packet_codec(LEDGER_ID).seal(first, -1, 0, values)
    with pytest.raises(DigestMismatchError):
        builder(closed(values)).add(encode_block(packets))


def test_a_ledger_that_has_no_end_is_not_copied() -> None:
    open_ledger = LedgerMetadata(
        ledger_id=LEDGER_ID,
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        state=LedgerState.OPEN,
        last_entry_id=-1,
        length=0,
        ensembles=(Fragment(0, ("b1",)),),
        created_ms=1,
        creation_token=1,
    )
    with pytest.raises(InvalidLedgerMetadataError):
        builder(open_ledger)


@given(payloads, cuts)
def test_a_whole_object_is_verified_by_reading_it_back(values: list[bytes], cut: list[int]) -> None:
    data, check = built(values, cut)
    verifier = ObjectVerifier(footer_of(data), closed(values), packet_codec(LEDGER_ID), check)
    while (run := verifier.next_run) is not None:
        verifier.add(data[run.offset : run.offset + run.size_bytes])
    verifier.finish()


def test_an_object_with_fewer_entries_than_its_ledger_is_not_verified() -> None:
    data, check = built([b"a"])
    with pytest.raises(ObjectDamagedError, match="ends with 1"):
        ObjectVerifier(footer_of(data), closed([b"a", b"b"]), packet_codec(LEDGER_ID), check)


def test_an_object_of_another_content_is_not_verified() -> None:
    _, check = built([b"a"])
    other, _ = built([b"b"])
    with pytest.raises(ObjectDamagedError, match="was written"):
        ObjectVerifier(footer_of(other), closed([b"b"]), packet_codec(LEDGER_ID), check)


def test_an_object_is_not_verified_before_all_of_it_was_read() -> None:
    data, check = built([b"a"])
    verifier = ObjectVerifier(footer_of(data), closed([b"a"]), packet_codec(LEDGER_ID), check)
    with pytest.raises(ObjectDamagedError):
        verifier.finish()


def test_the_password_of_a_ledger_stays_out_of_its_object() -> None:
    values = [b"a", b"b"]
    metadata = closed(values, digest_type=DigestType.HMAC, password=b"c2VjcmV0LXNlY3JldA")
    data, check = built(values, metadata=metadata)
    assert "password" not in footer_of(data).description.ledger
    assert metadata.password not in data
    assert read(data, metadata) == values
    assert footer_of(data).check == check
