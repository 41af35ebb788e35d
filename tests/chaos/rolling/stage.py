"""The cluster of the drill: each server runs the older code or the present one."""

import threading
import time
from pathlib import Path

from magnetar.deploy.cluster_plan import TIERS
from tests.chaos.cluster.clients import READY_TIMEOUT_S, Clients
from tests.chaos.cluster.stage import ProcessEndedError
from tests.http_calls import call
from tests.integration.deploy.commands import run_command
from tests.processes import magnetar_command
from tests.real_cluster import RealCluster
from tests.waiting import wait_until

SESSION_S = 5.0
ACK_PERSIST_S = 0.5
QUORUM = "2,2,2"
"""Of three bookies: the third takes over from one that restarts."""
JOINS_LATER = "bookie-4"
"""The bookie that begins with the present code: its directories have nothing of the older one."""
_TOPICS = [f"persistent://public/default/drill-{number}" for number in (1, 2, 3)]
_ENVIRONMENT = {
    "MAGNETAR_METADATA_SESSION_TIMEOUT_MS": str(int(SESSION_S * 1000)),
    "MAGNETAR_BROKER_ACK_PERSIST_INTERVAL_MS": str(int(ACK_PERSIST_S * 1000)),
    # Ledgers begin and end all the time, under every mixture of codes.
    "MAGNETAR_BROKER_LEDGER_ENTRIES_MAX": "500",
    "MAGNETAR_BROKER_LEDGER_AGE_MIN_S": "0",
    # In the end everything that was confirmed is looked for.
    "MAGNETAR_BROKER_RETENTION_MINUTES": "-1",
    "MAGNETAR_BROKER_RETENTION_MIB": "-1",
    "MAGNETAR_BOOKIE_FLUSH_INTERVAL_S": "1",
    "MAGNETAR_BOOKIE_JOURNAL_FILE_BYTES_MAX": str(4 << 20),
}


class Stage:
    """A cluster whose servers all run the older code at first. A context manager."""

    def __init__(self, directory: Path, *, older_prefix: list[str]) -> None:
        """
        Args:
            older_prefix: runs a command of `magnetar` by the older code (older.py).
        """
        self._older_prefix = older_prefix
        names = [f"bookie-{number}" for number in (1, 2, 3, 4)]
        names += ["broker-1", "broker-2", "autorecovery-1"]
        self._prefixes = {name: list(older_prefix) for name in names}
        self.cluster = RealCluster(
            directory / "cluster",
            bookies=4,
            brokers=2,
            autorecovery=1,
            quorum=QUORUM,
            environment=_ENVIRONMENT,
            # The lists are shared: what a server runs by is changed in them.
            prefixes=self._prefixes,
        )
        self.clients = Clients(
            directory,
            topics=_TOPICS,
            url=self.cluster.service_url,
            arguments=["--keys", "--exclusive", "--interval-ms", "30"],
        )
        self._is_away = {JOINS_LATER}

    def __enter__(self) -> "Stage":
        try:
            (self.cluster.directory / "logs").mkdir(parents=True)
            for kind in TIERS:
                servers = [each.name for each in self.cluster.plan.of_kind(kind)]
                names = [name for name in servers if name != JOINS_LATER]
                for name in names:
                    self.cluster.launch(name)
                for name in names:
                    self.cluster.wait_ready(name, READY_TIMEOUT_S)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """kill -9 of all that run."""
        self.clients.kill()
        self.cluster.kill_all()

    def http_url(self, name: str) -> str:
        """Return the HTTP address of a server."""
        return self.cluster.http_url(name)

    def log_paths(self) -> list[Path]:
        """Return where the output of servers is, of both codes."""
        return sorted((self.cluster.directory / "logs").glob("*.log"))

    def magnetar(self, *arguments: str) -> str:
        """Run a command of the present code on the cluster; return what it prints.

        Raises:
            ProcessEndedError: it did not succeed.
        """
        environment = {"MAGNETAR_ADMIN_METADATA": self.cluster.metadata_url}
        ended = run_command(magnetar_command(*arguments), environment=environment)
        if ended.status:
            raise ProcessEndedError(
                f"magnetar {' '.join(arguments)} ended with status {ended.status}: {ended.stderr}"
            )
        return ended.stdout

    # Doing

    def stop(self, name: str) -> None:
        """SIGTERM; the end must be an orderly one.

        Raises:
            ProcessEndedError
        """
        self._is_away.add(name)
        status = self.cluster.terminate(name)
        if status != 0:
            raise ProcessEndedError(f"{name} was asked to end, and did with status {status}")

    def start(self, name: str, *, older: bool = False) -> None:
        """Start a server, with the present code or the older one, and wait until it serves.

        Raises:
            ServerFailedError: it did not get ready.
        """
        put_log_away(self.cluster.log_path(name), is_older=bool(self._prefixes[name]))
        self._prefixes[name][:] = self._older_prefix if older else []
        self.cluster.start(name, READY_TIMEOUT_S)
        self._is_away.discard(name)
        if name.startswith("bookie"):
            wait_until(lambda: self._is_writable(name), f"{name} to be writable")

    def replace(self, name: str, *, older: bool = False) -> None:
        """Stop a server and start it with the other code, as an operator does."""
        self.stop(name)
        self.start(name, older=older)

    def _is_writable(self, name: str) -> bool:
        answer = call(self.http_url(name), "GET", "/health")
        return answer.is_ok and answer.json["registered_as"] == "writable"

    def pass_time(self, seconds: float) -> None:
        """The drill takes place in real time.

        Raises:
            ProcessEndedError
        """
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            threading.Event().wait(min(left_s, 0.5))
            self.check_nobody_ended()

    def check_nobody_ended(self) -> None:
        """
        Raises:
            ProcessEndedError: a process that should run does not.
        """
        servers = {
            name: self.cluster.process(name) for name in self._prefixes if name not in self._is_away
        }
        for name, process in {**servers, **self.clients.running}.items():
            if process.returncode is not None:
                raise ProcessEndedError(
                    f"{name} ended by itself with status {process.returncode}; its log ends\n"
                    + process.log_path.read_text()[-3000:]
                )


_OF_OLDER = ".older.log"


def put_log_away(path: Path, *, is_older: bool) -> None:
    """Keep the log of a server that has ended, and say in its name whose code wrote it."""
    if path.exists():
        number = len(list(path.parent.glob(f"{path.stem}.*.log")))
        ending = _OF_OLDER if is_older else ".present.log"
        path.rename(path.with_name(f"{path.stem}.{number}{ending}"))


def is_of_older(path: Path) -> bool:
    """Tell whether a log was put away, and is of the older code."""
    return path.name.endswith(_OF_OLDER)
