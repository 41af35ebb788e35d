"""Names of the producer and the cursor by which one cluster copies to another. Pure.

Source: geo-replication sheet, section 1.
"""

from typing import Final, NamedTuple

from magnetar.broker.base.naming import REPLICATOR_PREFIX, is_replicator

_ARROW: Final = "-->"


class ReplicatorName(NamedTuple):
    """What the name of a replicator's producer says."""

    source: str
    """The cluster that is copied from."""
    target: str
    """The cluster that is copied to; empty: a release of before names did say it."""


def parse_replicator(producer_name: str) -> ReplicatorName | None:
    """Return what the name of a producer says of clusters; None: it is no replicator's."""
    if not is_replicator(producer_name):
        return None
    source, _, target = producer_name.removeprefix(REPLICATOR_PREFIX).partition(_ARROW)
    return ReplicatorName(source, target)


def replicator_name(source: str, target: str) -> str:
    """Return the name of the producer that copies from one cluster to another."""
    return f"{REPLICATOR_PREFIX}{source}{_ARROW}{target}"


def cursor_name(target: str) -> str:
    """Return the name of the cursor that keeps how far copies to a cluster have come."""
    return f"{REPLICATOR_PREFIX}{target}"
