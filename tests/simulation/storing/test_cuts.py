"""The power is lost at every write, sync and rename of scripted workloads: C1 to C6 hold."""

import pytest

from tests.sampling import sample_number, sampled
from tests.simulation.inode import Survival
from tests.simulation.storing.cut import (
    SURVIVALS,
    cut_everywhere,
    cut_twice,
    lose_after_kill,
    lose_newest,
    play,
)
from tests.simulation.storing.machine import Shape
from tests.simulation.storing.scripts import SCRIPTS

SHAPES = (Shape(), Shape(engine="interleaved"), Shape(journals=2, shards=3))
"""All shapes: `make sim STORAGE=1`."""

CASES = [(name, shape) for name in SCRIPTS for shape in SHAPES]
STRIDE = 5
"""Of so many moments in a row a run of `make test` tries one, another one each day."""


@pytest.mark.parametrize("every", [STRIDE, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", SCRIPTS)
def test_nothing_is_lost_whatever_the_step(name: str, shape: Shape, every: int) -> None:
    """Each moment in one of the ways; in `make sim STORAGE=1 ARGS=--complete` in all."""
    played = play(SCRIPTS[name], shape)
    assert len(played.cuts) > 100
    first = sample_number() % every
    moments = len(range(first, len(played.cuts), every))
    assert cut_everywhere(played, every=every, first=first) == moments


@pytest.mark.parametrize(("name", "shape"), sampled(CASES, every=4))
def test_nothing_is_lost_if_the_start_is_cut_too(name: str, shape: Shape) -> None:
    played = play(SCRIPTS[name], shape)
    third = len(played.cuts) // 3
    assert cut_twice(played, played.cuts[10::third]) > 10
    for first, survival in enumerate((Survival.NOTHING, Survival.KILLED), start=third):
        assert cut_twice(played, played.cuts[first : first + 1], survival) > 0


@pytest.mark.parametrize(("name", "shape"), sampled(CASES, every=4))
def test_nothing_is_lost_if_a_kill_is_followed_by_a_power_loss(name: str, shape: Shape) -> None:
    played = play(SCRIPTS[name], shape)
    for cut in played.cuts[5::7]:
        lose_after_kill(played, cut)


@pytest.mark.parametrize(("name", "shape"), sampled(CASES, every=4))
def test_a_newest_journal_file_that_is_gone_or_cut_is_noticed(name: str, shape: Shape) -> None:
    played = play(SCRIPTS[name], shape)
    assert sum(lose_newest(played, cut) for cut in played.cuts[6::9]) > 0


def test_a_workload_is_the_same_in_every_process() -> None:
    first, second = (play(SCRIPTS["adds"], SHAPES[0]) for _ in range(2))
    assert first.events == second.events
    assert [each[:3] for each in first.cuts] == [each[:3] for each in second.cuts]
    assert [each.image.tree for each in first.cuts] == [each.image.tree for each in second.cuts]
    assert len(set(SURVIVALS)) == len(Survival)
