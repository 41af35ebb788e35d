"""The storage's codecs: what was encoded comes back, any other bytes give a value or our error."""

import struct
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookie.entry_logs import entry_log
from magnetar.bookie.entry_logs.entry_log import RunLocation
from magnetar.bookie.entry_logs.pieces import piece_checksums
from magnetar.bookie.errors import StorageCorruptError
from magnetar.bookie.indexes import index_mark, ledger_state
from magnetar.bookie.indexes import run_records as index
from magnetar.bookie.indexes.location_index import IndexRecord
from magnetar.bookie.storage import LedgerState

u32 = st.integers(0, (1 << 32) - 1)
u64 = st.integers(0, (1 << 64) - 1)
ids = st.integers(0, (1 << 63) - 1)
lengths = st.lists(st.integers(0, 1000), min_size=1, max_size=20)


def encode_head(
    ledger_id: int, entry_ids: list[int], packet_lengths: list[int], log_id: int, offset: int
) -> bytes:
    contiguous = entry_ids[-1] - entry_ids[0] + 1 == len(entry_ids)
    return entry_log.encode_run_head(
        log_id=log_id,
        offset=offset,
        ledger_id=ledger_id,
        first=entry_ids[0],
        last=entry_ids[-1],
        length_table=struct.pack(f">{len(packet_lengths)}I", *packet_lengths),
        gap_ids=None if contiguous else entry_ids,
        checksums=piece_checksums(bytes(sum(packet_lengths))),
    )


@st.composite
def runs(draw: st.DrawFn) -> tuple[int, list[int], list[int]]:
    packet_lengths = draw(lengths)
    steps = draw(
        st.lists(
            st.sampled_from((1, 1, 2, 1000)),
            min_size=len(packet_lengths) - 1,
            max_size=len(packet_lengths) - 1,
        )
    )
    first = draw(st.integers(0, 1 << 62))
    return draw(ids), list(accumulate(steps, initial=first)), packet_lengths


@given(runs(), u32, u64, st.binary(max_size=30))
def test_a_run_head_comes_back(
    run: tuple[int, list[int], list[int]], log_id: int, offset: int, behind: bytes
) -> None:
    ledger_id, entry_ids, packet_lengths = run
    data = encode_head(ledger_id, entry_ids, packet_lengths, log_id, offset)
    head = entry_log.decode_run_head(data + behind, log_id=log_id, offset=offset)
    assert head.ledger_id == ledger_id
    assert list(head.ids) == entry_ids
    assert head.tables_bytes == len(data) == entry_log.run_tables_bytes(data)
    assert list(head.offsets) == list(accumulate(packet_lengths, initial=0))
    assert head.checksums == piece_checksums(bytes(sum(packet_lengths)))
    location = head.location(log_id, offset)
    assert location.tables_bytes == head.tables_bytes
    assert location.size_bytes == len(data) + sum(packet_lengths)


@given(runs(), st.integers(0, 20), st.integers(0, 20))
def test_a_run_head_tells_the_positions_of_entries(
    run: tuple[int, list[int], list[int]], start: int, beyond: int
) -> None:
    _, entry_ids, packet_lengths = run
    head = entry_log.decode_run_head(encode_head(*run, 1, 64), log_id=1, offset=64)
    start %= len(entry_ids)
    first = entry_ids[start]
    stop = start
    while stop < len(entry_ids) and entry_ids[stop] == first + stop - start <= first + beyond:
        stop += 1
    assert head.positions(first, first + beyond) == (start, stop)
    assert head.holds(first)
    assert head.holds(first + 1) == (first + 1 in entry_ids)
    assert not head.holds(entry_ids[-1] + 1)
    assert not head.holds(entry_ids[0] - 1)
    offsets = list(accumulate(packet_lengths, initial=0))
    begin, end = offsets[start], offsets[start + 1]
    if begin < end:
        assert head.ids_within(begin, end) == (first, first)
        assert head.ids_within(0, end) == (entry_ids[_first_full(packet_lengths)], first)


def _first_full(packet_lengths: list[int]) -> int:
    return next(at for at, length in enumerate(packet_lengths) if length)


@given(runs(), st.integers(0), st.integers(1, 255))
def test_a_damaged_run_head_is_refused(
    run: tuple[int, list[int], list[int]], at: int, mask: int
) -> None:
    data = bytearray(encode_head(*run, 1, 64))
    data[at % len(data)] ^= mask
    try:
        entry_log.decode_run_head(bytes(data) + bytes(200), log_id=1, offset=64)
    except StorageCorruptError:
        return
    raise AssertionError("accepted")


