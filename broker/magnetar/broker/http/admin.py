"""Administration of brokers and bundles over HTTP, for one of several brokers or for a broker
alone.

The owner of a bundle carries out requests about it; the other brokers answer with a redirect to the
owner. The bundles of a namespace may have many owners: the broker that gets the request asks them
all.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog
from pydantic import JsonValue

from magnetar.broker.base.errors import (
    BrokerMetadataError,
    NotAllowedError,
    ServiceNotReadyError,
)
from magnetar.broker.base.http_client import Answer
from magnetar.broker.cluster.balance.bundles import Bundle, BundleError, BundleId
from magnetar.broker.cluster.balance.layouts import Layouts
from magnetar.broker.cluster.balance.leader import LeaderBroker
from magnetar.broker.cluster.balance.load_report import LoadReport
from magnetar.broker.cluster.balance.orders import HttpOrders
from magnetar.broker.cluster.balance.reporter import LoadReporter
from magnetar.broker.cluster.ownership.cluster_ownership import ClusterOwnership
from magnetar.broker.cluster.ownership.protocol import Owner
from magnetar.broker.cluster.ownership.records import BrokerRecord, LeaseRecord
from magnetar.broker.http.refusals import ElsewhereError
from magnetar.broker.policies.model import decode
from magnetar.broker.topics import Topics
from magnetar.ledger.errors import NoNodeError
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.sdk.wire import TopicName

_log = structlog.get_logger()

_ORDERS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class KnownBroker:
    """A broker with its registration and its last load report."""

    record: BrokerRecord
    report: LoadReport | None
    is_leader: bool
    is_self: bool

    @property
    def broker_id(self) -> str:
        """Id of the broker in Pulsar's tools: host and port of its HTTP service."""
        return self.record.http_url.removeprefix("http://") or self.record.name


class Admin(Protocol):
    """Operations on brokers, bundles and topics that HTTP requests need."""

    layouts: Layouts
    reporter: LoadReporter

    def brokers(self) -> Sequence[KnownBroker]:
        """Return all brokers, ordered by name."""
        ...

    async def owned(self) -> Sequence[BundleId]:
        """Return the bundles of this broker."""
        ...

    async def owner_of(self, topic: TopicName, *, is_authoritative: bool, listener: str) -> Owner:
        """Return the broker that serves a topic to clients; see `Ownership.owner_of`."""
        ...

    async def find_owner(self, bundle: BundleId) -> str | None:
        """Return the name of a bundle's owner; None if it has no owner. Assigns nothing.

        Raises:
            RequestError: the owner cannot be determined now.
        """
        ...

    async def unload_topic(self, topic: TopicName) -> None:
        """Close a topic of this broker; its clients look it up again.

        Raises:
            RequestError, ElsewhereError
        """
        ...

    async def here(self, topic: TopicName) -> None:
        """Return if this broker may load the topic: the broker owns it, or nobody does yet.

        Raises:
            RequestError, ElsewhereError
        """
        ...

    async def ask(self, http_url: str, method: str, path: str, body: bytes = b"") -> Answer:
        """Send a request to another broker and return its answer.

        Raises:
            BrokerMetadataError: no answer came, so it is unknown whether the request was carried
                out.
        """
        ...

    async def unload_bundle(self, bundle: BundleId, destination: str) -> None:
        """Release a bundle of this broker, to the broker with that name or id; "" for any.

        A bundle without an owner is acquired by the named broker.

        Raises:
            RequestError, ElsewhereError
        """
        ...

    async def unload_namespace(self, namespace: str) -> None:
        """Have all brokers release the bundles of a namespace.

        Raises:
            RequestError
        """
        ...

    async def split(
        self, bundle: BundleId, at: Sequence[int], algorithm: str, *, is_authoritative: bool
    ) -> Sequence[Bundle]:
        """Split a bundle of this broker, at the given hashes or where an algorithm chooses.

        `is_authoritative`: this broker was chosen as the owner if there is none. Returns the
        bundles that replace it.

        Raises:
            BundleError, RequestError, ElsewhereError
        """
        ...


