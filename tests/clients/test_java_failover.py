"""A Java client with `AutoClusterFailover` goes on in the other cluster when its own is killed, and
comes back. What it was told is confirmed is in one of them, and in both in the end."""

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from tests.clients.suites import needs
from tests.clients.test_clients import CLIENTS, run
from tests.integration.pulsar_client.support import connect, receive
from tests.integration.pulsar_client.two_clusters import NAMESPACE, connect_both, settings_of
from tests.standalone import Standalone
from tests.waiting import wait_until

TOPIC = f"persistent://{NAMESPACE}/java-moves"
WITHIN_S = 90.0


class Moving:
    """The program, and what it says."""

    def __init__(self, place: Path, *urls: str) -> None:
        environment = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}
        self.process = subprocess.Popen(
            ["java", "-cp", "lib/*", "Failover.java", *urls, TOPIC],
            cwd=place,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.sent_to: list[str] = []
        """The cluster of each confirmed message."""
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("sent "):
                self.sent_to.append(line.split()[2])

    def publishes_to(self, url: str) -> None:
        """Return when messages are confirmed by that cluster."""
        before = len(self.sent_to)
        wait_until(
            lambda: self.sent_to[before:].count(url) >= 20 or self.process.poll() is not None,
            f"messages at {url}",
            within_s=WITHIN_S,
        )
        assert self.process.poll() is None

    def stop(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait(30)
        self._reading.join()
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    needs("java", "mvn")
    folder = tmp_path / "java"
    shutil.copytree(CLIENTS / "java", folder)
    copy = "dependency:copy-dependencies"
    run(folder, "mvn", "-q", "-B", copy, f"-DoutputDirectory={folder / 'lib'}")
    return folder


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[tuple[Standalone, Standalone]]:
    with (
        Standalone(tmp_path / "east", settings=settings_of("east")) as east,
        Standalone(tmp_path / "west", settings=settings_of("west")) as west,
    ):
        connect_both(east, west)
        yield east, west


def test_a_java_client_moves_to_the_other_cluster_and_back(
    place: Path, clusters: tuple[Standalone, Standalone]
) -> None:
    east, west = clusters
    moving = Moving(place, east.url, west.url)
    try:
        moving.publishes_to(east.url)
        east.kill()
        moving.publishes_to(west.url)
        east.start()
        moving.publishes_to(east.url)
    finally:
        moving.stop()
    wanted = {f"m-{number + 1}" for number in range(len(moving.sent_to))}
    for server in clusters:
        client = connect(server.url)
        consumer = client.subscribe(TOPIC, "all", initial_position=pulsar.InitialPosition.Earliest)
        found: set[str] = set()
        while not wanted <= found:
            found.add(receive(consumer).data().decode())
        client.close()
