"""What is known of the leases of other brokers: enough to send clients there, and no more.

A remembered lease has a watch on its node and is forgotten with the first event; so it may be a
moment old, which costs a client one more lookup. Nothing is decided here that has to be right.
"""

from collections.abc import Callable
from functools import partial

from magnetar.broker.cluster.balance.bundles import BundleId
from magnetar.broker.cluster.ownership.records import LeaseRecord
from magnetar.ledger.metadata.store import MetadataStore, Watch, WatchEvent


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
