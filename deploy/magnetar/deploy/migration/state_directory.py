"""The state directory of a migration: its task, and the progress of the copies.

    lock              locked (flock) while a migration runs here
    migration.json    the URLs and namespaces, and whether the cut-over is done
    topics/NAME.runs  the position map of one topic or partition, appended
    cut-over          exists while a cut-over is requested
    report.txt, report.json   of the last comparison
    next-report.txt, next-report.json   the same before they are shown

The position maps may be lost: they are read again from the target. All other files are synced.
After a power failure, a cut-over that is done must not start over and reset subscriptions that
clients have used since. See docs/operations/migration.md.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final
from urllib.parse import quote, unquote

from pydantic import BaseModel, ConfigDict, ValidationError

from magnetar.deploy.errors import DataDirectoryError, DataDirectoryLockedError, SettingsError
from magnetar.deploy.migration.positions import PositionMap
from magnetar.ledger.ports import Disk
from magnetar.ledger.system import SystemDisk
from magnetar.sdk.wire import TopicName, TopicNameError

FORMAT: Final = 1
"""Stored on disk, never renumber."""
_NAME_MAX: Final = 200
"""Most characters in a file's name; longer names of topics end in a digest."""
_DIGEST: Final = 32
_NEXT: Final = "next-"
"""Prefix of the files of a report that is not shown yet."""


class Asked(BaseModel):
    """The task of a migration: migration.json."""

    model_config = ConfigDict(frozen=True)

    format: int = FORMAT
    source: str
    source_admin: str
    target: str
    target_admin: str
    namespaces: tuple[str, ...] = ()
    """Namespaces to move; empty for all."""
    is_done: bool = False
    """Whether the cut-over is done, and nothing differed."""


class _Counted(BaseModel):
    """The fields of report.json that the next start reads."""

    different: dict[str, int]


