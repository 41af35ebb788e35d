"""What a job shows while it works, and at its end."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table


@contextmanager
def progress_bar(what: str, total: int | None) -> Iterator["Bar"]:
    """A bar on stderr; without a terminal nothing is drawn."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, disable=not console.is_terminal) as shown:
        yield Bar(shown, what, total)


class Bar:
    """One line of progress."""

    def __init__(self, shown: Progress, what: str, total: int | None) -> None:
        self._shown = shown
        self._task = shown.add_task(what, total=total, note="")

    def show(self, completed: int, note: str = "", total: int | None = None) -> None:
        if total is None:
            self._shown.update(self._task, completed=completed, note=note)
        else:
            self._shown.update(self._task, completed=completed, note=note, total=total)


def show_summary(title: str, headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table on stdout."""
    table = Table(title=title, title_justify="left")
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="left" if at == 0 else "right")
    for row in rows:
        table.add_row(*map(_shown, row))
    Console(file=sys.stdout).print(table)


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1_000_000:.1f} MB"
