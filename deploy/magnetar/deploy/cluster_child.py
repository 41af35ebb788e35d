"""One server of a cluster on this host, as a child process.

The child writes its log straight to a file, so a slow or stopped parent does not block it. It ends
with the process that started it, even if that one is killed, so nothing is left behind. It is not
in its terminal's process group: Ctrl-C reaches only the cluster, which stops the servers in order.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from magnetar.deploy.cluster_plan import ServerPlan, environment_of
from magnetar.deploy.errors import DeployError
from magnetar.deploy.zookeeper import die_with_parent

_LINE_BYTES_MAX = 64 << 10
_TAIL_BYTES = 16 << 10


class ServerEndedError(DeployError):
    """A server of the cluster ended during its start. Carries the server's exit status."""

    def __init__(self, message: str, exit_status: int) -> None:
        super().__init__(message)
        self.exit_status = exit_status


class Child:
    """One server. It may be started again after it has ended."""

    def __init__(
        self, plan: ServerPlan, *, log_path: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.plan = plan
        self.log_path = log_path
        self._environment = dict(os.environ if environment is None else environment)
        self._process: asyncio.subprocess.Process | None = None
        self._drain: asyncio.Task[None] | None = None
        self.starts = 0
        self.addresses: list[str] = []
        """Addresses in its last `ready` line."""

    @property
    def pid(self) -> int:
        """Process id of its last start; 0 before the first."""
        return self._process.pid if self._process is not None else 0

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self, timeout_s: float) -> None:
        """Start the server and wait until it is ready.

        Raises:
            ServerEndedError: the server ended instead.
            DeployError: the server was not ready in time, and was killed; or its former process
                still runs, for example because the disk holds up its end.
        """
        if self.is_running:
            raise DeployError(
                f"{self.plan.name} (pid {self.pid}) has not ended yet, and is started only then"
            )
        log_offset = self.log_path.stat().st_size if self.log_path.exists() else 0
        with self.log_path.open("ab") as log:
            process = self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "magnetar.deploy.cli", *self.plan.arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=_LINE_BYTES_MAX,
                env={**self._environment, **environment_of(self.plan)},
                preexec_fn=die_with_parent,
                start_new_session=True,
            )
        self.starts += 1
        try:
            async with asyncio.timeout(timeout_s):
                self.addresses = await self._wait_ready(process, log_offset)
        except TimeoutError as error:
            self.kill()
            raise DeployError(
                f"{self.plan.name} was not ready within {timeout_s:.0f} s; see {self.log_path}"
            ) from error
        except BaseException:
            self.kill()
            raise
        self._drain = asyncio.get_running_loop().create_task(
            _read_to_end(process), name=f"output-{self.plan.name}"
        )

    async def wait_exit(self) -> int:
        """Wait for the server's end. Return its exit status, negative for a signal."""
        assert self._process is not None, "start() comes first"
        return await self._process.wait()

    async def stop(self, timeout_s: float) -> int | None:
        """Send SIGTERM and wait for the end. Return the exit status, or None if it had to be
        killed."""
        if self._process is None:
            return 0
        process, was_killed = self._process, False
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            # A paused server would never get the signal.
            process.send_signal(signal.SIGCONT)
        try:
            async with asyncio.timeout(timeout_s):
                await process.wait()
        except TimeoutError:
            was_killed = True
            self.kill()
            await process.wait()
        if self._drain is not None:
            await self._drain
        return None if was_killed else process.returncode

    def kill(self) -> None:
        """Send kill -9 if the server runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _wait_ready(self, process: asyncio.subprocess.Process, log_offset: int) -> list[str]:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            word, *addresses = line.decode(errors="replace").split()
            if word == "ready":
                return addresses
        status = await process.wait()
        reason = last_words(self.log_path, log_offset)
        raise ServerEndedError(
            f"{self.plan.name} ended at its start with {describe_status(status)}"
            + (f": {reason}" if reason else f"; see {self.log_path}"),
            status if status > 0 else 1,
        )


def describe_status(status: int) -> str:
    """Describe an exit status; negative ones are signals."""
    if status >= 0:
        return f"status {status}"
    try:
        return f"signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"signal {-status}"


def last_words(log_path: Path, offset: int = 0) -> str:
    """Return the line in which a `magnetar` command says why it ended, or "" if the log has
    none."""
    try:
        with log_path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            # After a rotation the log begins anew.
            log.seek(max(offset if offset <= size else 0, size - _TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    said = [line for line in lines if line.startswith(_PREFIX)]
    return said[-1].removeprefix(_PREFIX) if said else ""


_PREFIX = "magnetar: "


async def _read_to_end(process: asyncio.subprocess.Process) -> None:
    """Read and discard stdout. A full pipe would block a server that prints more than `ready`."""
    assert process.stdout is not None
    while await process.stdout.read(_LINE_BYTES_MAX):
        pass
