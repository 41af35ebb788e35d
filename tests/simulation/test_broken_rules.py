"""Rules that were broken by hand are noticed, and the document says by whom."""

import pytest

from tests.simulation.broken_rules import (
    MORE,
    OF_THE_DISK,
    REVIEWED,
    RUNS_MAX,
    noticed,
    table,
)
from tests.simulation.mutations.searching import DOCUMENT


def test_there_are_43_of_the_review_and_20_more() -> None:
    assert len(set(REVIEWED)) + len(OF_THE_DISK) == 43
    assert len(set(MORE) - set(REVIEWED)) >= 20


@pytest.mark.parametrize("name", [*REVIEWED, *MORE])
def test_a_broken_rule_is_noticed_within_a_hundred_runs_or_by_a_named_test(name: str) -> None:
    found = noticed(name)
    assert found.is_noticed
    assert found.tests or found.runs <= RUNS_MAX


def test_the_document_has_the_table() -> None:
    assert table() in DOCUMENT.read_text()
