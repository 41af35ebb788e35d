"""In which order the replicas of an entry are asked. Pure: time comes in as an argument.

The write set begins at `entry id mod E`, which spreads the load. From that order (or from a member
that a handle sticks to) replicas in the same rack come first, then those in the same zone, then the
others; after all of these, whatever their distance, come bookies that are read-only (they are ill,
as a rule), that failed or were slow lately, and that are not registered. Nobody is left out: the
last one may be the only one that has the entry.
"""

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple

from magnetar.ledger.registration import BookieInfo


class Distance(IntEnum):
    """How far a bookie is from this client."""

    SAME_RACK = 0
    SAME_ZONE = 1
    ELSEWHERE = 2
    """Or not known."""


class ReplicaFacts(NamedTuple):
    """What is known of a bookie."""

    is_registered: bool = True
    is_readonly: bool = False
    has_failed: bool = False
    """A read failed or was slow lately."""
    distance: Distance = Distance.ELSEWHERE


def distance_to(info: BookieInfo, *, rack: str, zone: str) -> Distance:
    """From a client in this rack and zone; empty for not known."""
    if info.zone != zone:
        return Distance.ELSEWHERE
    if rack and info.rack == rack:
        return Distance.SAME_RACK
    return Distance.SAME_ZONE if zone else Distance.ELSEWHERE


def replica_order(bookies: Sequence[str], facts_of: Callable[[str], ReplicaFacts]) -> list[str]:
    """The bookies, best first; equals stay as they were."""
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
    """The members of a write set, turned so that `first` leads if it is one of them."""
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
        """Nobody failed that has not succeeded since."""
        return not self._failed_at_s

    def note_failure(self, bookie_id: str, now_s: float) -> None:
        self._failed_at_s[bookie_id] = now_s

    def note_success(self, bookie_id: str) -> None:
        self._failed_at_s.pop(bookie_id, None)

    def has_failed(self, bookie_id: str, now_s: float) -> bool:
        failed_at_s = self._failed_at_s.get(bookie_id)
        return failed_at_s is not None and now_s - failed_at_s < self._memory_s
