"""Random lives of one bookie: crashes, failing disks and full ones; nothing is lost or made up."""

from pathlib import Path

import pytest

from tests.sampling import sampled
from tests.simulation.seeds import fresh_seeds
from tests.simulation.storing.lives import LivesPlan, draw_lives, live

RUNS = 100
"""The short form, and as many fresh seeds; `make sim STORAGE=1 RUNS=n` is the long one."""
PER_TEST = 50
FIRSTS = [(first,) for first in range(0, RUNS, PER_TEST)]
"""Of the fixed seeds half is tried each day, all by `make nightly`."""
REGRESSIONS = sorted(Path(__file__).with_name("regressions").glob("*.json"))


@pytest.mark.parametrize("first", sampled(FIRSTS, every=2))
def test_no_promise_is_broken(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        outcome = live(draw_lives(seed))
        assert not outcome.has_failed, f"make sim STORAGE=1 SEED={seed}\n{outcome.report()}"


@pytest.mark.parametrize("part", range(RUNS // PER_TEST))
def test_no_promise_is_broken_with_fresh_seeds(part: int) -> None:
    for seed in fresh_seeds(PER_TEST):
        outcome = live(draw_lives(seed))
        assert not outcome.has_failed, f"make sim STORAGE=1 SEED={seed}\n{outcome.report()}"


def test_what_failed_once_stays_mended() -> None:
    for path in REGRESSIONS:
        outcome = live(LivesPlan.from_json(path.read_text()))
        assert not outcome.has_failed, f"{path.name}\n{outcome.report()}"


def test_a_plan_survives_being_written_down() -> None:
    for seed in range(100):
        assert LivesPlan.from_json(draw_lives(seed).to_json()) == draw_lives(seed)


def test_runs_meet_what_they_are_for() -> None:
    """Crashes in the middle, starts on troubled disks, and enough of both ends."""
    outcomes = [live(draw_lives(seed)) for seed in range(60)]
    assert sum(each.restarts for each in outcomes) > 150
    assert sum(each.events for each in outcomes) > 2000
    assert any(life.trouble for each in outcomes for life in each.plan.lives)
