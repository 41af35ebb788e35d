"""A whole cluster as processes on this host: ordered start, supervision, ordered stop.

The start needs only the servers that the cluster cannot do without: a majority of ZooKeeper, the
bookies of one ensemble, one broker. Other servers that fail at the start are reported and retried,
like a server that ends later.

A server that ends by itself is reported with its name and status. One that failed or was killed by
a signal, as by kill -9, is restarted on its old data and ports (`Restart.ON_FAILURE`, the default).
The delay before a restart doubles with each failure. A server that ended with status 0 was stopped
on purpose, and stays down. In both cases the rest of the cluster keeps serving.
"""

import asyncio
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from magnetar.deploy.cluster_child import Child, describe_status, last_words
from magnetar.deploy.cluster_files import ClusterFiles, ClusterRecord, Layout, RunningServer
from magnetar.deploy.cluster_logs import rotate
from magnetar.deploy.cluster_plan import (
    TIERS,
    ClusterPlan,
    ClusterShape,
    Kind,
    Restart,
    plan_cluster,
)
from magnetar.deploy.cluster_ports import PortClaims, choose_ports
from magnetar.deploy.config import Table
from magnetar.deploy.errors import DataDirectoryError, DeployError, SettingsError
from magnetar.deploy.explain import explained
from magnetar.deploy.options import Quorum, default_quorum
from magnetar.deploy.shared_secret import secret_variables
from magnetar.deploy.zookeeper import find_programs
from magnetar.ledger.backoff import backoff
from magnetar.ledger.metadata.url import parse_zookeeper_url

_log = structlog.get_logger(__name__)

_READY_TIMEOUT_S = 90.0
_STOP_TIMEOUT_S = 60.0
"""Time for one server to drain; longer than any server allows itself."""
_RESTART_DELAY_S = 1.0
_RESTART_DELAY_S_MAX = 30.0
_STABLE_S = 60.0
"""Uptime after which the restart delay begins at its minimum again."""
_LOG_LOOK_S = 5.0
"""Interval between checks of the log sizes."""

_DEFAULT = ClusterShape(zookeepers=1, bookies=3, brokers=2, autorecovery=1)


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Options of `magnetar cluster`; None: the value of the last start, or the default."""

    data: Path
    bookies: int | None = None
    brokers: int | None = None
    zookeepers: int | None = None
    autorecovery: int | None = None
    zookeeper_url: str = ""
    quorum: Quorum | None = None
    host: str = "127.0.0.1"
    first_ports: Mapping[tuple[Kind, str], int] = field(default_factory=dict)
    restart: Restart = Restart.ON_FAILURE
    log_file_bytes_max: int = 32 << 20
    """Size above which a server's log is rotated; 0: never."""
    log_files_max: int = 4
    """Number of rotated logs kept per server."""
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    """Environment of all servers."""
    tables: Mapping[str, Table] = field(default_factory=dict)
    """Tables of the settings file that the servers read."""


