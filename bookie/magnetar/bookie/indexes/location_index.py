"""The interface of both engines' indexes: locations of entries in the entry logs, and ledger
states.

One thread writes (`commit`, on the flush worker); any thread may read meanwhile. The records of a
ledger never overlap: an entry is read from the one record that covers it, or is not stored.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from magnetar.bookie.entry_logs.entry_log import RunLocation
from magnetar.bookie.storage import LedgerState


class IndexRecord(NamedTuple):
    """An index record: it covers those ids from `first` to `last` that its run holds."""

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

    Records that no longer point to `source` (overlaid by newer entries, moved, deleted) stay
    unchanged: compare and set (rule 10.4).
    """

    ledger_id: int
    first: int
    """First entry id of the copy; `last` is the last one.

    Records are cut to these ids: the rest of their range covers no entry.
    """
    last: int
    source: RunLocation
    target: RunLocation | None
    """None if this stretch of the run holds no stored entry. Then records within it that point to
    the run are removed: they cover only ids in gaps of the run, and no entry."""


@dataclass(frozen=True, slots=True)
class IndexChanges:
    """The changes of one commit. Deletions come first, then runs, then moves."""

    last_log_id: int
    deleted: Iterable[int] = ()
    runs: Mapping[int, Sequence[NewRun]] = field(default_factory=dict)
    """Runs by ledger, in the order in which they count: where runs overlap, the later one wins."""
    states: Mapping[int, LedgerState] = field(default_factory=dict)
    moves: Sequence[RunMove] = ()


def no_pause() -> None:
    """Return at once."""


class LocationIndex(Protocol):
    """An open index."""

    @property
    def last_log_id(self) -> int:
        """The highest entry log id that the index has ever pointed to."""
        ...

    def states(self) -> Mapping[int, bytes]:
        """Return all ledger states, encoded (`ledger_state.py`): a million must fit into memory.

        Raises:
            StorageCorruptError: a key or value is impossible.
            StorageIOError: the index cannot be read.
        """
        ...

    def find(self, ledger_id: int, entry_id: int) -> IndexRecord | None:
        """Return the record that covers the entry; None if the entry is certainly not stored.

        Raises:
            StorageIOError: the index cannot be read.
        """
        ...

    def floor(self, ledger_id: int, entry_id: int) -> IndexRecord | None:
        """Return the last record of the ledger that begins at or before the entry; None without
        one.

        Raises:
            StorageIOError: the index cannot be read.
        """
        ...

    def records_from(self, ledger_id: int, entry_id: int, records_max: int) -> list[IndexRecord]:
        """Return records that cover the entry or later ones, ascending, as they are at one moment.

        Raises:
            StorageIOError: the index cannot be read.
        """
        ...

    def all_records(self) -> Iterator[tuple[int, IndexRecord]]:
        """Yield every record with its ledger id, ascending. For tools and scrubbing, not for
        serving.

        Commits may happen meanwhile: records that they do not touch are yielded exactly once.

        Raises:
            StorageIOError: the index cannot be read.
        """
        ...

    def commit(self, changes: IndexChanges, *, pause: Callable[[], None] = no_pause) -> set[int]:
        """Write the changes durably; return the ledgers whose older records were overlaid or moved.

        `pause` is called between the runs of two ledgers, and may block.

        Reads may see the changes before they are durable: the deletion of a ledger, then its runs
        and its state all at once, then its moves, whose source and target hold the same. A crash
        in between leaves a part of the changes, which is harmless: the journal repeats a flush, and
        a compaction is finished or undone. After an error, the same changes may be committed again;
        any commit, also one without changes, makes durable what readers have seen of earlier ones.

        Raises:
            StorageIOError: none, some or all changes may have been written.
        """
        ...

    def sequence(self) -> int:
        """Return a number that grows with every commit, and is durable with it.

        An index that comes back with less than it promised has lost records.
        """
        ...

    def close(self) -> None: ...
