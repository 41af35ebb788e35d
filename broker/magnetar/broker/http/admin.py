"""What the HTTP interface does, whether the broker is one of several or alone.

A request about one bundle is carried out by its owner; everybody else answers with a redirect to
it. The bundles of a namespace may have many owners: whoever is asked asks them all.
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
    """A broker, as its registration and its last report show it."""

    record: BrokerRecord
    report: LoadReport | None
    is_leader: bool
    is_self: bool

    @property
    def broker_id(self) -> str:
        """As Pulsar's tools name brokers: the host and port of the HTTP service."""
        return self.record.http_url.removeprefix("http://") or self.record.name


class Admin(Protocol):
    """What a broker can be asked and told over HTTP."""

    layouts: Layouts
    reporter: LoadReporter

    def brokers(self) -> Sequence[KnownBroker]:
        """All of them, by name."""
        ...

    async def owned(self) -> Sequence[BundleId]:
        """The bundles of this broker."""
        ...

    async def owner_of(self, topic: TopicName, *, is_authoritative: bool, listener: str) -> Owner:
        """Where a client of the topic goes; see `Ownership.owner_of`."""
        ...

    async def find_owner(self, bundle: BundleId) -> str | None:
        """Name of the broker that has a bundle; None: nobody has. Assigns nothing.

        Raises:
            RequestError: that cannot be told now.
        """
        ...

    async def unload_topic(self, topic: TopicName) -> None:
        """Close a topic of this broker; its clients look it up again.

        Raises:
            RequestError, ElsewhereError
        """
        ...

    async def here(self, topic: TopicName) -> None:
        """Return if the topic is for this broker to load: it is ours, or nobody's so far.

        Raises:
            RequestError, ElsewhereError
        """
        ...

    async def ask(self, http_url: str, method: str, path: str, body: bytes = b"") -> Answer:
        """What another broker answers to a request.

        Raises:
            BrokerMetadataError: nothing, so that nobody knows whether it was done.
        """
        ...

    async def unload_bundle(self, bundle: BundleId, destination: str) -> None:
        """Have this broker give up a bundle, to a broker of that name or id; "": to any.

        A bundle that nobody has is taken by that broker.

        Raises:
            RequestError, ElsewhereError
        """
        ...

    async def unload_namespace(self, namespace: str) -> None:
        """Have all brokers give up the bundles of a namespace.

        Raises:
            RequestError
        """
        ...

    async def split(
        self, bundle: BundleId, at: Sequence[int], algorithm: str, *, is_authoritative: bool
    ) -> Sequence[Bundle]:
        """Have this broker split a bundle of its own, at the given hashes or by an algorithm.

        `is_authoritative`: it was chosen to be the owner, if nobody is. Returns what is in the
        bundle's place.

        Raises:
            BundleError, RequestError, ElsewhereError
        """
        ...


class ClusterAdmin:
    """One of several brokers."""

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
            pass  # Not loaded: nobody is served here who could be sent elsewhere.

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
                raise result  # All have been tried; the first that failed is told.

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
        """Whether the bundle is ours; False: nobody's.

        Raises:
            ElsewhereError: another broker's.
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
        """A broker given by name, by id or by URL."""
        if not destination:
            return None
        wanted = destination.removeprefix("http://")
        for known in self.brokers():
            if wanted in (known.record.name, known.broker_id):
                return known.record.name
        raise NotAllowedError(f"there is no broker {destination}")


class SoleBundles:
    """The bundles of a broker that is alone: all there are."""

    def __init__(self, layouts: Layouts, namespaces: Callable[[], Sequence[str]]) -> None:
        self._layouts = layouts
        self._namespaces = namespaces
        self._bundles: Sequence[BundleId] = ()

    async def load(self) -> Sequence[BundleId]:
        """All of them, read if need be.

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
        """All of them, as last loaded."""
        return self._bundles

    async def update_load(self, load: Mapping[str, JsonValue]) -> None:
        """Nobody is there who could be told."""

    async def split_lease(self, bundle: BundleId, at: int, /) -> None:
        """Split a bundle; there are no leases."""
        await self._layouts.split(bundle.namespace, bundle.bundle, at)


class SoleAdmin:
    """A broker that is alone: every bundle is its own, and none has anywhere to go."""

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
    """Split a bundle at each of the given hashes, or where the algorithm says.

    Raises:
        BundleError: a hash is not inside of the bundle, or the algorithm finds none.
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
