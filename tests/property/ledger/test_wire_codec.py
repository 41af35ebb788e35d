"""The bookie protocol's codec: whatever is cut or damaged, frames or our error come out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.ledger.errors import BookieProtocolError
from magnetar.ledger.wire import (
    RESPONSE,
    FrameDecoder,
    decode_block,
    encode_block,
    encode_frame,
    encode_header,
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
