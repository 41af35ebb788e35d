"""Random runs of offloading hold what the protocol promises."""

import pytest

from tests.simulation.offloading.run import execute

_LATE_OWNER = 606
"""An owner that is still about to open the log does so after the run's last one."""


@pytest.mark.parametrize("seed", [*range(60), _LATE_OWNER])
def test_nothing_is_lost_on_its_way_to_the_object_store(seed: int) -> None:
    run = execute(seed)
    assert not run.problems, "\n".join([*run.problems[:5], run.sim.history.text()[-20_000:]])
