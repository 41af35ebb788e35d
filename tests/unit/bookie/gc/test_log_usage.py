"""How much of a log is in use, and the memory that this knowledge takes."""

from pyroaring import BitMap64

from magnetar.bookie.gc.log_usage import LiveUse, UsageTable, usage_of


def test_the_bytes_of_live_ledgers_are_in_use() -> None:
    usage = usage_of(1, {7: 100, 3: 10, 5: 1}, file_bytes=200, is_certain=True)
    assert usage.live(BitMap64({3, 5, 9})) == LiveUse(2, 11)
    assert usage.live(BitMap64()) == LiveUse(0, 0)
    assert usage.live(BitMap64({3, 5, 7})) == LiveUse(3, 111)


def test_usages_are_kept_as_long_as_there_is_room() -> None:
    table = UsageTable(bytes_max=16 * 5)
    first = usage_of(1, {1: 1, 2: 1, 3: 1}, file_bytes=9, is_certain=True)
    second = usage_of(2, {1: 1, 2: 1, 3: 1}, file_bytes=9, is_certain=True)
    table.put(first)
    table.put(second)
    assert (table.find(1), table.find(2), table.memory_bytes) == (first, None, 48)
    table.put(first)
    assert table.memory_bytes == 48
    table.keep_only({2})
    assert (table.find(1), table.memory_bytes) == (None, 0)
    table.put(second)
    assert table.find(2) == second
