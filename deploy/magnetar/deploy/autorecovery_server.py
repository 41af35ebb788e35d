"""Auto-recovery as a process of its own, or inside the process of a bookie.

Each such process runs a worker and a candidate for auditor.
"""

import os
import random
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from magnetar.broker.http.server import HttpServer
from magnetar.deploy.bookkeeper_names import recovery_families
from magnetar.deploy.declared_metrics import DeclaredCollector
from magnetar.deploy.explain import explained
from magnetar.deploy.links import link_network
from magnetar.deploy.logs import name_server
from magnetar.deploy.options import Listen, Sources
from magnetar.deploy.shared_secret import with_secret_beside
from magnetar.deploy.starting import start_on
from magnetar.ledger.autorecovery.auditor import Auditor
from magnetar.ledger.autorecovery.metrics import AutoRecoveryMetrics
from magnetar.ledger.autorecovery.settings import AuditorSettings
from magnetar.ledger.autorecovery.worker import Worker
from magnetar.ledger.autorecovery.worker_settings import WorkerSettings
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.metadata.settings import MetadataSettings
from magnetar.ledger.metadata.store import MetadataStore, SessionState
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.settings import LedgerSettings
from magnetar.ledger.system import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastapi import FastAPI
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector

PREFIX = "magnetar_autorecovery_"


class AutoRecovery:
    """A worker and a candidate for auditor, over one ledger client."""

    def __init__(self, store: MetadataStore, auditor: Auditor, worker: Worker, name: str) -> None:
        """Use `start_autorecovery` to make one."""
        self.name = name
        self._store = store
        self._auditor = auditor
        self._worker = worker

    @property
    def is_auditor(self) -> bool:
        return bool(self._auditor.metrics.is_auditor)

    @property
    def has_metadata(self) -> bool:
        """Whether the metadata store is connected. Without it, auto-recovery does nothing."""
        return self._store.session_state is SessionState.CONNECTED

    @property
    def status(self) -> str:
        """`ok`, or the reason why no ledger is looked after."""
        if not self.has_metadata:
            return "no metadata"
        ended = [
            name
            for name, part in (("auditor", self._auditor), ("worker", self._worker))
            if not part.is_alive
        ]
        return f"ended: {', '.join(ended)}" if ended else "ok"

    def collector(self) -> "Collector":
        """Return the Prometheus collector of its metrics."""
        return _RecoveryCollector(AutoRecoveryMetrics(self._auditor.metrics, self._worker.metrics))


class _RecoveryCollector(DeclaredCollector):
    """The declared metrics, and some of them under BookKeeper's names too."""

    def __init__(self, metrics: AutoRecoveryMetrics) -> None:
        super().__init__(PREFIX, metrics)
        self._metrics = metrics

    def collect(self) -> "Iterator[Metric]":
        yield from super().collect()
        yield from recovery_families(self._metrics)


async def start_autorecovery(
    store: MetadataStore, sources: Sources, opened: AsyncExitStack, *, name: str
) -> AutoRecovery:
    """Start a ledger client, a worker and an auditor; `opened` closes them.

    Raises:
        LedgerError: the metadata store does not answer.
    """
    clock, ledger_settings = SystemClock(), sources.component(LedgerSettings, "ledger")
    client = LedgerClient(
        store,
        network=link_network(ledger_settings, opened),
        clock=clock,
        random=random.SystemRandom(),
        settings=ledger_settings,
    )
    await client.start()
    opened.push_async_callback(client.close)
    worker = Worker(
        client,
        store,
        clock=clock,
        random=random.SystemRandom(),
        holder=name,
        settings=sources.component(WorkerSettings, "worker"),
    )
    await worker.start()
    opened.push_async_callback(worker.stop)
    auditor = Auditor(
        store,
        client,
        name=name,
        clock=clock,
        random=random.SystemRandom(),
        ledger_settings=ledger_settings,
        settings=sources.component(AuditorSettings, "auditor"),
    )
    await auditor.start()
    opened.push_async_callback(auditor.close)
    return AutoRecovery(store, auditor, worker, name)


class AutoRecoveryServer:
    """An auto-recovery process."""

    def __init__(
        self,
        sources: Sources,
        *,
        metadata_url: str,
        listen: Listen,
        name: str = "",
        metrics_port: int | None = None,
    ) -> None:
        """Make a server; `start` starts it.

        Args:
            name: its name in locks and in the election; empty: this machine's name and the process
                id.
            metrics_port: port of /metrics and /health; 0: any free port; None: no HTTP server.
        """
        self._sources = sources
        self._metadata_url = metadata_url
        self._listen = listen
        self._name = name or f"{listen.told_host}:{os.getpid()}"
        self._metrics_port = metrics_port
        self._opened = AsyncExitStack()
        self._http: HttpServer | None = None
        self._is_stopping = False

    async def start(self) -> None:
        name_server(self._name)
        with explained(metadata_url=self._metadata_url):
            self._opened = await start_on(
                lambda: open_store(
                    self._metadata_url,
                    settings=self._sources.component(MetadataSettings, "metadata"),
                ),
                self._start_on,
            )

    async def _start_on(self, store: MetadataStore, opened: AsyncExitStack) -> None:
        sources = with_secret_beside(self._sources, self._metadata_url)
        recovery = await start_autorecovery(store, sources, opened, name=self._name)
        if self._metrics_port is not None:
            await self._serve_metrics(recovery, self._metrics_port, opened)

    def addresses(self) -> list[str]:
        addresses = [f"autorecovery://{self._name}"]
        if self._http is not None:
            addresses.append(self._listen.url("http", self._http.port))
        return addresses

    async def stop(self) -> None:
        self._is_stopping = True
        await self._opened.aclose()

    async def _serve_metrics(
        self, recovery: AutoRecovery, port: int, opened: AsyncExitStack
    ) -> None:
        from magnetar.deploy.metrics_http import RecoveryHealth, make_recovery_app
        from magnetar.deploy.process_metrics import process_collectors

        collectors = [recovery.collector(), *process_collectors(opened)]

        def health() -> RecoveryHealth:
            return RecoveryHealth(
                status="stopping" if self._is_stopping else recovery.status,
                name=recovery.name,
                is_auditor=recovery.is_auditor,
            )

        def make_app() -> "FastAPI":
            return make_recovery_app(collectors, health=health)

        self._http = HttpServer(make_app, host=self._listen.host, port=port)
        await self._http.start()
        opened.push_async_callback(self._http.stop)
