"""Work goes no faster than it may."""

import pytest

from magnetar.ledger.pace import Pace


def test_in_the_long_run_the_rate_is_kept() -> None:
    pace, now_s = Pace(100), 50.0
    for _ in range(1000):
        now_s += pace.take(1, now_s)
    assert now_s - 50 == pytest.approx(10, abs=0.03)


def test_idle_time_is_not_saved_up() -> None:
    pace = Pace(100)
    pace.take(1, 0)
    assert pace.take(100, 1000) == pytest.approx(1)


def test_short_waits_are_put_together() -> None:
    pace = Pace(1000, wait_s_min=0.02)
    waits = [pace.take(1, 0) for _ in range(25)]
    assert waits[:19] == [0] * 19
    assert waits[19] == pytest.approx(0.02)


def test_no_bound() -> None:
    assert Pace(0).take(1e12, 0) == 0
