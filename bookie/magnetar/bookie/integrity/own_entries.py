"""The entries of a ledger that a bookie must have, by the ledger's metadata. Pure.

An entry belongs to the bookies of its write set in the ensemble of its fragment. A closed ledger
has no entries behind its end; of one that is not closed, what lies before the last fragment is
certain to be confirmed, and what lies in it may or may not exist.
"""

from collections.abc import Iterable, Iterator, Sequence

from magnetar.ledger.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.ledger.quorum import stored_ranges, write_set
from magnetar.ledger.under_replication import ENTRY_ID_MAX, Range


def confirmed_end(metadata: LedgerMetadata) -> int:
    """The last entry that certainly exists as far as the metadata tells; -1 if there is none."""
    if metadata.state is LedgerState.CLOSED:
        return metadata.last_entry_id
    return metadata.last_fragment.first_entry_id - 1


def end_of(metadata: LedgerMetadata) -> int:
    """The last entry that can exist."""
    return metadata.last_entry_id if metadata.state is LedgerState.CLOSED else ENTRY_ID_MAX


def own_ranges(
    metadata: LedgerMetadata, bookie_id: str, *, first: int = 0, last: int = ENTRY_ID_MAX
) -> Iterator[Range]:
    """The entries from `first` to `last` that belong on the bookie, ascending.

    Ranges end where fragments do. Where a write set is smaller than its ensemble there are as many
    ranges as turns around the ensemble: the caller bounds `last`.
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
    """The other bookies that store the entry."""
    bookies = metadata.ensemble_for(entry_id)
    members = write_set(entry_id, ensemble_size=len(bookies), write_quorum=metadata.write_quorum)
    return [bookies[index] for index in members if bookies[index] != bookie_id]


def names_bookie(metadata: LedgerMetadata, bookie_id: str) -> bool:
    """Whether any entry of the ledger may belong on the bookie."""
    return any(bookie_id in fragment.bookies for fragment in metadata.ensembles)


def without(wanted: Range, held: Iterable[int]) -> Iterator[Range]:
    """The parts of a range that are not held; `held` are ids, ascending."""
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
