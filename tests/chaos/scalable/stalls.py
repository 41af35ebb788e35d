"""How long changes of the layout held up publishing, as producers saw it. Pure.

The ring of hashes has sixteen slots. A slot *stands still* from its last receipt, or from the first
message without one, until the next receipt, as long as there are messages without one. What was
longer than `GAP_S` is a gap. A gap belongs to a change if it overlaps it in time, and its slot lies
in the segments that the change replaces. So it also has what the machine, and the way to the broker
and back, take at that moment; gaps in which nothing was changed tell how much that is.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

GAP_S: Final = 0.01
SLOT_BITS: Final = 4
SLOTS: Final = 1 << SLOT_BITS
SPLIT: Final = "SPLIT"
"""The kind of a change."""
BOUND_MS: Final = 100
"""So long may a split hold up publishing."""
_HASH_BITS = 16
_SLOT_HASHES = 1 << (_HASH_BITS - SLOT_BITS)


class Gap(NamedTuple):
    """One slot of one producer stood still; wall clock."""

    until_ms: float
    since_ms: float
    slot: int

    @property
    def ms(self) -> float:
        return self.until_ms - self.since_ms


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the layout that has come to its end; wall clock."""

    kind: str
    first_hash: int
    last_hash: int
    """Of all its parents."""
    begun_ms: int
    ended_ms: int
    stalled_ms: int
    """As the broker has measured it."""

    @property
    def slots(self) -> range:
        return range(self.first_hash // _SLOT_HASHES, self.last_hash // _SLOT_HASHES + 1)


class Gaps:
    """Where all producers stood still."""

    def __init__(self, gaps: Iterable[Gap]) -> None:
        self._of_slot: defaultdict[int, list[Gap]] = defaultdict(list)
        for each in sorted(gaps):
            self._of_slot[each.slot].append(each)
        self._longest_ms = {
            slot: max(each.ms for each in found) for slot, found in self._of_slot.items()
        }

    def within(self, slots: Iterable[int], begun_ms: float, ended_ms: float) -> list[Gap]:
        """Return the gaps of some slots that overlap a time."""
        found: list[Gap] = []
        for slot in slots:
            gaps = self._of_slot.get(slot, [])
            at = bisect_left(gaps, (begun_ms,))
            for each in gaps[at:]:
                if each.until_ms - self._longest_ms[slot] > ended_ms:
                    break
                if each.since_ms <= ended_ms:
                    found.append(each)
        return found

    def besides(
        self, changes: Sequence[Change], disturbed: Iterable[tuple[float, float]] = ()
    ) -> list[Gap]:
        """Return the gaps that overlap neither a change nor a time of another disturbance."""
        known = {
            gap for each in changes for gap in self.within(each.slots, each.begun_ms, each.ended_ms)
        }
        for begun_ms, ended_ms in disturbed:
            known.update(self.within(range(SLOTS), begun_ms, ended_ms))
        return [each for gaps in self._of_slot.values() for each in gaps if each not in known]


def stall_ms(change: Change, gaps: Gaps) -> float:
    """The longest time that some keys of the change's segments stood still; 0: no gap."""
    found = gaps.within(change.slots, change.begun_ms, change.ended_ms)
    return max((each.ms for each in found), default=0.0)


def distribution(values_ms: Iterable[float]) -> dict[str, float]:
    """Of how many, the middle one, and the longest ones."""
    found = sorted(values_ms)
    if not found:
        return {"count": 0}
    return {
        "count": len(found),
        "p50": round(_share_of(found, 0.5), 1),
        "p90": round(_share_of(found, 0.9), 1),
        "p99": round(_share_of(found, 0.99), 1),
        "max": round(found[-1], 1),
        f"over_{BOUND_MS}": sum(each > BOUND_MS for each in found),
    }


def _share_of(ordered: Sequence[float], share: float) -> float:
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def problems_of(changes: Iterable[Change], *, kills: int, gaps_left_off: int = 0) -> Iterator[str]:
    """What must not be: gaps that no producer wrote down, and, in a run without kills, splits that
    held up publishing for longer than the bound, as the broker has measured it. What producers saw
    has the machine's own gaps in it, and is no problem."""
    if gaps_left_off:
        yield f"producers did not write down {gaps_left_off} gaps: they have no room for so many"
    for each in changes:
        if not kills and each.kind == SPLIT and each.stalled_ms > BOUND_MS:
            yield (
                f"a split held up publishing for {each.stalled_ms} ms, and not {BOUND_MS} at most: "
                f"hashes {each.first_hash} to {each.last_hash}, ended at {each.ended_ms}"
            )


def stalls_of(changes: Sequence[Change], gaps: Gaps) -> Mapping[str, Any]:
    """By the kind of the change: what producers saw, and what the broker has measured."""
    kinds = sorted({each.kind for each in changes})
    return {
        kind: {
            "producers_ms": distribution(
                stall_ms(each, gaps) for each in changes if each.kind == kind
            ),
            "broker_ms": distribution(each.stalled_ms for each in changes if each.kind == kind),
        }
        for kind in kinds
    }
