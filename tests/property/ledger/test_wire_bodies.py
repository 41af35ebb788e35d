import struct
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from magnetar.ledger import wire_bodies
from magnetar.ledger.digest import read_key
from magnetar.ledger.errors import BookieProtocolError
from magnetar.ledger.wire import EntryBlock, encode_block, encode_read_body
from magnetar.ledger.wire_bodies import EntryList, LacReply, LongPoll

u32 = st.integers(0, (1 << 32) - 1)
i64 = st.integers(-1, (1 << 63) - 1)
keys = st.just(b"") | st.binary(min_size=20, max_size=20)
packets = st.binary(max_size=60)
blocks = st.none() | st.lists(packets, min_size=1, max_size=4).map(encode_block)


@given(i64, u32, u32, keys)
def test_a_long_poll_comes_back(
    previous_lac: int, wait_ms: int, bytes_max: int, key: bytes
) -> None:
    poll = LongPoll(previous_lac, wait_ms, bytes_max, key)
    assert wire_bodies.decode_long_poll(wire_bodies.encode_long_poll(poll)) == poll


@given(packets, packets, blocks)
def test_a_lac_reply_comes_back(last: bytes, explicit: bytes, block: EntryBlock | None) -> None:
    data = wire_bodies.encode_lac_reply(last, explicit, b"" if block is None else block.data)
    assert wire_bodies.decode_lac_reply(data) == LacReply(last, explicit, block)


@given(st.binary(min_size=20, max_size=20), st.binary(min_size=16, max_size=36))
def test_a_write_lac_comes_back(key: bytes, packet: bytes) -> None:
    assert wire_bodies.decode_write_lac(key + packet) == (key, packet)


@given(st.integers(0, (1 << 62) - 1), st.binary(max_size=40), st.integers(0, 1 << 40) | st.none())
def test_an_entry_list_comes_back(first: int, rest: bytes, gap: int | None) -> None:
    bitmap = b"\1" + rest
    after = -1 if gap is None else first + 8 * len(bitmap) + gap
    page = EntryList(first, after, bitmap)
    assert wire_bodies.decode_entry_list(wire_bodies.encode_entry_list(page)) == page


@given(u32, keys)
def test_a_list_request_comes_back(bytes_max: int, key: bytes) -> None:
    body = wire_bodies.encode_list_entries(bytes_max, master_key=key)
    assert wire_bodies.decode_list_entries(body) == (bytes_max, key)


@given(u32, i64)
def test_without_a_key_the_bytes_are_those_of_older_releases(number: int, lac: int) -> None:
    """Older releases decode nothing else."""
    poll = wire_bodies.encode_long_poll(LongPoll(lac, number, number))
    assert poll == struct.pack(">qII", lac, number, number)
    assert wire_bodies.encode_list_entries(number) == struct.pack(">I", number)
    read = encode_read_body(last_entry_id=lac, bytes_max=number, master_key=read_key(b""))
    assert read == struct.pack(">qI", lac, number)


DECODERS: list[Callable[[bytes], object]] = [
    wire_bodies.decode_long_poll,
    wire_bodies.decode_lac_reply,
    wire_bodies.decode_write_lac,
    wire_bodies.decode_entry_list,
    wire_bodies.decode_list_entries,
]


@given(st.sampled_from(DECODERS), st.binary(max_size=120))
def test_arbitrary_bytes_give_a_value_or_our_error(
    decode: Callable[[bytes], object], data: bytes
) -> None:
    try:
        decode(data)
    except BookieProtocolError:
        pass
