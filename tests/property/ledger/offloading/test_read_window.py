"""The window of a reader: bounded wherever its consumer goes, and fetched in few requests."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.ledger.offloading.object_format import RunPlace
from magnetar.ledger.offloading.read_window import ReadMemory, ReadWindow

MIB = 1 << 20


def runs_of(sizes: list[int]) -> list[RunPlace]:
    runs: list[RunPlace] = []
    offset = 64
    for number, size in enumerate(sizes):
        runs.append(RunPlace(number, 1, offset, size, 0, -1))
        offset += size
    return runs


sizes = st.lists(st.integers(1, 50), min_size=1, max_size=40)


@given(sizes, st.integers(0, 300), st.integers(1, 100), st.data())
def test_a_window_is_bounded_wherever_the_consumer_goes(
    sizes: list[int], bytes_max: int, range_bytes: int, data: st.DataObject
) -> None:
    runs = runs_of(sizes)
    window = ReadWindow(runs, bytes_max=bytes_max, range_bytes=range_bytes)
    present: set[int] = set()
    numbers = st.integers(0, len(runs) - 1)
    number = 0
    for _ in range(data.draw(st.integers(1, 20))):
        goes_on = data.draw(st.booleans()) and number + 1 < len(runs)
        number = number + 1 if goes_on else data.draw(numbers)
        has_moved = window.move_to(number)
        assert window.numbers.start == number or not has_moved
        total = sum(sizes[each] for each in window.numbers)
        assert total <= bytes_max or len(window.numbers) <= 1
        present &= set(window.numbers)
        seen: list[int] = []
        for wanted in window.wanted(present):
            assert wanted
            size = sum(sizes[each] for each in wanted)
            assert size <= range_bytes or len(wanted) == 1
            seen += wanted
        assert seen == [each for each in window.numbers if each not in present] or not seen
        assert number in present or number in seen or not has_moved
        present |= set(seen)
        for each in data.draw(st.lists(numbers, max_size=2)):
            data.draw(st.sampled_from([window.fail, window.finish]))(each)
            assert set(window.numbers) <= set(range(number, len(runs)))


@given(sizes, st.integers(0, 300), st.integers(1, 100))
def test_a_sequential_reader_wants_each_run_once(
    sizes: list[int], bytes_max: int, range_bytes: int
) -> None:
    window = ReadWindow(runs_of(sizes), bytes_max=bytes_max, range_bytes=range_bytes)
    wanted: list[int] = []
    for number in range(len(sizes)):
        window.move_to(number)
        wanted += [each for stretch in window.wanted(wanted) for each in stretch]
        window.finish(number)
    assert wanted == list(range(len(sizes)))


def window_of(count: int = 200) -> ReadWindow:
    return ReadWindow(runs_of([MIB] * count), bytes_max=48 * MIB, range_bytes=8 * MIB)


def test_each_move_into_the_next_run_doubles_the_window() -> None:
    window = window_of()
    lengths = []
    for number in range(8):
        window.move_to(number)
        lengths.append(len(window.numbers))
    assert lengths == [1, 2, 4, 8, 16, 32, 48, 48]


def test_reads_within_a_run_do_not_widen_the_window() -> None:
    window = window_of()
    assert window.move_to(0)
    assert not window.move_to(0)
    assert window.numbers == range(1)


def test_a_jump_starts_with_one_run_again() -> None:
    window = window_of()
    for number in (0, 1, 2, 3):
        window.move_to(number)
    for number in (100, 5, 150):
        window.move_to(number)
        assert window.numbers == range(number, number + 1)


def test_a_skip_within_the_window_is_no_jump() -> None:
    window = window_of()
    for number in (0, 1, 2, 3):
        window.move_to(number)
    window.move_to(6)
    assert window.numbers == range(6, 14)


def test_a_full_window_is_refilled_by_whole_requests() -> None:
    window = window_of()
    present: set[int] = set()
    requests: list[range] = []
    for number in range(100):
        window.move_to(number)
        wanted = window.wanted(present)
        requests += wanted
        present |= {each for stretch in wanted for each in stretch}
    assert max(len(each) for each in requests) == 8
    assert all(len(each) == 8 for each in requests[12:])


def test_nothing_is_fetched_ahead_beyond_a_failure_until_it_was_read() -> None:
    window = window_of()
    for number in (0, 1, 2, 3):
        window.move_to(number)
    window.fail(6)
    assert window.numbers == range(3, 6)
    window.move_to(4)
    assert window.numbers == range(4, 6)
    window.move_to(5)
    window.move_to(6)
    assert window.numbers == range(6, 7)
    window.move_to(7)
    assert window.numbers == range(7, 9)


def test_a_jump_forgets_a_failure() -> None:
    window = window_of()
    window.move_to(50)
    window.move_to(51)
    window.fail(52)
    window.move_to(10)
    window.move_to(11)
    window.move_to(12)
    assert window.numbers == range(12, 16)


def test_a_part_of_the_memory_is_only_for_runs_that_are_read() -> None:
    memory = ReadMemory(100)
    assert memory.take(75, is_ahead=True)
    assert not memory.take(1, is_ahead=True)
    assert memory.take(25, is_ahead=False)
    assert not memory.take(1, is_ahead=False)
    memory.give_back(100)
    assert memory.in_use_bytes == 0
