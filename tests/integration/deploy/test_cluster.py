"""`magnetar cluster` with real processes."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.integration.deploy.commands import magnetar
from tests.processes import ServerProcess, free_ports, magnetar_command
from tests.real_cluster import RealCluster
from tests.standalone import is_ready_line
from tests.waiting import wait_until

READY_TIMEOUT_S = 90.0
ANY_PORTS = ("--port", "0", "--http-port", "0", "--bookie-port", "0", "--zookeeper-port", "0")


class Command:
    """`magnetar cluster` on one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._stack = ExitStack()
        self.process: ServerProcess | None = None

    def start(self, *arguments: str) -> ServerProcess:
        process = self.process = ServerProcess(
            magnetar_command("cluster", "--data", str(self.directory), *ANY_PORTS, *arguments),
            log_path=self.directory.with_suffix(".log"),
            is_ready=is_ready_line,
        )
        self._stack.callback(_kill_if_running, process)
        process.wait_ready(READY_TIMEOUT_S)
        return process

    def close(self) -> None:
        self._stack.close()

    def record(self) -> Any:
        return json.loads((self.directory / "cluster.json").read_text())

    def server(self, name: str) -> Any:
        (server,) = [each for each in self.record()["servers"] if each["name"] == name]
        return server


def _kill_if_running(process: ServerProcess) -> None:
    if process.returncode is None:
        process.kill()


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    started = Command(tmp_path / "cluster")
    yield started
    started.close()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def publish_and_read(url: str, topic: str, count: int) -> list[bytes]:
    client = pulsar.Client(url)
    try:
        producer = client.create_producer(topic)
        for number in range(count):
            producer.send(b"%d" % number)
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        return [reader.read_next(10_000).data() for _ in range(count)]
    finally:
        client.close()


def test_a_cluster_serves_says_who_runs_and_stops_in_order(command: Command) -> None:
    process = command.start("--bookies", "2", "--brokers", "1", "--autorecovery", "0")
    record = command.record()
    assert [each["name"] for each in record["servers"]] == [
        *("zookeeper-1", "bookie-1", "bookie-2", "broker-1")
    ]
    assert [each["kind"] for each in record["servers"]] == [
        *("zookeeper", "bookie", "bookie", "broker")
    ]
    native, http = (command.server("broker-1")["ports"][name] for name in ("native", "http"))
    assert process.ready_line.split() == [
        *("ready", record["metadata"], f"pulsar://127.0.0.1:{native}", f"http://127.0.0.1:{http}")
    ]
    sent = publish_and_read(f"pulsar://127.0.0.1:{native}", "kept", 3)
    assert sent == [b"0", b"1", b"2"]
    events = [
        json.loads(line)
        for line in (command.directory / "logs" / "broker-1.log").read_text().splitlines()
    ]
    assert {event["server"] for event in events} == {"broker-1"}

    pids = [each["pid"] for each in record["servers"]]
    assert process.terminate(90) == 0
    assert not any(map(is_alive, pids))
    assert not (command.directory / "cluster.json").exists()
    for name in ("bookie-1", "broker-1"):
        assert '"event": "stopped"' in (command.directory / "logs" / f"{name}.log").read_text()

    # The same servers on the same ports and data, without a word about their number.
    command.start()
    assert command.record()["metadata"] == record["metadata"]
    assert [each["ports"] for each in command.record()["servers"]] == [
        each["ports"] for each in record["servers"]
    ]
    client = pulsar.Client(f"pulsar://127.0.0.1:{native}")
    reader = client.create_reader("kept", pulsar.MessageId.earliest)
    assert [reader.read_next(10_000).data() for _ in range(3)] == sent
    client.close()


def test_a_killed_server_is_reported_and_started_again(command: Command) -> None:
    process = command.start("--bookies", "1", "--brokers", "0", "--autorecovery", "0")
    before = command.server("bookie-1")
    os.kill(before["pid"], signal.SIGKILL)
    wait_until(lambda: command.server("bookie-1")["pid"] != before["pid"], "the bookie is back")
    after = command.server("bookie-1")
    assert after["running"]
    assert after["ports"] == before["ports"]
    log = process.log_path.read_text()
    assert '"server": "bookie-1", "status": "signal 9 (SIGKILL)"' in log

    # One that was told to stop stays down.
    os.kill(after["pid"], signal.SIGTERM)
    wait_until(lambda: not command.server("bookie-1")["running"], "the bookie is dead")
    # The record says so first.
    wait_until(lambda: '"status": "status 0"' in process.log_path.read_text(), "it is reported")
    assert process.terminate(90) == 0


def test_a_killed_server_is_started_again_though_the_record_cannot_be_written(
    command: Command,
) -> None:
    process = command.start("--bookies", "1", "--brokers", "0", "--autorecovery", "0")
    in_the_way = command.directory / "cluster.json.new"
    in_the_way.mkdir()  # As when the disk is full: no draft of the record can be made.
    os.kill(command.server("bookie-1")["pid"], signal.SIGKILL)
    wait_until(lambda: "server_restarted" in process.log_path.read_text(), "the bookie is back")
    assert "cluster_record_not_written" in process.log_path.read_text()
    in_the_way.rmdir()
    assert process.terminate(90) == 0