@given(runs())
def test_a_run_head_is_not_valid_at_another_place(run: tuple[int, list[int], list[int]]) -> None:
    data = encode_head(*run, 1, 64)
    for log_id, offset in ((2, 64), (1, 65)):
        try:
            entry_log.decode_run_head(data, log_id=log_id, offset=offset)
        except StorageCorruptError:
            continue
        raise AssertionError("accepted")


@given(u32, st.integers(0, 1 << 40))
def test_a_log_header_comes_back(log_id: int, created_ms: int) -> None:
    data = entry_log.encode_log_header(log_id, created_ms)
    assert len(data) == entry_log.LOG_HEADER_BYTES
    assert entry_log.decode_log_header(data) == (log_id, created_ms, log_id)


@given(u32, u64, st.dictionaries(ids, u64, max_size=20))
def test_a_footer_comes_back(log_id: int, offset: int, ledger_bytes: dict[int, int]) -> None:
    data = entry_log.encode_footer(log_id, offset, ledger_bytes)
    body, trailer = data[: -entry_log.TRAILER_BYTES], data[-entry_log.TRAILER_BYTES :]
    assert entry_log.decode_trailer(trailer, log_id=log_id) == offset
    tables = entry_log.decode_footer(body, log_id=log_id, offset=offset)
    assert tables.by_ledger() == ledger_bytes
    assert list(tables.ledger_ids) == sorted(ledger_bytes)


@given(ids, ids, ids, u32, u64, u32, st.integers(1, (1 << 32) - 1), st.booleans())
def test_a_run_record_comes_back(
    ledger_id: int,
    first: int,
    span: int,
    log_id: int,
    offset: int,
    size_bytes: int,
    entries: int,
    has_ids: bool,
) -> None:
    last = min(first + span, (1 << 63) - 1)
    record = IndexRecord(first, last, RunLocation(log_id, offset, size_bytes, entries, has_ids))
    key = index.encode_run_key(ledger_id, first)
    assert index.decode_run(key, index.encode_run(record)) == (ledger_id, record)


@given(
    st.one_of(
        u64.map(lambda sequence: index_mark.Promise("db", sequence)),
        st.builds(index_mark.Promise, st.just("interleaved"), u64, u32, u64, u64),
    ),
    st.integers(0),
    st.integers(1, 255),
)
def test_an_index_mark_comes_back_and_is_refused_when_damaged(
    promise: index_mark.Promise, at: int, mask: int
) -> None:
    data = index_mark.encode_mark(promise)
    assert index_mark.decode_mark(data) == promise
    damaged = bytearray(data)
    damaged[at % len(data)] ^= mask
    try:
        index_mark.decode_mark(bytes(damaged))
    except StorageCorruptError:
        return
    raise AssertionError("accepted")


@given(
    st.binary(max_size=40),
    st.booleans(),
    st.integers(-1, (1 << 63) - 1),
    st.just(b"") | st.binary(min_size=16, max_size=36),
    st.booleans(),
)
def test_a_ledger_state_comes_back(
    master_key: bytes, fenced: bool, lac: int, explicit_lac: bytes, limbo: bool
) -> None:
    state = LedgerState(master_key, fenced, lac, explicit_lac, limbo)
    assert ledger_state.decode_state(ledger_state.encode_state(state)) == state


@given(st.binary(max_size=200), st.binary(max_size=40), u32, u64)
def test_arbitrary_bytes_give_a_value_or_our_error(
    data: bytes, key: bytes, log_id: int, offset: int
) -> None:
    entry_log.run_tables_bytes(data)
    for decode in (
        lambda: entry_log.decode_log_header(data),
        lambda: entry_log.decode_run_head(data, log_id=log_id, offset=offset),
        lambda: entry_log.decode_trailer(data, log_id=log_id),
        lambda: entry_log.decode_footer(data, log_id=log_id, offset=offset),
        lambda: index.decode_run(key, data),
        lambda: index.decode_run(data[:17], data[17:]),
        lambda: index.decode_run(b"r" + data[:16], data[16:45]),
        lambda: ledger_state.decode_state(data),
        lambda: index.decode_format(data),
        lambda: index_mark.decode_mark(data),
    ):
        try:
            decode()
        except StorageCorruptError:
            continue


@given(st.binary(min_size=44, max_size=200))
def test_arbitrary_bytes_behind_a_right_magic_are_no_run(data: bytes) -> None:
    try:
        entry_log.decode_run_head(b"MRUN" + data, log_id=1, offset=64)
    except StorageCorruptError:
        return
    raise AssertionError("accepted")
