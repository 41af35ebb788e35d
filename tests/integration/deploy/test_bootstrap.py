"""`make` brings its own virtual environment, with a stand-in for Python."""

import os
import subprocess
from pathlib import Path

from tests.processes import ROOT

_PYTHON = """#!/bin/sh
case "$*" in
*"-m venv"*)
    for target; do :; done
    mkdir -p "$target/bin"
    cp "$0" "$target/bin/python"
    test -e "{folder}/goes-on" || kill -9 $$
    cp "$0" "$target/bin/pip" ;;
*"-m pip"*)
    test -x "$(dirname "$0")/pip" || exit 1
    echo "$*" >> "{folder}/installed" ;;
*)
    echo 1 ;;
esac
"""


def make(folder: Path) -> int:
    return subprocess.run(
        ["make", f"VENV={folder / 'venv'}", str(folder / "venv" / ".stamp-run")],
        cwd=ROOT,
        env={**os.environ, "PYTHON": str(folder / "python"), "MAKEFLAGS": ""},
        capture_output=True,
        check=False,
    ).returncode


def test_an_environment_whose_making_was_broken_off_is_made_anew(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(_PYTHON.format(folder=tmp_path))
    python.chmod(0o755)
    assert make(tmp_path) != 0
    assert (tmp_path / "venv" / "bin" / "python").exists()
    (tmp_path / "goes-on").touch()
    assert make(tmp_path) == 0
    assert "--editable ." in (tmp_path / "installed").read_text()
