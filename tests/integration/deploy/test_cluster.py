"""`magnetar cluster` with real processes.

What costs is the start of a server. So tests share two clusters; who stops one comes last.
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.ledger.errors import BookieSecretError
from tests.integration.deploy.commands import magnetar
from tests.integration.deploy.test_own_secret import answer_to_a_stranger, secret_in
from tests.processes import ServerProcess, free_ports, magnetar_command
from tests.real_cluster import RealCluster
from tests.standalone import is_ready_line
from tests.waiting import wait_until

READY_TIMEOUT_S = 90.0
ONE_BOOKIE = ("--bookies", "1", "--brokers", "0", "--autorecovery", "0")
ANY_PORTS = ("--port", "0", "--http-port", "0", "--bookie-port", "0", "--zookeeper-port", "0")


class Command:
    """`magnetar cluster` on one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._processes: list[ServerProcess] = []

    @property
    def process(self) -> ServerProcess:
        """The last one."""
        return self._processes[-1]

    def start(self, *arguments: str) -> ServerProcess:
        process = ServerProcess(
            magnetar_command("cluster", "--data", str(self.directory), *ANY_PORTS, *arguments),
            log_path=self.directory.with_suffix(".log"),
            is_ready=is_ready_line,
        )
        self._processes.append(process)
        process.wait_ready(READY_TIMEOUT_S)
        return process

    def close(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()

    def record(self) -> Any:
        return json.loads((self.directory / "cluster.json").read_text())

    def server(self, name: str) -> Any:
        (server,) = [each for each in self.record()["servers"] if each["name"] == name]
        return server


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


# A whole cluster


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """Servers of every kind. At first one of its bookies cannot start, and is not needed."""
    with closing(Command(tmp_path_factory.mktemp("whole") / "cluster")) as command:
        command.directory.mkdir()
        in_the_way(command).write_text("")
        command.start(
            *("--bookies", "3", "--quorum", "2,2,1", "--brokers", "1", "--autorecovery", "1")
        )
        yield command


def in_the_way(command: Command) -> Path:
    """Where the second bookie has its directory, if nothing else is there."""
    return command.directory / "bookie-2"


def make_way(command: Command) -> None:
    if in_the_way(command).is_file():
        in_the_way(command).unlink()


def test_a_cluster_starts_with_the_servers_it_needs_and_the_rest_are_tried_again(
    whole: Command,
) -> None:
    assert not whole.server("bookie-2")["running"]
    log = whole.process.log_path.read_text()
    (told,) = [json.loads(line) for line in log.splitlines() if '"server_left_out"' in line]
    assert (told["server"], told["running"], told["needed"]) == ("bookie-2", 2, 2)
    assert "status 7: " in told["error"]
    port = whole.server("broker-1")["ports"]["native"]
    assert publish_and_read(f"pulsar://127.0.0.1:{port}", "t", 1) == [b"0"]

    make_way(whole)
    wait_until(
        lambda: whole.server("bookie-2")["running"], "the bookie joins", within_s=READY_TIMEOUT_S
    )


def test_the_record_of_a_cluster_says_who_runs_and_where(whole: Command) -> None:
    record = whole.record()
    assert [each["name"] for each in record["servers"]] == [
        *("zookeeper-1", "bookie-1", "bookie-2", "bookie-3", "broker-1", "autorecovery-1")
    ]
    assert [each["kind"] for each in record["servers"]] == [
        *("zookeeper", "bookie", "bookie", "bookie", "broker", "autorecovery")
    ]
    native, http = (whole.server("broker-1")["ports"][name] for name in ("native", "http"))
    assert whole.process.ready_line.split() == [
        *("ready", record["metadata"], f"pulsar://127.0.0.1:{native}", f"http://127.0.0.1:{http}")
    ]
    events = [
        json.loads(line)
        for line in (whole.directory / "logs" / "broker-1.log").read_text().splitlines()
    ]
    assert {event["server"] for event in events} == {"broker-1"}


async def test_the_bookies_of_a_cluster_turn_strangers_away(whole: Command) -> None:
    secret_in(whole.directory)
    url = whole.record()["metadata"]
    answer = await answer_to_a_stranger(url)
    assert isinstance(answer, BookieSecretError), answer
    service_url = whole.process.ready_line.split()[2]
    assert publish_and_read(service_url, "secured", 3) == [b"0", b"1", b"2"]

    perf = ("perf", "ledger", "--metadata", url, "--messages", "10", "--quorum", "1,1,1")
    refused = magnetar(*perf)
    assert refused.status != 0
    assert "MAGNETAR_LEDGER_SHARED_SECRET_FILE" in refused.stderr
    told = {"MAGNETAR_LEDGER_SHARED_SECRET_FILE": str(whole.directory / "shared-secret")}
    done = magnetar(*perf, environment=told)
    assert done.status == 0, done.stderr


def test_a_cluster_stops_in_order_and_starts_with_what_it_had(whole: Command) -> None:
    make_way(whole)
    wait_until(lambda: whole.server("bookie-2")["running"], "all run", within_s=READY_TIMEOUT_S)
    record, secret = whole.record(), secret_in(whole.directory)
    url = f"pulsar://127.0.0.1:{whole.server('broker-1')['ports']['native']}"
    sent = publish_and_read(url, "kept", 3)
    assert sent == [b"0", b"1", b"2"]

    pids = [each["pid"] for each in record["servers"]]
    assert whole.process.terminate(90) == 0
    assert not any(map(is_alive, pids))
    assert not (whole.directory / "cluster.json").exists()
    for name in ("bookie-1", "bookie-2", "bookie-3", "broker-1", "autorecovery-1"):
        assert '"event": "stopped"' in (whole.directory / "logs" / f"{name}.log").read_text()

    # The same servers on the same ports and data, without a word about their number.
    whole.start()
    assert whole.record()["metadata"] == record["metadata"]
    assert [each["ports"] for each in whole.record()["servers"]] == [
        each["ports"] for each in record["servers"]
    ]
    client = pulsar.Client(url)
    reader = client.create_reader("kept", pulsar.MessageId.earliest)
    assert [reader.read_next(10_000).data() for _ in range(3)] == sent
    client.close()
    assert secret_in(whole.directory) == secret, "made once"
    logs = [each.read_text() for each in (whole.directory / "logs").iterdir()]
    assert not any(secret in text for text in logs)
    whole.close()


# A small one, which tests disturb one after another


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """ZooKeeper and a bookie, whose logs are rotated whenever somebody looks."""
    with closing(Command(tmp_path_factory.mktemp("small") / "cluster")) as command:
        command.start(*ONE_BOOKIE, "--log-file-bytes-max", "1", "--log-files-max", "2")
        yield command


def test_a_killed_server_is_reported_and_started_again(small: Command) -> None:
    before = small.server("bookie-1")
    os.kill(before["pid"], signal.SIGKILL)
    wait_until(lambda: small.server("bookie-1")["pid"] != before["pid"], "the bookie is back")
    after = small.server("bookie-1")
    assert after["running"]
    assert after["ports"] == before["ports"]
    log = small.process.log_path.read_text()
    assert '"server": "bookie-1", "status": "signal 9 (SIGKILL)"' in log


def test_logs_of_a_cluster_are_rotated(small: Command) -> None:
    former = small.directory / "logs" / "bookie-1.log.1"
    wait_until(former.exists, "the log is rotated")
    assert not (small.directory / "logs" / "bookie-1.log.3").exists()


def test_a_server_that_cannot_start_ends_the_cluster_with_its_own_words(
    small: Command, tmp_path: Path
) -> None:
    url = small.record()["metadata"]
    # Another cluster on the same ZooKeeper path: its bookie-1 is a stranger there.
    ended = magnetar(
        *("cluster", "--data", str(tmp_path / "other"), "--zookeeper", url, *ANY_PORTS),
        *ONE_BOOKIE,
    )
    assert ended.status == 5
    (message,) = ended.messages()
    assert message.startswith("magnetar: bookie-1 ended at its start with status 5: ")
    assert "cookie" in message


def test_of_several_servers_the_one_that_cannot_start_is_named(
    small: Command, tmp_path: Path
) -> None:
    data = tmp_path / "cluster"
    data.mkdir()
    (data / "bookie-2").write_text("")
    url = small.record()["metadata"] + "/several"
    ended = magnetar(
        *("cluster", "--data", str(data), "--zookeeper", url, *ANY_PORTS),
        *("--bookies", "3", "--brokers", "0"),
    )
    assert ended.status == 7
    (message,) = ended.messages()
    assert message.startswith("magnetar: bookie-2 ended at its start with status 7: ")


def test_kill_9_leaves_nothing_behind_and_the_next_start_knows(small: Command) -> None:
    record = small.record()
    second = magnetar("cluster", "--data", str(small.directory))
    assert second.status == 4
    assert "a cluster already runs in" in second.messages()[0]

    small.process.kill()
    wait_until(
        lambda: not any(is_alive(each["pid"]) for each in record["servers"]), "all servers are gone"
    )
    assert small.record() == record, "the record of the killed cluster"
    again = small.start()
    assert "stale_cluster_record_removed" in again.log_path.read_text()
    assert [each["ports"] for each in small.record()["servers"]] == [
        each["ports"] for each in record["servers"]
    ]


def test_a_killed_server_is_started_again_though_the_record_cannot_be_written(
    small: Command,
) -> None:
    draft = small.directory / "cluster.json.new"
    draft.mkdir()  # As when the disk is full: no draft of the record can be made.
    before = pid_of_the_bookie(small)
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: pid_of_the_bookie(small) not in (0, before), "the bookie is back")
    assert "cluster_record_not_written" in small.process.log_path.read_text()
    draft.rmdir()


