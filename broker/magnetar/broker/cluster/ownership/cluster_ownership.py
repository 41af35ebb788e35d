"""Ownership among several brokers: the broker with the lease of a topic's bundle serves the topic.

A tenure is a term of the guard: it ends for all topics at once. The topics are then dropped without
another write, and are loaded again one by one as clients ask for them.

Lookups are in `owner_lookup.py`, moving bundles in `unloading.py`, the nodes in `leases.py`.

Source: managed-ledger sheet, sections 10 and 11; docs/decisions/0019.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

import structlog
from pydantic import JsonValue

from magnetar.broker.base.errors import BrokerMetadataError, ServiceNotReadyError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.balance.bundles import BundleId
from magnetar.broker.cluster.balance.layouts import Layouts
from magnetar.broker.cluster.ownership.acquisitions import Acquisitions, NotYet
from magnetar.broker.cluster.ownership.changes import Changes
from magnetar.broker.cluster.ownership.leases import Leases
from magnetar.broker.cluster.ownership.owner_lookup import OwnerLookup
from magnetar.broker.cluster.ownership.placement import Placement
from magnetar.broker.cluster.ownership.protocol import Owner, TopicHolder
from magnetar.broker.cluster.ownership.registration import Registration
from magnetar.broker.cluster.ownership.session_guard import SessionGuard
from magnetar.broker.cluster.ownership.unloading import Unloading
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock, Network
from magnetar.sdk.wire import TopicName

_log = structlog.get_logger()


class TermTenure:
    """The right to serve for the rest of a guard's term."""

    __slots__ = ("_guard", "_term")

    def __init__(self, guard: SessionGuard, term: int) -> None:
        self._guard = guard
        self._term = term

    def holds(self) -> bool:
        return self._guard.holds(self._term)


