"""The notebooks run from their first cell to their last, and show what they are kept with."""

from pathlib import Path

import pytest

from tests.notebooks.running import notebooks, opened, run, shown
from tests.standalone import Standalone

NOTEBOOKS = notebooks()


def test_there_are_two_notebooks() -> None:
    assert [each.name for each in NOTEBOOKS] == ["first_steps.ipynb", "flights.ipynb"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[each.stem for each in NOTEBOOKS])
def test_a_notebook_runs_and_shows_what_it_is_kept_with(path: Path, tmp_path: Path) -> None:
    with Standalone(tmp_path / "server") as server:
        made = run(path, server, tmp_path)
        server.assert_log_clean()
    kept = opened(path)
    assert shown(made) == shown(kept), "keep what it shows now: python -m tests.notebooks"
    assert [each.execution_count for each in kept.cells if each.cell_type == "code"] == list(
        range(1, len(shown(kept)) + 1)
    )
