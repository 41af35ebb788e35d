"""Real ZooKeeper servers run on the production example, and a backup of one of them is whole."""

import os
import re
import signal
import socket
import struct
import subprocess
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from magnetar.deploy.zookeeper import find_jars, find_java
from magnetar.ledger.metadata.settings import MetadataSettings
from tests.archives import unpack
from tests.artifacts import DEPLOY, ZOOKEEPER_METRICS, zookeeper_settings
from tests.integration.deploy.commands import Ended, run_command
from tests.processes import HOST, free_ports
from tests.waiting import wait_until

FOLDER = DEPLOY / "zookeeper"
DEADLINE_S = 90.0


class Server:
    """One server on a zoo.cfg of its own."""

    def __init__(self, directory: Path, text: str, client_port: int, *, main: str) -> None:
        self.port = client_port
        path = directory / "zoo.cfg"
        path.write_text(text)
        self._log = (directory / "zookeeper.log").open("w")
        options = (FOLDER / "java.env").read_text()
        jute = re.search(r"-Djute\.maxbuffer=\d+", options)
        assert jute
        self._process = subprocess.Popen(
            [
                *(find_java(), "-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                *("-Dzookeeper.jmx.log4j.disable=true", jute[0]),
                *("-cp", os.pathsep.join(map(str, find_jars()))),
                f"org.apache.zookeeper.server.{main}",
                str(path),
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )

    def ask(self, word: str) -> str:
        """The answer to one of its one-word questions; '' when there is none."""
        try:
            with socket.create_connection((HOST, self.port), timeout=2) as connection:
                connection.sendall(word.encode())
                with connection.makefile() as answer:
                    return answer.read()
        except OSError:
            return ""

    def wait_ready(self) -> None:
        def is_ready() -> bool:
            assert self._process.poll() is None, "the server has ended"
            return "Mode:" in self.ask("srvr")

        wait_until(is_ready, "the server is ready", within_s=DEADLINE_S)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop the process for a while, with its port open."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()


def here(text: str, directory: Path) -> str:
    """The production example with directories of this test, and without what pyspark's jars lack:
    the provider of metrics for Prometheus."""
    lines = [line for line in text.splitlines() if not line.startswith("metricsProvider")]
    return "\n".join(lines).replace("/var/lib", str(directory)) + "\n"


class Ensemble:
    """Three servers on one machine."""

    def __init__(self, directory: Path) -> None:
        text = (FOLDER / "zoo.cfg").read_text()
        ports = free_ports(9)
        for number in (1, 2, 3):
            mine = ports[number * 3 - 3 : number * 3]
            old = f"server.{number}=zk-{number}.internal:2888:3888;2181"
            assert old in text
            text = text.replace(old, f"server.{number}={HOST}:{mine[0]}:{mine[1]};{HOST}:{mine[2]}")
        self.directories = [directory / f"zk-{number}" for number in (1, 2, 3)]
        self.servers: list[Server] = []
        for number, each in enumerate(self.directories, start=1):
            (each / "zookeeper").mkdir(parents=True)
            (each / "zookeeper-log").mkdir()
            (each / "zookeeper" / "myid").write_text(str(number))
            main = "quorum.QuorumPeerMain"
            self.servers.append(Server(each, here(text, each), ports[number * 3 - 1], main=main))
        for server in self.servers:
            server.wait_ready()

    def kill(self) -> None:
        for server in self.servers:
            server.kill()


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    running = Ensemble(tmp_path_factory.mktemp("ensemble"))
    yield running
    running.kill()


def client(port: int) -> KazooClient:
    made = KazooClient(f"{HOST}:{port}")
    made.start(DEADLINE_S)
    return made


def test_three_servers_elect_a_leader(ensemble: Ensemble) -> None:
    modes = [re.findall(r"Mode: (\w+)", server.ask("srvr"))[0] for server in ensemble.servers]
    assert sorted(modes) == ["follower", "follower", "leader"]


def test_each_line_of_the_example_took_effect(ensemble: Ensemble) -> None:
    configuration = zookeeper_settings(ensemble.servers[0].ask("conf"))
    example = zookeeper_settings((FOLDER / "zoo.cfg").read_text())
    for name in ("tickTime", "initLimit", "syncLimit", "maxClientCnxns"):
        assert configuration[name] == example[name], name
    assert configuration["dataLogDir"].endswith("/zookeeper-log/version-2")


def granted_ms(port: int, asked_ms: int) -> int:
    """The session timeout that a server grants: the client library does not tell."""
    request = struct.pack(">iqiq", 0, 0, asked_ms, 0) + struct.pack(">i16s?", 16, b"", False)
    with socket.create_connection((HOST, port), timeout=10) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as answer:
            _, _, granted = struct.unpack(">iii", answer.read(12))
    return int(granted)


def test_sessions_are_granted_as_asked_for(ensemble: Ensemble) -> None:
    field = MetadataSettings.model_fields["session_timeout_ms"]
    (longest_ms,) = (each.le for each in field.metadata if hasattr(each, "le"))
    for asked_ms in (field.default, longest_ms):
        assert granted_ms(ensemble.servers[0].port, asked_ms) == asked_ms


def test_only_the_questions_of_probes_and_monitoring_are_answered(ensemble: Ensemble) -> None:
    server = ensemble.servers[0]
    assert server.ask("ruok") == "imok"
    for word in ("dump", "wchp", "envi"):
        assert "not in the whitelist" in server.ask(word)


def test_the_metrics_of_alerts_and_dashboards_exist(ensemble: Ensemble) -> None:
    there = {line.split("\t")[0] for line in ensemble.servers[0].ask("mntr").splitlines()}
    for name in ZOOKEEPER_METRICS:
        # A summary is shown as zk_cnt_NAME here, and as NAME_count to Prometheus.
        plain = f"zk_cnt_{name.removesuffix('_count')}" if name.endswith("time_count") else ""
        assert {f"zk_{name}", plain} & there, name


def back_up(server: Server, directory: Path, archive: Path, *options: str) -> Ended:
    """Run backup.sh on one server of the ensemble."""
    return run_command(
        [
            *("sh", str(FOLDER / "backup.sh"), "--server", f"{HOST}:{server.port}", *options),
            *(str(directory / "zookeeper"), str(directory / "zookeeper-log"), str(archive)),
        ]
    )


def test_a_backup_under_load_has_all_that_was_there_before_it(
    ensemble: Ensemble, tmp_path: Path
) -> None:
    server, directory = ensemble.servers[0], ensemble.directories[0]
    writer = client(server.port)
    writer.ensure_path("/magnetar")
    for number in range(200):
        writer.create(f"/magnetar/before-{number}", b"x" * 100)
    done = threading.Event()

    def write() -> None:
        number = 0
        while not done.is_set():
            writer.create(f"/magnetar/meanwhile-{number}", b"x" * 100)
            number += 1

    load = threading.Thread(target=write)
    load.start()
    archive = tmp_path / "backup.tar.gz"
    try:
        saved = back_up(server, directory, archive)
    finally:
        done.set()
        load.join()
        writer.stop()
        writer.close()
    assert saved.status == 0, saved.stderr
    assert list(tmp_path.iterdir()) == [archive]

    # As docs/operations/backup.md says: snapshots to dataDir, logs to dataLogDir of a new server.
    with tarfile.open(archive) as packed:
        unpack(packed, tmp_path / "new")
    (port,) = free_ports(1)
    text = f"dataDir={tmp_path}/new/data\ndataLogDir={tmp_path}/new/log\n"
    text += f"clientPort={port}\nclientPortAddress={HOST}\ntickTime=2000\n"
    text += "4lw.commands.whitelist=srvr\nadmin.enableServer=false\n"
    restored = Server(tmp_path, text, port, main="ZooKeeperServerMain")
    try:
        restored.wait_ready()
        reader = client(port)
        there = set(reader.get_children("/magnetar"))
        reader.stop()
        reader.close()
    finally:
        restored.kill()
    assert {f"before-{number}" for number in range(200)} <= there


def test_a_frozen_server_is_not_backed_up(ensemble: Ensemble, tmp_path: Path) -> None:
    server, archive = ensemble.servers[0], tmp_path / "backup.tar.gz"
    with server.frozen():
        ended = back_up(server, ensemble.directories[0], archive, "--timeout-s", "1")
    assert ended.status == 1
    (line,) = ended.stderr.splitlines()
    assert f"ZooKeeper at {HOST}:{server.port} does not serve" in line
    assert "no answer within 1 s" in line
    assert not list(tmp_path.iterdir())
    server.wait_ready()


def test_a_server_without_a_majority_is_not_backed_up(tmp_path: Path) -> None:
    alone = Ensemble(tmp_path / "ensemble")
    archives = tmp_path / "archives"
    archives.mkdir()
    server = alone.servers[0]
    try:
        before = back_up(server, alone.directories[0], archives / "zookeeper-1.tar.gz")
        assert before.status == 0, before.stderr
        for other in alone.servers[1:]:
            other.kill()
        wait_until(
            lambda: "not currently serving" in server.ask("srvr"), "it has no leader", within_s=60
        )
        ended = back_up(server, alone.directories[0], archives / "zookeeper-2.tar.gz")
        server.kill()
        down = back_up(server, alone.directories[0], archives / "zookeeper-2.tar.gz")
    finally:
        alone.kill()
    assert (ended.status, down.status) == (1, 1)
    (line,) = ended.stderr.splitlines()
    assert "not currently serving requests" in line
    (line,) = down.stderr.splitlines()
    assert "Connection refused" in line
    assert [each.name for each in archives.iterdir()] == ["zookeeper-1.tar.gz"]


DAY_S = 86_400


class Disk:
    """Directories of a server that is stopped, and a directory of archives."""

    def __init__(self, directory: Path) -> None:
        self.archives = directory / "archives"
        self.archives.mkdir()
        for part, name in (("data", "snapshot.0"), ("log", "log.1")):
            (directory / part / "version-2").mkdir(parents=True)
            (directory / part / "version-2" / name).write_bytes(b"content")
        self._directory = directory

    def age(self, name: str, age_s: float) -> None:
        """Have a file of the archives' directory that was changed so long ago."""
        path = self.archives / name
        if not path.exists():
            path.write_bytes(b"of before")
        os.utime(path, (time.time() - age_s,) * 2)

    def back_up(self, name: str, *options: str) -> Ended:
        command = ["sh", str(FOLDER / "backup.sh"), "--server", "none", *options]
        parts = [str(self._directory / each) for each in ("data", "log")]
        return run_command([*command, *parts, str(self.archives / name)])

    def names(self) -> set[str]:
        return {each.name for each in self.archives.iterdir()}


def test_archives_are_deleted_after_their_days_and_the_new_one_never(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.age("zookeeper-old.tar.gz", 5 * DAY_S)
    disk.age("zookeeper-young.tar.gz", 2 * DAY_S)
    disk.age("of-somebody-else.tar.gz", 5 * DAY_S)
    ended = disk.back_up("zookeeper-new.tar.gz")
    assert ended.status == 0, ended.stderr
    assert "zookeeper-old.tar.gz" in disk.names(), "without --keep-days all stay"
    ended = disk.back_up("zookeeper-new.tar.gz", "--keep-days", "3")
    assert ended.status == 0, ended.stderr
    kept = {"zookeeper-young.tar.gz", "zookeeper-new.tar.gz", "of-somebody-else.tar.gz"}
    assert disk.names() == kept


def test_a_backup_that_fails_deletes_no_archive(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.age("zookeeper-old.tar.gz", 5 * DAY_S)
    for part in ("data", "log"):
        for each in (tmp_path / part / "version-2").iterdir():
            each.unlink()
    ended = disk.back_up("zookeeper-new.tar.gz", "--keep-days", "3")
    assert ended.status == 1
    assert "nothing to copy" in ended.stderr
    assert disk.names() == {"zookeeper-old.tar.gz"}


def test_what_a_killed_backup_left_behind_goes_with_a_later_one(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    for name, age_s in ((".backup.Killed", 1900), (".backup.Runs00", 1700)):
        (disk.archives / name / "data").mkdir(parents=True)
        disk.age(name, age_s)
    ended = disk.back_up("zookeeper-new.tar.gz")
    assert ended.status == 0, ended.stderr
    assert disk.names() == {"zookeeper-new.tar.gz", ".backup.Runs00"}


@pytest.mark.parametrize(
    "options",
    [
        ("--keep-days", "0"),
        ("--keep-days", "x"),
        ("--timeout-s", "-1"),
        ("--server", "zk-1"),
        ("--what", "1"),
    ],
)
def test_options_that_cannot_be_are_refused(tmp_path: Path, options: tuple[str, str]) -> None:
    disk = Disk(tmp_path)
    disk.age("zookeeper-old.tar.gz", 5 * DAY_S)
    ended = disk.back_up("zookeeper-new.tar.gz", *options)
    assert ended.status == 2
    assert ended.stderr.startswith("usage: backup.sh")
    assert disk.names() == {"zookeeper-old.tar.gz"}


def test_a_backup_of_the_wrong_directory_says_so(tmp_path: Path) -> None:
    archive = tmp_path / "backup.tar.gz"
    ended = run_command(
        ["sh", str(FOLDER / "backup.sh"), str(tmp_path), str(tmp_path), str(archive)]
    )
    assert ended.status == 1
    assert "dataDir" in ended.stderr
    assert not archive.exists()
