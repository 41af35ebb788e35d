"""One bookie in one process against a metadata URL. Imports nothing that only a broker needs."""

import asyncio
import os
import random
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.settings import BookieSettings
from magnetar.broker.http.server import HttpServer
from magnetar.deploy.bookie_metrics import BookieCollector
from magnetar.deploy.errors import DataDirectoryError
from magnetar.deploy.explain import explained
from magnetar.deploy.links import link_network
from magnetar.deploy.logs import name_server
from magnetar.deploy.options import Listen, Sources
from magnetar.deploy.shared_secret import with_secret_beside
from magnetar.deploy.starting import metadata_store, start_on
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.system import SystemClock, SystemDisk

if TYPE_CHECKING:
    from fastapi import FastAPI
    from prometheus_client.registry import Collector


_log = structlog.get_logger(__name__)


class BookieServer:
    """One bookie."""

    def __init__(
        self,
        settings: BookieSettings,
        sources: Sources,
        *,
        metadata_url: str,
        metrics_port: int | None = None,
        autorecovery: bool = False,
    ) -> None:
        """Make a server; `start` starts it.

        Args:
            settings: from `bookie_settings`.
            metrics_port: port of /metrics and /health; 0: any free port; None: no HTTP server.
            autorecovery: whether this process also runs a worker and a candidate for auditor.
        """
        self._settings = settings
        self._sources = sources
        self._metadata_url = metadata_url
        self._metrics_port = metrics_port
        self._autorecovery = autorecovery
        self._opened = AsyncExitStack()
        self._bookie: Bookie | None = None
        self._http: HttpServer | None = None
        self._is_stopping = False

    @property
    def bookie(self) -> Bookie:
        assert self._bookie is not None, "start() comes first"
        return self._bookie

    async def start(self) -> None:
        url = self._metadata_url
        with explained(data=self._settings.data_directory, metadata_url=url):
            self._opened = await start_on(
                lambda: metadata_store(url, self._sources), self._start_on
            )

    async def _start_on(self, store: MetadataStore, opened: AsyncExitStack) -> None:
        self._bookie = make_bookie(store, self._settings, opened=opened)
        name_server(self._bookie.bookie_id)
        await self._bookie.start()
        opened.push_async_callback(self._bookie.stop)
        collectors: list[Collector] = [BookieCollector([self._bookie])]
        if self._autorecovery:
            from magnetar.deploy.autorecovery_server import start_autorecovery

            recovery = await start_autorecovery(
                store,
                with_secret_beside(self._sources, self._metadata_url),
                opened,
                name=self._bookie.bookie_id,
            )
            collectors.append(recovery.collector())
        if self._metrics_port is not None:
            await self._serve_metrics(self._bookie, self._metrics_port, collectors, opened)

    def addresses(self) -> list[str]:
        told = Listen(self._settings.host, self._settings.advertised_host)
        addresses = [told.url("bookie", self.bookie.port)]
        if self._http is not None:
            addresses.append(told.url("http", self._http.port))
        return addresses

    async def stop(self) -> None:
        """Drain, then stop. After `stop_timeout_s`, end the process regardless."""
        self._is_stopping = True
        timeout_s = self.bookie.settings.stop_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self.bookie.drain()
                await self._opened.aclose()
        except TimeoutError:
            # Safe, as after kill -9: the journals have everything that was answered.
            _log.error("bookie_stop_overdue", bookie=self.bookie.bookie_id, timeout_s=timeout_s)
            os._exit(0)

    async def _serve_metrics(
        self,
        bookie: Bookie,
        port: int,
        collectors: "Sequence[Collector]",
        opened: AsyncExitStack,
    ) -> None:
        from magnetar.deploy.metrics_http import Health, make_metrics_app
        from magnetar.deploy.process_metrics import process_collectors

        shown = [*collectors, *process_collectors(opened)]

        def health() -> Health:
            now = bookie.health
            return Health(
                status="stopping" if self._is_stopping else now.status,
                bookie=bookie.bookie_id,
                port=bookie.port,
                writable=not now.read_only_reasons,
                registered_as=now.registered_as,
                read_only_reasons=list(now.read_only_reasons),
            )

        def request_gc(major: bool) -> None:
            bookie.gc.request(major=major)

        def make_app() -> "FastAPI":
            return make_metrics_app(shown, health=health, request_gc=request_gc)

        self._http = HttpServer(make_app, host=self._settings.host, port=port)
        await self._http.start()
        opened.push_async_callback(self._http.stop)


def bookie_settings(
    sources: Sources,
    *,
    data: Path,
    listen: Listen,
    port: int,
    bookie_id: str,
    rack: str = "",
    zone: str = "",
    insecure: bool = False,
) -> BookieSettings:
    """Return the settings of a bookie: those of its sources, overridden by the command's options.

    Raises:
        SettingsError
    """
    options: dict[str, object] = {
        "data_directory": str(data.resolve()),
        "host": listen.host,
        "port": port,
    }
    given = {
        "advertised_host": listen.advertised_host,
        "bookie_id": bookie_id,
        "rack": rack,
        "zone": zone,
        "insecure": insecure,
    }
    options |= {name: value for name, value in given.items() if value}
    settings = sources.component(BookieSettings, "bookie", options)
    if not settings.advertised_host:
        settings = settings.model_copy(update={"advertised_host": listen.told_host})
    return settings


def make_bookie(
    store: MetadataStore, settings: BookieSettings, *, opened: AsyncExitStack | None = None
) -> Bookie:
    """Make a bookie on the production ports, not started. `opened` closes what it needs."""
    return Bookie(
        settings,
        store,
        clock=SystemClock(),
        network=link_network(settings, opened, serves=True),
        disk=SystemDisk(),
        random=random.SystemRandom(),
        on_fatal=_end_process,
    )


def _end_process(error: BaseException) -> None:
    """End at once, with no orderly step that could answer a client: the replay restores the
    truth."""
    status = DataDirectoryError.exit_status
    sys.stderr.write(f"magnetar: the bookie stops with status {status}: {error}\n")
    sys.stderr.flush()
    os._exit(status)
