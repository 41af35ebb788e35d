"""The broker: composes topics, the binary server and the HTTP service; starts and stops them.

The broker is stateless: all durable state is in ledgers and metadata. The ledger client and the
metadata store belong to the caller, who starts them before the broker and closes them after it.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import structlog

from magnetar.broker.base import naming
from magnetar.broker.base.errors import NotAllowedError
from magnetar.broker.base.listeners import parse_listeners
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.balance.load_report import LoadReport
from magnetar.broker.cluster.balance.orders import HttpOrders
from magnetar.broker.cluster.balance.reporter import LoneLoad
from magnetar.broker.cluster.balance.sampler import ProcessUsage
from magnetar.broker.cluster.composition import Cluster
from magnetar.broker.cluster.health import BrokerHealth, Heartbeat, open_heartbeat_log
from magnetar.broker.cluster.ownership import Ownership, SoleOwner
from magnetar.broker.cluster.ownership.records import BrokerRecord
from magnetar.broker.features.compaction import Compaction
from magnetar.broker.features.deduplication import Deduplication
from magnetar.broker.features.delayed.delayed_delivery import DelayedDelivery
from magnetar.broker.features.message_index import MessageIndex
from magnetar.broker.features.offloading import (
    Manifests,
    Offload,
    Scrubbing,
    object_keys,
    object_ledgers,
    offload_surroundings,
)
from magnetar.broker.features.offloading.sweeping import Sweeping
from magnetar.broker.features.replication import (
    ReplicatedSubscriptions,
    Replication,
    ReplicationSurroundings,
)
from magnetar.broker.features.replication.composition import replication_surroundings
from magnetar.broker.features.retention.inactivity import InactiveTopics
from magnetar.broker.features.scalable import (
    AutoScaling,
    CoordinatedTopics,
    Layouts,
    PartitionLayouts,
    RecordLayouts,
    SegmentCoordinators,
)
from magnetar.broker.features.tracing import Spans
from magnetar.broker.features.transactions.coordinator_places import CoordinatorPlaces
from magnetar.broker.features.transactions.coordinators import Coordinators
from magnetar.broker.features.transactions.owner_links import OwnerLinks
from magnetar.broker.features.transactions.topic_transactions import TopicTransactions
from magnetar.broker.http.server import HttpBounds, HttpServer
from magnetar.broker.http.view import BrokerView
from magnetar.broker.policies.model import AutoScale
from magnetar.broker.policies.registry import PolicyRegistry
from magnetar.broker.protocol.connection import COMMAND_COST_BYTES, BinaryServer
from magnetar.broker.protocol.revoking import IsConcerned, Revoking
from magnetar.broker.schemas.ledgers import SchemaLedgers
from magnetar.broker.schemas.registry import SchemaRegistry
from magnetar.broker.security.composition import Security
from magnetar.broker.security.peer_network import PeerNetwork
from magnetar.broker.topic import Topic, looking_at
from magnetar.broker.topic.publish_limits import PublishBudget
from magnetar.broker.topics import Topics
from magnetar.broker.topics.at_rest.disuse import UnusedSince
from magnetar.broker.topics.at_rest.due import ObjectUpkeep
from magnetar.broker.topics.at_rest.walk import TopicsAtRest
from magnetar.broker.topics.followed_lists import FollowedLists
from magnetar.broker.topics.segment_owners import OwnSegments, SegmentOwnersAnywhere
from magnetar.broker.topics.services import Services
from magnetar.broker.topics.upkeep import Keeping, Upkeep
from magnetar.ledger.bookie_facts import ask_facts
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.offloading.store_set import StoreSet
from magnetar.ledger.ports import Clock, Network
from magnetar.ledger.turns import TurnShares

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from magnetar.broker.http.authentication import Application
    from magnetar.broker.http.metrics.page import MetricsPage
    from magnetar.broker.websocket.service import WebSocketService

_log = structlog.get_logger()

VERSION = "0.1.0"


def no_files(path: str) -> bytes:
    """Refuse every read: the reader of a broker whose settings name no files."""
    raise FileNotFoundError(2, "no files can be read here", path)


class Broker:
    """One broker: `await start()`, then `await stop()`. It cannot be started a second time."""

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
        is_clustered: bool = False,
        usage: Callable[[], ProcessUsage] = lambda: ProcessUsage(0.0, 0),
        read_file: Callable[[str], bytes] = no_files,
        metadata_url: str = "",
        request_stop: Callable[[], None] | None = None,
        spans: Spans | None = None,
    ) -> None:
        """Compose the parts of a broker; start none of them.

        Args:
            collectors: further metrics of this process that /metrics shows.
            is_clustered: whether other brokers may run on this metadata store.
            usage: returns the resources that this process has used so far.
            read_file: reads the files that the security settings name.
            request_stop: ends this process in order; None if nobody may ask for that.
            spans: keeps the traces of messages; None if there are none.
        """
        self._settings = settings
        self._collectors = tuple(collectors)
        self._random = random
        self._clock = clock
        self._store = store
        self._plain_network = network
        self._usage = usage
        self._metadata_url = metadata_url
        self._bookies = client.registry.registered
        self._channels = client.channels
        self._request_stop = request_stop
        # Unique per start: a producer that reconnects by its given name must meet no newer one.
        self._instance = f"{random.getrandbits(40):010x}"
        self._producer_names = 0
        self._listeners = parse_listeners(settings.advertised_listeners)
        self.network: Network = self._network_to_brokers()
        self.cluster: Cluster | None = self._make_cluster() if is_clustered else None
        policies = PolicyRegistry(store, settings)
        self.security = self._make_security(policies, read_file)
        ownership = self._make_ownership()
        self._stores = StoreSet(settings.object_stores)
        self._object_keys = object_keys(settings)
        self._objects = client.objects = object_ledgers(
            settings, self._stores, clock, keys=self._object_keys
        )
        self.services: Services = self._make_services(client, policies, ownership, spans)
        self.sweeping: Sweeping = self._make_sweeping(client)
        if self.cluster is not None:
            self._attach_to(self.cluster)
        self.upkeep: Upkeep = self._make_upkeep()
        self.at_rest: TopicsAtRest = self._make_at_rest(policies, ownership)
        self.auto_scaling: AutoScaling = self._make_auto_scaling(policies, ownership)
        self.health = self._make_health(client)
        self._server = BinaryServer(self.services, network)
        self._revoking = self._make_revoking(policies)
        self._page: MetricsPage | None = None
        self._http = self._make_http_server()
        self.websocket: WebSocketService | None = None
        self._https: HttpServer | None = None
        self._app: Application | None = None
        self._certificate_roles: dict[tuple[str, int], str] = {}
        self.is_serving = False
        self._is_stopping = False

    # The parts of the broker

    def _make_security(
        self, policies: PolicyRegistry, read_file: Callable[[str], bytes]
    ) -> Security:
        return Security(
            self._settings,
            policies,
            self._store,
            clock=self._clock,
            network=self._plain_network,
            random=self._random,
            read=read_file,
        )

    def _make_sweeping(self, client: LedgerClient) -> Sweeping:
        return Sweeping(
            self._settings,
            self._stores,
            client,
            self._store,
            is_leader=lambda: self.cluster is None or self.cluster.is_leader,
            clock=self._clock,
        )

    def _make_at_rest(self, policies: PolicyRegistry, ownership: Ownership) -> TopicsAtRest:
        return TopicsAtRest(
            self._settings,
            self.services.topics,
            policies,
            ownership,
            self._store,
            self.upkeep,
            note_unused=self._note_unused,
            clock=self._clock,
            objects=ObjectUpkeep(
                scrub_period_s=self._settings.object_scrub_period_s,
                small_bytes=self._settings.object_bytes_min,
                small_wait_s=self._settings.object_small_wait_s,
            ),
        )

    def _network_to_brokers(self) -> Network:
        if not self._settings.broker_client_tls:
            return self._plain_network
        return PeerNetwork(
            self._plain_network,
            tls=lambda: self.security.peer_network(),
            brokers=lambda: self.cluster.brokers.all().values() if self.cluster else (),
        )

    def _make_cluster(self) -> Cluster:
        return Cluster(
            self._settings,
            self._store,
            name=lambda: self.name,
            describe=self._describe,
            clock=self._clock,
            network=self.network,
            random=self._random,
            token=lambda: self.security.client_token,
        )

    def _make_ownership(self) -> Ownership:
        if self.cluster is not None:
            return self.cluster.ownership
        return SoleOwner(
            lambda: self.service_url,
            lambda: self.http_url,
            self._listeners,
            lambda: (self.service_url_tls, self.http_url_tls),
        )

    def _make_replication(self, schemas: SchemaRegistry) -> ReplicationSurroundings:
        made = replication_surroundings(
            self._settings, self._store, schemas, clock=self._clock, random=self._random
        )
        self._remotes = made.remotes
        return made

    def _make_services(
        self,
        client: LedgerClient,
        policies: PolicyRegistry,
        ownership: Ownership,
        spans: Spans | None,
    ) -> Services:
        settings, store, clock = self._settings, self._store, self._clock
        schemas = SchemaRegistry(
            store,
            SchemaLedgers(client, cache_bytes_max=settings.schema_cache_bytes_max),
            settings,
            clock,
        )
        replicating = self._make_replication(schemas)
        topics = Topics(
            settings,
            client,
            store,
            policies,
            ownership,
            clock=clock,
            random=self._random,
            spans=spans,
            offloading=offload_surroundings(
                settings,
                self._stores,
                client,
                schemas=schemas,
                keys=self._object_keys,
                clock=clock,
                random=self._random,
                made_by=f"magnetar {VERSION}",
            ),
            replicating=replicating,
        )
        topics.removal.followers.append(schemas.topic_removed)
        coordinators = self._make_coordinators(topics, policies)
        topics.scalable.owners = owners = self._make_segment_owners(topics, ownership)
        layouts = self._make_layouts(topics)
        segment_coordinators = self._make_segment_coordinators(topics, layouts, ownership)
        owners.coordinators = segment_coordinators
        return Services(
            settings=settings,
            topics=topics,
            topic_lists=FollowedLists(
                store, topics.names, clock, pause_ms=settings.topic_list_pause_ms
            ),
            policies=policies,
            scalable_lists=self._make_scalable_lists(topics),
            schemas=schemas,
            ownership=ownership,
            budget=PublishBudget(settings.publish_bytes_max),
            shares=TurnShares(settings.turn_bytes_max, request_cost_bytes=COMMAND_COST_BYTES),
            keeping=Keeping(clock),
            coordinators=coordinators,
            coordinator_places=CoordinatorPlaces(
                coordinators, ownership, interval_ms=settings.coordinator_watch_interval_ms
            ),
            layouts=layouts,
            segment_coordinators=segment_coordinators,
            authenticator=self.security.authenticator,
            authorizer=self.security.authorizer,
            clock=clock,
            random=self._random,
            server_version=f"Magnetar-{VERSION}",
            next_producer_name=self._next_producer_name,
            is_serving=lambda: self.cluster is None or self.cluster.guard.is_valid,
        )

    def _make_coordinators(self, topics: Topics, policies: PolicyRegistry) -> Coordinators:
        return Coordinators(
            self._settings,
            topics,
            policies,
            self._make_owner_links(),
            self._clock,
            is_leader=lambda: self.cluster is None or self.cluster.is_leader,
        )

    def _attach_to(self, cluster: Cluster) -> None:
        topics, coordinators = self.services.topics, self.services.segment_coordinators
        cluster.attach(
            topics,
            CoordinatedTopics(topics.ends, coordinators),
            connections=lambda: self.connections,
            usage=self._usage,
        )

    def _make_scalable_lists(self, topics: Topics) -> FollowedLists:
        return FollowedLists(
            self._store,
            topics.scalable.names,
            self._clock,
            pause_ms=self._settings.topic_list_pause_ms,
            path_of=naming.scalable_topics_path,
        )

    def _make_layouts(self, topics: Topics) -> Layouts:
        records = RecordLayouts(
            self._store, topics.scalable, patience_ms=self._settings.scalable_change_patience_ms
        )
        return Layouts([records, PartitionLayouts(self._store, topics.partitioned)], self._clock)

    def _make_segment_coordinators(
        self, topics: Topics, layouts: Layouts, ownership: Ownership
    ) -> SegmentCoordinators:
        settings, scalable = self._settings, topics.scalable
        return SegmentCoordinators(
            layouts,
            ownership,
            self._clock,
            grace_ms=settings.scalable_consumer_grace_ms,
            consumers_max=settings.scalable_consumers_per_subscription_max,
            wait_ms=settings.lookup_wait_ms,
            is_drained=scalable.reached_owners.is_drained,
            end_hold=scalable.end_hold,
        )

    def _make_auto_scaling(self, policies: PolicyRegistry, ownership: Ownership) -> AutoScaling:
        topics, settings = self.services.topics, self._settings
        alone = LoneLoad(lambda: topics.loaded, settings=settings, clock=self._clock)

        async def reports() -> Sequence[LoadReport | None]:
            if self.cluster is not None:
                return self.cluster.load_reports()
            return [await alone.look()]

        async def override(namespace: str) -> AutoScale | None:
            return (await policies.check_namespace(namespace)).auto_scale

        return AutoScaling(
            topics.scalable,
            ownership,
            reports=reports,
            override=override,
            consumers=self.services.segment_coordinators.stream_consumers,
            settings=settings,
            clock=self._clock,
        )

    def _make_segment_owners(self, topics: Topics, ownership: Ownership) -> SegmentOwnersAnywhere:
        orders = HttpOrders(
            self.network,
            timeout_s=self._settings.unload_order_timeout_ms / 1000,
            token=lambda: self.security.client_token,
        )
        return SegmentOwnersAnywhere(OwnSegments(topics, self._store), ownership, orders)

    def _make_owner_links(self) -> OwnerLinks:
        settings = self._settings
        return OwnerLinks(
            self.network,
            plain_network=self._plain_network,
            over_tls=settings.broker_client_tls,
            host=settings.plain_host or settings.host,
            port=lambda: self.port,
            advertised=lambda: [self.service_url, *self._listeners.values()],
            client_token=lambda: self.security.client_token,
            timeout_ms=settings.transaction_end_timeout_ms,
        )

    def _make_upkeep(self) -> Upkeep:
        settings, clock = self._settings, self._clock
        upkeep = Upkeep(clock, lambda: self.services.topics.loaded)
        self.services.keeping.register(upkeep, settings)
        for name, interval_s, look in (
            ("delayed-index", settings.retention_check_interval_s, looking_at(DelayedDelivery)),
            (
                "inactive-topics",
                settings.inactive_topic_check_interval_s,
                InactiveTopics(clock, self.services.topics.removal).look_at,
            ),
            ("deduplication", settings.dedup_snapshot_check_interval_s, looking_at(Deduplication)),
            ("rates", settings.stats_rate_interval_s, lambda topic: topic.sample(clock.wall_ms())),
            ("message-index", settings.stats_rate_interval_s, looking_at(MessageIndex)),
            ("compaction", settings.compaction_check_interval_s, looking_at(Compaction)),
            (
                "offloading",
                settings.offload_check_interval_s if settings.object_stores else 0,
                looking_at(Offload),
            ),
            (
                "manifests",
                settings.offload_check_interval_s if settings.object_stores else 0,
                looking_at(Manifests),
            ),
            ("replication", settings.replication_check_interval_s, looking_at(Replication)),
            (
                "replicated-subscriptions",
                settings.replication_check_interval_s,
                looking_at(ReplicatedSubscriptions),
            ),
            ("transactions", settings.transaction_check_interval_s, looking_at(TopicTransactions)),
        ):
            upkeep.register(name, interval_s, look)
        offloading = self.services.topics.offloading
        if offloading is not None and settings.object_scrub_days > 0:
            upkeep.register(
                "scrubbing",
                settings.offload_check_interval_s,
                looking_at(Scrubbing),
                is_busy=lambda: offloading.scrubber.is_busy,
            )
        return upkeep

    def _make_revoking(self, policies: PolicyRegistry) -> Revoking:
        revoking = Revoking(
            lambda: self._server.clients,
            self._check_sessions,
            recheck_interval_s=self._settings.rights_recheck_interval_s,
        )
        authorizer = self.security.authorizer
        if authorizer.is_on:
            policies.on_change(lambda namespace, _: revoking.changed(namespace))
            authorizer.on_tenant_change(lambda tenant: revoking.changed(f"{tenant}/"))
        return revoking

    def _make_http_server(self) -> HttpServer:
        settings = self._settings
        return HttpServer(
            self._make_app,
            host=settings.plain_host or settings.host,
            port=settings.http_port,
            make_websocket=self._make_websocket,
            bounds=_http_bounds(settings),
            on_refused=self._count_refused,
        )

    def _make_health(self, client: LedgerClient) -> BrokerHealth:
        settings, store = self._settings, self._store
        log = open_heartbeat_log(
            client,
            store,
            broker=lambda: self.name,
            quorums=(settings.ensemble_size, settings.write_quorum, settings.ack_quorum),
            clock=self._clock,
            random=self._random,
        )
        return BrokerHealth(
            Heartbeat(log),
            settings,
            status=lambda: self.status,
            session=lambda: store.session_state,
            clock=self._clock,
        )

    @property
    def port(self) -> int:
        """Port of the binary protocol."""
        return self._server.port

    @property
    def http_port(self) -> int:
        """Port of the HTTP service."""
        return self._http.port

    @property
    def tls_port(self) -> int | None:
        """Port of the binary protocol over TLS; None if there is no such port."""
        return self._server.tls_port

    @property
    def https_port(self) -> int | None:
        """Port of the HTTP service over TLS; None if there is no such port."""
        return self._https.port if self._https is not None else None

    @property
    def connections(self) -> int:
        return self._server.connections

    @property
    def name(self) -> str:
        """Name of this broker among the brokers of the cluster; known once the broker listens."""
        if self._settings.name:
            return self._settings.name
        return f"{self.advertised_host}:{self.port}" if self.cluster is not None else "standalone"

    @property
    def service_url(self) -> str:
        """Address that lookups return to clients that name no listener."""
        if self._listeners:
            default = self._settings.default_listener
            return self._listeners[default] if default else next(iter(self._listeners.values()))
        return f"pulsar://{_in_url(self.advertised_host)}:{self.port}"

    @property
    def http_url(self) -> str:
        """Address of the HTTP service for other brokers and tools."""
        return f"http://{_in_url(self.advertised_host)}:{self.http_port}"

    @property
    def service_url_tls(self) -> str:
        """Address of the binary protocol over TLS; empty if there is no such port."""
        return (
            f"pulsar+ssl://{_in_url(self.advertised_host)}:{self.tls_port}" if self.tls_port else ""
        )

    @property
    def http_url_tls(self) -> str:
        """HTTPS address for other brokers and tools; empty if there is no such port."""
        return (
            f"https://{_in_url(self.advertised_host)}:{self.https_port}" if self.https_port else ""
        )

    @property
    def advertised_host(self) -> str:
        """Host under which clients and other brokers find this broker."""
        return self._settings.advertised_host or self._settings.host

    @property
    def status(self) -> str:
        """`ok` while the broker serves clients, otherwise the reason why it does not."""
        if self._is_stopping:
            return "stopping"
        if not self.is_serving:
            return "starting"
        if self.cluster is not None and not self.cluster.guard.is_valid:
            return "no lease"
        return "ok"

    async def start(self) -> None:
        """Listen on both ports, and join the other brokers. On an error, close everything again.

        Raises:
            ListenError: an address is taken or does not belong to this host.
            NotRegisteredError: the broker could not register with the cluster.
            SecurityConfigError, TlsConfigError: a file of keys or certificates cannot be used.
        """
        self.security.check_addresses(self._settings.addresses)
        self.security.load()
        await self._server.start(self.security.tls_network())
        try:
            await self._http.start()
            await self._start_https()
            if self.cluster is not None:
                await self.cluster.start()
            if self.security.authorizer.is_on:
                self._revoking.start()
        except BaseException:
            if self.websocket is not None:
                await self.websocket.stop()
            await self._server.stop_accepting()
            self._server.close_connections()
            await self._stop_http()
            if self.cluster is not None:
                await self.cluster.close()
            raise
        self.upkeep.start()
        self.at_rest.start()
        self.sweeping.start()
        self.security.start()
        try:
            await self.services.policies.start(
                {"serviceUrl": self.http_url, "brokerServiceUrl": self.service_url}
            )
        except BaseException:
            await self.stop()  # Topics may be in use already: the broker listens.
            raise
        self.services.coordinators.start()
        if self._settings.scalable_topics:
            self.auto_scaling.start()
        self.is_serving = True
        _log.info(
            "broker_started",
            broker=self.name,
            service_url=self.service_url,
            http_port=self.http_port,
        )

    async def stop(self) -> None:
        """Drain the broker, then close it.

        Hand topics over while lookups are still answered. Then accept no connection, close the
        remaining topics, and close the connections. `shutdown_timeout_ms` bounds all of this; the
        next owner recovers what is not closed by then.
        """
        self._is_stopping = True
        await self.auto_scaling.stop()
        await self.at_rest.stop()
        await self.sweeping.stop()
        await self.upkeep.stop()
        self.services.coordinators.stop_looking()
        self.services.coordinator_places.close()
        until_s = self._clock.monotonic_s() + self._settings.shutdown_timeout_ms / 1000
        if self.websocket is not None:
            # While topics are still loaded, so that the acknowledgements of its clients are kept.
            await self.websocket.stop()
        if self.cluster is not None:
            await self.cluster.drain(until_s - self._clock.monotonic_s())
        self.is_serving = False
        await self._server.stop_accepting()
        await self.services.topics.close(max(0.0, until_s - self._clock.monotonic_s()))
        await self.services.coordinators.close()
        await self._remotes.close()
        self.services.policies.close()
        self._revoking.close()
        self.security.close()
        if self.cluster is not None:
            await self.cluster.close()
        await self.health.close()
        self._server.close_connections()
        await self._stop_http()
        if self._objects is not None:
            await self._objects.close()
        await self._stores.close()
        _log.info("broker_stopped", broker=self.name)

    def _note_unused(self, topic: Topic, unused: UnusedSince) -> None:
        topic.use.loaded_s = unused.topic_s
        self.services.keeping.inactive.note_unused(topic, unused.subscriptions_s)

    async def _start_https(self) -> None:
        settings = self._settings
        if settings.https_port is None or self.security.tls is None:
            return
        self._https = HttpServer(
            self._make_app,
            host=settings.host,
            port=settings.https_port,
            make_websocket=self._make_websocket,
            tls=self.security.tls.context,
            tls_handshake_timeout_s=settings.tls_handshake_timeout_ms / 1000,
            certificate_roles=self._certificate_roles,
            bounds=_http_bounds(settings),
            on_refused=self._count_refused,
        )
        await self._https.start()

    def _count_refused(self) -> None:
        self.services.counters.connections_refused += 1

    async def _stop_http(self) -> None:
        await self._http.stop()
        if self._https is not None:
            await self._https.stop()
        if self._page is not None:
            await self._page.stop()

    def _stop_process(self) -> None:
        """End this process in order.

        Raises:
            NotAllowedError: the process does not belong to the broker alone.
        """
        if self._request_stop is None:
            raise NotAllowedError("this broker is part of a process that cannot be stopped by it")
        self._request_stop()

    def _describe(self, session_token: str) -> BrokerRecord:
        return BrokerRecord(
            name=self.name,
            native_url=self.service_url,
            http_url=self.http_url,
            native_url_tls=self.service_url_tls,
            http_url_tls=self.http_url_tls,
            listeners=self._listeners,
            session_token=session_token,
            version=VERSION,
        )

    def _make_app(self) -> "Application":
        from magnetar.broker.http.app import make_app
        from magnetar.broker.http.metrics.page import MetricsPage

        if self._app is None:
            view = self._view()
            page = MetricsPage(view)
            page.start()
            self._page = page
            self._app = make_app(view, page)
        return self._app

    def _view(self) -> BrokerView:
        """Return a view of this broker for pages and metrics. Call this once the broker listens."""
        return BrokerView(
            name=self.name,
            version=VERSION,
            service_url=self.service_url,
            metadata_url=self._metadata_url,
            services=self.services,
            cluster=self.cluster,
            store=self._store,
            network=self.network,
            health=self.health,
            upkeep=self.upkeep,
            at_rest=self.at_rest,
            auto_scaling=self.auto_scaling,
            audit=self.security.audit,
            collectors=self._collectors,
            certificate_roles=self._certificate_roles,
            status=lambda: self.status,
            connections=lambda: self.connections,
            websocket_sessions=lambda: 0 if self.websocket is None else self.websocket.sessions,
            websocket_stats=lambda: [] if self.websocket is None else self.websocket.stats(),
            bookies=self._bookies,
            bookie_facts=lambda bookie: ask_facts(self._channels.get(bookie)),
            usage=self._usage,
            client_token=lambda: self.security.client_token,
            describe=lambda: self._describe("alone"),
            request_stop=self._stop_process,
        )

    def _make_websocket(self) -> "Callable[..., asyncio.Protocol] | None":
        return self._take_websocket if self._settings.websocket else None

    def _take_websocket(self, **parts: object) -> asyncio.Protocol:
        """Serve an upgrade request that the HTTP server passes on; `parts` come from uvicorn.

        The WebSocket service is imported at the first upgrade, because it brings the client and its
        codecs.
        """
        if self.websocket is None:
            from magnetar.broker.websocket.service import WebSocketService

            self.websocket = WebSocketService(
                self.services,
                self.network,
                plain_network=self._plain_network,
                over_tls=self._settings.broker_client_tls,
                port=lambda: self.port,
                advertised=lambda: [self.service_url, *self._listeners.values()],
                client_token=lambda: self.security.client_token,
            )
            self.websocket.start(is_stopping=self._is_stopping)
        return self.websocket.connection(**parts)

    async def _check_sessions(self, is_concerned: IsConcerned) -> None:
        if self.websocket is not None:
            await self.websocket.check_rights(is_concerned)

    def _next_producer_name(self) -> str:
        self._producer_names += 1
        return f"{self.name}-{self._instance}-{self._producer_names}"


def _http_bounds(settings: BrokerSettings) -> HttpBounds:
    return HttpBounds(
        connections_max=settings.http_connections_max,
        per_address_max=settings.connections_per_address_max,
        kept_for_loopback=settings.connections_kept_for_loopback,
        request_timeout_s=settings.http_request_timeout_ms / 1000,
    )


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
