"""Composition of a broker's cluster parts: registration, guard, view of the others, ownership.

This module orders the parts and decides nothing. The broker starts the cluster once it listens,
since its addresses are known only then, and closes the cluster before it stops listening.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager

import structlog

from magnetar.broker.base.errors import NotRegisteredError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.balance.balancer import Balancer
from magnetar.broker.cluster.balance.brokers import Brokers
from magnetar.broker.cluster.balance.bundles import BundleId
from magnetar.broker.cluster.balance.layouts import Layouts
from magnetar.broker.cluster.balance.leader import LeaderBroker
from magnetar.broker.cluster.balance.load_report import LoadReport
from magnetar.broker.cluster.balance.sampler import ProcessUsage
from magnetar.broker.cluster.ownership.cluster_ownership import ClusterOwnership
from magnetar.broker.cluster.ownership.protocol import TopicHolder
from magnetar.broker.cluster.ownership.records import BrokerRecord
from magnetar.broker.cluster.ownership.registration import Registration
from magnetar.broker.cluster.ownership.session_guard import SessionGuard
from magnetar.broker.topics import Topics
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock, Network

_log = structlog.get_logger()

_WITHDRAWAL_TIMEOUT_S = 3.0


@asynccontextmanager
async def _bounded(event: str) -> AsyncIterator[None]:
    """Limit the time of a withdrawal. Others see it at once, or at the end of the session if the
    store is unavailable."""
    try:
        async with asyncio.timeout(_WITHDRAWAL_TIMEOUT_S):
            yield
    except TimeoutError:
        _log.warning(event)


class Cluster:
    """One broker's view of the brokers, and its place among them."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: MetadataStore,
        *,
        name: Callable[[], str],
        describe: Callable[[str], BrokerRecord],
        clock: Clock,
        network: Network,
        random: random.Random,
        token: Callable[[], bytes] = lambda: b"",
    ) -> None:
        """`name` and `describe` (the record with a given session token) are called from `start` on.
        `token` returns the credential by which this broker authenticates to others."""
        self._token = token
        self._settings = settings
        self._store = store
        self._clock = clock
        self._network = network
        self._random = random
        self._leader: LeaderBroker | None = None
        self._balancer: Balancer | None = None
        self._topics: Topics | None = None
        self._connections: Callable[[], int] = lambda: 0
        self._usage: Callable[[], ProcessUsage] = lambda: ProcessUsage(0.0, 0)
        self.registration = Registration(store, name, describe, random=random)
        self.guard = SessionGuard(
            self.registration,
            clock=clock,
            share=settings.lease_share,
            proof_share=settings.lease_proof_share,
        )
        self.layouts = Layouts(
            store,
            bundles_default=settings.bundles_per_namespace,
            bundles_max=settings.bundles_per_namespace_max,
        )
        self.brokers = Brokers(store)
        self.ownership = ClusterOwnership(
            store,
            guard=self.guard,
            registration=self.registration,
            layouts=self.layouts,
            placement=self,
            clock=clock,
            network=network,
            settings=settings,
        )

    def attach(
        self,
        topics: Topics,
        holder: TopicHolder,
        *,
        connections: Callable[[], int],
        usage: Callable[[], ProcessUsage],
    ) -> None:
        """Set the parts that a load report uses; call it before the start. `holder`: hands over
        what this broker serves when a bundle moves."""
        self.ownership.attach(holder)
        self._topics = topics
        self._connections = connections
        self._usage = usage

    async def start(self) -> None:
        """Register, and join the cluster.

        Raises:
            NotRegisteredError: not within `register_timeout_ms`; the error says why.
        """
        registered = asyncio.Event()
        self.guard.on_restored(registered.set)
        self.guard.start()
        try:
            async with asyncio.timeout(self._settings.register_timeout_ms / 1000):
                await registered.wait()
        except TimeoutError as error:
            raise NotRegisteredError(
                f"broker {self.registration.name} is not registered after "
                f"{self._settings.register_timeout_ms / 1000:.0f} s: {self.guard.trouble}"
            ) from error
        self.brokers.on_change(self.ownership.tell_changed)
        await self.brokers.start()
        self._leader = LeaderBroker(
            self._store,
            self.brokers,
            self.registration.name,
            settings=self._settings,
            clock=self._clock,
            random=self._random,
        )
        self._leader.on_change(self.ownership.tell_changed)
        await self._leader.start()
        self._balancer = self._make_balancer(self._leader)
        self._balancer.start()

    def _make_balancer(self, leader: LeaderBroker) -> Balancer:
        assert self._topics is not None, "attach() comes first"
        topics = self._topics
        return Balancer(
            self.ownership,
            lambda: topics.loaded,
            store=self._store,
            brokers=self.brokers,
            layouts=self.layouts,
            leader=leader,
            settings=self._settings,
            usage=self._usage,
            connections=self._connections,
            network=self._network,
            clock=self._clock,
            token=self._token,
        )

    async def drain(self, timeout_s: float) -> None:
        """Hand every bundle over; stop balancing and leading."""
        if self._balancer is not None:
            await self._balancer.close()
        await self.ownership.drain(timeout_s)
        # It leads until here, so that lookups for bundles handed over are answered.
        await self._step_down()

    async def close(self) -> None:
        """Leave the cluster. Leases that were not handed over end when the store is closed."""
        if self._balancer is not None:
            await self._balancer.close()
        await self._step_down()
        await self.ownership.close()
        # The guard first: it would mistake the missing node for the end of the session.
        await self.guard.close()
        async with _bounded("broker_not_withdrawn_in_time"):
            await self.registration.withdraw()
        await self.brokers.close()
        self.layouts.close()

    async def _step_down(self) -> None:
        leader, self._leader = self._leader, None
        if leader is not None:
            async with _bounded("vote_not_withdrawn_in_time"):
                await leader.close()

    @property
    def has_started(self) -> bool:
        """Whether the broker takes part in the election: from `start` until it leaves."""
        return self._leader is not None

    @property
    def leader_broker(self) -> LeaderBroker:
        """The broker's part in the election, and its choice of owners. Valid after `start`."""
        assert self._leader is not None, "start() comes first"
        return self._leader

    @property
    def balancer(self) -> Balancer | None:
        """The balancer of this broker; None before the start."""
        return self._balancer

    def load_reports(self) -> Sequence[LoadReport | None]:
        """Return the last load report of each broker, beginning with the last sample of this one.
        None is for a broker whose report is missing or unreadable."""
        own = self.registration.name
        others = [self.brokers.report_of(name) for name in self.brokers.all() if name != own]
        sampled = self._balancer.reporter.latest if self._balancer is not None else None
        return [sampled, *others]

    # The placement that ownership uses

    @property
    def is_leader(self) -> bool:
        return self._leader is not None and self._leader.is_leader

    def leader(self) -> BrokerRecord | None:
        return None if self._leader is None else self._leader.leader()

    def choose(self, bundle: BundleId, *, excluding: Collection[str] = ()) -> str | None:
        return None if self._leader is None else self._leader.choose(bundle, excluding=excluding)

    def broker(self, name: str) -> BrokerRecord | None:
        return self.brokers.get(name)

    def others(self) -> Sequence[BrokerRecord]:
        own = self.registration.name
        return [record for name, record in sorted(self.brokers.all().items()) if name != own]

    def note(self, bundle: BundleId, broker: str) -> None:
        if self._leader is not None:
            self._leader.note(bundle, broker)
