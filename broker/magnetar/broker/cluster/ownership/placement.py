"""What ownership asks of whoever places bundles on brokers. Pure."""

from collections.abc import Collection, Sequence
from typing import Protocol

from magnetar.broker.cluster.balance.bundles import BundleId
from magnetar.broker.cluster.ownership.records import BrokerRecord


class Placement(Protocol):
    """The choice of a broker for a bundle that nobody owns."""

    @property
    def is_leader(self) -> bool:
        """Whether this broker decides."""
        ...

    def leader(self) -> BrokerRecord | None:
        """Return the broker that decides; None: unknown at the moment."""
        ...

    def choose(self, bundle: BundleId, *, excluding: Collection[str] = ()) -> str | None:
        """The broker that should serve a bundle; None: there is none. Any broker may ask."""
        ...

    def broker(self, name: str) -> BrokerRecord | None:
        """A broker that runs."""
        ...

    def others(self) -> Sequence[BrokerRecord]:
        """All other brokers, as far as they are known; without contact, those of before."""
        ...

    def note(self, bundle: BundleId, broker: str) -> None:
        """A bundle is being handed over to a broker."""
        ...
