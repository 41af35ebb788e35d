"""The leases of bundles: taken, verified and given back in the metadata store.

A lease is an ephemeral node that is only ever created if absent (rule 10.2). The leases that this
broker holds are in memory, together with a watch on each node. They count only while the guard's
term lasts, and are found again after that: if the session survived an outage, so did the leases
with its token.

A node with this broker's name and another token than the present one is the result of a creation
that was under way when a session expired. It belongs to the present session, because the
registration, which is also created if absent, belongs to it. So the node is deleted.

Source: managed-ledger sheet, sections 10 and 13 (M13, M15, M20).
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import structlog

from magnetar.broker.base.errors import BrokerMetadataError
from magnetar.broker.cluster.balance.bundles import BundleId
from magnetar.broker.cluster.balance.layouts import Layouts
from magnetar.broker.cluster.ownership.records import LeaseRecord, lease_of
from magnetar.broker.cluster.ownership.registration import Registration
from magnetar.broker.cluster.ownership.session_guard import SessionGuard
from magnetar.broker.policies.model import decode
from magnetar.ledger.errors import (
    BadVersionError,
    ContendedError,
    MetadataError,
    NoNodeError,
    UnknownOutcomeError,
)
from magnetar.ledger.metadata.cell import GONE, Cell, Deletion
from magnetar.ledger.metadata.store import MetadataStore, Versioned, Watch, WatchEvent
from magnetar.ledger.ports import Clock

_log = structlog.get_logger()

_ATTEMPTS_MAX = 10
"""Most rounds of one operation that meets concurrent changes or unknown outcomes."""


class _Held:
    """A lease of this broker, in the present term."""

    __slots__ = ("since_s", "term", "version", "watch")

    def __init__(self, term: int, version: int, watch: Watch, since_s: float) -> None:
        self.since_s = since_s
        self.term = term
        self.version = version
        self.watch = watch


class Leases:
    """The leases of one broker."""

    def __init__(
        self,
        store: MetadataStore,
        registration: Registration,
        guard: SessionGuard,
        layouts: Layouts,
        *,
        on_lost: Callable[[BundleId], None],
        retry_s: float,
        clock: Clock,
    ) -> None:
        """`on_lost`: a lease that was held is gone although the session lives, for example because
        an operator deleted the node. `retry_s`: pause between two reads of a lease that has to be
        known."""
        self._store = store
        self._registration = registration
        self._guard = guard
        self._layouts = layouts
        self._on_lost = on_lost
        self._retry_s = retry_s
        self._clock = clock
        self._held: dict[BundleId, _Held] = {}
        self._taking: dict[BundleId, asyncio.Task[LeaseRecord]] = {}
        self._checking: set[asyncio.Task[None]] = set()
        self.taken = 0
        """Number of leases that were created."""
        guard.on_run_out(self._on_run_out)

    @property
    def held(self) -> Sequence[BundleId]:
        """The bundles of this broker, in the present term."""
        return [bundle for bundle in self._held if self.holds(bundle)]

    def holds(self, bundle: BundleId) -> bool:
        """Whether this broker is known to hold the lease at this moment. Does not wait."""
        held = self._held.get(bundle)
        return held is not None and self._guard.holds(held.term)

    def held_since_s(self, bundle: BundleId) -> float | None:
        """Return since when the lease is held without a gap, by the monotonic clock; None if it is
        not held."""
        return self._held[bundle].since_s if self.holds(bundle) else None

    def is_ours(self, record: LeaseRecord) -> bool:
        """Whether a lease was taken by this broker, in its present session."""
        return record.session_token == self._registration.token

    async def read(self, bundle: BundleId) -> LeaseRecord | None:
        """Return the lease in the store; None if there is none.

        A lease of this broker is held from now on. One that was held, and is no longer of this
        broker, is lost, whichever path finds that out first.

        Raises:
            BrokerMetadataError: the store does not answer, or its value is no lease.
        """
        term = self._guard.term
        held = self._held.get(bundle)
        try:
            found = await self._cell(bundle).change(self._without_stale, is_sure=False)
        except ContendedError as error:
            raise BrokerMetadataError(f"the lease of {bundle} keeps changing; try again") from error
        except MetadataError as error:
            raise BrokerMetadataError(f"the owner of {bundle} cannot be read: {error}") from error
        record = found.after
        if record is None or not self.is_ours(record):
            self._lose(bundle, held)
        elif self._guard.holds(term):  # else it is found again when there is contact
            assert found.version is not None, "there is a record"
            self._hold(bundle, term, found.version)
        return record

    async def take(self, bundle: BundleId, *, is_listed: bool = True) -> LeaseRecord:
        """Take the lease if no broker has it; return the resulting lease, this broker's or
        another's.

        `is_listed`: keep the lease only if the bundle is in the namespace's layout. False for the
        halves of a split, whose leases are taken before that.

        Raises:
            BrokerMetadataError: not now: no contact with the store, or the bundle was split.
        """
        taking = self._taking.get(bundle)
        if taking is None:
            taking = asyncio.create_task(self._take(bundle, is_listed), name=f"lease-{bundle}")
            self._taking[bundle] = taking
            taking.add_done_callback(partial(self._taken, bundle))
        return await asyncio.shield(taking)

    def _taken(self, bundle: BundleId, taking: "asyncio.Task[LeaseRecord]") -> None:
        del self._taking[bundle]
        if not taking.cancelled():
            taking.exception()  # retrieved, even if there is no waiter left

    async def _take(self, bundle: BundleId, is_listed: bool) -> LeaseRecord:
        for _ in range(_ATTEMPTS_MAX):
            term, token = self._guard.term, self._registration.token
            if not self._guard.holds(term):
                raise BrokerMetadataError("this broker has no contact with the metadata store")
            record = await self.read(bundle)
            if record is not None:
                return record
            record = lease_of(self._registration.record)
            try:
                if not await self._cell(bundle).create(record):
                    continue  # another broker may have it: the next read tells
            except MetadataError as error:
                raise BrokerMetadataError(f"cannot acquire {bundle} now: {error}") from error
            self.taken += 1
            if token != self._registration.token or not self._guard.holds(term):
                # It may belong to the session that came after, so it is not reliable.
                await self._give_back(bundle, token)
                continue
            if is_listed and bundle.bundle not in await self._layouts.verified(bundle.namespace):
                self._lose(bundle, self._held.get(bundle))  # if a read has found it meanwhile
                await self._give_back(bundle, token)
                raise BrokerMetadataError(f"{bundle} has been split")
            if self._guard.holds(term) and not self.holds(bundle):
                self._hold(bundle, term, 0)
            _log.info("bundle_taken", bundle=str(bundle))
            return record
        raise BrokerMetadataError(f"the lease of {bundle} keeps changing; try again")

    async def announce(self, bundle: BundleId, destination: str) -> None:
        """Write the destination of the bundle into its lease; the handover must then be carried
        out.

        Brokers that read it send clients there. So while it is unknown whether it is written, the
        lease is read again. If the term ends before that is known, it counts as written.

        Raises:
            BrokerMetadataError: it is not written.
        """
        term = self._guard.term
        for _ in range(_ATTEMPTS_MAX):
            if await self._write_destination(bundle, destination):
                return
            if await self._may_have_destination(bundle, destination, term):
                return
        raise BrokerMetadataError(f"the lease of {bundle} keeps changing; try again")

    async def _write_destination(self, bundle: BundleId, destination: str) -> bool:
        """Write the destination; return False if the outcome or the present node has to be read.

        Raises:
            BrokerMetadataError: it is not written.
        """
        held = self._held.get(bundle)
        if held is None or not self._guard.holds(held.term):
            raise BrokerMetadataError(f"this broker does not own {bundle}")
        record = lease_of(self._registration.record, destination=destination)
        try:
            held.version = await self._store.set(
                bundle.lease_path, record.encode(), version=held.version
            )
        except (BadVersionError, UnknownOutcomeError):
            return False
        except NoNodeError as error:
            raise BrokerMetadataError(f"this broker no longer owns {bundle}") from error
        except MetadataError as error:
            raise BrokerMetadataError(f"the lease of {bundle} is not changed: {error}") from error
        return True

    async def _may_have_destination(self, bundle: BundleId, destination: str, term: int) -> bool:
        """Whether a lease of this broker names that destination, by a read that sees all its
        writes; also true if no read succeeds before the term ends.

        Raises:
            UnreadableRecordError: the node was overwritten.
        """
        while True:
            try:
                await self._catch_up(bundle)
                record = await self.read(bundle)
            except BrokerMetadataError as error:
                if not error.retryable:
                    raise
                _log.warning("lease_in_doubt", bundle=str(bundle), error=str(error))
            else:
                return (
                    record is not None
                    and self.is_ours(record)
                    and record.destination == destination
                )
            if not self._guard.holds(term):
                return True
            await asyncio.sleep(self._retry_s)

    async def give_up(self, bundle: BundleId) -> None:
        """Delete a lease of this broker; nothing of the bundle may be served any more.

        Raises:
            BrokerMetadataError: not now. The lease is no longer held; it ends with the session, or
                when it is found again.
        """
        self._forget(bundle)
        await self._give_back(bundle, self._registration.token)

    def close(self) -> None:
        """End all watches; the leases end with the session."""
        for bundle in list(self._held):
            self._forget(bundle)
        for task in (*self._taking.values(), *self._checking):
            task.cancel()

    # Parts

    async def _get(self, bundle: BundleId) -> Versioned | None:
        try:
            return await self._store.get(bundle.lease_path)
        except NoNodeError:
            return None

    def _cell(self, bundle: BundleId) -> Cell[LeaseRecord]:
        path = bundle.lease_path
        return Cell(
            self._store,
            path,
            decode=lambda value: decode(LeaseRecord, path, value),
            encode=LeaseRecord.encode,
            ephemeral=True,
            tries_max=_ATTEMPTS_MAX,
        )

    def _without_stale(self, record: LeaseRecord | None) -> Deletion | None:
        return GONE if record is not None and self._is_stale(record) else None

    def _is_stale(self, record: LeaseRecord) -> bool:
        registration = self._registration
        return (
            bool(registration.token)
            and self._guard.is_valid
            and record.broker == registration.record.name
            and record.session_token != registration.token
        )

    async def _give_back(self, bundle: BundleId, token: str) -> None:
        """Delete the lease if it has that token; any other node stays.

        Raises:
            BrokerMetadataError
        """

        def give_back(record: LeaseRecord | None) -> Deletion | None:
            return GONE if record is not None and record.session_token == token else None

        try:
            await self._cell(bundle).change(give_back, is_sure=False)
        except ContendedError as error:
            raise BrokerMetadataError(
                f"the lease of {bundle} is not deleted: it is there again"
            ) from error
        except MetadataError as error:
            raise BrokerMetadataError(f"the lease of {bundle} is not deleted: {error}") from error

    async def _catch_up(self, bundle: BundleId) -> None:
        try:
            await self._store.catch_up()
        except MetadataError as error:
            raise BrokerMetadataError(f"the owner of {bundle} cannot be read: {error}") from error

    def _hold(self, bundle: BundleId, term: int, version: int) -> None:
        held = self._held.get(bundle)
        if held is not None:
            if held.term != term:
                held.since_s = self._clock.monotonic_s()
            held.term, held.version = term, version
            return
        watch = self._store.watch(bundle.lease_path, partial(self._on_event, bundle))
        self._held[bundle] = _Held(term, version, watch, self._clock.monotonic_s())

    def _forget(self, bundle: BundleId) -> None:
        held = self._held.pop(bundle, None)
        if held is not None:
            held.watch.close()

    def _on_run_out(self, reason: str) -> None:
        for bundle in list(self._held):
            self._forget(bundle)

    def _on_event(self, bundle: BundleId, event: WatchEvent) -> None:
        if event is WatchEvent.CHILDREN or bundle not in self._held:
            return
        task = asyncio.create_task(self._check(bundle), name=f"check-lease-{bundle}")
        self._checking.add(task)
        task.add_done_callback(self._checking.discard)

    async def _check(self, bundle: BundleId) -> None:
        """Check whether the lease is still this broker's, after a change of the node by any
        broker."""
        held = self._held.get(bundle)
        try:
            found = await self._get(bundle)
            record = decode(LeaseRecord, bundle.lease_path, found.value) if found else None
        except (MetadataError, BrokerMetadataError) as error:
            _log.info("lease_not_checked", bundle=str(bundle), error=str(error))
            return  # if the session is over, the guard finds out
        if record is None or not self.is_ours(record):
            self._lose(bundle, held)

    def _lose(self, bundle: BundleId, held: _Held | None) -> None:
        """Drop a lease that the store does not have for this broker. `held`: what was held when the
        read began; a lease given up, or taken, since then is not what was read."""
        if held is None or self._held.get(bundle) is not held:
            return
        _log.warning("lease_lost", bundle=str(bundle))
        self._forget(bundle)
        self._on_lost(bundle)
