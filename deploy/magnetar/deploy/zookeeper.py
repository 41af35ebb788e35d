"""A real ZooKeeper server for development and tests, from the jars that come with pyspark.

One server is one Java process of about 80 MB. It runs alone, or as a member of an ensemble whose
servers list the members in the same order. It is not for production: run your own ensemble there.
"Port open" is not "ready": a client that connects in that gap can stall for a whole session
timeout. A server is ready when the four-letter word `srvr` answers with `Mode:`; a member of an
ensemble, when a majority has elected a leader.
"""

import asyncio
import ctypes
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from magnetar.deploy.errors import (
    AddressUnavailableError,
    DataDirectoryError,
    DeployError,
    MissingProgramError,
    SettingsError,
)
from magnetar.deploy.options import host_in_url

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
    # An upper bound: the heap takes what the nodes need, some 1 KB each.
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dzookeeper.jmx.log4j.disable=true",
)
_SINGLE_MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"
_ENSEMBLE_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_READY_TIMEOUT_S = 60.0
"""Time until a server serves: an operator may start an ensemble's servers one by one, and a busy
machine starts each slowly."""
_POLL_INTERVAL_S = 0.05
_PORT_ATTEMPTS = 3
"""Attempts to start on a free port, if any port will do."""
_STOP_TIMEOUT_S = 10.0
_ANSWER_BYTES_MAX = 64 << 10


def find_programs() -> tuple[str, list[Path]]:
    """Return the Java launcher and ZooKeeper's jars.

    Raises:
        MissingProgramError: one or both are missing; the message says how to install each.
    """
    java = ""
    jars: list[Path] = []
    missing: list[str] = []
    try:
        java = find_java()
    except MissingProgramError as error:
        missing.append(str(error))
    try:
        jars = find_jars()
    except MissingProgramError as error:
        missing.append(str(error))
    if missing:
        raise MissingProgramError("; ".join(missing))
    return java, jars


