import json

import pytest

from magnetar.deploy.migration.report import LINES_MAX, Report, is_same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (None, -1),
        (0, None),
        ([], None),
        ({"a": 1, "b": None}, {"a": 1}),
        ({"a": 1, "relative": False}, {"a": 1}),
        (["b", "a"], ["a", "b"]),
        ({}, None),
    ],
)
def test_values_that_mean_the_same_are_the_same(one: object, other: object) -> None:
    assert is_same(one, other)
    assert is_same(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [(0, -1), (None, 5), ({"a": 1}, {"a": 2}), ({"a": 1}, 1), ("a", "b"), (["a"], [])],
)
def test_values_that_mean_different_things_differ(one: object, other: object) -> None:
    assert not is_same(one, other)
    assert not is_same(other, one)


def test_a_report_counts_by_kind_and_says_whether_anything_differs() -> None:
    report = Report()
    report.compare("messages", "t", 5, 5)
    report.compare("policy", "ns ttl", 60, None, "refused")
    assert (report.counts, report.differing) == ({"messages": 1, "policy": 1}, {"policy": 1})
    assert report.differs()
    assert report.differs("policy")
    assert not report.differs("messages")
    assert "different: policy ns ttl: source 60, target null (refused)" in report.lines()
    assert report.lines()[-1] == "source and target differ"
    assert json.loads(report.to_json())["different"] == {"policy": 1}


def test_a_report_without_differences_says_so() -> None:
    report = Report()
    report.compare("messages", "t", 5, 5)
    assert not report.differs()
    assert report.lines()[-1] == "source and target do not differ"


def test_differences_are_all_counted_and_listed_up_to_a_limit() -> None:
    report = Report()
    for n in range(LINES_MAX + 1):
        report.compare("messages", f"t-{n}", 1, 2)
    assert len(report.differences) == LINES_MAX
    assert "different: 1 more" in report.lines()
