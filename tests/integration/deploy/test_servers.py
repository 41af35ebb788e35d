"""Bookies and brokers as processes of their own."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.deploy.commands import magnetar
from tests.processes import HOST, ServerProcess, free_ports, magnetar_command
from tests.standalone import Standalone, is_ready_line
from tests.waiting import wait_until

READY_TIMEOUT_S = 120.0
IMPATIENT = {"MAGNETAR_METADATA_CONNECT_TIMEOUT_S": "0.5"}


class Processes:
    """Servers of one test; all are killed at its end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, name: str, *arguments: str) -> ServerProcess:
        process = ServerProcess(
            magnetar_command(*arguments),
            log_path=self._folder / f"{name}.log",
            is_ready=is_ready_line,
        )
        self._stack.callback(self._kill, process)
        process.wait_ready(READY_TIMEOUT_S)
        return process

    @staticmethod
    def _kill(process: ServerProcess) -> None:
        if process.returncode is None:
            process.kill()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path) as started:
        yield started


def start_bookies(processes: Processes, folder: Path, url: str, count: int) -> list[ServerProcess]:
    return [
        processes.start(
            f"bookie-{number}",
            "bookie",
            *("--metadata", url, "--data", str(folder / f"bookie-{number}")),
            *("--port", "0", "--id", f"bookie-{number}"),
        )
        for number in range(1, count + 1)
    ]


def start_broker(processes: Processes, url: str, quorum: str) -> tuple[ServerProcess, str]:
    broker = processes.start(
        "broker", "broker", "--metadata", url, "--port", "0", "--http-port", "0", "--quorum", quorum
    )
    return broker, broker.ready_line.split()[1]


@pytest.mark.parametrize("metadata", ["embedded", "zookeeper"])
def test_three_bookies_and_a_broker_keep_messages(
    processes: Processes, tmp_path: Path, metadata: str
) -> None:
    url = f"embedded:{tmp_path / 'metadata.db'}"
    if metadata == "zookeeper":
        server = processes.start("zk", "zookeeper", "--data", str(tmp_path / "zk"), "--port", "0")
        url = server.ready_line.split()[1] + "magnetar"
    bookies = start_bookies(processes, tmp_path, url, 3)
    broker, service_url = start_broker(processes, url, "3,3,2")
    assert magnetar("produce", "t", "-m", "one", "-m", "two", "--url", service_url).status == 0
    bookies[0].kill()
    assert magnetar("read", "t", "--url", service_url).stdout.split() == ["one", "two"]
    assert broker.terminate() == 0
    assert bookies[1].terminate() == 0


@pytest.mark.parametrize("kind", ["bookie", "broker"])
def test_an_unreachable_metadata_store_is_one_line(tmp_path: Path, kind: str) -> None:
    (port,) = free_ports(1)
    of_bookie = ("--id", "b1", "--data", str(tmp_path / "data"))
    ended = magnetar(
        kind,
        *("--metadata", f"zk://{HOST}:{port}/magnetar", "--port", "0"),
        *(of_bookie if kind == "bookie" else ("--http-port", "0")),
        environment=IMPATIENT,
    )
    assert ended.status == 6, ended.stderr
    assert len(ended.messages()) == 1
    assert f"{HOST}:{port}" in ended.messages()[0]


def test_bad_settings_are_told_before_the_metadata_store_is_asked(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    ended = magnetar(
        "bookie",
        *("--metadata", f"zk://{HOST}:{port}/magnetar", "--data", str(tmp_path), "--port", "0"),
    )
    assert ended.status == 2, ended.stderr
    assert ended.messages() == [
        "magnetar: bad settings of bookie: port 0 needs a bookie_id, since the port can change at "
        "every start"
    ]


@pytest.mark.parametrize("url", ["nonsense", "zk://", "zk://host:port/", "embedded:"])
def test_a_bad_metadata_url_is_one_line(url: str) -> None:
    ended = magnetar("broker", "--metadata", url, "--port", "0", "--http-port", "0")
    assert ended.status == 2, ended.stderr
    assert len(ended.messages()) == 1


def test_a_bookie_whose_files_are_gone_is_refused(processes: Processes, tmp_path: Path) -> None:
    """An empty bookie under an old id would vouch for data that it no longer has."""
    url = f"embedded:{tmp_path / 'metadata.db'}"
    (bookie,) = start_bookies(processes, tmp_path, url, 1)
    assert bookie.terminate() == 0
    ended = magnetar(
        *("bookie", "--metadata", url, "--data", str(tmp_path / "empty")),
        *("--port", "0", "--id", "bookie-1"),
    )
    assert ended.status == 5, ended.stderr
    assert len(ended.messages()) == 1


def test_a_signal_breaks_a_start_off(tmp_path: Path) -> None:
    metadata = tmp_path / "metadata.db"
    broker = ServerProcess(
        magnetar_command("broker", "--metadata", f"embedded:{metadata}", "--port", "0"),
        log_path=tmp_path / "broker.log",
        is_ready=is_ready_line,
    )
    # It waits a minute for a bookie that makes the cluster.
    wait_until(metadata.exists, "the broker starts")
    assert broker.terminate() == 0
    assert "start_broken_off" in broker.log_path.read_text()


AS_FIRST_PROCESS = (
    "import os; os.getpid = lambda: 1; from magnetar.deploy.entry import main; main()"
)


def test_the_first_process_of_a_container_hears_a_signal_before_it_serves(tmp_path: Path) -> None:
    """The kernel would keep it from one that has no handler: it must not be that of the system."""
    settings = tmp_path / "settings.toml"
    os.mkfifo(settings)
    server = ServerProcess(
        [sys.executable, "-c", AS_FIRST_PROCESS, "bookie", "--config", str(settings)],
        log_path=tmp_path / "server.log",
        is_ready=is_ready_line,
    )
    writing: list[int] = []

    def is_reading() -> bool:
        try:
            writing.append(os.open(settings, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            return False
        return True

    wait_until(is_reading, "it waits for its settings, at the beginning of its life")
    os.kill(server.pid, signal.SIGTERM)
    # Python looks for signals between two calls of the system, and it may be about to make one
    # that blocks: this one ends.
    os.close(writing[0])
    assert server.wait_exit(30) == 128 + signal.SIGTERM


def test_a_server_drains_when_its_terminal_is_closed(processes: Processes, tmp_path: Path) -> None:
    url = f"embedded:{tmp_path / 'metadata.db'}"
    (bookie,) = start_bookies(processes, tmp_path, url, 1)
    for _ in range(2):  # From the kernel and from the shell.
        os.kill(bookie.pid, signal.SIGHUP)
    assert bookie.wait_exit(30) == 0
    assert "stopped" in bookie.log_path.read_text()


def test_a_server_under_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data", command_prefix=["nohup"]) as server:
        os.kill(server.process.pid, signal.SIGHUP)
        assert magnetar("produce", "t", "-m", "one", "--url", server.url).status == 0
        assert server.terminate() == 0


def test_the_settings_file_reaches_the_components(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text("[standalone]\nport = 0\nhttp-port = 0\n")
    server = processes.start(
        "s", "standalone", "--data", str(tmp_path / "d"), "--config", str(tmp_path / "m.toml")
    )
    assert not server.ready_line.split()[1].endswith(":6650")
