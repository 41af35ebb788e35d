"""What a topic stands on, by the imports of the broker, for types alone or not."""

import ast
from collections.abc import Iterator, Mapping
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
