"""Whether the tests of a defect notice that a rule is off."""

from collections.abc import Callable

import pytest

from magnetar.ledger.errors import LedgerError
from tests.simulation.loop import SimulationStuckError
from tests.simulation.mutations.mutation import Mutation
from tests.simulation.mutations.registry import mutations_of

FAILURES = (AssertionError, LedgerError, SimulationStuckError, pytest.fail.Exception)
"""How a story fails when the program does the wrong thing; anything else is a broken mutation."""


def mutations_param(defect: str) -> pytest.MarkDecorator:
    """`@mutations_param("D8")`: the test runs with each mutation of the defect's rules."""
    found = mutations_of(defect)
    assert found, f"no mutation belongs to {defect}"
    return pytest.mark.parametrize("mutation", found, ids=[each.name for each in found])


def assert_noticed(mutation: Mutation, *stories: Callable[[], None]) -> None:
    """At least one of the stories fails with the rule off.

    Raises:
        AssertionError: none does: the rule could be dropped, and nobody would hear of it.
    """
    with mutation.apply():
        for story in stories:
            try:
                story()
            except FAILURES:
                return
    names = ", ".join(each.__name__ for each in stories)
    raise AssertionError(f"{names} do not notice that {mutation.description}")
