"""Finds the owner of a bundle; waits, within bounds, while that is unknown.

The owner answers "connect here", every other broker "connect there". If no broker has the lease,
the leader of the brokers chooses one. The client tells the chosen broker, with a redirect that is
authoritative, and that broker takes the lease by create-if-absent. If another broker was faster, it
answers with that one.

If the owner is unknown for now, the lookup is not refused but waits. Examples: the owner was killed
and its lease still exists, no broker leads the others, or there is no contact with the store. A
client that is refused waits longer and longer between its tries, and comes back late.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol

from magnetar.broker.base.errors import BrokerMetadataError, NotAllowedError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.balance.bundles import BundleId
from magnetar.broker.cluster.ownership.changes import Changes
from magnetar.broker.cluster.ownership.leases import Leases
from magnetar.broker.cluster.ownership.placement import Placement
from magnetar.broker.cluster.ownership.protocol import Owner
from magnetar.broker.cluster.ownership.reachability import Reachability
from magnetar.broker.cluster.ownership.records import BrokerRecord, LeaseRecord
from magnetar.broker.cluster.ownership.registration import Registration
from magnetar.ledger.metadata.store import MetadataStore, Watch, WatchEvent
from magnetar.ledger.ports import Clock, Network

_EXPIRY_MARGIN_S = 3.0
"""Extra time, in seconds, that the store may take beyond the session timeout to end a dead
session."""
_PROBE_TIMEOUT_S = 1.0
"""Longest time for an answer, in seconds; a broker that takes longer counts as gone."""
_PROBE_FRESH_S = 0.3
"""Time, in seconds, for which an answer of a broker is reused."""


class OwnerLookup:
    """Answers lookups on one broker."""

    def __init__(
        self,
        store: MetadataStore,
        leases: Leases,
        *,
        registration: Registration,
        placement: Placement,
        moving: Mapping[BundleId, BrokerRecord | None],
        changes: Changes,
        why_not_serving: Callable[[], str],
        clock: Clock,
        network: Network,
        settings: BrokerSettings,
    ) -> None:
        """`moving`: bundles that are being given up, with their destinations. `why_not_serving`:
        empty while the guard's term lasts."""
        self._leases = leases
        self._registration = registration
        self._placement = placement
        self._moving = moving
        self._changes = changes
        self._why_not_serving = why_not_serving
        self._clock = clock
        self._wait_s = settings.lookup_wait_ms / 1000
        self._retry_s = settings.lookup_retry_ms / 1000
        self._others = OthersLeases(
            store, remembered_max=settings.leases_remembered_max, on_change=changes.tell
        )
        self._reading: dict[BundleId, asyncio.Task[LeaseRecord | None]] = {}
        self._reachability = Reachability(
            network, clock=clock, timeout_s=_PROBE_TIMEOUT_S, fresh_s=_PROBE_FRESH_S
        )
        self._silent: dict[BundleId, tuple[str, float]] = {}
        """Owners that do not answer this broker: session token, and since when."""
        self.is_draining = False
        """Whether the broker stops, and takes no more bundles, even for authoritative redirects."""

    def close(self) -> None:
        for task in self._reading.values():
            task.cancel()
        self._others.clear()
        self._reachability.close()

    def expect_change(self, bundle: BundleId) -> None:
        """Wake waiting lookups when the lease changes; call it before the lease is read."""
        self._others.expect(bundle)

    def forget(self) -> None:
        """Forget all remembered leases: without contact to the store they may be outdated."""
        self._others.clear()

    async def find(self, look: "Look", what: str, *, listener: str) -> Owner:
        """Look until there is an owner.

        Raises:
            NotAllowedError
            BrokerMetadataError: not within `lookup_wait_ms`; `what` begins its text.
        """
        deadline_s = self._clock.monotonic_s() + self._wait_s
        while True:
            ticket = self._changes.ticket()
            found: Owner | str
            try:
                found = self._why_not_serving()
                if not found:
                    found = await look()
                elif (other := await self.elsewhere()) is not None:
                    found = _redirect(other, listener, is_authoritative=False)
            except BrokerMetadataError as error:
                if not error.retryable:
                    raise
                found = str(error)
            if isinstance(found, Owner):
                return found
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0:
                raise BrokerMetadataError(f"{what}: {found}")
            await self._changes.wait(ticket, min(left_s, self._retry_s))

    async def elsewhere(self) -> BrokerRecord | None:
        """Return another broker that serves although this one cannot; None if there is none.

        A broker that is cut off from the store alone sends its clients there. There is none if the
        store is unavailable for all brokers.
        """
        for record in self._placement.others():
            if await self._reachability.answers(record.native_url):
                return record
        return None

    async def look(self, bundle: BundleId, *, is_authoritative: bool, listener: str) -> Owner | str:
        """Return the owner, or why there is none yet."""
        if bundle in self._moving:
            return self._moved(bundle, listener)
        if self._leases.holds(bundle):
            return self._here(listener)
        lease = self._others.get(bundle) or await self._read(bundle)
        if lease is None:
            return await self._assign(bundle, is_authoritative, listener)
        if self._leases.holds(bundle):
            return self._here(listener)
        return await self._there(bundle, lease, listener)

    async def is_free(self, bundle: BundleId) -> bool:
        """Whether no broker has the lease.

        Raises:
            BrokerMetadataError
        """
        return self._others.get(bundle) is None and await self._read(bundle) is None

    def _here(self, listener: str) -> Owner:
        record = self._registration.record
        return _owner(record, listener, is_self=True)

    def _moved(self, bundle: BundleId, listener: str) -> Owner | str:
        destination = self._moving[bundle]
        if destination is None:
            return f"{bundle} is being unloaded"
        return _redirect(destination, listener, is_authoritative=True)

    async def _there(self, bundle: BundleId, lease: LeaseRecord, listener: str) -> Owner | str:
        """Answer a lookup of a bundle for which another broker has the lease."""
        if lease.destination:
            destination = self._placement.broker(lease.destination)
            if destination is not None and lease.destination != self._registration.name:
                return _redirect(destination, listener, is_authoritative=True)
            if destination is not None:
                return self._here(listener)  # loading waits until this broker has the lease
        if await self._is_dead(bundle, lease):
            return f"its owner {lease.broker} does not answer, and its lease stands yet"
        return _owner(lease, listener, is_self=False)

    async def _is_dead(self, bundle: BundleId, lease: LeaseRecord) -> bool:
        """Whether the owner seems to be gone. If it is, its lease ends before long. An owner that
        stays longer is one that only this broker cannot reach."""
        if await self._reachability.answers(lease.native_url):
            self._silent.pop(bundle, None)
            return False
        now_s = self._clock.monotonic_s()
        token, since_s = self._silent.get(bundle, ("", 0.0))
        if token != lease.session_token:
            since_s = now_s
            self._silent[bundle] = (lease.session_token, since_s)
        return now_s - since_s < self._registration.timeout_s + _EXPIRY_MARGIN_S

    async def _assign(self, bundle: BundleId, is_authoritative: bool, listener: str) -> Owner | str:
        """Answer a lookup of a bundle without a lease."""
        placement = self._placement
        if self.is_draining:
            is_authoritative = False
        if not is_authoritative:
            if not placement.is_leader:
                leader = placement.leader()
                if leader is None or leader.name == self._registration.name:
                    return "there is no leader broker yet"
                if not await self._reachability.answers(leader.native_url):
                    return f"the leader {leader.name} does not answer"
                return _redirect(leader, listener, is_authoritative=False)
            chosen = placement.choose(
                bundle, excluding=(self._registration.name,) if self.is_draining else ()
            )
            if chosen is None:
                return "no broker can own it"
            if chosen != self._registration.name:
                record = placement.broker(chosen)
                if record is None or not await self._reachability.answers(record.native_url):
                    return f"the chosen broker {chosen} does not answer"
                return _redirect(record, listener, is_authoritative=True)
        lease = await self._leases.take(bundle)
        if self._leases.holds(bundle):
            return self._here(listener)
        return await self._there(bundle, lease, listener)

    async def _read(self, bundle: BundleId) -> LeaseRecord | None:
        """Return the lease in the store, read once for all concurrent callers; another broker's is
        remembered."""
        reading = self._reading.get(bundle)
        if reading is None:
            reading = asyncio.create_task(self._read_now(bundle), name=f"read-lease-{bundle}")
            self._reading[bundle] = reading
            reading.add_done_callback(partial(self._read_done, bundle))
        return await asyncio.shield(reading)

    def _read_done(self, bundle: BundleId, reading: "asyncio.Task[LeaseRecord | None]") -> None:
        del self._reading[bundle]
        if not reading.cancelled():
            reading.exception()  # retrieved, even if there is no waiter left

    async def _read_now(self, bundle: BundleId) -> LeaseRecord | None:
        self._others.expect(bundle)
        lease = await self._leases.read(bundle)
        token, _ = self._silent.get(bundle, ("", 0.0))
        if lease is None or lease.session_token != token:
            self._silent.pop(bundle, None)
        if lease is None or self._leases.is_ours(lease):
            self._others.forget(bundle)
        else:
            self._others.remember(bundle, lease)
        return lease


