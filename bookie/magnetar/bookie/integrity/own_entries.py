"""The entries of a ledger that a bookie must hold, by the ledger's metadata. Pure.

An entry belongs to the bookies of its write set in the ensemble of its fragment. A closed ledger
has no entries after its end. In an open one, entries before the last fragment are certain to be
confirmed, and entries in it may or may not exist.
"""

from collections.abc import Iterable, Iterator, Sequence

from magnetar.ledger.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.ledger.quorum import stored_ranges, write_set
from magnetar.ledger.under_replication import ENTRY_ID_MAX, Range


def confirmed_end(metadata: LedgerMetadata) -> int:
    """Return the last entry that certainly exists by the metadata; -1 if there is none."""
    if metadata.state is LedgerState.CLOSED:
        return metadata.last_entry_id
    return metadata.last_fragment.first_entry_id - 1


def end_of(metadata: LedgerMetadata) -> int:
    """Return the last entry that can exist."""
    return metadata.last_entry_id if metadata.state is LedgerState.CLOSED else ENTRY_ID_MAX


def own_ranges(
    metadata: LedgerMetadata, bookie_id: str, *, first: int = 0, last: int = ENTRY_ID_MAX
) -> Iterator[Range]:
    """Yield the entries from `first` to `last` that belong on the bookie, as ascending ranges.

    Ranges end where fragments do. If a write set is smaller than its ensemble, there is a range per
    turn around the ensemble: the caller bounds `last`.
    """
    last = min(last, end_of(metadata))
    while first <= last:
        stop = min(last, metadata.fragment_end(first))
        bookies = metadata.ensemble_for(first)
        if bookie_id in bookies:
            yield from stored_ranges(
                bookies.index(bookie_id),
                first,
                stop,
                ensemble_size=len(bookies),
                write_quorum=metadata.write_quorum,
            )
        first = stop + 1


def peers_of(metadata: LedgerMetadata, entry_id: int, bookie_id: str) -> Sequence[str]:
    """Return the other bookies that store the entry."""
    bookies = metadata.ensemble_for(entry_id)
    members = write_set(entry_id, ensemble_size=len(bookies), write_quorum=metadata.write_quorum)
    return [bookies[index] for index in members if bookies[index] != bookie_id]


def names_bookie(metadata: LedgerMetadata, bookie_id: str) -> bool:
    """Return whether any entry of the ledger may belong on the bookie."""
    return any(bookie_id in fragment.bookies for fragment in metadata.ensembles)


def without(wanted: Range, held: Iterable[int]) -> Iterator[Range]:
    """Yield the parts of a range that are not held; `held` are ids, ascending."""
    first, last = wanted
    for entry_id in held:
        if entry_id < first:
            continue
        if entry_id > last:
            break
        if entry_id > first:
            yield first, entry_id - 1
        first = entry_id + 1
    if first <= last:
        yield first, last
