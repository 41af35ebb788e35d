"""Where entries lie in the entry logs, and the ledger states: what both engines' indexes promise.

One thread writes (`commit`, on the flush worker); any thread may read meanwhile. The records of a
ledger never overlap: an entry is read from the one record that stands for it, or is not stored.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from magnetar.bookie.entry_logs.entry_log import RunLocation
from magnetar.bookie.storage import LedgerState


class IndexRecord(NamedTuple):
    """Of the ids `first` to `last`, those that the run holds are read from it; it has no others."""

    first: int
    last: int
    location: RunLocation


class NewRun(NamedTuple):
    """A run written by a flush, with the maximal stretches of contiguous ids that it holds."""

    location: RunLocation
    stretches: Iterable[tuple[int, int]]
    first: int
    last: int


class RunMove(NamedTuple):
    """A run that compaction has copied: records that point to `source` shall point to `target`.

    What does not point to `source` any more (overlaid by newer entries, moved, deleted) stays as it
    is: compare and set (rule 10.4).
    """

    ledger_id: int
    first: int
    """The ids of the first and last entry of the copy. Records are cut to them: what they have
    beyond stands for no entry."""
    last: int
    source: RunLocation
    target: RunLocation | None
    """None: nothing that is stored lies in this stretch of the run, and records within it that
    point there go. They stand for ids between those of a run with gaps, and for no entry."""


@dataclass(frozen=True, slots=True)
class IndexChanges:
    """What one commit writes. Deletions come first, then runs, then moves."""

    last_log_id: int
    deleted: Iterable[int] = ()
    runs: Mapping[int, Sequence[NewRun]] = field(default_factory=dict)
    """By ledger, in the order in which they count: where runs overlap, the later one wins."""
    states: Mapping[int, LedgerState] = field(default_factory=dict)
    moves: Sequence[RunMove] = ()


def no_pause() -> None:
    """Go on at once."""


class LocationIndex(Protocol):
    """An open index."""

    @property
    def last_log_id(self) -> int:
        """The highest entry log id that the index has ever pointed to."""
        ...

    def states(self) -> Mapping[int, bytes]:
        """All ledger states, encoded (`ledger_state.py`): a million of them must fit in memory.

        Raises:
            StorageCorruptError: a key or value is impossible.
            StorageIOError: it cannot be read.
        """
        ...

    def find(self, ledger_id: int, entry_id: int) -> IndexRecord | None:
        """The record that stands for the entry; None if the entry is certainly not stored.

        Raises:
            StorageIOError: it could not be found out.
        """
        ...

    def floor(self, ledger_id: int, entry_id: int) -> IndexRecord | None:
        """The last record of the ledger that begins at or before the entry.

        Raises:
            StorageIOError: it could not be found out.
        """
        ...

    def records_from(self, ledger_id: int, entry_id: int, records_max: int) -> list[IndexRecord]:
        """Records that stand for the entry or later ones, ascending, as they are at one moment.

        Raises:
            StorageIOError: it could not be found out.
        """
        ...

    def all_records(self) -> Iterator[tuple[int, IndexRecord]]:
        """Every record with its ledger id, ascending. For tools and scrubbing, not for serving.

        Commits may happen on the way: what they do not touch is seen, exactly once.

        Raises:
            StorageIOError: it could not be read.
        """
        ...

    def commit(self, changes: IndexChanges, *, pause: Callable[[], None] = no_pause) -> set[int]:
        """Write the changes durably; returns the ledgers whose older records were overlaid or
        moved. `pause` is called between the runs of two ledgers, and may take its time.

        Reads may see the changes before they are durable; those of one ledger all at once, but
        for moves, where it does not matter: source and target hold the same. A crash on the way
        leaves a part of the changes, which is harmless: the journal repeats a flush, and a
        compaction is finished or undone. After an error the same changes may be committed again.

        Raises:
            StorageIOError: none, some or all of it may have been written.
        """
        ...

    def sequence(self) -> int:
        """Grows with every commit; durable with it. An index that comes back with less than was
        promised has lost records."""
        ...

    def close(self) -> None: ...
