import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from magnetar.deploy.cluster import Cluster, ClusterSettings
from magnetar.deploy.cluster_files import ClusterFiles, ClusterRecord, Layout, RunningServer
from magnetar.deploy.cluster_plan import Kind
from magnetar.deploy.errors import DataDirectoryError, DataDirectoryLockedError

LAYOUT = Layout(
    zookeepers=1, bookies=3, brokers=2, autorecovery=0, ports={"broker-1": {"native": 6650}}
)


def record(pid: int) -> ClusterRecord:
    server = RunningServer(
        name="bookie-1",
        kind=Kind.BOOKIE,
        pid=pid,
        running=True,
        ports={"native": 3181},
        log="/logs/bookie-1.log",
    )
    return ClusterRecord(metadata="zk://127.0.0.1:2181/magnetar", pid=1, servers=[server])


@pytest.fixture
def files(tmp_path: Path) -> Iterator[ClusterFiles]:
    made = ClusterFiles(tmp_path)
    yield made
    made.unlock()


def test_one_cluster_at_a_time_has_a_directory(files: ClusterFiles) -> None:
    files.lock()
    with pytest.raises(DataDirectoryLockedError, match=r"a cluster already runs in"):
        ClusterFiles(files.directory).lock()
    files.unlock()
    files.lock()


def test_the_layout_is_what_was_written(files: ClusterFiles) -> None:
    assert files.read_layout() is None
    files.lock()
    files.write_layout(LAYOUT)
    assert files.read_layout() == LAYOUT


def test_the_record_of_the_cluster_is_replaced_as_a_whole(files: ClusterFiles) -> None:
    files.lock()
    files.write_cluster(record(1))
    with files.cluster_path.open() as reader:
        files.write_cluster(record(2))
        # Whoever had it open reads the old one to its end.
        assert json.load(reader)["servers"][0]["pid"] == 1
    assert json.loads(files.cluster_path.read_text())["servers"][0]["pid"] == 2


def test_the_record_of_a_killed_cluster_is_recognised_and_removed(files: ClusterFiles) -> None:
    files.lock()
    # The process exists, but it is not one of this directory's: process ids are used again.
    files.write_cluster(record(os.getpid()))
    assert files.discard_stale()
    assert not files.cluster_path.exists()
    assert not files.discard_stale()


@contextmanager
def left_over(*arguments: str, log: Path | None = None) -> Iterator[int]:
    """A process that runs; yields its id."""
    with log.open("ab") if log else nullcontext() as stderr:
        left = subprocess.Popen(
            [sys.executable, "-c", "input('here\\n')", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
    try:
        # Popen returns when the program begins to be exchanged; its command line comes after that.
        assert left.stdout is not None
        assert left.stdout.readline() == b"here\n"
        yield left.pid
    finally:
        left.communicate(b"\n")


def test_nothing_is_started_beside_a_server_that_was_left_over(files: ClusterFiles) -> None:
    files.lock()
    with left_over(f"{files.directory}/bookie-1") as pid:
        files.write_cluster(record(pid))
        with pytest.raises(DataDirectoryLockedError, match=rf"bookie-1 \(process {pid}\)"):
            files.discard_stale()
        assert files.cluster_path.exists()


def test_a_left_over_broker_is_known_by_its_log(files: ClusterFiles) -> None:
    """Brokers and auto-recovery have no data: their commands do not name the directory."""
    files.lock()
    with left_over(log=files.logs / "broker-1.log") as pid:
        files.write_cluster(record(pid))
        with pytest.raises(DataDirectoryLockedError, match=rf"\(process {pid}\)"):
            files.discard_stale()
        assert files.cluster_path.exists()


async def test_a_refused_start_keeps_the_record_of_the_killed_cluster(files: ClusterFiles) -> None:
    """Otherwise the next start finds no record, and starts beside the servers left over."""
    with left_over(f"{files.directory}/bookie-1") as pid:
        files.write_cluster(record(pid))
        for _ in range(2):
            with pytest.raises(DataDirectoryLockedError, match="stop them first"):
                await Cluster(ClusterSettings(data=files.directory)).start()
            assert files.cluster_path.exists()


async def test_a_refused_start_keeps_a_record_that_it_cannot_read(files: ClusterFiles) -> None:
    files.cluster_path.write_text("{")
    for _ in range(2):
        with pytest.raises(DataDirectoryError, match="It was not changed"):
            await Cluster(ClusterSettings(data=files.directory)).start()
        assert files.cluster_path.read_text() == "{"
    files.lock()  # no start has kept the lock


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"format": 2, "bookies": 3, "brokers": 2, "autorecovery": 0, "ports": {}}', "format"),
        ('{"format": 1, "bookies": 3}', "brokers"),
        ("{", "Invalid JSON"),
    ],
)
def test_a_layout_that_cannot_be_read_is_refused_and_kept(
    files: ClusterFiles, text: str, said: str
) -> None:
    files.layout_path.write_text(text)
    with pytest.raises(DataDirectoryError, match=f"layout.json cannot be used: .*{said}"):
        files.read_layout()
    assert files.layout_path.read_text() == text


@pytest.mark.parametrize("kind", ["layout", "cluster"])
def test_a_flipped_bit_is_noticed_or_harmless(files: ClusterFiles, kind: str) -> None:
    files.lock()
    files.write_layout(LAYOUT)
    files.write_cluster(record(1))
    path = files.layout_path if kind == "layout" else files.cluster_path
    whole = path.read_bytes()

    def read() -> object:
        return files.read_layout() if kind == "layout" else files.read_cluster()

    right = read()
    for at in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << bit
            path.write_bytes(damaged)
            refusal, found = "", None
            try:
                found = read()
            except DataDirectoryError as error:
                refusal = str(error)
            is_noticed = str(path) in refusal and "It was not changed: " in refusal
            assert is_noticed or found == right, (at, bit, refusal)


def test_files_of_releases_without_a_checksum_are_read(files: ClusterFiles) -> None:
    files.lock()
    files.layout_path.write_text(LAYOUT.model_dump_json(indent=2))
    assert files.read_layout() == LAYOUT


def test_what_was_changed_by_hand_is_refused_until_its_checksum_is_removed(
    files: ClusterFiles,
) -> None:
    files.lock()
    files.write_layout(LAYOUT)
    fields = json.loads(files.layout_path.read_text())
    fields["bookies"] = 4
    files.layout_path.write_text(json.dumps(fields))
    with pytest.raises(DataDirectoryError, match="remove its checksum"):
        files.read_layout()
    del fields["checksum"]
    files.layout_path.write_text(json.dumps(fields))
    found = files.read_layout()
    assert found is not None
    assert found.bookies == 4
