"""The import graph of the product: its circular imports, and imports that point up.

    python -m tests.structure [--arrows]

A circle is a set of modules that import each other, directly or over others. Imports for types
alone count, and those within functions: a part that knows its whole can reach anything in it. A
circle that is not in `CIRCLES` is a failure, and so is a listed one that is gone or has grown.

Likewise, imports between the folders of the broker that point up against `LAYERS` must be in
`BACK`; `--arrows` lists these. The graph is import-linter's, whose contracts in pyproject.toml say
which component may import which.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

import grimp  # comes with import-linter

COMPONENTS = ("ledger", "bookie", "cursors", "sdk", "broker", "deploy", "testing", "arrow")
_CACHE = Path(__file__).resolve().parent.parent / ".import_linter_cache"
_BROKER = "magnetar.broker."

Graph = Mapping[str, AbstractSet[str]]
"""Imports of each module."""


@dataclass(frozen=True, slots=True)
class Known:
    """A known circle."""

    around: str
    """A module of the circle."""
    modules_max: int
    reason: str


CIRCLES: tuple[Known, ...] = ()

LAYERS = (
    "broker",
    "http",
    "websocket",
    "protocol",
    "topics",
    "features",
    "topic",
    "schemas",
    "security",
    "cluster",
    "policies",
    "base",
)
"""Folders of the broker, and `broker.py`, from top to bottom: each imports from those below."""

BACK: Mapping[tuple[str, str], str] = {
    ("base", "policies"): "settings have the types of policies, and make the broker's own of them",
    ("cluster", "topic"): "a load report counts what the topics of a broker do",
    ("cluster", "topics"): "bundles that are given up take their topics along",
    ("features", "topics"): "coordinators tell topics how transactions end, and load their own",
    ("policies", "cluster"): "a namespace is made with its bundles, and goes with its partitions",
    ("policies", "schemas"): "a namespace that is forced away takes its schemas along",
}
"""Imports that point up nevertheless, and why."""


def product_graph() -> Graph:
    """Return the imports of all components."""
    graph = grimp.build_graph(
        *(f"magnetar.{component}" for component in COMPONENTS), cache_dir=str(_CACHE)
    )
    return {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}


def circles(graph: Graph) -> list[list[str]]:
    """Return the modules that reach each other, sorted; the smallest circles first."""
    importers: dict[str, set[str]] = {name: set() for name in graph}
    for name, imported in graph.items():
        for each in imported:
            importers[each].add(name)
    found: list[list[str]] = []
    left = set(graph)
    # A module that ended last is reached by earlier ones only within a circle (Kosaraju).
    for name in reversed(_by_end(graph)):
        if name in left:
            circle = _reached(name, importers, left)
            left -= circle
            if len(circle) > 1:
                found.append(sorted(circle))
    return sorted(found, key=lambda circle: (len(circle), circle))


def _by_end(graph: Graph) -> list[str]:
    """Return all modules, each after those that a walk from it reached first."""
    ended: list[str] = []
    seen: set[str] = set()
    for start in sorted(graph):
        if start in seen:
            continue
        seen.add(start)
        path = [(start, iter(sorted(graph[start])))]
        while path:
            name, imported = path[-1]
            following = next((each for each in imported if each not in seen), None)
            if following is None:
                ended.append(name)
                path.pop()
            else:
                seen.add(following)
                path.append((following, iter(sorted(graph[following]))))
    return ended


def _reached(start: str, graph: Graph, among: AbstractSet[str]) -> set[str]:
    found, waiting = {start}, [start]
    while waiting:
        new = (graph[waiting.pop()] & among) - found
        found |= new
        waiting += new
    return found


def faults(found: Iterable[Sequence[str]], known: Iterable[Known]) -> list[str]:
    """Describe what is wrong with the circles that were found."""
    said: list[str] = []
    left = list(known)
    for circle in found:
        excused = next((each for each in left if each.around in circle), None)
        names = " ".join(circle)
        if excused is None:
            said.append(f"a circle of {len(circle)} modules: {names}")
            continue
        left.remove(excused)
        if len(circle) > excused.modules_max:
            said.append(
                f"the circle around {excused.around} has {len(circle)} modules, and not "
                f"{excused.modules_max} at most: {names}"
            )
    said += [f"the circle around {each.around} is gone: take it off the list" for each in left]
    return said


@dataclass(frozen=True, slots=True)
class Arrows:
    """Imports between the folders of the broker."""

    between: AbstractSet[tuple[str, str]]
    back: AbstractSet[tuple[str, str]]
    """Imports from a layer to one above it."""
    unplaced: AbstractSet[str]
    """Folders in no layer."""


def arrows(graph: Graph, layers: Sequence[str]) -> Arrows:
    """Return the imports between the folders of the broker in a graph."""
    depths = {name: depth for depth, name in enumerate(layers)}
    found = {
        (_folder(name), _folder(each))
        for name, imported in graph.items()
        for each in imported
        if name.startswith(_BROKER) and each.startswith(_BROKER)
    }
    between = {(importer, imported) for importer, imported in found if importer != imported}
    unplaced = {name for arrow in between for name in arrow} - depths.keys()
    placed = {arrow for arrow in between if unplaced.isdisjoint(arrow)}
    back = {(low, high) for low, high in placed if depths[high] < depths[low]}
    return Arrows(between, back, unplaced)


def wrong_arrows(found: Arrows, known: Iterable[tuple[str, str]]) -> list[str]:
    """Describe what is wrong with the imports that were found."""
    excused = set(known)
    said = [f"{low} imports {high}, which is above it" for low, high in found.back - excused]
    said += [f"{name} is in no layer" for name in found.unplaced]
    gone = excused - found.back
    said += [f"{low} imports {high} no more: take it off the list" for low, high in gone]
    return sorted(said)


def _folder(module: str) -> str:
    """Return the folder of a module right below the broker, or its file if it is in none."""
    return module.removeprefix(_BROKER).partition(".")[0]


def main(arguments: list[str] | None = None) -> int:
    """Print circles and arrows; return 1 if any is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.structure")
    parser.add_argument("--arrows", action="store_true", help="list what runs back up")
    options = parser.parse_args(arguments)
    graph = product_graph()
    found = circles(graph)
    folders = arrows(graph, LAYERS)
    said = [*faults(found, CIRCLES), *wrong_arrows(folders, BACK)]
    lines = [f"Circles: {len(found)}, of {sum(map(len, found))} modules in {len(graph)}."]
    lines += [f"  around {each.around}: {each.reason}" for each in CIRCLES]
    lines.append(
        f"Arrows between folders of the broker: {len(folders.between)}, "
        f"back up {len(folders.back)}."
    )
    if options.arrows:
        lines += [f"  {low} imports {high}: {why}" for (low, high), why in sorted(BACK.items())]
    lines += [f"Wrong: {each}" for each in said]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
