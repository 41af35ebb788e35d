"""Every rule is needed: what once caught its mutation must catch it again (`mutate.py`)."""

import pytest

from tests import proven
from tests.simulation.cluster.mutate import SEARCH
from tests.simulation.cluster.mutations.registry import MUTATIONS, mutation
from tests.simulation.cluster.run import execute
from tests.simulation.mutations.elsewhere import failing_elsewhere

_CAUGHT = SEARCH.load()
_BY_PLAN = [
    pytest.param(name, marks=pytest.mark.replay(f"{proven.CLUSTERS}/{name}"))
    for name, catch in _CAUGHT.items()
    if catch.plan is not None
]
_BY_STORY = [
    pytest.param(name, marks=pytest.mark.replay(f"{proven.CLUSTERS}/{name}"))
    for name, catch in _CAUGHT.items()
    if catch.plan is None
]
_ELSEWHERE = [
    pytest.param(name, marks=pytest.mark.replay(f"{proven.CLUSTERS}/{name}"))
    for name, catch in _CAUGHT.items()
    if catch.plan is None and mutation(name).tests
]


def test_every_mutation_has_been_caught() -> None:
    assert sorted(_CAUGHT) == sorted(each.name for each in MUTATIONS)
    assert all(catch.is_caught for catch in _CAUGHT.values())


@pytest.mark.parametrize("name", _BY_PLAN)
def test_an_invariant_fails_with_the_rule_off_and_holds_with_it(name: str) -> None:
    plan = _CAUGHT[name].plan
    assert plan is not None
    with mutation(name).apply():
        mutated = execute(plan)
    assert mutated.has_failed
    outcome = execute(plan)
    assert not outcome.has_failed, outcome.report()


@pytest.mark.parametrize("name", _BY_STORY)
def test_a_story_fails_with_the_rule_off(name: str) -> None:
    wanted = _CAUGHT[name].tests
    with mutation(name).apply():
        for told in SEARCH.stories(mutation(name)):
            if told.__name__ in wanted:
                with pytest.raises((Exception, pytest.fail.Exception)):
                    told()


@pytest.mark.parametrize("name", _ELSEWHERE)
def test_a_test_outside_of_the_simulators_fails_with_the_rule_off(name: str) -> None:
    assert failing_elsewhere(mutation(name))