class ClusterAdmin:
    """Administration at one of several brokers."""

    def __init__(
        self,
        ownership: ClusterOwnership,
        *,
        store: MetadataStore,
        layouts: Layouts,
        leader: LeaderBroker,
        reporter: LoadReporter,
        orders: HttpOrders,
    ) -> None:
        self.layouts = layouts
        self.reporter = reporter
        self._ownership = ownership
        self._store = store
        self._leader = leader
        self._orders = orders

    def brokers(self) -> Sequence[KnownBroker]:
        leads = self._leader.leader_name()
        return [
            KnownBroker(
                record,
                self._leader.report_of(name),
                is_leader=name == leads,
                is_self=name == self._ownership.name,
            )
            for name, record in sorted(self._leader.brokers().items())
        ]

    async def owned(self) -> Sequence[BundleId]:
        return sorted(self._ownership.owned())

    async def owner_of(self, topic: TopicName, *, is_authoritative: bool, listener: str) -> Owner:
        return await self._ownership.owner_of(
            topic, is_authoritative=is_authoritative, listener=listener
        )

    async def find_owner(self, bundle: BundleId) -> str | None:
        lease = await self._lease_of(bundle)
        return lease.broker if lease is not None else None

    async def unload_topic(self, topic: TopicName) -> None:
        await self._here_or_elsewhere(await self._ownership.bundle_of(topic))
        try:
            await self._ownership.unload_topic(topic)
        except ServiceNotReadyError:
            pass  # Not loaded, so it has no clients to redirect.

    async def here(self, topic: TopicName) -> None:
        await self._here_or_elsewhere(await self._ownership.bundle_of(topic))

    async def ask(self, http_url: str, method: str, path: str, body: bytes = b"") -> Answer:
        return await self._orders.ask(http_url, method, path, body)

    async def unload_bundle(self, bundle: BundleId, destination: str) -> None:
        await self._check(bundle)
        name = self._name_of(destination)
        if await self._here_or_elsewhere(bundle):
            await self._ownership.unload_bundle(bundle, name)
        elif name == self._ownership.name:
            await self._ownership.take_bundle(bundle)
            return
        if name is not None:
            await self._have_taken(bundle, name)

    async def _have_taken(self, bundle: BundleId, destination: str) -> None:
        """Have the destination of an unload acquire the bundle, unless a client's lookup did so.

        Without clients, the leader would choose the owner at the next lookup, and it does not know
        the destination.
        """
        record = self._leader.broker(destination)
        if record is None or await self._lease_of(bundle) is not None:
            return
        try:
            await self._orders.unload(record, bundle, destination)
        except BrokerMetadataError as error:
            # The unload succeeded. The leader chooses an owner at the next lookup.
            _log.warning("bundle_not_taken", bundle=str(bundle), error=str(error))

    async def unload_namespace(self, namespace: str) -> None:
        layout = await self.layouts.layout_of(namespace)
        at_once = asyncio.Semaphore(_ORDERS_AT_ONCE)

        async def unload(bundle: BundleId) -> None:
            async with at_once:
                name = await self.find_owner(bundle)
                owner = self._leader.broker(name) if name is not None else None
                if name == self._ownership.name:
                    await self._ownership.unload_bundle(bundle)
                elif owner is not None:
                    await self._orders.unload(owner, bundle, "")

        bundles = [BundleId(namespace, bundle) for bundle in layout.bundles]
        for result in await asyncio.gather(*map(unload, bundles), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result  # All bundles were tried; raise the first failure.

    async def split(
        self, bundle: BundleId, at: Sequence[int], algorithm: str, *, is_authoritative: bool
    ) -> Sequence[Bundle]:
        await self._check(bundle)
        if not await self._here_or_elsewhere(bundle):
            owner = await self._ownership.owner_of_bundle(bundle, is_authoritative=is_authoritative)
            if not owner.is_self:
                raise ElsewhereError.at(owner)
            await self._ownership.take_bundle(bundle)
        await split_at(self._ownership.split_lease, self.reporter, bundle, at, algorithm)
        return (await self.layouts.verified(bundle.namespace)).covering(bundle.bundle)

    async def _check(self, bundle: BundleId) -> None:
        if bundle.bundle not in await self.layouts.layout_of(bundle.namespace):
            raise BundleError(f"{bundle.namespace} has no bundle {bundle.bundle}")

    async def _here_or_elsewhere(self, bundle: BundleId) -> bool:
        """Whether this broker owns the bundle; False if nobody does.

        Raises:
            ElsewhereError: another broker owns it.
            ServiceNotReadyError: this broker is acquiring or releasing it.
        """
        if bundle in self._ownership.owned():
            return True
        lease = await self._lease_of(bundle)
        if lease is None:
            return False
        if lease.broker == self._ownership.name:
            raise ServiceNotReadyError(
                f"{lease.broker} is acquiring or releasing {bundle}; try again"
            )
        raise ElsewhereError(lease.http_url, http_url_tls=lease.http_url_tls)

    async def _lease_of(self, bundle: BundleId) -> LeaseRecord | None:
        try:
            found = await self._store.get(bundle.lease_path)
        except NoNodeError:
            return None
        return decode(LeaseRecord, bundle.lease_path, found.value)

    def _name_of(self, destination: str) -> str | None:
        """Return the name of a broker given by name, id or URL; None for ""."""
        if not destination:
            return None
        wanted = destination.removeprefix("http://")
        for known in self.brokers():
            if wanted in (known.record.name, known.broker_id):
                return known.record.name
        raise NotAllowedError(f"there is no broker {destination}")


class SoleBundles:
    """Bundles of a broker that is alone: all of them."""

    def __init__(self, layouts: Layouts, namespaces: Callable[[], Sequence[str]]) -> None:
        self._layouts = layouts
        self._namespaces = namespaces
        self._bundles: Sequence[BundleId] = ()

    async def load(self) -> Sequence[BundleId]:
        """Read and return all bundles.

        Raises:
            BrokerMetadataError
        """
        self._bundles = [
            BundleId(namespace, bundle)
            for namespace in self._namespaces()
            for bundle in (await self._layouts.layout_of(namespace)).bundles
        ]
        return self._bundles

    def owned(self) -> Sequence[BundleId]:
        """Return all bundles, as last loaded."""
        return self._bundles

    async def update_load(self, load: Mapping[str, JsonValue]) -> None:
        """Do nothing: there is no other broker to inform."""

    async def split_lease(self, bundle: BundleId, at: int, /) -> None:
        """Split a bundle; there are no leases."""
        await self._layouts.split(bundle.namespace, bundle.bundle, at)


class SoleAdmin:
    """Administration at a broker that is alone: it owns every bundle and cannot move any."""

    def __init__(
        self,
        describe: Callable[[], BrokerRecord],
        topics: Topics,
        *,
        bundles: SoleBundles,
        layouts: Layouts,
        reporter: LoadReporter,
        unload_timeout_s: float,
    ) -> None:
        self.layouts = layouts
        self.reporter = reporter
        self._describe = describe
        self._topics = topics
        self._bundles = bundles
        self._unload_timeout_s = unload_timeout_s

    def brokers(self) -> Sequence[KnownBroker]:
        return [KnownBroker(self._describe(), self.reporter.latest, is_leader=True, is_self=True)]

    async def owned(self) -> Sequence[BundleId]:
        return await self._bundles.load()

    async def owner_of(self, topic: TopicName, *, is_authoritative: bool, listener: str) -> Owner:
        record = self._describe()
        url = record.url_of(listener)
        if url is None:
            raise NotAllowedError(f"there is no advertised listener {listener!r}")
        return Owner(
            url,
            is_self=True,
            http_url=record.http_url,
            service_url_tls="" if listener else record.native_url_tls,
            http_url_tls=record.http_url_tls,
        )

    async def find_owner(self, bundle: BundleId) -> str | None:
        return self._describe().name

    async def unload_topic(self, topic: TopicName) -> None:
        names = self._topics.ends.names_of(lambda name: name == topic)
        await self._topics.ends.hand_over(names, None, timeout_s=self._unload_timeout_s)

    async def here(self, topic: TopicName) -> None:
        return None

    async def ask(self, http_url: str, method: str, path: str, body: bytes = b"") -> Answer:
        raise NotAllowedError(f"there is no broker at {http_url}: this is the only one")

    async def unload_bundle(self, bundle: BundleId, destination: str) -> None:
        await self._check(bundle)
        if destination not in ("", self._describe().name):
            raise NotAllowedError(f"there is no broker {destination}: this is the only one")
        names = self._topics.ends.names_of(bundle.holds)
        await self._topics.ends.hand_over(names, None, timeout_s=self._unload_timeout_s)

    async def unload_namespace(self, namespace: str) -> None:
        names = self._topics.ends.names_of(lambda name: name.namespace_name == namespace)
        await self._topics.ends.hand_over(names, None, timeout_s=self._unload_timeout_s)

    async def split(
        self, bundle: BundleId, at: Sequence[int], algorithm: str, *, is_authoritative: bool
    ) -> Sequence[Bundle]:
        await self._check(bundle)
        await split_at(self._bundles.split_lease, self.reporter, bundle, at, algorithm)
        return (await self.layouts.verified(bundle.namespace)).covering(bundle.bundle)

    async def _check(self, bundle: BundleId) -> None:
        if bundle.bundle not in await self.layouts.layout_of(bundle.namespace):
            raise BundleError(f"{bundle.namespace} has no bundle {bundle.bundle}")


class _SplitLease(Protocol):
    async def __call__(self, bundle: BundleId, at: int, /) -> object: ...


async def split_at(
    split_lease: _SplitLease,
    reporter: LoadReporter,
    bundle: BundleId,
    at: Sequence[int],
    algorithm: str,
) -> None:
    """Split a bundle at each of the given hashes, or where the algorithm chooses.

    Raises:
        BundleError: a hash is not inside the bundle, or the algorithm finds none.
        RequestError
    """
    points = sorted(set(at))
    for point in points:
        if not bundle.bundle.lower < point < bundle.bundle.upper:
            raise BundleError(f"{point:#010x} is not inside of {bundle.bundle}")
    if not points:
        await reporter.look()
        points = [reporter.split_point(bundle, algorithm)]
    for point in points:
        await split_lease(bundle, point)
        bundle = BundleId(bundle.namespace, Bundle(point, bundle.bundle.upper))
