"""The nightly proof goes on where it was broken off, and only there."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.nightly import STAGES, Memory, Stage, key_of_code, run
from tests.processes import ROOT

A, B = Stage("first", ("a",)), Stage("second", ("b",))
CALM = Stage("calm", ("calm",), is_calm=True)


def git(root: Path, *command: str) -> None:
    identity = ["-c", "user.name=n", "-c", "user.email=n@n", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *command], cwd=root, check=True, capture_output=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Has two stages that write down that they ran; the second fails while there is `broken`."""
    root = tmp_path / "project"
    root.mkdir()
    (root / "Makefile").write_text(
        "a:\n\t@echo a >> ../ran\nb:\n\t@echo b >> ../ran; test ! -e ../broken\n"
        "calm:\n\t@echo for an hour; read line < ../turn; test $$line = good\n"
    )
    (root / "README.md").write_text("words")
    (root / "code.py").write_text("1")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "begin")
    return root


def night(root: Path) -> int:
    memory = Memory(root.parent / "memory", key_of_code(root))
    return run((A, B), memory, root=root, used_share=lambda: 0.0)


def ran(root: Path) -> str:
    """Return the stages that have run since the last call."""
    found = root.parent / "ran"
    names = found.read_text().split() if found.exists() else []
    found.unlink(missing_ok=True)
    return "".join(names)


def test_a_night_that_failed_goes_on_behind_what_has_passed(project: Path) -> None:
    (project.parent / "broken").touch()
    assert night(project) != 0
    assert ran(project) == "ab"
    (project.parent / "broken").unlink()
    assert night(project) == 0
    assert ran(project) == "b"
    assert night(project) == 0
    assert ran(project) == ""


def test_other_code_has_to_pass_anew_and_other_words_have_not(project: Path) -> None:
    assert night(project) == 0
    assert ran(project) == "ab"
    (project / "README.md").write_text("other words")
    git(project, "commit", "-qam", "words")
    assert night(project) == 0
    assert ran(project) == ""
    (project / "code.py").write_text("2")
    git(project, "commit", "-qam", "code")
    assert night(project) == 0
    assert ran(project) == "ab"


def test_what_is_not_committed_proves_nothing_for_later(project: Path) -> None:
    (project / "new.py").write_text("3")
    for _ in range(2):
        assert night(project) == 0
        assert ran(project) == "ab"


def test_what_a_stage_writes_down_is_no_other_code(project: Path) -> None:
    records = [project / "tests/proven.json", project / "tests/simulation/mutations/caught.json"]
    for record in records:
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text("{}")
    git(project, "add", ".")
    git(project, "commit", "-qm", "records")
    assert night(project) == 0
    assert ran(project) == "ab"
    for record in records:
        record.write_text('{"more": 1}')
    assert night(project) == 0
    assert ran(project) == ""


def test_no_drill_begins_on_a_disk_where_bookies_would_refuse_writes(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    memory = Memory(project.parent / "memory", key_of_code(project))
    assert run((A, B), memory, root=project, used_share=lambda: 0.93) == 1
    assert ran(project) == ""
    assert "93% full" in capsys.readouterr().out
    assert run((A, B), memory, root=project, used_share=lambda: 0.92) == 0
    assert ran(project) == "ab"


@pytest.mark.parametrize("is_good", [True, False])
def test_a_calm_stage_runs_beside_the_others_and_counts_as_they_do(
    project: Path, capsys: pytest.CaptureFixture[str], is_good: bool
) -> None:
    turn, word = project.parent / "turn", "good" if is_good else "bad"
    os.mkfifo(turn)
    with (project / "Makefile").open("a") as makefile:
        makefile.write(f"d:\n\t@echo {word} > ../turn\n")  # waits for who reads
    git(project, "commit", "-qam", "d")
    memory = Memory(project.parent / "memory", key_of_code(project))
    stages = (A, Stage("third", ("d",)), CALM)
    assert (run(stages, memory, root=project, used_share=lambda: 0.0) == 0) is is_good
    assert (memory.took_s(CALM) is not None) is is_good
    assert ("for an hour" in capsys.readouterr().out) is not is_good


def test_a_calm_stage_comes_to_its_end_though_another_failed(project: Path) -> None:
    (project.parent / "broken").touch()
    (project.parent / "turn").write_text("good\n")
    memory = Memory(project.parent / "memory", key_of_code(project))
    assert run((A, B, CALM), memory, root=project, used_share=lambda: 0.0) != 0
    assert memory.took_s(CALM) is not None


def test_all_stages_are_targets_of_make() -> None:
    for stage in STAGES:
        command = ["make", "--dry-run", "--silent", *stage.make]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
