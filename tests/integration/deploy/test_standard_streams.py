"""A server's standard streams stop nobody: a pipe that nobody reads, and none at all."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pulsar
import pytest

from tests.http_calls import call
from tests.processes import HOST, free_ports, magnetar_environment
from tests.waiting import wait_until


class Server:
    """A standalone that runs with the standard streams of the test."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, http_port: int) -> None:
        self.process = process
        self.url = f"pulsar://{HOST}:{port}"
        self._http_url = f"http://{HOST}:{http_port}"

    def get(self, path: str) -> str:
        return call(self._http_url, "GET", path, expect=200).text

    def is_well(self) -> bool:
        assert self.process.poll() is None, f"it ended with {self.process.returncode}"
        try:
            return call(self._http_url, "GET", "/health").status == 200
        except OSError:
            return False

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)


@contextmanager
def standalone(
    directory: Path, *, redirection: str = "", stdout: int | None = None, stderr: int | None = None
) -> Iterator[Server]:
    port, http_port = free_ports(2)
    command = (
        f'exec "$0" -m magnetar.deploy.entry standalone --data "$1" --port {port} '
        f"--http-port {http_port} --log-level debug {redirection}"
    )
    process = subprocess.Popen(
        ["sh", "-c", command, sys.executable, str(directory / "data")],
        env=magnetar_environment(),
        stdout=stdout,
        stderr=stderr,
    )
    try:
        server = Server(process, port, http_port)
        wait_until(server.is_well, "it serves", within_s=120)
        yield server
    finally:
        process.kill()
        process.wait()


def use(server: Server) -> None:
    """Publish and read on topics of their own: each is worth several lines of the log."""
    client = pulsar.Client(server.url)
    for number in range(20):
        producer = client.create_producer(f"persistent://public/default/topic-{number}")
        producer.send(b"value")
        producer.close()
    client.close()


def test_a_pipe_that_nobody_reads_stops_nothing_and_its_losses_are_counted(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, bytes(4096))
    except BlockingIOError:
        pass
    os.set_blocking(writing, True)
    with standalone(tmp_path, stderr=writing, stdout=subprocess.DEVNULL) as server:
        use(server)
        line = next(
            each
            for each in server.get("/metrics").splitlines()
            if each.startswith("magnetar_log_lines_lost_total ")
        )
        assert float(line.split()[1]) > 0
        assert server.end() == 0
    os.close(reading)
    os.close(writing)


def test_lines_are_told_of_when_a_pipe_that_was_full_is_read_again(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with standalone(tmp_path, stderr=writing, stdout=subprocess.DEVNULL) as server:
        os.close(writing)
        use(server)
        use(server)
        heard = b""
        server.process.send_signal(signal.SIGTERM)
        while piece := os.read(reading, 1 << 16):
            heard += piece
        assert server.process.wait(120) == 0
    os.close(reading)
    lines = heard.splitlines()
    assert any(b'"stopped"' in line for line in lines)
    told = [line for line in lines if b"log_lines_lost" in line]
    # It fits into the pipe, or the loss is told of.
    assert told or len(heard) < 1 << 16


@pytest.mark.parametrize("redirection", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_server_without_standard_streams_serves_and_ends_in_order(
    tmp_path: Path, redirection: str
) -> None:
    with standalone(tmp_path, redirection=redirection) as server:
        use(server)
        assert server.end() == 0
