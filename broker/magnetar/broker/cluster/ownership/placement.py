"""Port through which ownership asks for the placement of bundles on brokers. Pure."""

from collections.abc import Collection, Sequence
from typing import Protocol

from magnetar.broker.cluster.balance.bundles import BundleId
from magnetar.broker.cluster.ownership.records import BrokerRecord


class Placement(Protocol):
    """Chooses brokers for bundles without an owner."""

    @property
    def is_leader(self) -> bool:
        """Whether this broker decides."""
        ...

    def leader(self) -> BrokerRecord | None:
        """Return the broker that decides; None if unknown at the moment."""
        ...

    def choose(self, bundle: BundleId, *, excluding: Collection[str] = ()) -> str | None:
        """Return the broker that should serve a bundle; None if there is none. Any broker may call
        it."""
        ...

    def broker(self, name: str) -> BrokerRecord | None:
        """Return a running broker; None if there is none of that name."""
        ...

    def others(self) -> Sequence[BrokerRecord]:
        """Return all other brokers, as far as they are known; without contact, those of before."""
        ...

    def note(self, bundle: BundleId, broker: str) -> None:
        """Note that a bundle is being handed over to a broker."""
        ...
