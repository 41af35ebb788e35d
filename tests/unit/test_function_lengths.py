"""No function of the product is longer than a screen, but for tables of options."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMPONENTS = ("ledger", "bookie", "cursors", "sdk", "broker", "deploy")
LINES_MAX = 70

TABLES = {
    ("deploy/magnetar/deploy/cli.py", "standalone"),
    ("deploy/magnetar/deploy/cli.py", "bookie"),
    ("deploy/magnetar/deploy/cli.py", "broker"),
    ("deploy/magnetar/deploy/cli_cluster.py", "cluster"),
    ("deploy/magnetar/deploy/cli_pipeline.py", "archive"),
}
"""Commands: nearly all of their lines declare options with names, variables and help texts."""


def functions(source: str) -> Iterator[tuple[str, int]]:
    """The name and the number of lines of each function, decorators included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            assert node.end_lineno is not None
            yield node.name, node.end_lineno - first + 1


def test_a_function_is_measured_with_its_decorators() -> None:
    assert list(functions("@a\n@b(\n)\ndef f():\n    pass\n")) == [("f", 5)]


def test_only_tables_of_options_are_longer_than_a_screen() -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), name)
        for component in COMPONENTS
        for path in (ROOT / component).rglob("*.py")
        for name, lines in functions(path.read_text())
        if lines > LINES_MAX
    }
    assert found == TABLES
