"""The bounds of ownership; see `BrokerSettings` for what they mean. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OwnershipLimits:
    """Times in seconds."""

    lookup_wait_s: float
    """A lookup that cannot be answered now waits this long."""
    retry_s: float
    """What waits looks again after this, if nothing tells it to before."""
    leases_remembered_max: int
    """Leases of other brokers."""
    unload_timeout_s: float
    """A bundle's topics are closed in this time, or dropped."""
    unloads_at_once: int
    """Bundles that are handed over at the same time when the broker stops."""
    expiry_margin_s: float = 3.0
    """The store may take this much longer than the session timeout to end a dead session."""
    probe_timeout_s: float = 1.0
    """A broker that does not answer in this time is taken for gone."""
    probe_fresh_s: float = 0.3
    """A broker that answered is not asked again for this long."""
