"""docs/compatibility.md: each row has a known state, and what "works" names tests that exist."""

import ast
import re
from pathlib import Path

from magnetar.broker.http.brokers import REPORT_CONSTANTS
from magnetar.broker.http.internal_stats import INTERNAL_ABSENT, INTERNAL_CONSTANTS
from magnetar.broker.http.topic_stats import ABSENT, SUBSCRIPTION_CONSTANTS, TOPIC_CONSTANTS

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "compatibility.md"
STATES = ("works", "differs", "not yet")


def rows() -> list[tuple[int, list[str]]]:
    """Line numbers and cells of all rows."""
    found = []
    for number, line in enumerate(PAGE.read_text().splitlines(), 1):
        if line.startswith("|") and not re.fullmatch(r"[|\s:-]+", line):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if cells != ["feature", "state", "tests or reason"]:
                found.append((number, cells))
    return found


def names_of_tests(path: Path) -> set[str]:
    names = (node.name for node in ast.walk(ast.parse(path.read_text())) if hasattr(node, "name"))
    return {name for name in names if name and name.startswith("test_")}


def test_every_row_has_a_feature_a_state_and_a_reason() -> None:
    for number, cells in rows():
        assert len(cells) == 3, f"line {number}: three cells"
        assert all(cells), f"line {number}: an empty cell"
        assert cells[1] in STATES, f"line {number}: one of {STATES}"


def test_the_list_on_top_leads_to_every_part() -> None:
    text = PAGE.read_text()
    led_to = re.findall(r"^- \[(.+)\]\(#[a-z-]+\)$", text, re.MULTILINE)
    assert led_to == re.findall(r"^## (.+)$", text, re.MULTILINE)


def test_no_feature_is_listed_twice() -> None:
    features = [cells[0] for _, cells in rows()]
    assert len(features) == len(set(features))


def test_every_feature_that_works_names_tests_that_exist() -> None:
    for number, (feature, state, reason) in rows():
        named = re.findall(r"`([\w/.-]+\.(?:py|mjs|js|go|java))(?:::(\w+))?`", reason)
        if state == "works":
            assert named, f"line {number}: {feature} names no test"
        for file, test in named:
            path = ROOT / "tests" / file
            assert path.is_file(), f"line {number}: there is no tests/{file}"
            if test:
                assert test in names_of_tests(path), f"line {number}: tests/{file} has no {test}"


def test_fields_of_statistics_that_never_change_are_listed() -> None:
    page = PAGE.read_text()
    tables = (
        *(TOPIC_CONSTANTS, SUBSCRIPTION_CONSTANTS, INTERNAL_CONSTANTS, REPORT_CONSTANTS),
        *(ABSENT, INTERNAL_ABSENT),
    )
    missing = {field for table in tables for field in table if f"`{field}`" not in page}
    assert not missing