def pid_of_the_bookie(command: Command) -> int:
    """Of its process that lives; 0 if none does. The record may be an old one."""
    log = command.process.log_path.read_text()
    restarts = [json.loads(each) for each in log.splitlines() if '"server_restarted"' in each]
    known = {command.server("bookie-1")["pid"], *(each["pid"] for each in restarts)}
    return max(filter(is_alive, known), default=0)


def test_a_server_that_was_told_to_stop_stays_down(small: Command) -> None:
    os.kill(pid_of_the_bookie(small), signal.SIGTERM)
    wait_until(lambda: not small.server("bookie-1")["running"], "the bookie is dead")
    # The record says so first.
    wait_until(
        lambda: '"status": "status 0"' in small.process.log_path.read_text(), "it is reported"
    )
    assert small.process.terminate(90) == 0


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


def test_a_cluster_names_what_zookeeper_needs_before_it_starts_anything(tmp_path: Path) -> None:
    without_java = {"PATH": str(tmp_path), "JAVA_HOME": ""}
    ended = magnetar("cluster", "--data", str(tmp_path / "cluster"), environment=without_java)
    assert ended.status == 9
    assert "apt-get install openjdk-17-jre-headless" in ended.messages()[-1]
    assert list((tmp_path / "cluster").rglob("*.log")) == []