class StateDirectory:
    """The files of one migration; between `lock` and `unlock` no other process writes them."""

    def __init__(self, path: Path, disk: Disk | None = None) -> None:
        """Name a state directory. `disk` is the disk that holds `path`; None for that of the
        operating system."""
        self.path = path
        self._disk = SystemDisk() if disk is None else disk
        self._lock: IO[bytes] | None = None

    def lock(self) -> bool:
        """Create the directory, and lock it; return False if another process has it.

        Raises:
            DataDirectoryError: it cannot be used.
        """
        try:
            (self.path / "topics").mkdir(parents=True, exist_ok=True)
            lock = (self.path / "lock").open("ab")
        except OSError as error:
            raise DataDirectoryError(
                f"cannot use the state directory {self.path}: {error.strerror}; choose another "
                "--state"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return False
        self._lock = lock
        return True

    def unlock(self) -> None:
        """Unlock the directory."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def locked_error(self) -> DataDirectoryLockedError:
        """Return the error for a directory that another process has locked."""
        return DataDirectoryLockedError(
            f"another migration runs in {self.path}: give --cut-over to end it, or choose another "
            "--state"
        )

    # The task

    def asked(self) -> Asked | None:
        """Return the task of the last call; None if there is none.

        Raises:
            DataDirectoryError: the file cannot be read, or is of a newer release.
        """
        path = self.path / "migration.json"
        try:
            found = Asked.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            raise DataDirectoryError(
                f"{path} cannot be read: {' '.join(str(error).split())[:200]}; choose another "
                "--state: what is copied is found at the target"
            ) from error
        if found.format > FORMAT:
            raise DataDirectoryError(
                f"{path} is of a newer release (format {found.format}); use that, or choose "
                "another --state"
            )
        return found

    def remember(self, asked: Asked) -> None:
        """Write the task.

        Raises:
            DataDirectoryError: it cannot be written.
        """
        self._replace("migration.json", asked.model_dump_json(indent=2) + "\n")

    def prepare_report(self, *, text: str, json_text: str) -> None:
        """Store the report of a comparison, but do not show it yet.

        Raises:
            DataDirectoryError: it cannot be written.
        """
        self._replace(_NEXT + "report.txt", text)
        self._replace(_NEXT + "report.json", json_text + "\n")

    def show_report(self) -> None:
        """Show the stored report. Calling this again completes an interrupted call.

        Raises:
            DataDirectoryError: it cannot be renamed.
        """
        for name in ("report.json", "report.txt"):  # `has_report` looks for the last one.
            with _writing(self.path / name), suppress(FileNotFoundError):
                self._disk.rename(str(self.path / f"{_NEXT}{name}"), str(self.path / name))
        with _writing(self.path):
            self._disk.sync_directory(str(self.path))

    def remove_report(self) -> None:
        """Remove the report of an earlier comparison.

        Raises:
            DataDirectoryError: it cannot be removed.
        """
        for name in ("report.txt", "report.json"):
            with _writing(self.path / name):
                (self.path / name).unlink(missing_ok=True)
        with _writing(self.path):
            self._disk.sync_directory(str(self.path))

    @property
    def has_report(self) -> bool:
        """Whether there is the report of a comparison."""
        return (self.path / "report.txt").exists()

    def differences(self) -> int:
        """Return how many differences the shown report counts; 0 if there is none.

        Raises:
            DataDirectoryError: it cannot be read.
        """
        path = self.path / "report.json"
        try:
            return sum(_Counted.model_validate_json(path.read_bytes()).different.values())
        except FileNotFoundError:
            return 0
        except (OSError, ValidationError) as error:
            raise DataDirectoryError(
                f"{path} cannot be read: {' '.join(str(error).split())[:200]}; read report.txt "
                "beside it"
            ) from error

    def _replace(self, name: str, text: str) -> None:
        with _writing(self.path / name):
            self._disk.replace_file(str(self.path / name), text.encode())

    # The signal to cut over

    def ask_to_cut_over(self) -> None:
        """Request a cut-over from the process that has the directory.

        Raises:
            DataDirectoryError: the request cannot be written.
        """
        with _writing(self.path / "cut-over"):
            (self.path / "cut-over").touch()
            self._disk.sync_directory(str(self.path))

    @property
    def is_cut_over_asked(self) -> bool:
        """Whether a cut-over is requested."""
        return (self.path / "cut-over").exists()

    def cut_over_ended(self) -> None:
        """Remove the request.

        Raises:
            DataDirectoryError: it cannot be removed.
        """
        with _writing(self.path / "cut-over"):
            (self.path / "cut-over").unlink(missing_ok=True)
            self._disk.sync_directory(str(self.path))

    # Position maps

    def load(self, topic: TopicName) -> PositionMap:
        """Return the saved position map of a topic."""
        try:
            return PositionMap.of_lines(self._runs_path(topic).read_text("ascii", "replace"))
        except FileNotFoundError:
            return PositionMap()

    def topics(self) -> Sequence[TopicName]:
        """Return all topics that have a saved map, also those that are gone at the source by now;
        but none whose name is too long for a file's."""
        found = []
        for path in sorted((self.path / "topics").glob("*.runs")):
            with suppress(TopicNameError):
                if len(path.stem) <= _NAME_MAX:
                    found.append(TopicName.parse(unquote(path.stem)))
        return found

    def append(self, topic: TopicName, lines: str, *, anew: bool = False) -> None:
        """Append lines to a topic's map; `anew` replaces all earlier lines.

        Raises:
            DataDirectoryError: they cannot be written; the file is as before, or empty if `anew`.
        """
        path = self._runs_path(topic)
        with _writing(path), path.open("wb" if anew else "ab", buffering=0) as file:
            size = file.tell()
            left = memoryview(lines.encode("ascii"))
            try:
                while left:
                    left = left[file.write(left) :]
            except OSError:
                # Later lines must not continue one that is torn.
                with suppress(OSError):
                    os.truncate(path, size)
                raise

    def repair(self, topic: TopicName, copied: PositionMap) -> None:
        """Write a map as a whole: the file may end in a torn line, and contain replaced ones.

        Raises:
            DataDirectoryError: it cannot be written.
        """
        copied.all_is_unsaved()
        self.append(topic, copied.unsaved_lines(), anew=True)
        copied.all_is_saved()

    def _runs_path(self, topic: TopicName) -> Path:
        name = quote(str(topic), safe="")
        if len(name) > _NAME_MAX:
            digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]
            name = f"{name[: _NAME_MAX - _DIGEST]}-{digest}"
        return self.path / "topics" / f"{name}.runs"


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Translate errors of the operating system while a file is written."""
    try:
        yield
    except OSError as error:
        raise DataDirectoryError(
            f"cannot write {path}: {error.strerror or error}; free some space, or make the "
            "directory writable, and start the command again"
        ) from error


def wanted(
    found: Asked | None,
    *,
    source: str,
    source_admin: str,
    target: str,
    target_admin: str,
    namespaces: tuple[str, ...],
) -> Asked:
    """Return the task that results from the options and the saved task.

    Raises:
        SettingsError: an option is missing, or the saved namespaces differ.
    """
    given = {
        "source": source,
        "source_admin": source_admin,
        "target": target,
        "target_admin": target_admin,
    }
    names = {
        "source": "--from",
        "source_admin": "--from-admin",
        "target": "--to",
        "target_admin": "--to-admin",
    }
    if found is None:
        missing = [names[field] for field, value in given.items() if not value]
        if missing:
            raise SettingsError(
                f"{', '.join(missing)} missing: the state directory knows no migration yet"
            )
        return Asked(**given, namespaces=namespaces)  # type: ignore[arg-type]
    if namespaces and namespaces != found.namespaces:
        before = ",".join(found.namespaces) or "all"
        raise SettingsError(
            f"--namespaces differs from before ({before}): leave it out, or choose another --state"
        )
    changed = {field: value for field, value in given.items() if value}
    return found.model_copy(update=changed)
