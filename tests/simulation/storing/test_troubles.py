"""Whatever call of the disk fails: no confirmed entry is lost, none is denied."""

import pytest

from tests.simulation.storing.lives import live
from tests.simulation.storing.machine import Shape
from tests.simulation.storing.scripts import SCRIPTS
from tests.simulation.storing.troubles import calls_of, troubled

SHAPES = (Shape(), Shape(engine="interleaved"))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", SCRIPTS)
def test_no_call_that_fails_loses_anything(name: str, shape: Shape) -> None:
    """Some of the calls; all of them in `make sim STORAGE=1 ARGS=--complete`."""
    calls = sum(calls_of(name, shape).values())
    plans = list(troubled(name, shape, every=max(1, calls // 20)))
    assert len(plans) >= 20
    for plan in plans:
        outcome = live(plan)
        assert not outcome.has_failed, outcome.report()
