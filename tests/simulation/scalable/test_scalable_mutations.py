"""Every rule is needed: the plan that noticed its mutation must notice it again (`mutate.py`)."""

import pytest

from tests import proven
from tests.simulation.scalable.mutate import SEARCH
from tests.simulation.scalable.mutations import MUTATIONS, mutation
from tests.simulation.scalable.run import execute

_CAUGHT = SEARCH.load()
_REPLAYS = [
    pytest.param(name, marks=pytest.mark.replay(f"{proven.SCALABLE}/{name}")) for name in _CAUGHT
]


def test_every_mutation_has_been_caught() -> None:
    assert sorted(_CAUGHT) == sorted(each.name for each in MUTATIONS)
    assert all(catch.plan is not None for catch in _CAUGHT.values())


@pytest.mark.parametrize("name", _REPLAYS)
def test_an_invariant_fails_with_the_rule_off_and_holds_with_it(name: str) -> None:
    plan, found = _CAUGHT[name].plan, mutation(name)
    assert plan is not None
    with found.apply():
        mutated = execute(plan)
    assert mutated.reasons & set(found.invariants), mutated.report()
    outcome = execute(plan)
    assert not outcome.has_failed, outcome.report()
