"""Which modules of the broker import which, for types alone or not."""

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import magnetar.broker

_BROKER = Path(magnetar.broker.__file__).parent
_UNKNOWN = (
    "balance",
    "compaction",
    "connection",
    "consuming",
    "deduplication",
    "delayed",
    "http",
    "metrics",
    "publishing",
    "schemas",
    "security",
    "services",
    "topics",
    "tracing",
    "transactions",
    "websocket",
)


_CIRCLES = {
    "the whole broker is shown by its pages, which its application makes": {
        "app",
        "broker",
        "http.application",
        "http.broker_stats",
        "http.composition",
        "metrics.broker_values",
        "metrics.page",
        "metrics.transaction_values",
    },
    "sessions of web sockets, their sockets and the service know each other": {
        "websocket.connection",
        "websocket.consuming",
        "websocket.dead_letters",
        "websocket.producing",
        "websocket.proxy_stats",
        "websocket.service",
        "websocket.session",
    },
}
"""What is tied together by imports, and why. Nothing is to be added."""


def _modules() -> Mapping[str, Path]:
    found = {}
    for path in _BROKER.rglob("*.py"):
        parts = path.relative_to(_BROKER).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _imports(modules: Mapping[str, Path], module: str) -> Iterator[str]:
    """The modules of the broker that one imports."""
    for node in ast.walk(ast.parse(modules[module].read_text())):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        package, _, name = node.module.partition("magnetar.broker")
        if package or (name and name[0] != "."):
            continue
        for each in node.names:
            whole = f"{name[1:]}.{each.name}".lstrip(".")
            found = whole if whole in modules else name[1:]
            if found != module:
                yield found


def test_neither_a_topic_nor_what_it_stands_on_imports_a_feature_or_a_door() -> None:
    """What is imported by what is imported counts as well."""
    modules = _modules()
    left = [each for each in modules if each.partition(".")[0] in ("topic", "dispatch")]
    seen = set(left)
    while left:
        module = left.pop()
        for found in _imports(modules, module):
            assert found.partition(".")[0] not in _UNKNOWN, f"{module} imports {found}"
            if found not in seen:
                seen.add(found)
                left.append(found)


def test_imports_make_no_circles_but_for_those_that_are_named() -> None:
    modules = _modules()
    circle_of = {name: why for why, names in _CIRCLES.items() for name in names}
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for module in modules:
        node = circle_of.get(module, module)
        others = {circle_of.get(each, each) for each in _imports(modules, module)}
        sorter.add(node, *(others - {node}))
    try:
        sorter.prepare()
    except CycleError as error:
        raise AssertionError(" imports ".join(reversed(error.args[1]))) from error