def find_java() -> str:
    """Return the Java launcher: of JAVA_HOME first, then of the PATH.

    Raises:
        MissingProgramError: there is no Java.
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
    """Return the paths of ZooKeeper's jars in pyspark's folder.

    Raises:
        MissingProgramError: pyspark is not installed, or a jar is missing.
    """
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise MissingProgramError(
            "ZooKeeper's jars come with PySpark (some 400 MB), which is not installed. In a "
            "checkout, `make cluster` installs it and starts a cluster; elsewhere: pip install "
            "'pyspark>=4.1,<5' in this environment. Or use an ensemble that runs: `magnetar "
            "cluster --zookeeper zk://HOST:PORT/PATH`, and --metadata of other servers"
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


@dataclass(frozen=True, slots=True)
class EnsembleMember:
    """One server of an ensemble, as all servers list it."""

    host: str
    quorum_port: int
    """Port that followers connect to while this server leads."""
    election_port: int
    client_port: int

    def __str__(self) -> str:
        host = host_in_url(self.host)
        return f"{host}:{self.quorum_port}:{self.election_port}:{self.client_port}"


def parse_members(text: str) -> tuple[EnsembleMember, ...]:
    """Parse `host:2888:3888:2181,...`: the ports of the quorum, of elections, and for clients.

    Raises:
        SettingsError
    """
    members = []
    for each in text.split(","):
        host, *ports = each.strip().rsplit(":", 3)
        host = host.removeprefix("[").removesuffix("]")
        if not host or len(ports) != 3 or not all(_is_port(port) for port in ports):
            raise SettingsError(
                f"bad --servers entry {each!r}: give host:QUORUM_PORT:ELECTION_PORT:CLIENT_PORT "
                f"for every server of the ensemble, for example 127.0.0.1:2888:3888:2181"
            )
        members.append(EnsembleMember(host, *map(int, ports)))
    return tuple(members)


def _is_port(text: str) -> bool:
    return text.isdecimal() and 0 < int(text) < 65_536


class _EndedError(DeployError):
    """Java ended before the server served."""


class ZooKeeperServer:
    """One ZooKeeper server process."""

    def __init__(
        self,
        *,
        data: Path,
        host: str,
        port: int,
        server_id: int = 1,
        members: Sequence[EnsembleMember] = (),
    ) -> None:
        """Make a server; `start` starts it.

        With `members`, this server is the one with number `server_id`, counted from 1. Its entry
        then replaces `host` and `port`.

        Raises:
            SettingsError: no member has this number.
        """
        if members and not 1 <= server_id <= len(members):
            raise SettingsError(
                f"--server-id {server_id} is not among the {len(members)} servers of --servers"
            )
        self._data = data
        self._server_id = server_id
        self._members = tuple(members)
        self._host = members[server_id - 1].host if members else host
        self._port = members[server_id - 1].client_port if members else port
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the server and wait until it serves.

        Raises:
            MissingProgramError, AddressUnavailableError, DataDirectoryError
            DeployError: the server ended at once, or does not serve in time.
        """
        wanted = self._port
        for attempts_left in reversed(range(_PORT_ATTEMPTS)):
            self._port = _claim_port(self._host, wanted)
            try:
                await self._start()
            except _EndedError:
                # Another program may have taken the port before Java does.
                if wanted or not attempts_left:
                    raise
            else:
                return

    async def _start(self) -> None:
        java, jars = find_programs()
        configuration = self._write_configuration()
        self._process = await asyncio.create_subprocess_exec(
            java,
            *_JVM_FLAGS,
            "-cp",
            os.pathsep.join(map(str, jars)),
            _ENSEMBLE_MAIN if self._members else _SINGLE_MAIN,
            str(configuration),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            preexec_fn=die_with_parent,
            # Ctrl-C goes to a whole process group: only this process must get it.
            start_new_session=True,
        )
        try:
            await self._wait_ready(self._process)
        except BaseException:
            await self.stop()
            raise

    def addresses(self) -> list[str]:
        return [f"zk://{host_in_url(self._host)}:{self._port}/"]

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

    async def wait_exit(self) -> int:
        """Wait for the end of the Java process. Return its exit status, negative for a signal."""
        assert self._process is not None, "start() comes first"
        return await self._process.wait()

    def _write_configuration(self) -> Path:
        settings: dict[str, object] = {
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
        if self._members:
            # In ticks: long enough for a start on a busy machine, short enough that a follower
            # which lost its leader looks for another one within seconds.
            settings |= {"initLimit": 20, "syncLimit": 6}
        for number, member in enumerate(self._members, start=1):
            settings[f"server.{number}"] = (
                f"{host_in_url(member.host)}:{member.quorum_port}:{member.election_port}"
            )
        path = self._data / "zoo.cfg"
        try:
            self._data.mkdir(parents=True, exist_ok=True)
            if self._members:
                (self._data / "myid").write_text(f"{self._server_id}\n")
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
                raise _EndedError(
                    f"ZooKeeper ended at once with status {process.returncode}; does another "
                    f"ZooKeeper use {self._data}, or another program port {self._port}?"
                )
            if "Mode:" in await four_letter_word(self._host, self._port, "srvr"):
                return
            await asyncio.sleep(_POLL_INTERVAL_S)
        others = "; are the other servers of the ensemble up?" if self._members else ""
        raise DeployError(f"ZooKeeper did not serve within {_READY_TIMEOUT_S:.0f} s{others}")


async def four_letter_word(host: str, port: int, word: str) -> str:
    """Send a ZooKeeper server a four-letter word. Return the answer, or '' if there is none."""
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


def die_with_parent() -> None:
    """End this child process when its parent ends, so that kill -9 of the parent leaves no server
    behind."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _claim_port(host: str, port: int) -> int:
    """Return a free port (0: choose one), before a Java process fails with a worse message."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            chosen: int = probe.getsockname()[1]
            return chosen
    except OSError as error:
        raise AddressUnavailableError(
            f"cannot listen on {host_in_url(host)}:{port}: {error.strerror}; stop what uses it, or "
            f"choose another --port"
        ) from error
