"""The caches take as much memory as they say, within a tenth."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from magnetar.bookie.engine.hot_reads import KnownRun
from magnetar.bookie.engine.range_cache import RangeCache
from magnetar.bookie.engine.read_cache import CachedRun, ReadCache
from magnetar.bookie.engine.write_cache import WriteBuffer
from magnetar.bookie.entry_logs.entry_log import (
    RunLocation,
    StoredRun,
    decode_run_head,
    encode_run_head,
)
from magnetar.bookie.entry_logs.packet_run import PacketRun
from magnetar.bookie.entry_logs.pieces import piece_checksums
from tests.ledger_storage import make_block

MB = 1 << 20


def grown_by(make: Callable[[], tuple[int, object]]) -> tuple[int, int]:
    """Bytes that `make` says and bytes that it took."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        said, kept = make()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        del kept
    finally:
        tracemalloc.stop()
    return said, after - before


def assert_close(said: int, real: int) -> None:
    assert 0.9 * real <= said <= 1.1 * real + 1000, f"said {said}, took {real}"


@pytest.mark.parametrize(
    ("ledgers", "entries", "payload_bytes"), [(1, 100, 100), (100, 20, 1000), (1, 1, 100_000)]
)
def test_the_write_cache_counts_what_it_holds(
    ledgers: int, entries: int, payload_bytes: int
) -> None:
    def fill() -> tuple[int, object]:
        buffer = WriteBuffer()
        at = 0
        while buffer.size_bytes < 2 * MB:
            for ledger_id in range(ledgers):
                ids = range(at, at + entries)
                buffer.add(ledger_id, make_block(ledger_id, ids, bytes(payload_bytes)), ids)
            at += entries
        return buffer.size_bytes, buffer

    assert_close(*grown_by(fill))


def runs(entries: int, packet_bytes: int, *, gaps: bool) -> Iterator[CachedRun]:
    step = 2 if gaps else 1
    first = 0
    while True:
        ids = range(first, first + entries * step, step)
        data = bytes(entries * packet_bytes)
        offsets = range(0, len(data) + 1, packet_bytes)
        head = decode_run_head(
            encode_run_head(
                log_id=1,
                offset=64,
                ledger_id=1,
                first=ids[0],
                last=ids[-1],
                length_table=packet_bytes.to_bytes(4, "big") * entries,
                gap_ids=list(ids) if gaps else None,
                checksums=piece_checksums(data),
            ),
            log_id=1,
            offset=64,
        )
        assert list(head.offsets) == list(offsets)
        run = PacketRun(data, ids=head.ids, packets_at=0, offsets=head.offsets)
        yield CachedRun(ids[0], ids[-1], run)
        first = ids[-1] + 1


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize(("entries", "packet_bytes"), [(10, 100), (1000, 1000), (4000, 100)])
def test_the_read_cache_counts_what_it_holds(entries: int, packet_bytes: int, gaps: bool) -> None:
    def fill() -> tuple[int, object]:
        cache = ReadCache(2 * MB)
        each = runs(entries, packet_bytes, gaps=gaps)
        for _ in range(2_500_000 // (entries * packet_bytes + 1200)):
            cache.put(1, next(each))
        return cache.size_bytes, cache

    said, real = grown_by(fill)
    assert said <= 2 * MB
    assert_close(said, real)


@pytest.mark.parametrize(("entries", "packet_bytes"), [(100, 1000), (1000, 1000), (4000, 250)])
def test_the_heads_of_runs_count_what_they_hold(entries: int, packet_bytes: int) -> None:
    data = bytes(entries * packet_bytes)
    checksums = piece_checksums(data)

    def fill() -> tuple[int, object]:
        cache: RangeCache[KnownRun] = RangeCache(MB)
        for number in range(1_300_000 // (4 * entries + 1500)):
            first = number * entries
            encoded = encode_run_head(
                log_id=1,
                offset=64,
                ledger_id=1,
                first=first,
                last=first + entries - 1,
                length_table=packet_bytes.to_bytes(4, "big") * entries,
                gap_ids=None,
                checksums=checksums,
            )
            head = decode_run_head(encoded, log_id=1, offset=64)
            location = RunLocation(number, 64 + number, head.size_bytes, entries, False)
            cache.put(1, KnownRun(StoredRun(1, head.first, head.last, location), head))
        return cache.size_bytes, cache

    assert_close(*grown_by(fill))
