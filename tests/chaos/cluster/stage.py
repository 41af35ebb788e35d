"""The cluster of the drill, its clients, and what a fault needs to know and to do."""

import asyncio
import shutil
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.chaos.cluster.clients import POLL_S, READY_TIMEOUT_S, Clients
from tests.chaos.cluster.field import CLIENTS, Field
from tests.chaos.cluster.lookups import NoOwnerError, owner_of
from tests.chaos.cluster.records import Recorder
from tests.real_cluster import RealCluster
from tests.small_disk import SmallDisk

SESSION_S = 3.0
ACK_PERSIST_S = 0.5
QUORUM = "3,3,2"
FULL_DISK = "bookie-1"
"""The bookie whose disk is small, so that it can be filled."""
_SMALL_DISK_BYTES = 512 << 20
_LOOKUP_TIMEOUT_S = 30.0
_ENVIRONMENT = {
    "MAGNETAR_METADATA_SESSION_TIMEOUT_MS": str(int(SESSION_S * 1000)),
    "MAGNETAR_BROKER_ACK_PERSIST_INTERVAL_MS": str(int(ACK_PERSIST_S * 1000)),
    "MAGNETAR_BROKER_LEDGER_ENTRIES_MAX": "2000",
    "MAGNETAR_BROKER_LEDGER_AGE_MIN_S": "0",
    # In the end everything that was confirmed is looked for.
    "MAGNETAR_BROKER_RETENTION_MINUTES": "-1",
    "MAGNETAR_BROKER_RETENTION_MIB": "-1",
    "MAGNETAR_LEDGER_REQUEST_TIMEOUT_S": "2",
    "MAGNETAR_LEDGER_CONNECT_TIMEOUT_S": "2",
    "MAGNETAR_BOOKIE_FLUSH_INTERVAL_S": "1",
    "MAGNETAR_BOOKIE_JOURNAL_FILE_BYTES_MAX": str(4 << 20),
    "MAGNETAR_BOOKIE_DISK_CHECK_INTERVAL_S": "0.5",
    "MAGNETAR_AUDITOR_GATHER_S": "0.3",
    "MAGNETAR_AUDITOR_SETTLE_S": "2",
    "MAGNETAR_AUDITOR_MASS_LOSS_WAIT_S": "5",
    "MAGNETAR_AUDITOR_MASS_LOSS_ITEMS_PER_S_MAX": "1000",
    "MAGNETAR_AUDITOR_AUDIT_AGAIN_S": "3",
    "MAGNETAR_AUDITOR_RETRY_DELAY_S": "1",
    "MAGNETAR_AUDITOR_FIRST_CHECK_DELAY_S": "2",
    "MAGNETAR_AUDITOR_REPLICAS_CHECK_INTERVAL_S": "5",
    "MAGNETAR_WORKER_OPEN_LEDGER_GRACE_S": "2",
    "MAGNETAR_WORKER_RETRY_DELAY_S": "0.5",
    "MAGNETAR_WORKER_RETRY_DELAY_S_MAX": "5",
}
"""Short sessions and small files: much happens in little time."""


class ProcessEndedError(Exception):
    """A process ended that nobody had ended."""


