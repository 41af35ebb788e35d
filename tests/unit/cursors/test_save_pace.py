"""The cursors of one broker take turns to save."""

import pytest

from magnetar.cursors import SavePace


def test_few_cursors_save_at_their_interval() -> None:
    pace = SavePace(saves_per_s_max=200, delay_s_max=10)
    for number in range(200):
        assert pace.delay_s(number / 200, 1.0) == pytest.approx(1.0)


def test_many_cursors_wait_for_their_turns_and_each_has_one() -> None:
    pace = SavePace(saves_per_s_max=200, delay_s_max=10)
    delays = [pace.delay_s(0.0, 1.0) for _ in range(1_000)]
    assert delays == pytest.approx([1 + number / 200 for number in range(1_000)])


def test_no_cursor_waits_longer_than_the_bound() -> None:
    pace = SavePace(saves_per_s_max=200, delay_s_max=10)
    delays = [pace.delay_s(0.0, 1.0) for _ in range(100_000)]
    assert max(delays) == 10
    # What had no turn of its own is not held against who comes later.
    assert pace.delay_s(9.5, 1.0) == pytest.approx(1.0)


def test_an_interval_above_the_bound_is_kept() -> None:
    pace = SavePace(saves_per_s_max=1, delay_s_max=10)
    assert [pace.delay_s(0.0, 60.0) for _ in range(3)] == [60.0] * 3


@pytest.mark.parametrize("interval_s", [5.0, 600.0])
def test_a_cursor_with_a_long_interval_delays_no_other(interval_s: float) -> None:
    pace = SavePace(saves_per_s_max=200, delay_s_max=10)
    assert pace.delay_s(0.0, interval_s) == interval_s
    assert pace.delay_s(0.1, 1.0) == pytest.approx(1.0)


def test_a_cursor_with_a_long_interval_takes_no_turn_from_many_that_wait() -> None:
    pace = SavePace(saves_per_s_max=200, delay_s_max=10)
    delays = [pace.delay_s(0.0, 600.0 if number == 500 else 1.0) for number in range(1_001)]
    assert delays.pop(500) == 600.0
    assert delays == pytest.approx([1 + number / 200 for number in range(1_000)])
