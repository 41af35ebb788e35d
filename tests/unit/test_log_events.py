"""Events of logs are named by the fact, and tell in fields what they are about."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.processes import ROOT

_LEVELS = {"debug", "info", "warning", "error", "critical", "exception"}
_NAMES = {"_log", "log", "logger"}
_COMPONENTS = ("ledger", "bookie", "cursors", "broker", "deploy")
_FIELDS_WITHOUT_UNIT = {"ms", "s", "duration", "elapsed", "took"}


class _Event(NamedTuple):
    name: str
    component: str
    fields: frozenset[str]
    where: str


def _events() -> Iterator[_Event]:
    for component in _COMPONENTS:
        for path in sorted((ROOT / component / "magnetar").rglob("*.py")):
            yield from _events_of(component, path)


def _events_of(component: str, path: Path) -> Iterator[_Event]:
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _LEVELS
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id in _NAMES
            and node.args
        ):
            (name, *rest) = node.args
            where = f"{path.relative_to(ROOT)}:{node.lineno}"
            if not isinstance(name, ast.Constant):
                continue  # passed on, by somebody who names it
            assert not rest, f"{where}: values go into fields"
            fields = frozenset(each.arg for each in node.keywords if each.arg is not None)
            yield _Event(str(name.value), component, fields, where)


def test_events_are_facts_with_one_name_and_fields_with_units() -> None:
    components: dict[str, set[str]] = defaultdict(set)
    for event in _events():
        assert event.name.replace("_", "").isalnum(), event
        assert event.name.islower(), event
        assert not event.fields & _FIELDS_WITHOUT_UNIT, event
        components[event.name].add(event.component)
    assert len(components) > 100, "they are found at all"
    assert [name for name, of in components.items() if len(of) > 1] == []


def test_what_is_said_of_a_topic_or_a_ledger_names_it_in_the_same_field() -> None:
    for event in _events():
        for wrong in ("topic_name", "ledger", "name_of_topic", "ledgerid", "bookie_id"):
            assert wrong not in event.fields, f"{event.where}: {wrong}"