class Stage:
    """A context manager: nobody is left running."""

    def __init__(
        self,
        directory: Path,
        field: Field,
        *,
        zookeepers: int,
        brokers: int,
        bookies: int,
        topics: int,
        autorecovery: int = 1,
    ) -> None:
        self.directory = directory
        self.field = field
        self.topics = [f"persistent://public/default/drill-{at}" for at in range(1, topics + 1)]
        self.is_away: set[str] = set()
        """Servers that a fault has ended, and not started again yet."""
        self.lost: list[str] = []
        """Ids of bookies that are lost for good."""
        self._opened = ExitStack()
        names = [
            f"{kind}-{number}"
            for kind, count in (
                ("zookeeper", zookeepers),
                ("bookie", bookies),
                ("broker", brokers),
                ("autorecovery", autorecovery),
            )
            for number in range(1, count + 1)
        ]
        self._places = {name: field.place(name) for name in names}
        self._arguments: dict[str, list[str]] = {name: [] for name in names}
        self.small_disk = SmallDisk(directory / "cluster" / FULL_DISK, size_bytes=_SMALL_DISK_BYTES)
        self._opened.enter_context(self.small_disk)
        prefixes = {name: list(place.command_prefix) for name, place in self._places.items()}
        prefixes[FULL_DISK] += self.small_disk.command_prefix
        self.cluster = RealCluster(
            directory / "cluster",
            bookies=bookies,
            brokers=brokers,
            zookeepers=zookeepers,
            autorecovery=autorecovery,
            quorum=QUORUM,
            environment=_ENVIRONMENT,
            arguments=self._arguments,
            prefixes=prefixes,
            hosts={name: place.listen_host for name, place in self._places.items()},
        )
        self.metadata_url = self._url("zk://", self.zookeepers) + "/magnetar"
        for name, place in self._places.items():
            if not name.startswith("zookeeper"):
                # The last of an option counts. Others are told the address that they shall use.
                self._arguments[name] += ["--metadata", self.metadata_url]
                self._arguments[name] += ["--advertised-host", place.host]
            if name in self.brokers or name in self.bookies:
                # A network of its own, which nobody else reaches.
                self._arguments[name] += ["--insecure"]
        self.clients = Clients(
            directory,
            topics=self.topics,
            url=self._url("pulsar://", self.brokers),
            prefix=field.place(CLIENTS).command_prefix,
        )
        self.histories = self.clients.histories
        self.watch = self.clients.watch
        self.recorder = Recorder(self.histories, "drill")

    def __enter__(self) -> "Stage":
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.clients.kill()
        self.cluster.kill_all()
        self._opened.close()

    # Who there is

    def names(self, kind: str) -> list[str]:
        return [name for name in self._places if name.startswith(f"{kind}-")]

    @property
    def zookeepers(self) -> list[str]:
        return self.names("zookeeper")

    @property
    def brokers(self) -> list[str]:
        return self.names("broker")

    @property
    def bookies(self) -> list[str]:
        return self.names("bookie")

    def bookie_ids(self) -> dict[str, str]:
        """By name, the id of its present life."""
        return {
            name: self._arguments[name][-1] if "--id" in self._arguments[name] else name
            for name in self.bookies
        }

    def address(self, name: str) -> tuple[str, int]:
        """Where others reach a server."""
        return self._places[name].host, self.cluster.server(name).ports["native"]

    def owner_of(self, topic: str) -> str:
        """The broker that owns the topic; asking makes one own it.

        Raises:
            NoOwnerError: nobody could say, for a long time.
        """
        return self.field.run(lambda: asyncio.run(self.find_owner(topic)))

    async def find_owner(self, topic: str, *, former: str = "") -> str:
        """Find the owner of a topic; for callers that are in the clients' place already.

        Args:
            former: a broker that is not asked, and must not be the owner any more.
        """
        names = {self.address(name): name for name in self.brokers}
        asked = {
            address: name
            for address, name in names.items()
            if name != former and name not in self.is_away
        }
        until_s = time.monotonic() + _LOOKUP_TIMEOUT_S
        while True:
            try:
                owner = names[await owner_of(topic, asked)]
                if owner != former:
                    return owner
                reason = f"{former} is still said to own {topic}"
            except (NoOwnerError, KeyError) as error:
                reason = str(error)
            if time.monotonic() > until_s:
                raise NoOwnerError(reason)
            await asyncio.sleep(POLL_S)

    def zookeeper_leader(self) -> str:
        return self.field.run(self.cluster.zookeeper_leader)

    # Doing

    def kill(self, *names: str) -> None:
        """kill -9 of all of them."""
        for name in names:
            self.is_away.add(name)
            self.cluster.kill(name)

    def start(self, *names: str) -> None:
        for name in names:
            self._launch(name)
        for name in names:
            self.cluster.wait_ready(name, READY_TIMEOUT_S)
            self.is_away.discard(name)

    def restart(self, name: str) -> None:
        """SIGTERM, an orderly end, and a start."""
        self.is_away.add(name)
        status = self.cluster.terminate(name)
        if status != 0:
            raise ProcessEndedError(f"{name} was asked to end, and did with status {status}")
        self.start(name)

    def lose_bookie(self, name: str) -> None:
        """kill -9, and its disk is gone. Its next life is another bookie."""
        self.kill(name)
        self.lost.append(self.bookie_ids()[name])
        shutil.rmtree(self.cluster.directory / name)
        arguments = self._arguments[name]
        arguments += ["--id", f"{name}-life-{arguments.count('--id') + 2}"]

    def cut(self, one: str, others: Sequence[str]) -> None:
        for other in others:
            self.field.cut(one, other)

    def mend(self, one: str, others: Sequence[str]) -> None:
        for other in others:
            self.field.mend(one, other)

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
        running = {
            **{
                name: self.cluster.process(name)
                for name in self._places
                if name not in self.is_away
            },
            **self.clients.running,
        }
        for name, process in running.items():
            if process.returncode is not None:
                raise ProcessEndedError(
                    f"{name} ended by itself with status {process.returncode}; its log ends\n"
                    + process.log_path.read_text()[-3000:]
                )

    def wait_all_go_on(self, timeout_s: float) -> float:
        """Wait until every producer, reader and subscription gets further; returns when that was.

        Raises:
            NotRecoveredError
        """
        return self.clients.wait_all_go_on(timeout_s, self.pass_time)

    # Beginning and end

    def _start(self) -> None:
        for kind in ("zookeeper", "bookie", "broker", "autorecovery"):
            names = self.names(kind)
            for name in names:
                ports = self.cluster.server(name).ports.values()
                self.field.serve(name, ports)
            (self.cluster.directory / "logs").mkdir(parents=True, exist_ok=True)
            self.start(*names)
        self.clients.start()
        self.wait_all_go_on(READY_TIMEOUT_S)

    def end(self) -> list[str]:
        """Let the clients come to their end, and look what there is; returns what went wrong."""
        problems = self.clients.end()
        self.recorder.end()
        return problems

    def log_paths(self) -> list[Path]:
        return [
            *(self.cluster.log_path(name) for name in self._places),
            *self.clients.log_paths(),
        ]

    def _launch(self, name: str) -> None:
        self.cluster.launch(name)
        self.field.joined(name, self.cluster.process(name).pid)

    def _url(self, scheme: str, names: Sequence[str]) -> str:
        return scheme + ",".join(f"{host}:{port}" for host, port in map(self.address, names))
