"""Every rule of the storage is needed: what once caught its mutation must catch it again."""

import pytest

from tests import proven
from tests.simulation.mutations.elsewhere import failing_elsewhere
from tests.simulation.mutations.storage_registry import STORAGE_MUTATIONS, storage_mutation
from tests.simulation.storing.mutate import load

_CAUGHT = load()
_BY_RUNS = [
    pytest.param(name, marks=pytest.mark.replay(f"{proven.STORAGE}/{name}"))
    for name, catch in _CAUGHT.items()
    if catch.by
]
_ELSEWHERE = [
    pytest.param(name, marks=pytest.mark.replay(f"{proven.STORAGE}/{name}"))
    for name, catch in _CAUGHT.items()
    if not catch.by and storage_mutation(name).tests
]


def test_every_mutation_of_the_storage_has_been_caught() -> None:
    assert sorted(_CAUGHT) == sorted(each.name for each in STORAGE_MUTATIONS)
    assert all(catch.is_caught for catch in _CAUGHT.values())


@pytest.mark.parametrize("name", _BY_RUNS)
def test_a_promise_is_broken_with_the_rule_off_and_kept_with_it(name: str) -> None:
    with storage_mutation(name).apply():
        assert _CAUGHT[name].fails() or _CAUGHT[name].fails(everywhere=True)
    assert not _CAUGHT[name].fails()


@pytest.mark.parametrize("name", _ELSEWHERE)
def test_a_test_outside_of_the_simulators_fails_with_the_rule_off(name: str) -> None:
    assert failing_elsewhere(storage_mutation(name))
