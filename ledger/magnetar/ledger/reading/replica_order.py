"""The order in which the replicas of an entry are asked. Pure: time is passed as an argument.

The write set begins at `entry id mod E`, which spreads the load. Starting from that order (or from
a handle's sticky member), replicas in the same rack come first, then those in the same zone, then
the others. After all of these, whatever their distance, come bookies that are read-only (usually
because of a fault), that failed or were slow lately, and that are not registered. No bookie is left
out: the last one may be the only one with the entry.
"""

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple

from magnetar.ledger.registration import BookieInfo


class Distance(IntEnum):
    """Distance of a bookie from this client."""

    SAME_RACK = 0
    SAME_ZONE = 1
    ELSEWHERE = 2
    """In another zone, or in an unknown one."""


class ReplicaFacts(NamedTuple):
    """The facts about a bookie that decide its place in the order."""

    is_registered: bool = True
    is_readonly: bool = False
    has_failed: bool = False
    """Whether a read failed or was slow lately."""
    distance: Distance = Distance.ELSEWHERE


def distance_to(info: BookieInfo, *, rack: str, zone: str) -> Distance:
    """Return the distance of a bookie from a client in this rack and zone; empty if unknown."""
    if info.zone != zone:
        return Distance.ELSEWHERE
    if rack and info.rack == rack:
        return Distance.SAME_RACK
    return Distance.SAME_ZONE if zone else Distance.ELSEWHERE


def replica_order(bookies: Sequence[str], facts_of: Callable[[str], ReplicaFacts]) -> list[str]:
    """Return the bookies, best first; equal ones keep their order."""
    return sorted(bookies, key=lambda bookie_id: _rank(facts_of(bookie_id)))


def _rank(facts: ReplicaFacts) -> tuple[int, int]:
    if not facts.is_registered:
        trouble = 3
    elif facts.has_failed:
        trouble = 2
    else:
        trouble = 1 if facts.is_readonly else 0
    return trouble, facts.distance


def sticky_first(members: Sequence[int], first: int | None) -> list[int]:
    """Rotate the members of a write set so that `first` leads, if it is one of them."""
    if first is None or first not in members:
        return list(members)
    at = list(members).index(first)
    return [*members[at:], *members[:at]]


class FailureMemory:
    """The bookies that failed, or were slow, within the last `memory_s` seconds."""

    def __init__(self, memory_s: float) -> None:
        self._memory_s = memory_s
        self._failed_at_s: dict[str, float] = {}

    @property
    def is_empty(self) -> bool:
        """Whether every bookie that ever failed has succeeded since."""
        return not self._failed_at_s

    def note_failure(self, bookie_id: str, now_s: float) -> None:
        self._failed_at_s[bookie_id] = now_s

    def note_success(self, bookie_id: str) -> None:
        self._failed_at_s.pop(bookie_id, None)

    def has_failed(self, bookie_id: str, now_s: float) -> bool:
        failed_at_s = self._failed_at_s.get(bookie_id)
        return failed_at_s is not None and now_s - failed_at_s < self._memory_s