class Cluster:
    """All servers of one data directory."""

    def __init__(self, settings: ClusterSettings) -> None:
        """Check the options that exclude each other.

        Raises:
            SettingsError
        """
        if settings.zookeeper_url:
            with explained(metadata_url=settings.zookeeper_url):
                parse_zookeeper_url(_checked_scheme(settings.zookeeper_url))
            if settings.zookeepers:
                raise SettingsError(
                    "give --zookeeper URL to use an existing ensemble, or --zookeepers to run "
                    "one; not both"
                )
        self._settings = settings
        self._files = ClusterFiles(settings.data.resolve())
        self._ports = PortClaims()
        self._plan: ClusterPlan | None = None
        self._children: list[Child] = []
        self._watches: list[asyncio.Task[None]] = []
        self._needed: dict[Kind, int] = {}
        self._left_out: set[Child] = set()
        """Servers that failed to start, and that the cluster can do without."""
        self._is_stopping = False

    @property
    def plan(self) -> ClusterPlan:
        assert self._plan is not None, "start() comes first"
        return self._plan

    async def start(self) -> None:
        """Start all servers, and write which ones run to cluster.json.

        Raises:
            DeployError: in one line that names the server; nothing is left running.
        """
        self._files.lock()
        try:
            if self._files.discard_stale():
                _log.warning("stale_cluster_record_removed", path=str(self._files.cluster_path))
        except BaseException:
            # Not `stop`, which removes the record: the next start must find it, too.
            self._files.unlock()
            raise
        try:
            self._plan = self._make_plan()
            if self._plan.of_kind(Kind.ZOOKEEPER):
                find_programs()  # here, not in each server: otherwise other servers start in vain
            with explained(data=self._files.directory):
                environment = {
                    **self._settings.environment,
                    **secret_variables(
                        self._settings.environment, self._settings.tables, self._files.directory
                    ),
                }
            self._children = [
                Child(
                    server,
                    log_path=self._files.logs / f"{server.name}.log",
                    environment=environment,
                )
                for server in self._plan.servers
            ]
            for kind in TIERS:
                await self._start_tier(kind)
            self._write_record()
        except BaseException:
            with suppress(DeployError):  # a server that had to be killed is not the cause
                await self.stop()
            raise
        loop = asyncio.get_running_loop()
        for child in self._children:
            name = f"look-after-{child.plan.name}"
            self._watches.append(loop.create_task(self._look_after(child), name=name))
        if self._settings.log_file_bytes_max:
            self._watches.append(loop.create_task(self._rotate_logs(), name="rotate-logs"))

    def addresses(self) -> list[str]:
        """Return the metadata URL, then the URLs that clients connect to."""
        brokers = [child for child in self._children if child.plan.kind is Kind.BROKER]
        return [self.plan.metadata_url, *(url for child in brokers for url in child.addresses)]

    async def stop(self) -> None:
        """Stop all servers, in reverse order of their start.

        Raises:
            DeployError: some did not end in order; they were killed.
        """
        self._is_stopping = True
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        problems: list[str] = []
        for kind in reversed(TIERS):
            tier = [child for child in self._children if child.plan.kind is kind]
            was_running = [child.is_running for child in tier]
            statuses = await asyncio.gather(*(child.stop(_STOP_TIMEOUT_S) for child in tier))
            for child, ran, status in zip(tier, was_running, statuses, strict=True):
                if ran and status != 0:
                    problems.append(
                        f"{child.plan.name} was killed after {_STOP_TIMEOUT_S:.0f} s"
                        if status is None
                        else f"{child.plan.name} ended with {describe_status(status)}"
                    )
        self._ports.close()
        self._files.remove_cluster()
        self._files.unlock()
        if problems:
            raise DeployError(
                f"some servers did not stop in order: {', '.join(problems)}; see {self._files.logs}"
            )

    # Start

    def _make_plan(self) -> ClusterPlan:
        settings, before = self._settings, self._files.read_layout()
        zookeeper_url = settings.zookeeper_url or (before.zookeeper_url if before else "")
        shape = self._shape(before, zookeeper_url)
        quorum = settings.quorum or default_quorum(shape.bookies)
        if quorum.ensemble > shape.bookies:
            raise SettingsError(
                f"--quorum {quorum} needs {quorum.ensemble} bookies, there are {shape.bookies}: "
                f"give --bookies {quorum.ensemble}"
            )
        ports = choose_ports(
            shape,
            host=settings.host,
            kept=before.ports if before else {},
            first=settings.first_ports,
            claims=self._ports,
        )
        self._files.write_layout(
            Layout(
                zookeeper_url=zookeeper_url,
                zookeepers=shape.zookeepers,
                bookies=shape.bookies,
                brokers=shape.brokers,
                autorecovery=shape.autorecovery,
                ports=ports,
            )
        )
        self._needed = needed_servers(shape, quorum)
        return plan_cluster(
            self._files.directory,
            shape,
            quorum=quorum,
            ports=ports,
            hosts={name: settings.host for name, _ in shape.names()},
            zookeeper_url=zookeeper_url,
        )

    def _shape(self, before: Layout | None, zookeeper_url: str) -> ClusterShape:
        """Return how many servers of each kind to run.

        Raises:
            SettingsError: the metadata would be in another place than before.
        """
        settings = self._settings
        last: Layout | ClusterShape = before or _DEFAULT
        zookeepers = settings.zookeepers
        if zookeepers is None:
            zookeepers = 0 if zookeeper_url else last.zookeepers
        if before is not None and (zookeepers, zookeeper_url) != (
            before.zookeepers,
            before.zookeeper_url,
        ):
            was = before.zookeeper_url or f"--zookeepers {before.zookeepers}"
            raise SettingsError(
                f"the cluster in {self._files.directory} was created with {was}, which holds "
                f"its metadata; start it with that, or choose another --data"
            )

        def chosen(given: int | None, otherwise: int) -> int:
            return otherwise if given is None else given

        return ClusterShape(
            zookeepers=zookeepers,
            bookies=chosen(settings.bookies, last.bookies),
            brokers=chosen(settings.brokers, last.brokers),
            autorecovery=chosen(settings.autorecovery, last.autorecovery),
        )

    async def _start_tier(self, kind: Kind) -> None:
        """Start the servers of a kind side by side. Leave out those that fail, if enough others
        run.

        Raises:
            DeployError, OSError: the first failure, if too few servers are left.
        """
        tier = [child for child in self._children if child.plan.kind is kind]
        failed: dict[Child, DeployError | OSError] = {}
        async with AsyncExitStack() as undo:
            starting = {
                asyncio.ensure_future(child.start(_READY_TIMEOUT_S)): child for child in tier
            }

            async def cancel() -> None:
                for each in starting:
                    each.cancel()
                await asyncio.gather(*starting, return_exceptions=True)

            undo.push_async_callback(cancel)
            waiting = set(starting)
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    try:
                        each.result()
                    except (DeployError, OSError) as error:
                        failed[starting[each]] = error
                if len(tier) - len(failed) < self._needed[kind]:
                    raise next(iter(failed.values()))
        for child, reason in failed.items():
            will_retry = self._settings.restart is Restart.ON_FAILURE
            _log.error(
                "server_left_out",
                server=child.plan.name,
                error=str(reason),
                running=len(tier) - len(failed),
                needed=self._needed[kind],
                retry_in_s=_RESTART_DELAY_S if will_retry else None,
            )
        self._left_out.update(failed)

    def _write_record(self) -> None:
        self._files.write_cluster(
            ClusterRecord(
                metadata=self.plan.metadata_url,
                pid=os.getpid(),
                servers=[
                    RunningServer(
                        name=child.plan.name,
                        kind=child.plan.kind,
                        pid=child.pid,
                        running=child.is_running,
                        ports=dict(child.plan.ports),
                        log=str(child.log_path),
                    )
                    for child in self._children
                ],
            )
        )

    # Looking after

    def _tell_who_runs(self) -> None:
        try:
            self._write_record()
        except DataDirectoryError as error:
            # For example a full disk; supervision goes on.
            _log.warning("cluster_record_not_written", error=str(error))

    async def _look_after(self, child: Child) -> None:
        try:
            await self._keep_running(child)
        except Exception:  # noqa: BLE001 - the task's end must not go unnoticed
            _log.exception("server_not_looked_after", server=child.plan.name)

    async def _keep_running(self, child: Child) -> None:
        loop = asyncio.get_running_loop()
        name, failures = child.plan.name, 1
        if child in self._left_out:
            if self._settings.restart is Restart.NEVER:
                return
            failures = await self._restart(child, failures)
        while True:
            started_s = loop.time()
            status = await child.wait_exit()
            if self._is_stopping:
                return
            if loop.time() - started_s >= _STABLE_S:
                failures = 1
            will_restart = status != 0 and self._settings.restart is Restart.ON_FAILURE
            _log.error(
                "server_ended",
                server=name,
                status=describe_status(status),
                said=last_words(child.log_path) if status > 0 else "",
                restart_in_s=_restart_delay_s(failures) if will_restart else None,
            )
            self._tell_who_runs()
            if not will_restart:
                return
            failures = await self._restart(child, failures)

    async def _restart(self, child: Child, failures: int) -> int:
        """Restart a server until it runs. Return the number of failures in a row if it ends again
        soon."""
        while not await self._restarted(child, _restart_delay_s(failures)):
            failures += 1
        return failures + 1

    async def _rotate_logs(self) -> None:
        settings = self._settings
        while True:
            await asyncio.sleep(_LOG_LOOK_S)
            for child in self._children:
                try:
                    await asyncio.to_thread(
                        rotate,
                        child.log_path,
                        bytes_max=settings.log_file_bytes_max,
                        files_max=settings.log_files_max,
                    )
                except OSError as error:
                    _log.warning("log_not_rotated", path=str(child.log_path), error=error.strerror)

    async def _restarted(self, child: Child, delay_s: float) -> bool:
        await asyncio.sleep(delay_s)
        try:
            await child.start(_READY_TIMEOUT_S)
        except (DeployError, OSError) as error:
            _log.error("server_not_restarted", server=child.plan.name, error=str(error))
            self._tell_who_runs()
            return False
        except Exception:  # noqa: BLE001 - a defect must not end the restarts of a server
            _log.exception("server_not_restarted", server=child.plan.name)
            self._tell_who_runs()
            return False
        _log.warning("server_restarted", server=child.plan.name, pid=child.pid)
        self._tell_who_runs()
        return True


def _restart_delay_s(failures: int) -> float:
    return backoff(_RESTART_DELAY_S, failures, _RESTART_DELAY_S_MAX)


def needed_servers(shape: ClusterShape, quorum: Quorum) -> dict[Kind, int]:
    """Return how many servers of each kind the cluster cannot do without."""
    return {
        Kind.ZOOKEEPER: shape.zookeepers // 2 + 1 if shape.zookeepers else 0,
        Kind.BOOKIE: quorum.ensemble,
        Kind.BROKER: min(1, shape.brokers),
        Kind.AUTORECOVERY: 0,
    }


def _checked_scheme(url: str) -> str:
    """Return the URL if it names a ZooKeeper.

    Raises:
        SettingsError: not a ZooKeeper URL.
    """
    if not url.startswith("zk://"):
        raise SettingsError(f"bad --zookeeper {url!r}: give zk://host:port[,host:port...]/path")
    return url
