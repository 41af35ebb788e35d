"""Rotation of logs that others write: none grows without bound, and a failure loses nothing."""

import errno
import os
import shutil
from pathlib import Path
from typing import IO

import pytest

from magnetar.deploy.cluster_child import last_words
from magnetar.deploy.cluster_logs import rotate


def names(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir())


def test_a_log_is_rotated_above_its_limit_and_not_at_it(tmp_path: Path) -> None:
    log = tmp_path / "b.log"
    assert not rotate(log, bytes_max=10, files_max=2)
    log.write_bytes(b"x" * 10)
    assert not rotate(log, bytes_max=10, files_max=2)
    log.write_bytes(b"x" * 11)
    assert rotate(log, bytes_max=10, files_max=2)
    assert names(tmp_path) == ["b.log", "b.log.1"]
    assert log.read_bytes() == b""
    assert (tmp_path / "b.log.1").read_bytes() == b"x" * 11


@pytest.mark.parametrize("files_max", [0, 1, 3])
def test_no_more_former_logs_are_kept_than_may_be_and_those_are_the_newest(
    tmp_path: Path, files_max: int
) -> None:
    log = tmp_path / "b.log"
    for number in range(6):
        log.write_text(f"start {number}")
        assert rotate(log, bytes_max=1, files_max=files_max)
    former = [f"b.log.{number}" for number in range(1, files_max + 1)]
    assert names(tmp_path) == ["b.log", *former]
    assert [(tmp_path / name).read_text() for name in former] == [
        f"start {5 - at}" for at in range(files_max)
    ]


def test_a_server_that_has_its_log_open_goes_on_at_the_new_end(tmp_path: Path) -> None:
    log = tmp_path / "b.log"
    writer = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(writer, b"before\n")
    assert rotate(log, bytes_max=1, files_max=1)
    os.write(writer, b"after\n")
    os.close(writer)
    assert (log.read_text(), (tmp_path / "b.log.1").read_text()) == ("after\n", "before\n")


def test_a_copy_that_cannot_be_made_leaves_every_log_as_it_was(tmp_path: Path) -> None:
    log = tmp_path / "b.log"
    (tmp_path / "b.log.1").write_text("former")
    log.write_text("now")
    (tmp_path / "b.log.new").mkdir()  # As when the disk is full: there is no room for the copy.
    with pytest.raises(OSError, match=r"b\.log\.new"):
        rotate(log, bytes_max=1, files_max=3)
    assert (log.read_text(), (tmp_path / "b.log.1").read_text()) == ("now", "former")


def test_a_disk_that_fills_up_during_the_copy_leaves_every_log_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next rotation copies the same lines once more."""
    log = tmp_path / "b.log"
    (tmp_path / "b.log.1").write_text("former")
    log.write_text("now")
    copy, copies = shutil.copyfileobj, 0

    def copy_once(source: IO[bytes], target: IO[bytes], length: int) -> None:
        nonlocal copies
        copies += 1
        if copies > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        copy(source, target, length)

    monkeypatch.setattr(shutil, "copyfileobj", copy_once)
    with pytest.raises(OSError, match="No space left"):
        rotate(log, bytes_max=1, files_max=3)
    assert names(tmp_path) == ["b.log", "b.log.1"]
    assert (log.read_text(), (tmp_path / "b.log.1").read_text()) == ("now", "former")


def test_lines_written_during_a_rotation_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "b.log"
    log.write_text("before\n")
    copy, replace = shutil.copyfileobj, Path.replace

    def write(line: str) -> None:
        with log.open("a") as server:
            server.write(line)

    def copy_slowly(source: IO[bytes], target: IO[bytes], length: int) -> None:
        copy(source, target, length)
        write("during the copy\n")

    def replace_slowly(path: Path, target: Path) -> Path:
        write("during a rename\n")
        return replace(path, target)

    monkeypatch.setattr(shutil, "copyfileobj", copy_slowly)
    monkeypatch.setattr(Path, "replace", replace_slowly)
    assert rotate(log, bytes_max=1, files_max=1)
    assert log.read_text() == ""
    assert (tmp_path / "b.log.1").read_text() == (
        "before\nduring the copy\nduring the copy\nduring a rename\n"
    )


def test_the_last_words_of_a_server_are_found_in_a_log_that_was_rotated(tmp_path: Path) -> None:
    log = tmp_path / "b.log"
    log.write_text("magnetar: the new end\n")
    assert last_words(log, offset=1 << 20) == "the new end"
