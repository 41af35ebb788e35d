"""All invariants of the ledger protocol, by number, and how to judge a run by them."""

from tests.simulation import (
    checks_bookies,
    checks_clients,
    checks_handles,
    checks_lac,
    checks_ledger,
    checks_log,
    checks_recovery,
    checks_release,
)
from tests.simulation.record import INVARIANTS, Record, Violation

PARTS = (
    checks_bookies,
    checks_clients,
    checks_ledger,
    checks_log,
    checks_handles,
    checks_recovery,
    checks_release,
    checks_lac,
)
"""Importing them registers their invariants."""

_REPORTED_MAX = 5


def judge(run: Record) -> list[Violation]:
    """What does not hold; a few examples for each invariant."""
    found: list[Violation] = []
    for number, (_, check) in INVARIANTS.items():
        for count, text in enumerate(check(run)):
            if count == _REPORTED_MAX:
                break
            found.append(Violation(number, text))
    return found
