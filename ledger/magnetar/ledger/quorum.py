"""Quorum arithmetic: write sets and the coverage that fencing needs. Pure.

An entry `e` goes to the ensemble's members at indices (e + k) mod E, k = 0..Qw-1. So there are only
E distinct write sets, however long the ledger grows. Every rule about "enough bookies" is a rule
about each of them. Source: BookKeeper's protocol, docs/glossary.md.
"""

from collections.abc import Iterator, Set


def write_set(entry_id: int, *, ensemble_size: int, write_quorum: int) -> tuple[int, ...]:
    """Return the ensemble indices that store the entry, in the order in which they are asked."""
    return tuple((entry_id + k) % ensemble_size for k in range(write_quorum))


def is_in_write_set(index: int, entry_id: int, *, ensemble_size: int, write_quorum: int) -> bool:
    """Return whether the member at `index` stores the entry."""
    return (index - entry_id) % ensemble_size < write_quorum


def stored_ranges(
    index: int, first: int, last: int, *, ensemble_size: int, write_quorum: int
) -> Iterator[tuple[int, int]]:
    """Yield the ranges of `first` to `last` that the member at `index` stores, inclusive, in order.

    Modulo the ensemble's size, they are the ids index - Qw + 1 to index. If a write set is smaller
    than its ensemble, there is one range per turn around the ensemble.
    """
    if write_quorum == ensemble_size:
        yield first, last
        return
    # The turn around the ensemble that ends at or behind `first`.
    end = first + (index - first) % ensemble_size
    if end - first >= write_quorum:  # `first` is before the start of this turn
        first = end - write_quorum + 1
    while first <= last:
        yield first, min(end, last)
        end += ensemble_size
        first = end - write_quorum + 1


def write_sets(*, ensemble_size: int, write_quorum: int) -> list[tuple[int, ...]]:
    """Return the E distinct write sets."""
    return [
        write_set(e, ensemble_size=ensemble_size, write_quorum=write_quorum)
        for e in range(ensemble_size)
    ]


class Coverage:
    """Counts the bookies that confirmed a property, per write set.

    Covered means: in every write set at least Qw - Qa + 1 members confirmed, so fewer than Qa did
    not. Only an explicit confirmation counts. An error or a missing answer never does (rule 7.2).
    """

    def __init__(self, *, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        self._sets = write_sets(ensemble_size=ensemble_size, write_quorum=write_quorum)
        self._needed = write_quorum - ack_quorum + 1
        self._confirmed: set[int] = set()

    def confirm(self, index: int) -> None:
        self._confirmed.add(index)

    @property
    def confirmed(self) -> Set[int]:
        return self._confirmed

    @property
    def is_covered(self) -> bool:
        return all(
            sum(index in self._confirmed for index in members) >= self._needed
            for members in self._sets
        )
