"""Random runs of offloading hold what the protocol promises."""

import pytest

from tests.simulation.offloading.run import execute


@pytest.mark.parametrize("seed", range(60))
def test_nothing_is_lost_on_its_way_to_the_object_store(seed: int) -> None:
    run = execute(seed)
    assert not run.problems, "\n".join([*run.problems[:5], run.sim.history.text()[-20_000:]])