class Look(Protocol):
    """One lookup: returns the owner, or why there is none yet."""

    async def __call__(self) -> Owner | str: ...


def _url(record: BrokerRecord | LeaseRecord, listener: str) -> str:
    """Return the URL of a listener.

    Raises:
        NotAllowedError: there is no such listener.
    """
    url = record.url_of(listener)
    if url is None:
        raise NotAllowedError(f"there is no advertised listener {listener!r}")
    return url


def _owner(record: BrokerRecord | LeaseRecord, listener: str, *, is_self: bool) -> Owner:
    return Owner(
        _url(record, listener),
        is_self=is_self,
        http_url=record.http_url,
        service_url_tls="" if listener else record.native_url_tls,
        http_url_tls=record.http_url_tls,
    )


def _redirect(record: BrokerRecord, listener: str, *, is_authoritative: bool) -> Owner:
    owner = _owner(record, listener, is_self=False)
    return replace(owner, is_redirect=True, is_authoritative=is_authoritative)


class OthersLeases:
    """Leases of other brokers by bundle, at most `remembered_max`: a new one displaces the
    oldest."""

    def __init__(
        self, store: MetadataStore, *, remembered_max: int, on_change: Callable[[], None]
    ) -> None:
        """`on_change`: a bundle whose lease was remembered may have another owner now."""
        self._store = store
        self._remembered_max = remembered_max
        self._on_change = on_change
        self._records: dict[BundleId, LeaseRecord | None] = {}
        self._watches: dict[BundleId, Watch] = {}

    def __len__(self) -> int:
        return len(self._watches)

    def get(self, bundle: BundleId) -> LeaseRecord | None:
        """Return the remembered lease, if any."""
        return self._records.get(bundle)

    def expect(self, bundle: BundleId) -> None:
        """Watch the node; call it before the lease is read, so that no change in between is
        missed."""
        if bundle in self._watches:
            return
        while len(self._watches) >= self._remembered_max:
            self.forget(next(iter(self._watches)))
        self._watches[bundle] = self._store.watch(
            bundle.lease_path, partial(self._on_event, bundle)
        )

    def remember(self, bundle: BundleId, record: LeaseRecord) -> None:
        """Remember what was read after `expect`, unless there was an event since."""
        if bundle in self._watches:
            self._records[bundle] = record

    def forget(self, bundle: BundleId) -> None:
        self._records.pop(bundle, None)
        watch = self._watches.pop(bundle, None)
        if watch is not None:
            watch.close()

    def clear(self) -> None:
        for bundle in list(self._watches):
            self.forget(bundle)

    def _on_event(self, bundle: BundleId, event: WatchEvent) -> None:
        self.forget(bundle)
        self._on_change()
