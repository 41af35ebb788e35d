"""The tables of docs/simulation.md name tests that there are."""

import re
from pathlib import Path

from tests.simulation.mutations.searching import DOCUMENT

TESTS = Path(__file__).resolve().parents[2]


def test_every_test_of_the_clusters_tables_exists() -> None:
    section = DOCUMENT.read_text().partition("## Clusters\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(test_\w+)`", section))
    assert len(named) > 60
    defined: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        defined |= set(re.findall(r"def (test_\w+)\(", path.read_text()))
    assert not named - defined
