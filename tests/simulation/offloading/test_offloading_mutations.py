"""Every rule of offloading is needed: the run that noticed without it notices again."""

import json

import pytest

from tests.simulation.mutations.mutation import Mutation
from tests.simulation.offloading.mutate import CAUGHT, failing
from tests.simulation.offloading.mutations import MUTATIONS

_CAUGHT = json.loads(CAUGHT.read_text())


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.name)
def test_a_run_notices_that_the_rule_is_off(mutation: Mutation) -> None:
    seed = _CAUGHT[mutation.name]["seed"]
    with mutation.apply():
        assert set(failing(seed)) & set(mutation.invariants)
    assert failing(seed) == []
