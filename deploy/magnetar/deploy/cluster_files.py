"""The files of a cluster's directory: its lock, its layout, and the running servers.

    lock            held by the cluster that runs here
    layout.json     how many servers, and their ports; kept, so that clients find them again
    cluster.json    the running servers, with process ids; from `ready` to the orderly end
    shared-secret   bookies demand it, and their clients prove to know it
    logs/NAME.log   log of each server, over all its starts
    NAME/           data of a server

A cluster.json whose lock nobody holds is stale: a killed cluster left it. Its servers were killed
with it. If one of them still runs, the start is refused. Both files are replaced as a whole: a
reader sees the old one or the new one.

Both have a `checksum` over their values. With one changed bit, the cluster could otherwise start
with fewer bookies, and fewer copies of each message, than it had. Files written by releases without
checksums have none.
"""

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TypeVar

import google_crc32c
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from magnetar.deploy.cluster_plan import Kind
from magnetar.deploy.errors import DataDirectoryError, DataDirectoryLockedError
from magnetar.ledger.validation import first_problem

M = TypeVar("M", bound=BaseModel)

_FORMAT = 1
_CHECKSUM = "checksum"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = Field(default=_FORMAT, ge=1, le=_FORMAT)


class Layout(_Record):
    """Content of layout.json, which a restart keeps."""

    zookeeper_url: str = ""
    """URL of an existing ensemble; empty: the cluster runs its own."""
    zookeepers: int = 0
    bookies: int
    brokers: int
    autorecovery: int
    ports: dict[str, dict[str, int]]
    """Server name -> port name -> number; includes servers that do not run at present."""


class RunningServer(BaseModel):
    """One server in cluster.json."""

    model_config = ConfigDict(frozen=True)

    name: str
    kind: Kind
    pid: int
    """Process id of its last start."""
    running: bool
    ports: dict[str, int]
    log: str


class ClusterRecord(_Record):
    """Content of cluster.json."""

    metadata: str
    pid: int
    """Process id of the command that supervises the servers."""
    servers: list[RunningServer]


class ClusterFiles:
    """The files of one directory; between `lock` and `unlock` no other process writes them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.logs = directory / "logs"
        self._lock_file: IO[bytes] | None = None

    def lock(self) -> None:
        """Lock the directory for this process.

        Raises:
            DataDirectoryLockedError: a cluster, or one of its servers, runs here.
            DataDirectoryError: the directory cannot be used.
        """
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            self._lock_file = (self.directory / "lock").open("ab")
        except OSError as error:
            raise DataDirectoryError(
                f"cannot use the data directory {self.directory}: {error.strerror}; choose "
                f"another --data"
            ) from error
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.unlock()
            raise DataDirectoryLockedError(
                f"a cluster already runs in {self.directory}; {self.cluster_path} lists its "
                "servers; stop it, or choose another --data"
            ) from error

    def unlock(self) -> None:
        if self._lock_file is not None:
            self._lock_file.close()
            self._lock_file = None

    @property
    def cluster_path(self) -> Path:
        return self.directory / "cluster.json"

    @property
    def layout_path(self) -> Path:
        return self.directory / "layout.json"

    def read_layout(self) -> Layout | None:
        """Return the layout of the last start; None for a new directory.

        Raises:
            DataDirectoryError: the file cannot be read, or is of a newer release.
        """
        return _read(
            self.layout_path,
            Layout,
            "move the file away, and give all counts again (--zookeepers, --bookies, --brokers, "
            "--autorecovery, or --zookeeper URL); new ports are chosen",
        )

    def write_layout(self, layout: Layout) -> None:
        _replace(self.layout_path, _sealed(layout))

    def write_cluster(self, record: ClusterRecord) -> None:
        _replace(self.cluster_path, _sealed(record))

    def read_cluster(self) -> ClusterRecord | None:
        """Return the processes of the running cluster, or of a killed one; None if there is no
        record.

        Raises:
            DataDirectoryError: the file cannot be read, or is of a newer release.
        """
        return _read(
            self.cluster_path,
            ClusterRecord,
            "make sure that no server of this cluster runs, and remove the file",
        )

    def remove_cluster(self) -> None:
        self.cluster_path.unlink(missing_ok=True)

    def discard_stale(self) -> bool:
        """Remove the cluster.json of a killed cluster. Return whether there was one.

        Raises:
            DataDirectoryLockedError: a server that it names still runs.
            DataDirectoryError: the file cannot be read, or is of a newer release.
        """
        record = self.read_cluster()
        if record is None:
            return False
        left = [each for each in record.servers if self._is_ours(each.pid)]
        if left:
            raise DataDirectoryLockedError(
                f"{self.cluster_path} belongs to a cluster that was killed, but its servers "
                f"{_named(left)} still run; stop them first"
            )
        self.remove_cluster()
        return True

    def _is_ours(self, pid: int) -> bool:
        """Return whether the process with this id works in the directory; the system reuses ids.

        The commands of servers with data name the directory. Brokers and auto-recovery have none,
        but every server's standard error is its log.
        """
        process = Path(f"/proc/{pid}")
        try:
            command = (process / "cmdline").read_bytes().decode(errors="replace")
            if f"{self.directory}{os.sep}" in command:
                return True
            return (process / "fd" / "2").readlink().parent == self.logs
        except OSError:
            return False


def _named(servers: Sequence[RunningServer]) -> str:
    return ", ".join(f"{each.name} (process {each.pid})" for each in servers)


def _replace(path: Path, text: str) -> None:
    """Write a file so that readers, and the next start after a crash, see all of it or none."""
    draft = path.with_name(path.name + ".new")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise DataDirectoryError(f"cannot write {path}: {error.strerror}") from error


def _sealed(record: BaseModel) -> str:
    fields = record.model_dump(mode="json")
    return json.dumps({**fields, _CHECKSUM: _checksum_of(fields)}, indent=2, ensure_ascii=False)


def _checksum_of(fields: Mapping[str, object]) -> str:
    """Return the CRC32C of the values; the layout of the file does not matter."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"{google_crc32c.value(text.encode()):08x}"


def _read(path: Path, model: type[M], remedy: str) -> M | None:
    """Return the content of a file; None if the file does not exist.

    Raises:
        DataDirectoryError: the file is unreadable or damaged; `remedy` says what to do.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(fields, dict) and _CHECKSUM in fields:
            found = fields.pop(_CHECKSUM)
            if found != _checksum_of(fields):
                raise DataDirectoryError(
                    f"{path} is damaged: its checksum {found!r} does not match its values. It was "
                    f"not changed: {remedy}. If you edited it yourself, remove its checksum"
                )
        return model.model_validate_json(json.dumps(fields))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        problem = first_problem(error, whole="the file")
        raise DataDirectoryError(
            f"{path} cannot be used: {problem}. It was not changed: {remedy}"
        ) from error
    except OSError as error:
        raise DataDirectoryError(f"cannot read {path}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise DataDirectoryError(
            f"{path} cannot be used: Invalid JSON: {error}. It was not changed: {remedy}"
        ) from error