def test_kill_9_leaves_nothing_behind_and_the_next_start_knows(command: Command) -> None:
    process = command.start("--bookies", "1", "--brokers", "0", "--autorecovery", "0")
    record = command.record()
    second = magnetar("cluster", "--data", str(command.directory))
    assert second.status == 4
    assert "a cluster runs in" in second.messages()[0]

    process.kill()
    wait_until(
        lambda: not any(is_alive(each["pid"]) for each in record["servers"]), "all servers are gone"
    )
    assert command.record() == record, "the record of the killed cluster"
    again = command.start()
    assert "stale_cluster_record_removed" in again.log_path.read_text()
    assert [each["ports"] for each in command.record()["servers"]] == [
        each["ports"] for each in record["servers"]
    ]


def test_a_server_that_cannot_start_ends_the_cluster_with_its_own_words(
    command: Command, tmp_path: Path
) -> None:
    command.start("--bookies", "1", "--brokers", "0", "--autorecovery", "0")
    url = command.record()["metadata"]
    other = tmp_path / "other"
    # Another cluster on the same ZooKeeper path: its bookie-1 is a stranger there.
    ended = magnetar(
        *("cluster", "--data", str(other), "--zookeeper", url, *ANY_PORTS),
        *("--bookies", "1", "--brokers", "0", "--autorecovery", "0"),
    )
    assert ended.status == 5
    (message,) = ended.messages()
    assert message.startswith("magnetar: bookie-1 ended at its start with status 5: ")
    assert "cookie" in message


def test_of_several_servers_the_one_that_cannot_start_is_named(tmp_path: Path) -> None:
    data = tmp_path / "cluster"
    data.mkdir()
    (data / "bookie-2").write_text("")
    ended = magnetar("cluster", "--data", str(data), *ANY_PORTS, "--bookies", "3", "--brokers", "0")
    assert ended.status == 7
    (message,) = ended.messages()
    assert message.startswith("magnetar: bookie-2 ended at its start with status 7: ")


def test_a_cluster_starts_with_the_servers_it_needs_and_the_rest_are_tried_again(
    command: Command,
) -> None:
    data = command.directory
    data.mkdir()
    in_the_way = data / "bookie-2"
    in_the_way.write_text("")
    quorum = ("--bookies", "3", "--quorum", "2,2,1", "--brokers", "1", "--autorecovery", "0")
    process = command.start(*quorum)
    assert not command.server("bookie-2")["running"]
    log = process.log_path.read_text()
    (told,) = [json.loads(line) for line in log.splitlines() if '"server_left_out"' in line]
    assert (told["server"], told["running"], told["needed"]) == ("bookie-2", 2, 2)
    assert "status 7: " in told["error"]
    port = command.server("broker-1")["ports"]["native"]
    assert publish_and_read(f"pulsar://127.0.0.1:{port}", "t", 1) == [b"0"]

    in_the_way.unlink()
    wait_until(
        lambda: command.server("bookie-2")["running"], "the bookie joins", within_s=READY_TIMEOUT_S
    )
    assert process.terminate(90) == 0


def test_logs_of_a_cluster_are_rotated(command: Command) -> None:
    arguments = ("--bookies", "1", "--brokers", "0", "--autorecovery", "0")
    process = command.start(*arguments, "--log-file-bytes-max", "1", "--log-files-max", "2")
    former = command.directory / "logs" / "bookie-1.log.1"
    wait_until(former.exists, "the log is rotated")
    assert process.terminate(90) == 0
    assert not (command.directory / "logs" / "bookie-1.log.3").exists()


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("--zookeeper", "http://x"), 2, "zk://host:port"),
        (("--zookeeper", "zk://127.0.0.1:1/a", "--zookeepers", "3"), 2, "not both"),
        (("--bookies", "2", "--quorum", "3,3,2"), 2, "give --bookies 3"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    tmp_path: Path, arguments: tuple[str, ...], status: int, said: str
) -> None:
    ended = magnetar("cluster", "--data", str(tmp_path / "cluster"), *arguments)
    assert (ended.status, len(ended.messages())) == (status, 1)
    assert said in ended.messages()[0]


def test_a_taken_port_is_named_with_its_server(tmp_path: Path) -> None:
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        ended = magnetar("cluster", "--data", str(tmp_path / "cluster"), "--port", str(port))
    assert ended.status == 3
    assert f"127.0.0.1:{port}, the native port of broker-1" in ended.messages()[0]


def test_an_ensemble_of_three_elects_a_new_leader(tmp_path: Path) -> None:
    with RealCluster(tmp_path / "cluster", zookeepers=3, bookies=1, brokers=0) as cluster:
        leader = cluster.zookeeper_leader()
        cluster.kill(leader)
        wait_until(
            lambda: cluster.zookeeper_leader() not in ("", leader), "a new leader is elected"
        )
        cluster.start(leader)
        assert cluster.terminate("bookie-1") == 0


def test_a_zookeeper_server_that_dies_ends_its_command(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    server = ServerProcess(
        magnetar_command("zookeeper", "--data", str(tmp_path / "data"), "--port", str(port)),
        log_path=tmp_path / "zookeeper.log",
        is_ready=is_ready_line,
    )
    try:
        server.wait_ready(READY_TIMEOUT_S)
        java = subprocess.run(
            ["ps", "--ppid", str(server.pid), "-o", "pid="],
            capture_output=True,
            text=True,
            check=True,
        )
        os.kill(int(java.stdout), signal.SIGKILL)
        assert server.wait_exit(20) == 1
    finally:
        if server.returncode is None:
            server.kill()
    assert "ZooKeeper ended by itself with status -9" in (tmp_path / "zookeeper.log").read_text()
