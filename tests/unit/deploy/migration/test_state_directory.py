import errno
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from magnetar.deploy.errors import DataDirectoryError, SettingsError
from magnetar.deploy.migration.positions import PositionMap
from magnetar.deploy.migration.state_directory import Asked, StateDirectory, wanted
from magnetar.ledger.position import Position
from magnetar.ledger.system import SystemDisk
from magnetar.sdk.wire import TopicName

TOPIC = TopicName.parse("persistent://public/default/a b%2F")
GIVEN = {
    "source": "pulsar://a:6650",
    "source_admin": "http://a:8080",
    "target": "pulsar://b:6650",
    "target_admin": "http://b:8080",
}


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[StateDirectory]:
    found = StateDirectory(tmp_path / "state")
    assert found.lock()
    yield found
    found.unlock()


def test_one_process_at_a_time_has_the_directory(directory: StateDirectory) -> None:
    other = StateDirectory(directory.path)
    assert not other.lock()
    directory.unlock()
    assert other.lock()
    other.unlock()


def test_the_second_process_knows_what_the_first_was_asked(directory: StateDirectory) -> None:
    assert directory.asked() is None
    asked = wanted(None, **GIVEN, namespaces=("a/b",))
    directory.remember(asked)
    nothing = dict.fromkeys(GIVEN, "")
    assert wanted(directory.asked(), **nothing, namespaces=()) == asked
    moved = wanted(asked, **{**nothing, "source": "pulsar://c:6650"}, namespaces=())
    assert (moved.source, moved.target) == ("pulsar://c:6650", "pulsar://b:6650")


class _NotedDisk(SystemDisk):
    """Notes what is made durable: names of files, and what their folder held then."""

    def __init__(self) -> None:
        self.synced: list[object] = []

    def replace_file(self, path: str, data: bytes) -> None:
        super().replace_file(path, data)
        self.synced.append(Path(path).name)

    def sync_directory(self, path: str) -> None:
        super().sync_directory(path)
        self.synced.append((Path(path) / "cut-over").exists())


def test_a_power_failure_takes_no_word_of_the_cut_over_back(tmp_path: Path) -> None:
    disk = _NotedDisk()
    directory = StateDirectory(tmp_path, disk)
    directory.ask_to_cut_over()
    assert disk.synced == [True]
    directory.cut_over_ended()
    assert disk.synced == [True, False]
    directory.remember(Asked.model_validate({**GIVEN, "is_done": True}))
    assert "migration.json" in disk.synced


def test_what_is_missing_at_the_first_start_is_told() -> None:
    with pytest.raises(SettingsError, match="--to, --to-admin missing"):
        wanted(None, **{**GIVEN, "target": "", "target_admin": ""}, namespaces=())


def test_other_namespaces_need_another_directory() -> None:
    with pytest.raises(SettingsError, match=r"differs from before \(all\)"):
        wanted(Asked.model_validate(GIVEN), **GIVEN, namespaces=("a/b",))


@pytest.mark.parametrize("text", ["{", '{"format": 1}', '{"format": 2, %s}'])
def test_a_file_that_is_damaged_or_newer_is_refused(directory: StateDirectory, text: str) -> None:
    fields = (
        Asked.model_validate(GIVEN).model_dump_json().removeprefix('{"format":1,').removesuffix("}")
    )
    (directory.path / "migration.json").write_text(text.replace("%s", fields))
    with pytest.raises(DataDirectoryError, match="choose another --state"):
        directory.asked()


def test_the_signal_to_cut_over_stays_until_it_is_taken_away(directory: StateDirectory) -> None:
    assert not directory.is_cut_over_asked
    StateDirectory(directory.path).ask_to_cut_over()
    assert directory.is_cut_over_asked
    directory.cut_over_ended()
    directory.cut_over_ended()
    assert not directory.is_cut_over_asked


def test_a_position_map_is_there_after_a_restart(directory: StateDirectory) -> None:
    assert directory.load(TOPIC).last is None
    copied = PositionMap()
    for entry_id in range(3):
        copied.add(Position(1, entry_id), Position(9, entry_id), 1)
        directory.append(TOPIC, copied.unsaved_lines())
        copied.all_is_saved()
    directory.append(TOPIC, "1 0 9")  # torn
    again = StateDirectory(directory.path).load(TOPIC)
    assert again.last == copied.last
    directory.repair(TOPIC, again)
    (file,) = (directory.path / "topics").iterdir()
    assert file.read_text() == "1 0 9 0 3 3\n"


def test_a_full_disk_is_told_and_leaves_what_was_saved_before(directory: StateDirectory) -> None:
    directory.append(TOPIC, "1 0 9 0 3 3\n")
    (file,) = (directory.path / "topics").iterdir()
    other = TopicName.parse("persistent://public/default/other")
    (file.parent / "persistent%3A%2F%2Fpublic%2Fdefault%2Fother.runs").symlink_to("/dev/full")
    with pytest.raises(DataDirectoryError, match="No space left on device; free some space"):
        directory.append(other, "2 0 9 0 3 3\n")
    assert file.read_text() == "1 0 9 0 3 3\n"


def test_lines_that_were_written_in_part_are_cut_off_again(directory: StateDirectory) -> None:
    directory.append(TOPIC, "1 0 9 0 3 3\n")
    (file,) = (directory.path / "topics").iterdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 5, hard))
    try:
        with pytest.raises(DataDirectoryError, match="File too large"):
            directory.append(TOPIC, "1 3 9 3 1 1\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert file.read_text() == "1 0 9 0 3 3\n"


class _FullDisk(SystemDisk):
    def replace_file(self, path: str, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def sync_directory(self, path: str) -> None:
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize(
    "write",
    [
        lambda directory: directory.remember(Asked.model_validate(GIVEN)),
        lambda directory: directory.prepare_report(text="", json_text=""),
        lambda directory: directory.show_report(),
        lambda directory: directory.ask_to_cut_over(),
        lambda directory: directory.cut_over_ended(),
    ],
)
def test_every_write_that_fails_is_told(
    tmp_path: Path, write: Callable[[StateDirectory], None]
) -> None:
    with pytest.raises(DataDirectoryError, match=str(tmp_path)):
        write(StateDirectory(tmp_path, _FullDisk()))
