"""docs/pulsar-5.md: each criterion and each rule names a test that exists, or a reason."""

import re
from pathlib import Path

from tests.unit.docs.test_compatibility import ROOT, names_of_tests

PAGE = ROOT / "docs" / "pulsar-5.md"
CRITERIA = [f"C{number}" for number in range(1, 16)]
RULES = [f"S{number}" for number in range(1, 20)]
_NAMED = re.compile(r"`([\w/.-]+\.py)(?:::(\w+))?`")
_WITHOUT = "not tested"


def rows() -> dict[str, str]:
    """The last cell of each row, by the number that it begins with."""
    found = {}
    for line in PAGE.read_text().splitlines():
        match = re.match(r"\| ([CS]\d+) ", line)
        if match is not None:
            found[match[1]] = line.strip("|").split("|")[-1]
    return found


def test_every_criterion_and_every_rule_has_a_row() -> None:
    assert list(rows()) == [*CRITERIA, *RULES]


def test_each_names_tests_that_exist_or_says_why_it_has_none() -> None:
    for number, cell in rows().items():
        named = _NAMED.findall(cell)
        assert named or _WITHOUT in cell, f"{number} names no test"
        for file, test in named:
            path: Path = ROOT / "tests" / file
            assert path.is_file(), f"{number}: there is no tests/{file}"
            if test:
                assert test in names_of_tests(path), f"{number}: tests/{file} has no {test}"