class ClusterOwnership:
    """One broker's part in ownership. `attach` gives it the topics, then `start`."""

    def __init__(
        self,
        store: MetadataStore,
        *,
        guard: SessionGuard,
        registration: Registration,
        layouts: Layouts,
        placement: Placement,
        clock: Clock,
        network: Network,
        settings: BrokerSettings,
    ) -> None:
        self._guard = guard
        self._registration = registration
        self._layouts = layouts
        self._placement = placement
        self._clock = clock
        self._settings = settings
        self._retry_s = settings.lookup_retry_ms / 1000
        self._changes = Changes()
        self._leases = Leases(
            store,
            registration,
            guard,
            layouts,
            on_lost=self._on_lease_lost,
            retry_s=self._retry_s,
            clock=clock,
        )
        self._unloading = Unloading(
            self._leases,
            registration=registration,
            layouts=layouts,
            placement=placement,
            holder=lambda: self._holder,
            changes=self._changes,
            clock=clock,
            settings=settings,
        )
        self._lookup = OwnerLookup(
            store,
            self._leases,
            registration=registration,
            placement=placement,
            moving=self._unloading.moving,
            changes=self._changes,
            why_not_serving=self._why_not_serving,
            clock=clock,
            network=network,
            settings=settings,
        )
        self._acquisitions = Acquisitions(
            self._try_acquire, changes=self._changes, retry_s=self._retry_s
        )
        self._topics: TopicHolder | None = None
        guard.on_run_out(self._on_run_out)
        guard.on_restored(self.tell_changed)
        layouts.on_change(lambda _: self.tell_changed())

    # Life

    def attach(self, topics: TopicHolder) -> None:
        """Set the topics of this broker, before the first request for an owner."""
        self._topics = topics

    async def close(self) -> None:
        """Drop all state; remaining leases end with the session."""
        self._acquisitions.close()
        self._unloading.close()
        self._lookup.close()
        self._leases.close()

    def tell_changed(self) -> None:
        """Wake lookups, because the leader or the set of brokers may have changed."""
        self._changes.tell()

    # State

    @property
    def is_serving(self) -> bool:
        """Whether this broker may own anything at this moment."""
        return self._guard.is_valid

    @property
    def is_draining(self) -> bool:
        return self._lookup.is_draining

    @property
    def unloads(self) -> int:
        """Bundles given up on purpose."""
        return self._unloading.unloads

    @property
    def unload_failures(self) -> int:
        return self._unloading.unload_failures

    @property
    def name(self) -> str:
        return self._registration.name

    @property
    def guard(self) -> SessionGuard:
        return self._guard

    @property
    def leases_taken(self) -> int:
        return self._leases.taken

    def owned(self) -> Sequence[BundleId]:
        """Return the bundles of this broker, without those that it is giving up."""
        return [bundle for bundle in self._leases.held if bundle not in self._unloading.moving]

    async def bundle_of(self, topic: TopicName) -> BundleId:
        """Return the bundle that contains a topic.

        Raises:
            BrokerMetadataError
        """
        layout = await self._layouts.layout_of(topic.namespace_name)
        return BundleId(topic.namespace_name, layout.bundle_of(topic))

    async def update_load(self, load: Mapping[str, JsonValue]) -> None:
        """Publish the load of this broker in its registration.

        Raises:
            BrokerMetadataError
        """
        await self._registration.update(load=load)

    # Lookups

    async def owner_of(
        self, topic: TopicName, *, is_authoritative: bool = False, listener: str = ""
    ) -> Owner:
        async def look() -> Owner | str:
            bundle = await self.bundle_of(topic)
            return await self._lookup.look(
                bundle, is_authoritative=is_authoritative, listener=listener
            )

        return await self._lookup.find(look, f"{topic} has no owner now", listener=listener)

    async def owner_of_bundle(
        self, bundle: BundleId, *, is_authoritative: bool = False, listener: str = ""
    ) -> Owner:
        """Return the owner of a bundle of the present layout, waiting as `owner_of` does for a
        topic.

        Raises:
            NotAllowedError, BrokerMetadataError
        """
        look = partial(
            self._lookup.look, bundle, is_authoritative=is_authoritative, listener=listener
        )
        return await self._lookup.find(look, f"{bundle} has no owner now", listener=listener)

    def _why_not_serving(self) -> str:
        """Return why this broker serves nothing; empty while the guard's term lasts."""
        if self._guard.is_valid:
            return ""
        if not self._registration.token:
            return "this broker is starting"
        return (
            f"this broker has had no contact with the metadata store for "
            f"{self._guard.silence_s:.0f} s and serves nothing until it is back"
        )

    # Loading

    async def acquire(self, topic: TopicName, *, timeout_s: float) -> TermTenure:
        deadline_s = self._clock.monotonic_s() + timeout_s
        found: TermTenure | NotYet | None = None
        while True:
            left_s = deadline_s - self._clock.monotonic_s()
            ticket = self._changes.ticket()
            try:
                bundle = await self.bundle_of(topic)
            except BrokerMetadataError as error:
                if not error.retryable:
                    raise
                found = NotYet(error)
                await self._changes.wait(ticket, min(left_s, self._retry_s))
            else:
                found = await self._acquisitions.get(bundle, timeout_s=left_s)
            if isinstance(found, TermTenure):
                return found
            if deadline_s <= self._clock.monotonic_s():
                raise ServiceNotReadyError(f"{topic} cannot be served here now: {found}")

    async def take_bundle(self, bundle: BundleId) -> None:
        """Take a bundle without an owner, after a read of the store: what is remembered of its
        former owner may be older than the end of its lease.

        Raises:
            ServiceNotReadyError: another broker has it, or it cannot be taken now.
            BrokerMetadataError
        """
        found = await self._acquisitions.get(bundle, timeout_s=self._settings.lookup_wait_ms / 1000)
        if not isinstance(found, TermTenure):
            raise ServiceNotReadyError(f"{bundle} cannot be taken now: {found or 'it was split'}")

    async def _try_acquire(self, bundle: BundleId) -> TermTenure | NotYet | None:
        """Return the right to load topics of a bundle, or why that has to wait; None if it was
        split.

        Raises:
            ServiceNotReadyError: another broker has the bundle.
            BrokerMetadataError: the owner cannot be found out now.
        """
        term = self._guard.term
        if not self._guard.holds(term):
            if await self._lookup.elsewhere() is not None:
                raise ServiceNotReadyError(self._why_not_serving() or f"look {bundle} up again")
            return NotYet(self._why_not_serving())
        if bundle.bundle not in await self._layouts.layout_of(bundle.namespace):
            return None
        if bundle in self._unloading.moving:
            raise ServiceNotReadyError(f"{bundle} moves to another broker")
        # Always read the store: a lease may have ended without a notification (M20).
        if not self._leases.holds(bundle):
            self._lookup.expect_change(bundle)
        lease = await self._leases.read(bundle)
        if lease is None:
            if self.is_draining:
                raise ServiceNotReadyError(f"{self.name} is stopping")
            lease = await self._leases.take(bundle)
        if self._leases.is_ours(lease):
            if bundle in self._unloading.moving:
                raise ServiceNotReadyError(f"{bundle} moves to another broker")
            if self._leases.holds(bundle) and self._guard.holds(term):
                return TermTenure(self._guard, term)
            return NotYet("the lease is not certain")
        if lease.destination == self.name:
            return NotYet(f"{lease.broker} has not handed {bundle} over yet")
        raise ServiceNotReadyError(f"{bundle} is served by {lease.broker} at {lease.native_url}")

    async def alone_since_s(self, topic: TopicName) -> float | None:
        if not self._guard.is_valid or self.is_draining:
            return None
        bundle = await self.bundle_of(topic)
        if bundle in self._unloading.moving:
            return None
        since_s = self._leases.held_since_s(bundle)
        if since_s is None and self._placement.is_leader and await self._lookup.is_free(bundle):
            return self._clock.monotonic_s()
        return since_s

    # Unloading

    async def unload_topic(self, topic: TopicName) -> None:
        """Close a topic; its clients look it up again, and its owner loads it again.

        Raises:
            ServiceNotReadyError: it is not loaded here.
        """
        names = self._holder.names_of(lambda name: name == topic)
        if not names:
            raise ServiceNotReadyError(f"{topic} is not loaded at {self.name}")
        await self._holder.hand_over(names, None, timeout_s=self._settings.unload_timeout_ms / 1000)

    async def unload_namespace(self, namespace: str) -> None:
        """Give up every bundle of a namespace that this broker owns.

        Raises:
            BrokerMetadataError: one of them could not be given up.
        """
        bundles = [bundle for bundle in self.owned() if bundle.namespace == namespace]
        await asyncio.gather(*map(self.unload_bundle, bundles))

    async def unload_bundle(self, bundle: BundleId, destination: str | None = None) -> None:
        """Hand a bundle over to `destination`, or to a broker that is chosen, and notify its
        clients. See `Unloading.unload_bundle` for the errors."""
        await self._unloading.unload_bundle(bundle, destination)

    async def split_lease(self, parent: BundleId, at: int) -> tuple[BundleId, BundleId]:
        """Split a bundle of this broker in two; see `Unloading.split` for the errors."""
        return await self._unloading.split(parent, at)

    async def drain(self, timeout_s: float) -> None:
        """Hand every bundle over, because the broker stops; what is not done in time is left."""
        self._lookup.is_draining = True
        await self._unloading.drain(timeout_s)

    # Losing

    @property
    def _holder(self) -> TopicHolder:
        assert self._topics is not None, "attach() comes first"
        return self._topics

    def _on_run_out(self, reason: str) -> None:
        self._lookup.forget()
        names = self._holder.names_of(lambda _: True)
        _log.warning("topics_dropped", topics=len(names), reason=reason)
        self._holder.drop(names, reason)
        self.tell_changed()

    def _on_lease_lost(self, bundle: BundleId) -> None:
        names = self._holder.names_of(bundle.holds)
        self._holder.drop(names, f"the lease of {bundle} is gone")
        self.tell_changed()
