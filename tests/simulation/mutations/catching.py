"""Whether a plan notices that a rule is off."""

from collections.abc import Callable, Sized
from typing import Protocol, TypeVar

from tests.simulation.mutations.mutation import Mutation

_BROKEN = ("NameError", "TypeError", "AttributeError", "ImportError", "SyntaxError")
"""Errors of a mutation that does not fit the code any more. They prove nothing."""


class Outcome(Protocol):
    """How a run has ended."""

    @property
    def has_failed(self) -> bool: ...
    @property
    def violations(self) -> Sized: ...
    @property
    def error(self) -> str: ...


Plan = TypeVar("Plan")
Ended = TypeVar("Ended", bound=Outcome)


def caught_by(found: Mutation, plan: Plan, execute: Callable[[Plan], Ended]) -> Ended | None:
    """Return how a plan fails with the rule off; None: it does not, or with the rule on as well.

    Raises:
        AssertionError: the mutation does not fit the code any more.
    """
    with found.apply():
        outcome = execute(plan)
    if not outcome.has_failed:
        return None
    check_fits(found, outcome)
    return None if execute(plan).has_failed else outcome


def check_fits(found: Mutation, outcome: Outcome) -> None:
    """
    Raises:
        AssertionError: a run with the rule off ended by an error of the mutation's own.
    """
    if not outcome.violations and outcome.error.startswith(_BROKEN):
        raise AssertionError(f"{found.name} does not fit the code: {outcome.error}")
