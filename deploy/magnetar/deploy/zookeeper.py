"""A real ZooKeeper server for development and tests, from the jars that pyspark brings.

One server, one Java process, about 80 MB. It is no part of a production setup: there, run your own
ensemble. "Port open" is not "ready": a client that connects in that gap can stall for a whole
session timeout, so readiness is the four-letter word `srvr` answering with `Mode:`.
"""

import asyncio
import ctypes
import os
import shutil
import signal
import socket
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from magnetar.deploy.errors import (
    AddressUnavailableError,
    DataDirectoryError,
    DeployError,
    MissingProgramError,
)

_JARS = (
    "zookeeper",
    "zookeeper-jute",
    "slf4j-api",
    "metrics-core",
    # Without snappy-java the process stays up, with its port open, and never serves.
    "snappy-java",
    "netty-buffer",
    "netty-common",
)
_JVM_FLAGS = (
    "-Xmx64m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dzookeeper.jmx.log4j.disable=true",
)
_READY_TIMEOUT_S = 20.0
_POLL_INTERVAL_S = 0.05
_STOP_TIMEOUT_S = 10.0
_ANSWER_BYTES_MAX = 64 << 10


def find_java() -> str:
    """The Java launcher: JAVA_HOME first, then the PATH.

    Raises:
        MissingProgramError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    if home and (launcher := shutil.which(str(Path(home) / "bin" / "java"))):
        return launcher
    if launcher := shutil.which("java"):
        return launcher
    raise MissingProgramError(
        "ZooKeeper needs a Java runtime, 17 or newer: apt-get install openjdk-17-jre-headless, "
        "or set JAVA_HOME"
    )


def find_jars() -> list[Path]:
    """ZooKeeper's jars in pyspark's folder.

    Raises:
        MissingProgramError: pyspark is not installed, or a jar is not there.
    """
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise MissingProgramError(
            "ZooKeeper's jars come with pyspark: pip install 'magnetar[spark]'"
        )
    folder = Path(spec.origin).parent / "jars"
    found = []
    for name in _JARS:
        matches = sorted(folder.glob(f"{name}-[0-9]*.jar"))
        if not matches:
            raise MissingProgramError(
                f"{folder} has no {name} jar: install pyspark 4.1 or newer from PyPI"
            )
        found.append(matches[-1])
    return found


class ZooKeeperServer:
    """One ZooKeeper server process."""

    def __init__(self, *, data: Path, host: str, port: int) -> None:
        self._data = data
        self._host = host
        self._port = port
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the server and wait until it serves."""
        java, jars = find_java(), find_jars()
        self._port = _claim_port(self._host, self._port)
        configuration = self._write_configuration()
        self._process = await asyncio.create_subprocess_exec(
            java,
            *_JVM_FLAGS,
            "-cp",
            os.pathsep.join(map(str, jars)),
            "org.apache.zookeeper.server.ZooKeeperServerMain",
            str(configuration),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            preexec_fn=_die_with_parent,
        )
        try:
            await self._wait_ready(self._process)
        except BaseException:
            await self.stop()
            raise

    def addresses(self) -> list[str]:
        return [f"zk://{self._host}:{self._port}/"]

    async def stop(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def wait_exit(self) -> None:
        """Wait for the end of the Java process."""
        assert self._process is not None, "start() comes first"
        await self._process.wait()

    def _write_configuration(self) -> Path:
        settings = {
            "dataDir": self._data,
            "clientPort": self._port,
            "clientPortAddress": self._host,
            "tickTime": 500,
            "minSessionTimeout": 1000,
            "maxSessionTimeout": 60_000,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
        }
        path = self._data / "zoo.cfg"
        try:
            self._data.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        except OSError as error:
            raise DataDirectoryError(
                f"cannot write into {self._data}: {error.strerror}; choose another --data"
            ) from error
        return path

    async def _wait_ready(self, process: asyncio.subprocess.Process) -> None:
        deadline_s = time.monotonic() + _READY_TIMEOUT_S
        while time.monotonic() < deadline_s:
            if process.returncode is not None:
                raise DeployError(
                    f"ZooKeeper ended at once with status {process.returncode}; "
                    f"is {self._data} used by another one?"
                )
            if "Mode:" in await four_letter_word(self._host, self._port, "srvr"):
                return
            await asyncio.sleep(_POLL_INTERVAL_S)
        raise DeployError(f"ZooKeeper did not serve within {_READY_TIMEOUT_S:.0f} s")


async def four_letter_word(host: str, port: int, word: str) -> str:
    """Ask a ZooKeeper server one of its one-word questions; '' when nobody answers."""
    try:
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(word.encode())
                return (await reader.read(_ANSWER_BYTES_MAX)).decode(errors="replace")
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return ""


_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """In the child: end when this process does, so that kill -9 of it leaves no server behind."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _claim_port(host: str, port: int) -> int:
    """Find out whether the port is free (0: choose one), before a Java process says it badly."""
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            chosen: int = probe.getsockname()[1]
            return chosen
    except OSError as error:
        raise AddressUnavailableError(
            f"cannot listen on {host}:{port}: {error.strerror}; stop what uses it, or choose "
            f"another --port"
        ) from error
