"""Hands bundles over to other brokers, and splits them.

A bundle is unloaded in this order. The lease names the destination. Pending publishes are answered.
Clients are notified and connect there, while this broker closes ledgers and cursors. The lease is
deleted. The destination is named in the lease, so it lets the clients wait, takes the lease, and
opens ledgers that are closed already. Nothing has to be recovered.

What the lease says, or may say, is carried out, even if contact to the store is lost meanwhile:
only the owner can delete the lease, and all others send clients to a broker that waits for that.

A split does not move anything: the leases of the halves are taken before the layout names them, and
the parent's lease is deleted last, so that lookups find an owner at any moment.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import structlog

from magnetar.broker.base.errors import (
    BrokerMetadataError,
    NotAllowedError,
    RequestError,
    ServiceNotReadyError,
)
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.balance.bundles import BundleId, halves
from magnetar.broker.cluster.balance.layouts import Layouts
from magnetar.broker.cluster.ownership.changes import Changes
from magnetar.broker.cluster.ownership.leases import Leases
from magnetar.broker.cluster.ownership.placement import Placement
from magnetar.broker.cluster.ownership.protocol import TopicHolder
from magnetar.broker.cluster.ownership.records import BrokerRecord
from magnetar.broker.cluster.ownership.registration import Registration
from magnetar.ledger.ports import Clock
from magnetar.sdk.wire import TopicName

_log = structlog.get_logger()


class Unloading:
    """The bundles that one broker is giving up or splitting."""

    def __init__(
        self,
        leases: Leases,
        *,
        registration: Registration,
        layouts: Layouts,
        placement: Placement,
        holder: Callable[[], TopicHolder],
        changes: Changes,
        clock: Clock,
        settings: BrokerSettings,
    ) -> None:
        self._leases = leases
        self._registration = registration
        self._layouts = layouts
        self._placement = placement
        self._holder = holder
        self._changes = changes
        self._clock = clock
        self._settings = settings
        self._retry_s = settings.lookup_retry_ms / 1000
        self._unloading: dict[BundleId, asyncio.Task[None]] = {}
        self._resolving: set[asyncio.Task[None]] = set()
        self._splitting = asyncio.Lock()
        """Held by a split, and while leases are given back because the layout does not name them:
        it does not name the halves of a split under way."""
        self.moving: dict[BundleId, BrokerRecord | None] = {}
        """Bundles that are being given up, with their destinations."""
        self.unloads = 0
        """Bundles given up on purpose."""
        self.unload_failures = 0

    def close(self) -> None:
        for task in (*self._unloading.values(), *self._resolving):
            task.cancel()

    async def unload_bundle(self, bundle: BundleId, destination: str | None = None) -> None:
        """Hand a bundle over to `destination`, or to a broker that is chosen, and notify its
        clients.

        Return when the lease is gone.

        Raises:
            ServiceNotReadyError: this broker does not own it.
            NotAllowedError: there is no such broker, or it is this one, or it stops.
            BrokerMetadataError: the store does not answer. Nothing was changed, or the unloading
                continues once it answers: call again to wait for that.
        """
        unloading = self._unloading.get(bundle)
        if unloading is None:
            if not self._leases.holds(bundle):
                raise ServiceNotReadyError(f"{bundle} is not owned by {self._registration.name}")
            record = self._destination(bundle, destination)
            unloading = asyncio.create_task(self._unload(bundle, record), name=f"unload-{bundle}")
            self._unloading[bundle] = unloading
            unloading.add_done_callback(partial(self._unloaded, bundle))
        wait_ms = self._settings.unload_timeout_ms + self._settings.lookup_wait_ms
        await asyncio.wait([unloading], timeout=wait_ms / 1000)
        if not unloading.done():
            raise BrokerMetadataError(
                f"{bundle} is being unloaded; the unload continues when the metadata store answers"
            )
        unloading.result()

    def _destination(self, bundle: BundleId, wanted: str | None) -> BrokerRecord | None:
        placement = self._placement
        if wanted is None:
            chosen = placement.choose(bundle, excluding=(self._registration.name,))
            return None if chosen is None else placement.broker(chosen)
        record = placement.broker(wanted)
        if record is None:
            raise NotAllowedError(f"there is no broker {wanted}")
        if wanted == self._registration.name:
            raise NotAllowedError(f"{bundle} is already at {wanted}")
        if record.draining:
            raise NotAllowedError(f"broker {wanted} is stopping")
        return record

    def _unloaded(self, bundle: BundleId, unloading: "asyncio.Task[None]") -> None:
        del self._unloading[bundle]
        if not unloading.cancelled() and unloading.exception() is not None:
            self.unload_failures += 1
        self._changes.tell()

    async def _unload(self, bundle: BundleId, destination: BrokerRecord | None) -> None:
        started_s = self._clock.monotonic_s()
        if destination is not None:
            self._placement.note(bundle, destination.name)
            # Before any client is notified: the destination accepts clients because of this.
            await self._leases.announce(bundle, destination.name)
        self.moving[bundle] = destination
        self._changes.tell()
        try:
            names = self._holder().names_of(bundle.holds)
            await self._hand_over(bundle, names, destination)
            await self._give_up(bundle)
        finally:
            del self.moving[bundle]
        self.unloads += 1
        _log.info(
            "bundle_unloaded",
            bundle=str(bundle),
            destination=destination.name if destination is not None else None,
            topics=len(names),
            milliseconds=round((self._clock.monotonic_s() - started_s) * 1000),
        )

    async def _hand_over(
        self, bundle: BundleId, names: Sequence[TopicName], destination: BrokerRecord | None
    ) -> None:
        """Close the topics of a bundle, and tell their clients where to go."""
        timeout_s = self._settings.unload_timeout_ms / 1000
        try:
            await self._holder().hand_over(names, destination, timeout_s=timeout_s)
        except Exception:  # noqa: BLE001
            # The destination is in the lease, and other brokers send clients there. If the lease
            # stayed, these clients would find no owner.
            _log.exception("bundle_not_handed_over", bundle=str(bundle))
            self._holder().drop(names, "it could not be handed over")

    async def _give_up(self, bundle: BundleId) -> None:
        """Delete the lease, in this term or a later one. As long as that fails, nothing is served.

        Raises:
            UnreadableRecordError: the node was overwritten.
        """
        while True:
            try:
                await self._leases.give_up(bundle)
            except BrokerMetadataError as error:
                if not error.retryable:
                    raise
                _log.warning("lease_not_given_up", bundle=str(bundle), error=str(error))
                await asyncio.sleep(self._retry_s)
            else:
                return

    async def drain(self, timeout_s: float) -> None:
        """Hand every bundle over, because the broker stops; what is not done in time is left."""
        at_once = asyncio.Semaphore(self._settings.unloads_at_once)

        async def hand_over(bundle: BundleId) -> None:
            async with at_once:
                try:
                    await self.unload_bundle(bundle)
                except RequestError as error:
                    _log.warning("bundle_not_unloaded", bundle=str(bundle), error=str(error))

        try:
            async with asyncio.timeout(timeout_s):
                try:
                    await self._registration.update(draining=True)
                except BrokerMetadataError as error:
                    _log.warning("draining_not_told", error=str(error))
                await asyncio.gather(*map(hand_over, self._leases.held))
        except TimeoutError:
            _log.warning("bundles_left_behind", bundles=len(self._leases.held))

    async def split(self, parent: BundleId, at: int) -> tuple[BundleId, BundleId]:
        """Split a bundle of this broker in two, below hash `at` and from `at` on; both halves stay
        here.

        Raises:
            ServiceNotReadyError: this broker does not own it, or it moves.
            BundleError: `at` is not inside of it.
            NotAllowedError: the namespace has as many bundles as it may have.
            BrokerMetadataError: not known whether it is split; if so, this broker owns both halves.
        """
        async with self._splitting:
            if not self._leases.holds(parent) or parent in self.moving:
                raise ServiceNotReadyError(f"{parent} is not owned by {self._registration.name}")
            lower, upper = (BundleId(parent.namespace, each) for each in halves(parent.bundle, at))
            try:
                await self._split(parent, at, lower, upper)
            except BaseException:
                self._resolve_later(parent, lower, upper)
                raise
        self._changes.tell()
        return lower, upper

    async def _split(self, parent: BundleId, at: int, lower: BundleId, upper: BundleId) -> None:
        for half in (lower, upper):
            await self._leases.take(half, is_listed=False)
            if not self._leases.holds(half):
                raise BrokerMetadataError(f"{half} is owned by another broker: {parent} stays")
        check = partial(self._check_held, parent, lower, upper)
        await self._layouts.split(parent.namespace, parent.bundle, at, check=check)
        await self._drop_unlisted(parent)

    def _check_held(self, *bundles: BundleId) -> None:
        """Check that leases were not lost between the requests of a split. A new layout would
        otherwise take the bundle from an owner that does not learn of it.

        Raises:
            ServiceNotReadyError
        """
        for bundle in bundles:
            if not self._leases.holds(bundle):
                raise ServiceNotReadyError(f"{bundle} was lost meanwhile: nothing is split")

    def _resolve_later(self, *bundles: BundleId) -> None:
        """Give back the leases that the layout does not name, once that can be read: in this term,
        or in a later one, in which the leases are found again."""

        async def resolve() -> None:
            while True:
                try:
                    async with self._splitting:
                        await self._drop_unlisted(*bundles)
                except BrokerMetadataError as error:
                    if not error.retryable:
                        return
                    await asyncio.sleep(self._retry_s)
                else:
                    return

        task = asyncio.create_task(resolve(), name=f"resolve-split-{bundles[0]}")
        self._resolving.add(task)
        task.add_done_callback(self._resolving.discard)

    async def _drop_unlisted(self, *bundles: BundleId) -> None:
        """Give back the leases of bundles that are not in the layout.

        Raises:
            BrokerMetadataError
        """
        layout = await self._layouts.verified(bundles[0].namespace)
        for bundle in bundles:
            if bundle.bundle not in layout:
                await self._leases.give_up(bundle)  # held or not: an earlier try may have failed
