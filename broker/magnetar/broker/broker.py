"""The broker: composes topics, the binary server and the HTTP service; starts and stops them.

Stateless: what must survive is in ledgers and metadata. The ledger client and the metadata store
are the caller's, who starts them before the broker and closes them after it.
"""

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

from magnetar.broker.http_server import HttpServer
from magnetar.broker.ownership import SoleOwner
from magnetar.broker.publish_budget import PublishBudget
from magnetar.broker.server import BinaryServer
from magnetar.broker.services import Services
from magnetar.broker.settings import BrokerSettings
from magnetar.broker.topics import Topics
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock, Network

if TYPE_CHECKING:
    from fastapi import FastAPI
    from prometheus_client.registry import Collector

_log = structlog.get_logger()

VERSION = "0.1.0"


class Broker:
    """One broker. `await start()`, `await stop()`; not to be started again."""

    version = VERSION

    def __init__(
        self,
        settings: BrokerSettings,
        client: LedgerClient,
        store: MetadataStore,
        *,
        clock: Clock,
        network: Network,
        random: random.Random,
        collectors: "Sequence[Collector]" = (),
    ) -> None:
        """`collectors`: what else in this process its /metrics shows."""
        self._settings = settings
        self.collectors = tuple(collectors)
        self._random = random
        # Unique for every start: a producer that reconnects with the name it was given must not
        # meet a newer producer of that name.
        self._instance = f"{random.getrandbits(40):010x}"
        self._producer_names = 0
        ownership = SoleOwner(lambda: self.service_url)
        self.services = Services(
            settings=settings,
            topics=Topics(settings, client, store, ownership, clock=clock, random=random),
            ownership=ownership,
            budget=PublishBudget(settings.publish_bytes_max),
            clock=clock,
            random=random,
            server_version=f"Magnetar-{VERSION}",
            next_producer_name=self._next_producer_name,
        )
        self._server = BinaryServer(self.services, network)
        self._http = HttpServer(self._make_app, host=settings.host, port=settings.http_port)
        self.is_serving = False

    @property
    def port(self) -> int:
        """Port of the binary protocol."""
        return self._server.port

    @property
    def http_port(self) -> int:
        """Port of the HTTP service."""
        return self._http.port

    @property
    def connections(self) -> int:
        return self._server.connections

    @property
    def service_url(self) -> str:
        """Where lookups send clients."""
        host = self._settings.advertised_host or self._settings.host
        return f"pulsar://{f'[{host}]' if ':' in host else host}:{self.port}"

    async def start(self) -> None:
        """Listen on both ports.

        Raises:
            ListenError: an address is taken or not ours.
        """
        await self._server.start()
        try:
            await self._http.start()
        except BaseException:
            await self._server.stop_accepting()
            raise
        self.is_serving = True
        _log.info("broker_started", service_url=self.service_url, http_port=self.http_port)

    async def stop(self) -> None:
        """Drain: accept nobody, let clients look elsewhere, close the topics, then the connections.

        Bounded by `shutdown_timeout_ms`; what is not closed by then is recovered by the next owner.
        """
        self.is_serving = False
        await self._server.stop_accepting()
        await self.services.topics.close(self._settings.shutdown_timeout_ms / 1000)
        self._server.close_connections()
        await self._http.stop()
        _log.info("broker_stopped")

    def _make_app(self) -> "FastAPI":
        from magnetar.broker.app import make_app

        return make_app(self)

    def _next_producer_name(self) -> str:
        self._producer_names += 1
        return f"{self._settings.name}-{self._instance}-{self._producer_names}"
