"""`python -m tests.notebooks`: run the notebooks, and keep what their cells show now."""

import tempfile
from pathlib import Path

from tests.notebooks.running import keep, notebooks, opened, run
from tests.standalone import Standalone


def main() -> None:
    """Run each notebook on a server of its own, and write what it has shown into its file."""
    for path in notebooks():
        with tempfile.TemporaryDirectory() as folder:
            with Standalone(Path(folder) / "data") as server:
                made = run(path, server, Path(folder))
            kept = opened(path)
            for cell, done in zip(kept.cells, made.cells, strict=True):
                if cell.cell_type == "code":
                    cell.outputs = done.outputs
                    cell.execution_count = done.execution_count
            keep(kept, path)


if __name__ == "__main__":
    main()
