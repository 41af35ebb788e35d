"""Find the owner of a bundle; wait, within bounds, while nobody can tell.

The owner says "connect here", everybody else "connect there". If nobody has the lease, the leader
of the brokers chooses; whoever it chooses is told by the client, with a redirect that is
authoritative, and takes the lease, create-if-absent. A loser answers with the winner.

What cannot be told just now is not refused but waited for: the owner was killed and its lease
stands yet, no broker leads the others, there is no contact with the store. A client that is refused
waits longer and longer between its tries, and comes back late.
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
"""The store may take this much longer than the session timeout to end a dead session."""
_PROBE_TIMEOUT_S = 1.0
"""A broker that does not answer in this time is taken for gone."""
_PROBE_FRESH_S = 0.3
"""A broker that answered is not asked again for this long."""


class OwnerLookup:
    """Answers of one broker."""

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
        """`moving`: bundles that are being given up, and to whom. `why_not_serving`: empty while
        the guard's term lasts."""
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
        """Owners that do not answer us: session token, and since when."""
        self.is_draining = False
        """The broker stops: it takes nothing more, whoever sends it."""

    def close(self) -> None:
        for task in self._reading.values():
            task.cancel()
        self._others.clear()
        self._reachability.close()

    def expect_change(self, bundle: BundleId) -> None:
        """Tell those who wait when the lease changes: to be called before it is read."""
        self._others.expect(bundle)

    def forget(self) -> None:
        """There was no contact with the store: everything remembered may be old."""
        self._others.clear()

    async def find(self, look: "Look", what: str, *, listener: str) -> Owner:
        """Look until there is an owner.

        Raises:
            NotAllowedError
            BrokerMetadataError: not within `lookup_wait_s`; `what` begins its text.
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
        """Another broker that serves although this one cannot: who is cut off from the store alone
        sends its clients there. None: there is none, as when the store is away for everybody."""
        for record in self._placement.others():
            if await self._reachability.answers(record.native_url):
                return record
        return None

    async def look(self, bundle: BundleId, *, is_authoritative: bool, listener: str) -> Owner | str:
        """The owner, or why there is none yet."""
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
        """Whether nobody has the lease.

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
        """Another broker has the lease."""
        if lease.destination:
            destination = self._placement.broker(lease.destination)
            if destination is not None and lease.destination != self._registration.name:
                return _redirect(destination, listener, is_authoritative=True)
            if destination is not None:
                return self._here(listener)  # loading waits until the lease is ours
        if await self._is_dead(bundle, lease):
            return f"its owner {lease.broker} does not answer, and its lease stands yet"
        return _owner(lease, listener, is_self=False)

    async def _is_dead(self, bundle: BundleId, lease: LeaseRecord) -> bool:
        """Whether the owner seems to be gone. If it is, so is its lease before long; one that lives
        on is somebody whom only we cannot reach."""
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
        """Nobody has the lease."""
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
        """The lease in the store, read once however many ask; another's is remembered."""
        reading = self._reading.get(bundle)
        if reading is None:
            reading = asyncio.create_task(self._read_now(bundle), name=f"read-lease-{bundle}")
            self._reading[bundle] = reading
            reading.add_done_callback(partial(self._read_done, bundle))
        return await asyncio.shield(reading)

    def _read_done(self, bundle: BundleId, reading: "asyncio.Task[LeaseRecord | None]") -> None:
        del self._reading[bundle]
        if not reading.cancelled():
            reading.exception()  # retrieved, even if nobody waits any more

    async def _read_now(self, bundle: BundleId) -> LeaseRecord | None:
        self._others.expect(bundle)
        lease = await self._leases.read(bundle)
        if lease is None or self._leases.is_ours(lease):
            self._others.forget(bundle)
        else:
            self._others.remember(bundle, lease)
        return lease


class Look(Protocol):
    """One look: the owner, or why there is none yet."""

    async def __call__(self) -> Owner | str: ...


def _url(record: BrokerRecord | LeaseRecord, listener: str) -> str:
    """
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
    """Leases of others by bundle, at most `remembered_max`: a new one displaces the oldest."""

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
        """The lease that is remembered, if any."""
        return self._records.get(bundle)

    def expect(self, bundle: BundleId) -> None:
        """Watch the node: to be called before it is read, lest a change between be missed."""
        if bundle in self._watches:
            return
        while len(self._watches) >= self._remembered_max:
            self.forget(next(iter(self._watches)))
        self._watches[bundle] = self._store.watch(
            bundle.lease_path, partial(self._on_event, bundle)
        )

    def remember(self, bundle: BundleId, record: LeaseRecord) -> None:
        """What was read after `expect`. Nothing happens if there was an event since."""
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
