"""A faithful disk: what a power loss may leave of bytes and names, and what it must leave."""

import errno
import os

import pytest

from tests.simulation.disk import PowerLossError, ShortWriteError, SimDisk
from tests.simulation.inode import Survival

SEEDS = range(200)


def _disk() -> SimDisk:
    disk = SimDisk(seed="0", faithful=True)
    disk.make_directory("/d")
    return disk


def _after(disk: SimDisk, survival: Survival, seed: object = 0) -> SimDisk:
    return SimDisk.of(disk.image(), seed=str(seed), survival=survival)


def test_a_name_is_sure_only_when_its_directory_was_synced() -> None:
    disk = _disk()
    disk.create("/d/a").datasync()
    assert _after(disk, Survival.NOTHING).files() == []
    assert {tuple(_after(disk, Survival.ANY, each).files()) for each in SEEDS} == {(), ("/d/a",)}
    disk.sync_directory("/d")
    disk.remove("/d/a")
    assert _after(disk, Survival.NOTHING).files() == ["/d/a"]
    disk.sync_directory("/d")
    assert _after(disk, Survival.ANY).files() == []


def test_a_rename_happens_as_a_whole_or_not_at_all_and_apart_from_others() -> None:
    disk = _disk()
    for name in ("a", "b"):
        file = disk.create(f"/d/{name}")
        file.append([name.encode()])
        file.datasync()
    disk.sync_directory("/d")
    disk.rename("/d/a", "/d/c")
    disk.remove("/d/b")
    assert disk.files() == ["/d/c"]
    found = {tuple(_after(disk, Survival.ANY, each).files()) for each in SEEDS}
    assert found == {
        ("/d/a", "/d/b"),
        ("/d/b", "/d/c"),
        ("/d/a",),
        ("/d/c",),
    }


def test_changes_of_one_file_survive_in_their_order() -> None:
    disk = _disk()
    disk.create("/d/a.new").append([b"x"])
    disk.rename("/d/a.new", "/d/a")
    disk.rename("/d/a", "/d/b")
    found = {tuple(_after(disk, Survival.ANY, each).files()) for each in SEEDS}
    assert found == {(), ("/d/a.new",), ("/d/a",), ("/d/b",)}


def test_a_directory_that_is_renamed_takes_its_files_along() -> None:
    disk = _disk()
    disk.make_directory("/d/new")
    disk.create("/d/new/f").append([b"1"])
    disk.sync_directory("/d/new")
    disk.rename("/d/new", "/d/now")
    assert disk.files() == ["/d/now/f"]
    assert _after(disk, Survival.NOTHING).files() == ["/d/new/f"]
    disk.sync_directory("/d")
    assert _after(disk, Survival.NOTHING).files() == ["/d/now/f"]


def test_unsynced_writes_survive_in_any_subset_torn_anywhere() -> None:
    disk = _disk()
    file = disk.create("/d/a")
    file.append([b"." * 8])
    file.datasync()
    disk.sync_directory("/d")
    file = disk.update("/d/a")
    file.write_at(b"xx", 0)
    file.write_at(b"yy", 6)
    found = {_after(disk, Survival.ANY, each).read_file("/d/a") for each in SEEDS}
    assert {b"........", b"xx......", b"......yy", b"xx....yy", b"x.......", b".x......"} <= found
    assert {each[2:6] for each in found} == {b"...."}
    assert _after(disk, Survival.NOTHING).read_file("/d/a") == b"........"
    assert _after(disk, Survival.EVERYTHING).read_file("/d/a") == b"xx....yy"
    file.datasync()
    assert {_after(disk, Survival.ANY, each).read_file("/d/a") for each in SEEDS} == {b"xx....yy"}


def test_a_replaced_file_is_the_old_or_the_new_one_at_every_step() -> None:
    disk = _disk()
    disk.replace_file("/d/a", b"old")
    images = []
    disk.on_step = lambda kind, number: images.append(disk.image())
    disk.replace_file("/d/a", b"new one")
    assert len(images) == 5  # made, written, synced, renamed, directory synced
    for image in images:
        for seed in SEEDS:
            after = SimDisk.of(image, seed=str(seed), survival=Survival.ANY)
            assert after.read_file("/d/a") in (b"old", b"new one")
    assert _after(disk, Survival.NOTHING).read_file("/d/a") == b"new one"


def test_each_step_can_be_the_last_and_each_call_can_fail() -> None:
    disk = _disk()
    seen: list[str] = []

    def stop(kind: str, number: int) -> None:
        seen.append(kind)
        if kind == "rename":
            raise PowerLossError(kind)

    disk.on_step = stop
    with pytest.raises(PowerLossError):
        disk.replace_file("/d/a", b"1")
    assert seen == ["create", "write", "sync", "rename"]

    def refuse(kind: str, path: str) -> None:
        if kind == "write":
            raise ShortWriteError(errno.EIO, 2)
        if kind == "remove":
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk = _disk()
    disk.on_call = refuse
    file = disk.create("/d/b")
    with pytest.raises(OSError, match="Input/output"):
        file.append([b"1234"])
    assert disk.read_file("/d/b") == b"12"
    with pytest.raises(OSError, match="Input/output"):
        disk.remove("/d/b")
    assert disk.files() == ["/d/b"]


def test_pages_of_a_failed_sync_are_lost_though_programs_see_them() -> None:
    disk = _disk()
    file = disk.create("/d/a")
    disk.sync_directory("/d")
    file.append([b"1"])
    disk.sync_error = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        file.datasync()
    disk.sync_error = None
    file.append([b"2"])
    file.datasync()  # it says nothing of the page that was dropped
    assert disk.read_file("/d/a") == b"12"
    assert _after(disk, Survival.ANY).read_file("/d/a") == b"\x002"


def test_what_a_killed_process_has_written_may_still_be_lost() -> None:
    disk = _disk()
    disk.create("/d/a").append([b"1"])
    killed = _after(disk, Survival.KILLED)
    assert killed.read_file("/d/a") == b"1"
    assert _after(killed, Survival.NOTHING).files() == []
    killed.open("/d/a").datasync()
    killed.sync_directory("/d")
    assert _after(killed, Survival.NOTHING).read_file("/d/a") == b"1"
