"""The leases of bundles: taken, verified and given back in the metadata store.

A lease is an ephemeral node that is created if absent, and in no other way (rule 10.2). What this
broker holds is in memory together with a watch on each node; it counts only while the guard's term
lasts, and is found anew after that: if the session survived an outage, so did the leases that bear
its token.

A node that bears our name and another token than the present one was left by a creation that was
under way when a session expired. It belongs to the present session, since our registration, which
is created if absent too, belongs to it; so it is deleted.

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
"""Rounds of one operation that meets others' changes or unknown outcomes."""


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
        """`on_lost`: a lease that was held is gone although the session lives, as when an operator
        deletes the node. `retry_s`: between two looks at a lease that has to be known."""
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
        """Leases that were created."""
        guard.on_run_out(self._on_run_out)

    @property
    def held(self) -> Sequence[BundleId]:
        """The bundles of this broker, in the present term."""
        return [bundle for bundle in self._held if self.holds(bundle)]

    def holds(self, bundle: BundleId) -> bool:
        """Whether the lease is known to be ours at this moment. Does not wait."""
        held = self._held.get(bundle)
        return held is not None and self._guard.holds(held.term)

    def held_since_s(self, bundle: BundleId) -> float | None:
        """Since when the lease is held without a gap, monotonic; None: it is not held."""
        return self._held[bundle].since_s if self.holds(bundle) else None

    def is_ours(self, record: LeaseRecord) -> bool:
        """Whether a lease was taken by this broker, in its present session."""
        return record.session_token == self._registration.token

    async def read(self, bundle: BundleId) -> LeaseRecord | None:
        """The lease as it is in the store; None if there is none. One of ours is held from now on;
        one that was held and is not ours is lost, whoever meets that first.

        Raises:
            BrokerMetadataError: the store does not answer, or holds no lease there.
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
        """Take the lease if nobody has it; returns the lease there is, ours or another's.

        `is_listed`: the bundle is one of the namespace's layout, or the lease is not kept. Not so
        for the halves of a split, which come before it.

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
            taking.exception()  # retrieved, even if nobody waits any more

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
                    continue  # whoever has it: the next look tells
            except MetadataError as error:
                raise BrokerMetadataError(f"cannot acquire {bundle} now: {error}") from error
            self.taken += 1
            if token != self._registration.token or not self._guard.holds(term):
                # Created, perhaps, under the session that came after: not to be relied upon.
                await self._give_back(bundle, token)
                continue
            if is_listed and bundle.bundle not in await self._layouts.verified(bundle.namespace):
                self._lose(bundle, self._held.get(bundle))  # if a look has found it meanwhile
                await self._give_back(bundle, token)
                raise BrokerMetadataError(f"{bundle} has been split")
            if self._guard.holds(term) and not self.holds(bundle):
                self._hold(bundle, term, 0)
            _log.info("bundle_taken", bundle=str(bundle))
            return record
        raise BrokerMetadataError(f"the lease of {bundle} keeps changing; try again")

    async def announce(self, bundle: BundleId, destination: str) -> None:
        """Write into a lease of ours where the bundle goes, which has to be carried out then.

        Whoever reads it sends clients there. So while nobody knows whether it is written, it is
        looked at again; if the term ends before that is known, it counts as written.

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
        """False: that, or what we knew of the node before, has to be looked at.

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
        """Whether a lease of ours names that destination, by a look that sees all that we wrote;
        also true if there is none before the term ends.

        Raises:
            UnreadableRecordError: somebody has overwritten it.
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
        """Delete a lease of ours; nothing of the bundle may be served any more.

        Raises:
            BrokerMetadataError: not now. It is not held any more; it goes with the session, or when
                it is found again.
        """
        self._forget(bundle)
        await self._give_back(bundle, self._registration.token)

    def close(self) -> None:
        """End all watches; the leases go with the session."""
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
        """Delete the lease if it bears that token; whatever else is there stays.

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
        """Somebody changed the node, we perhaps: look whether it is still ours."""
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
        """The store has no lease of ours. `held`: what we held when the look at it began; what was
        given up, or taken, since then is not what was looked at."""
        if held is None or self._held.get(bundle) is not held:
            return
        _log.warning("lease_lost", bundle=str(bundle))
        self._forget(bundle)
        self._on_lost(bundle)
