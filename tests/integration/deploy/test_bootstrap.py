"""`make` brings its own virtual environment and packages, with a stand-in for Python."""

import os
import subprocess
from pathlib import Path

import pytest

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


def make(folder: Path, stamp: str = ".stamp-run") -> int:
    return subprocess.run(
        ["make", f"VENV={folder / 'venv'}", str(folder / "venv" / stamp)],
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
    assert "--editable .[server]" in (tmp_path / "installed").read_text()


def venv(folder: Path, python: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["sh", "deploy/bootstrap/venv.sh", str(folder / "venv")],
        cwd=ROOT,
        env={**os.environ, "PYTHON": python},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("script", "found"),
    [
        (
            'case "$2" in *version_info*) exit 1 ;; *) echo CPython 3.10.13 ;; esac',
            "CPython 3.10.13",
        ),
        ("exit 127", "nothing that runs"),
    ],
)
def test_a_python_that_is_too_old_is_told_with_its_version(
    tmp_path: Path, script: str, found: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    ended = venv(tmp_path, str(python))
    assert ended.returncode == 1
    assert ended.stderr == f"PYTHON={python} is no CPython 3.11 or newer: it is {found}.\n"


def test_the_python_that_is_taken_is_told(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(_PYTHON.format(folder=tmp_path))
    python.chmod(0o755)
    (tmp_path / "goes-on").touch()
    ended = venv(tmp_path, str(python))
    assert f"The environment in {tmp_path / 'venv'} is made with {python}, 1." in ended.stdout


def test_a_cluster_gets_what_zookeeper_needs_into_the_environment_of_make_run(
    tmp_path: Path,
) -> None:
    python = tmp_path / "python"
    python.write_text(_PYTHON.format(folder=tmp_path))
    python.chmod(0o755)
    (tmp_path / "goes-on").touch()
    assert make(tmp_path) == 0
    assert make(tmp_path, ".stamp-cluster") == 0
    installed = (tmp_path / "installed").read_text().splitlines()
    assert [line.split()[-1] for line in installed if "--editable" in line] == [
        ".[server]",
        ".[zookeeper]",
    ]


_INSTALLER = """#!/bin/sh
case "$*" in
*"pip config list") cat "{folder}/configuration" ;;
*"pip install --quiet uv"*) cp "{folder}/uv" "$(dirname "$0")/uv" ;;
*) echo "pip $*" >> "{folder}/installed" ;;
esac
"""
_UV = """#!/bin/sh
echo "uv $*" >> "{folder}/installed"
exit {status}
"""


@pytest.mark.parametrize(
    ("configuration", "uv_status", "tools"),
    [
        (":env:.find-links='/opt/wheels'", 0, ["uv"]),
        ("global.index-url='https://packages.example/simple'", 0, ["pip"]),
        (":env:.extra-index-url='https://packages.example/simple'", 0, ["pip"]),
        ("install.no-index='true'", 0, ["pip"]),
        ("", 2, ["uv", "pip"]),
    ],
)
def test_packages_come_by_uv_unless_it_cannot_know_where_from(
    tmp_path: Path, configuration: str, uv_status: int, tools: list[str]
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "configuration").write_text(configuration + "\n")
    (tmp_path / "uv").write_text(_UV.format(folder=tmp_path, status=uv_status))
    (tmp_path / "uv").chmod(0o755)
    python = tmp_path / "bin" / "python"
    python.write_text(_INSTALLER.format(folder=tmp_path))
    python.chmod(0o755)

    command = ["sh", "deploy/bootstrap/packages.sh", str(tmp_path), "--editable", "."]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)

    installed = (tmp_path / "installed").read_text().splitlines()
    assert [each.split()[0] for each in installed] == tools
    assert all(each.endswith("--editable .") for each in installed)


def test_packages_that_cannot_be_had_say_what_to_do_without_a_network(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text('#!/bin/sh\ncase "$*" in *"pip config list") ;; *) exit 3 ;; esac\n')
    python.chmod(0o755)
    ended = subprocess.run(
        ["sh", "deploy/bootstrap/packages.sh", str(tmp_path), "--editable", "."],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 3
    assert "Without a network, fetch the wheels elsewhere (pip download" in ended.stderr
    assert "PIP_NO_INDEX=1 PIP_FIND_LINKS=DIR" in ended.stderr
