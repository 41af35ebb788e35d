"""A job of the pipeline as a process of its own, with all that Spark starts for it."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.processes import magnetar_environment

JOB_TIMEOUT_S = 1_800.0
ATTEMPTS_MAX = 5


class Job:
    """One driver. It and its JVM and Python workers are one group, and are killed together."""

    def __init__(self, name: str, arguments: Sequence[str], directory: Path) -> None:
        """`name`: a module of the pipeline."""
        self.log_path = directory / f"{name}.log"
        environment = {
            **magnetar_environment(),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(directory / "spark-local"),
            # Short lives: what the compiler would gain is not worth its time.
            "PYSPARK_SUBMIT_ARGS": "--driver-memory 700m --conf spark.ui.enabled=false "
            "--driver-java-options -XX:TieredStopAtLevel=1 "
            "--conf spark.sql.shuffle.partitions=2 pyspark-shell",
        }
        self._log = self.log_path.open("ab")
        command = [sys.executable, "-m", f"magnetar.sdk.spark.pipeline.{name}"]
        self._process = subprocess.Popen(
            [*command, "--master", "local[2]", *arguments],
            env=environment,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._log.close()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """kill -9 of the driver and of all that it has started."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has ended, and all that it has started
        self._process.wait()

    def wait(self) -> int:
        """Until it has ended; returns its status."""
        return self._process.wait(JOB_TIMEOUT_S)


def run_job(name: str, arguments: Sequence[str], directory: Path) -> None:
    """Run it until it ends well: on a busy machine Spark may have no patience with its workers."""
    for _ in range(ATTEMPTS_MAX):
        with Job(name, arguments, directory) as job:
            if job.wait() == 0:
                return
    text = (directory / f"{name}.log").read_text(errors="replace")
    raise AssertionError(f"{name} failed {ATTEMPTS_MAX} times: {text[-3000:]}")
