"""Names of the producer and the cursor that copy from one cluster to another. Pure.

Source: geo-replication sheet, section 1.
"""

from typing import Final, NamedTuple

from magnetar.broker.base.naming import REPLICATOR_PREFIX, is_replicator

_ARROW: Final = "-->"


class ReplicatorName(NamedTuple):
    """The clusters that the name of a replicator's producer contains."""

    source: str
    """Cluster that is copied from."""
    target: str
    """Cluster that is copied to; empty if the producer's release does not put it into the name."""


def parse_replicator(producer_name: str) -> ReplicatorName | None:
    """Return the clusters in a producer's name; None if it is not the name of a replicator."""
    if not is_replicator(producer_name):
        return None
    source, _, target = producer_name.removeprefix(REPLICATOR_PREFIX).partition(_ARROW)
    return ReplicatorName(source, target)


def replicator_name(source: str, target: str) -> str:
    """Return the name of the producer that copies from one cluster to another."""
    return f"{REPLICATOR_PREFIX}{source}{_ARROW}{target}"


def cursor_name(target: str) -> str:
    """Return the name of the cursor that stores how far a topic is copied to a cluster."""
    return f"{REPLICATOR_PREFIX}{target}"
