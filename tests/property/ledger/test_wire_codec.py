"""The bookie protocol's codec: whatever is cut or damaged, frames or our error come out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.ledger.errors import BookieProtocolError
from magnetar.ledger.wire import (
    MASTER_KEY_BYTES,
    RESPONSE,
    FrameDecoder,
    decode_block,
    decode_read_body,
    encode_block,
    encode_frame,
    encode_header,
    encode_read_body,
)

int64 = st.integers(-(2**63), 2**63 - 1)
requests = st.tuples(
    st.integers(0, 127), st.integers(0, 255), st.integers(0, 2**64 - 1), int64, int64, st.binary()
)


@given(st.lists(requests, max_size=5), st.data())
def test_frames_survive_any_cutting_of_the_stream(
    frames: list[tuple[int, int, int, int, int, bytes]], data: st.DataObject
) -> None:
    stream = b"".join(
        encode_frame(
            op, request_id=request_id, ledger_id=ledger, entry_id=entry, flags=flags, body=body
        )
        for op, flags, request_id, ledger, entry, body in frames
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    decoder = FrameDecoder()
    decoded = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        decoded += decoder.feed(stream[start:end])
    assert [
        (f.op, f.flags, f.request_id, f.ledger_id, f.entry_id, f.body) for f in decoded
    ] == frames


@given(st.lists(st.binary(max_size=80), max_size=4))
def test_arbitrary_bytes_give_frames_or_our_error(chunks: list[bytes]) -> None:
    decoder = FrameDecoder()
    try:
        for chunk in chunks:
            decoder.feed(chunk)
    except BookieProtocolError:
        pass


@given(st.binary(max_size=200))
def test_arbitrary_bytes_give_a_block_or_our_error(data: bytes) -> None:
    try:
        block = decode_block(data)
    except BookieProtocolError:
        return
    assert encode_block(block.packets()).data == data


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=20))
def test_blocks_round_trip(packets: list[bytes]) -> None:
    block = decode_block(encode_block(packets).data)
    assert block.packets() == packets
    assert block.data[block.packets_offset :] == b"".join(packets)


def test_frames_at_the_size_limit_pass_and_one_byte_more_is_refused() -> None:
    def frame_of(length: int) -> bytes:
        return encode_frame(1, request_id=0, ledger_id=0, body=bytes(length - 30))

    assert len(FrameDecoder(100).feed(frame_of(100))) == 1
    with pytest.raises(BookieProtocolError, match="101"):
        FrameDecoder(100).feed(frame_of(101))


def test_a_header_alone_equals_the_frame_with_its_body() -> None:
    whole = encode_frame(1, request_id=5, ledger_id=6, entry_id=7, flags=1, body=b"abc")
    header = encode_header(1, 3, request_id=5, ledger_id=6, entry_id=7, flags=1)
    assert header + b"abc" == whole


def test_responses_are_told_from_requests() -> None:
    (frame,) = FrameDecoder().feed(encode_frame(3 | RESPONSE, request_id=1, ledger_id=2))
    assert frame.op == 3
    assert frame.is_response


@given(int64, st.integers(0, 2**32 - 1), st.sampled_from([b"", b"k" * MASTER_KEY_BYTES]))
def test_read_bodies_round_trip(last: int, bytes_max: int, key: bytes) -> None:
    body = encode_read_body(last_entry_id=last, bytes_max=bytes_max, master_key=key)
    assert decode_read_body(body) == (last, bytes_max, key)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_give_a_read_body_or_our_error(data: bytes) -> None:
    try:
        last, bytes_max, key = decode_read_body(data)
    except BookieProtocolError:
        assert len(data) not in (12, 12 + MASTER_KEY_BYTES)
        return
    assert encode_read_body(last_entry_id=last, bytes_max=bytes_max, master_key=key) == data


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=6), st.data())
def test_a_block_with_a_changed_table_is_refused_or_still_adds_up(
    packets: list[bytes], data: st.DataObject
) -> None:
    """Lying counts and lengths: never packets that reach beyond the block."""
    whole = bytearray(encode_block(packets).data)
    at = data.draw(st.integers(0, 4 * len(packets) + 3))
    whole[at] ^= data.draw(st.integers(1, 255))
    try:
        block = decode_block(bytes(whole))
    except BookieProtocolError:
        return
    assert sum(block.lengths) + block.packets_offset == len(whole)
    assert list(map(len, block.packets())) == list(block.lengths)


@given(st.integers(2, 2**32 - 1), st.binary(max_size=40))
def test_a_count_that_cannot_fit_is_refused_without_work(count: int, rest: bytes) -> None:
    """A count of billions must not make a format string or a table of billions."""
    data = count.to_bytes(4, "big") + rest
    try:
        block = decode_block(data)
    except BookieProtocolError:
        return
    assert len(block.lengths) == count <= len(rest) // 4
