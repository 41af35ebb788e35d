"""Finds docstrings that cannot stand alone: they need the line above, or the name beside them.

    python -m tests.words --report

A reader comes to a docstring from a search, not from the line above. `SHAPES` lists the openings
that send the reader elsewhere. `--report` prints how many docstrings of each folder have one;
`--list` prints each of them. Any such docstring is a failure.
"""

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("bookie", "broker", "cursors", "deploy", "docs", "ledger", "sdk", "tests")

SHAPES = {
    "names its neighbour": r"(the same|likewise|ditto|and (so|the same)|so (is|does|do)|also)\b",
    "counts its neighbours": r"(of|as) (th(o|e)se|that|this|them|both|the (ones?|two|other))\b",
    "points above or below": r"(the (ones?|others?|two) (before|above|below)|see (above|below))\b",
    "refers to another name": r"(as|like) (in |of |with |for )?`[^`]+`",
    "begins in the middle": r"(its|their|it|they|this|these|those|what of it)\b",
    "has a clause for a subject": r"(which|whose|who|whoever|whom)\b",
}


@dataclass(frozen=True, slots=True)
class Leaning:
    """A docstring that leans on something else."""

    path: Path
    line: int
    shape: str
    first: str
    """First line of the docstring."""


def shape_of(docstring: str) -> str | None:
    """Return the shape of `SHAPES` that a docstring opens with, if any."""
    opening = docstring.strip()
    for shape, pattern in SHAPES.items():
        if re.match(pattern, opening, re.IGNORECASE):
            return shape
    return None


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of the docstrings of a module, its classes, functions and attributes."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for before, statement in zip([None, *body], body, strict=False):
            if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Constant):
                continue
            is_first = before is None
            if isinstance(statement.value.value, str) and (
                is_first or isinstance(before, ast.Assign | ast.AnnAssign)
            ):
                yield statement.lineno, statement.value.value


def leanings(folder: Path) -> Iterator[Leaning]:
    """Yield the docstrings below a folder that cannot stand alone, in the order of files and
    lines."""
    for path in sorted(folder.rglob("*.py")):
        if path.name.endswith("_pb2.py"):
            continue
        for line, text in docstrings(path.read_text()):
            if shape := shape_of(text):
                yield Leaning(path, line, shape, text.strip().splitlines()[0])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Find docstrings that cannot stand alone.")
    parser.add_argument("--report", action="store_true", help="Print the count per folder.")
    parser.add_argument("--list", action="store_true", help="Print each one.")
    parser.add_argument("folders", nargs="*", help="Default: all.")
    chosen = parser.parse_args(arguments)
    found = {name: list(leanings(ROOT / name)) for name in chosen.folders or FOLDERS}
    for name, leaning in found.items():
        if chosen.list or not chosen.report:
            sys.stdout.writelines(f"{_described(each)}\n" for each in leaning)
        if chosen.report:
            counts = Counter(each.shape for each in leaning)
            shapes = ", ".join(f"{shape} {count}" for shape, count in counts.most_common())
            sys.stdout.write(f"{name:<8} {len(leaning):5}  {shapes}\n")
    if chosen.report:
        total = sum(len(leaning) for leaning in found.values())
        sys.stdout.write(f"{total} docstrings cannot stand alone; --list prints them\n")
    return 1 if any(found.values()) else 0


def _described(each: Leaning) -> str:
    return f"{each.path.relative_to(ROOT)}:{each.line}: {each.shape}: {each.first}"


if __name__ == "__main__":
    sys.exit(main())
