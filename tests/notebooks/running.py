"""Running a notebook against a server, cell by cell, with the kernel of this folder."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from tests.processes import ROOT
from tests.standalone import Standalone

NOTEBOOKS = ROOT / "docs" / "examples"
_KERNEL = "magnetar-tests"
_CELL_TIMEOUT_S = 240


def notebooks() -> list[Path]:
    """The notebooks of the repository."""
    return sorted(NOTEBOOKS.glob("*.ipynb"))


def opened(path: Path) -> Any:
    """A notebook as it is kept."""
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def keep(notebook: Any, path: Path) -> None:
    """Write a notebook into its file."""
    nbformat.write(notebook, path)  # type: ignore[no-untyped-call]


def run(path: Path, server: Standalone, folder: Path) -> Any:
    """Run a notebook in a folder of its own, and return it with what its cells have shown.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell has raised.
    """
    given = opened(path)
    for cell in given.cells:
        cell.source = _at(server, cell.source)
    spec = folder / "jupyter" / "kernels" / _KERNEL / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps(_spec()))
    before = dict(os.environ)
    os.environ |= {"JUPYTER_PATH": str(folder / "jupyter"), "JUPYTER_PLATFORM_DIRS": "1"}
    os.environ |= {name: str(folder / "jupyter") for name in ("JUPYTER_RUNTIME_DIR",)}
    try:
        client = NotebookClient(
            given,
            timeout=_CELL_TIMEOUT_S,
            kernel_name=_KERNEL,
            coalesce_streams=True,
            resources={"metadata": {"path": str(folder)}},
        )
        return client.execute()
    finally:
        os.environ.clear()
        os.environ.update(before)


def _at(server: Standalone, source: str) -> str:
    """A cell with the addresses of a server, instead of those that the notebook names."""
    for said, here in (
        ("127.0.0.1:6650", f"127.0.0.1:{server.port}"),
        ("127.0.0.1:8080", f"127.0.0.1:{server.http_port}"),
        ("embedded:data/metadata.db", server.metadata_url),
    ):
        source = source.replace(said, here)
    return source


def _spec() -> dict[str, Any]:
    programs = Path(sys.executable).parent
    return {
        "argv": [sys.executable, "-m", "tests.notebooks.kernel", "{connection_file}"],
        "display_name": "Python",
        "language": "python",
        "env": {
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            "PATH": os.pathsep.join((str(programs), os.environ.get("PATH", ""))),
            "MPLBACKEND": "module://tests.notebooks.backend",
        },
    }


def shown(notebook: Any) -> list[list[str]]:
    """What each cell of code shows, in the order of the cells: kinds of output, each once."""
    return [
        sorted({each.get("name", "") + each.output_type for each in cell.outputs})
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]
