"""What counts as a circle of imports, and as an arrow that runs back up."""

from collections.abc import Sequence
from pathlib import Path

import grimp
import pytest

from tests.structure import Known, arrows, circles, faults, wrong_arrows


def graph_of(arrows: str) -> dict[str, set[str]]:
    """`a>b b>c` is three modules."""
    pairs = [each.split(">") for each in arrows.split()]
    graph: dict[str, set[str]] = {name: set() for pair in pairs for name in pair}
    for importer, imported in pairs:
        graph[importer].add(imported)
    return graph


@pytest.mark.parametrize(
    ("drawn", "found"),
    [
        ("a>b b>c a>c", []),
        ("a>b b>a", ["ab"]),
        ("a>b b>c c>d d>b c>e", ["bcd"]),
        ("a>b b>a c>d d>e e>c b>c", ["ab", "cde"]),
        ("a>b b>a a>c c>a", ["abc"]),
        ("z>y y>x x>z w>z", ["xyz"]),
    ],
)
def test_a_circle_is_all_modules_that_reach_each_other(drawn: str, found: list[str]) -> None:
    assert circles(graph_of(drawn)) == [sorted(each) for each in found]


def test_a_long_chain_is_walked_without_recursion() -> None:
    chain = " ".join(f"m{at}>m{at + 1}" for at in range(5_000))
    assert circles(graph_of(chain)) == []
    assert list(map(len, circles(graph_of(f"{chain} m5000>m0")))) == [5_001]


KNOWN = Known("b", 2, "for now")


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ([["a", "b"]], []),
        ([["a", "b", "c"]], ["has 3 modules, and not 2 at most"]),
        ([["c", "d"], ["a", "b"]], ["a circle of 2 modules: c d"]),
        ([], ["the circle around b is gone"]),
    ],
    ids=["known", "grown", "new", "gone"],
)
def test_only_known_circles_pass_and_none_that_is_gone(
    found: list[Sequence[str]], says: list[str]
) -> None:
    said = faults(found, [KNOWN])
    assert len(said) == len(says)
    assert all(part in line for part, line in zip(says, said, strict=True))


def test_an_arrow_runs_back_up_from_a_layer_to_one_above() -> None:
    below = graph_of("door.a>topic.b topic.b>door.c topic.b>topic.d ground>topic.b new.e>topic.b")
    graph = {
        f"magnetar.broker.{name}": {f"magnetar.broker.{each}" for each in imported}
        for name, imported in below.items()
    }
    graph["magnetar.broker.topic.d"] = {"magnetar.ledger.door"}
    graph["magnetar.deploy.door"] = {"magnetar.broker.ground"}
    found = arrows(graph, ["door", "topic", "ground"])
    assert found.between == {
        ("door", "topic"),
        ("topic", "door"),
        ("ground", "topic"),
        ("new", "topic"),
    }
    assert found.back == {("topic", "door"), ("ground", "topic")}
    assert found.unplaced == {"new"}
    assert wrong_arrows(found, {("topic", "door"), ("door", "topic")}) == [
        "door imports topic no more: take it off the list",
        "ground imports topic, which is above it",
        "new is in no layer",
    ]


def test_imports_for_types_and_within_functions_are_in_the_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "drawn_for_this_test"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "top.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from drawn_for_this_test.below import Thing\n"
    )
    (package / "below.py").write_text(
        "class Thing:\n    def up(self):\n        from . import top\n        return top\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    graph = grimp.build_graph(package.name, cache_dir=None)
    imported = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    assert circles(imported) == [[f"{package.name}.below", f"{package.name}.top"]]
