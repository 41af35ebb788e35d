"""A standalone cluster of Spark's own: a master and workers, processes that the tests start."""

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path

import pyspark

from tests.processes import HOST, free_ports
from tests.waiting import wait_until

_START_S = 200
_HOME = Path(pyspark.__file__).resolve().parent


@contextmanager
def standalone_cluster(directory: Path, workers: int) -> Iterator[str]:
    """A master and workers of one core and 600 MB each; gives the master's URL.

    What they and their executors say is kept in `directory`: `spark-servers.log` and
    `work-<number>/<application>/<executor>/stderr`.
    """
    port, page_port = free_ports(2)
    environment = {
        **os.environ,
        # Workers look below it for what executors are started with; without it they take the
        # current directory, and no executor ever comes up.
        "SPARK_HOME": str(_HOME),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_DAEMON_MEMORY": "128m",
        "SPARK_DAEMON_JAVA_OPTS": (
            "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dspark.master.rest.enabled=false"
        ),
    }
    log = directory / "spark-servers.log"
    servers: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> None:
        command = [str(_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
        with log.open("ab") as output:
            # A group for each server, so that a worker's executors end with it.
            servers.append(
                subprocess.Popen(
                    [*command, "--host", HOST, *arguments],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    process_group=0,
                )
            )

    def has_workers(count: int) -> bool:
        for server in servers:
            assert server.poll() is None, log.read_text()[-3_000:]
        try:
            with urllib.request.urlopen(f"http://{HOST}:{page_port}/json/", timeout=30) as answer:
                state = json.load(answer)
        except (OSError, HTTPException, json.JSONDecodeError):
            return False  # not there yet; while it starts, another page may stand in its place
        return bool(state["status"] == "ALIVE" and state["aliveworkers"] == count)

    url = f"spark://{HOST}:{port}"
    try:
        start("master.Master", "--port", str(port), "--webui-port", str(page_port))
        wait_until(lambda: has_workers(0), "Spark's master", within_s=_START_S)
        for number in range(workers):
            place = ("--work-dir", str(directory / f"work-{number}"), "--webui-port", "0")
            start("worker.Worker", "--cores", "1", "--memory", "600m", *place, url)
        wait_until(lambda: has_workers(workers), "Spark's workers", within_s=_START_S)
        yield url
    finally:
        for server in reversed(servers):
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
