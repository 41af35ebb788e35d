"""The face of every cursor, and the cursor that is kept in memory only.

`Cursor` keeps its progress durably, `NonDurableCursor` in memory. The methods here are plain
synchronous calls on the pure `AckState`; whatever has to be written is written later, in the
background, by the durable kind. A broker calls them once per ack command.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from magnetar.cursors.ack_state import AckRange, AckState, BatchAck, LogShape
from magnetar.ledger.position import EARLIEST, Position


class SubscriptionCursor(ABC):
    """Progress of one subscription on one log."""

    def __init__(self, name: str, state: AckState) -> None:
        self._name = name
        self._state = state

    @property
    def name(self) -> str:
        return self._name

    @property
    @abstractmethod
    def is_durable(self) -> bool:
        """The progress survives the process."""

    @property
    @abstractmethod
    def persisted_mark_delete(self) -> Position | None:
        """What trimming may rely on (rule 5.1); None: this cursor holds no ledger back."""

    # Reading

    @property
    def mark_delete(self) -> Position:
        """Everything at or before it is acknowledged."""
        return self._state.mark_delete

    @property
    def backlog_entries(self) -> int:
        """Entries not yet acknowledged, partly acknowledged batches included."""
        return self._state.backlog_entries

    @property
    def individual_count(self) -> int:
        """Acknowledged entries above the mark-delete position."""
        return self._state.individual_count

    @property
    def range_count(self) -> int:
        """Runs of acknowledged entries above the mark-delete position."""
        return self._state.range_count

    def ranges(self, ranges_max: int) -> Sequence[AckRange]:
        """The first ranges of individually acknowledged entries, in log order."""
        return self._state.snapshot(ranges_max=ranges_max, batches_max=0).ranges

    def batches(self, batches_max: int) -> Sequence[BatchAck]:
        """The first partly acknowledged batches, in log order."""
        return self._state.snapshot(ranges_max=0, batches_max=batches_max).batches

    @property
    def batch_count(self) -> int:
        """Partly acknowledged batches."""
        return self._state.batch_count

    @property
    def has_holes(self) -> bool:
        """False: nothing above the mark-delete position needs filtering on dispatch."""
        return self._state.has_holes

    @property
    def is_caught_up(self) -> bool:
        """Every entry of the log is acknowledged."""
        return self._state.is_caught_up

    def is_acked(self, position: Position) -> bool:
        """The entry is acknowledged as a whole: do not dispatch it (rule 12.1)."""
        return self._state.is_acked(position)

    def is_untouched(self, ledger_id: int, first: int, last: int) -> bool:
        """Nothing in the range is acknowledged, not even in part: there is nothing to filter.

        False may also mean that it is not known.
        """
        return self._state.is_untouched(ledger_id, first, last)

    def next_unacked(self, position: Position) -> Position:
        """The first entry after `position` that is not acknowledged, or the next to be written."""
        return self._state.next_unacked(position)

    def remaining_words(self, position: Position) -> tuple[int, ...]:
        """ack_set words to send with a MESSAGE; () if the whole entry is still open."""
        return self._state.remaining_words(position)

    # Acknowledging

    def ack(self, position: Position) -> bool:
        """Acknowledge one entry. False: it was acknowledged already, or does not exist."""
        if not self._state.ack(position):
            return False
        self._changed()
        return True

    def ack_many(self, positions: Iterable[Position]) -> int:
        """Acknowledge entries; returns how many were new."""
        count = self._state.ack_many(positions)
        if count:
            self._changed()
        return count

    def ack_range(self, ledger_id: int, first_entry_id: int, last_entry_id: int) -> int:
        """Acknowledge the existing entries of a range of one ledger; returns how many were new."""
        count = self._state.ack_range(ledger_id, first_entry_id, last_entry_id)
        if count:
            self._changed()
        return count

    def ack_batch(self, position: Position, words: Sequence[int], batch_size: int = 0) -> bool:
        """Acknowledge batch indexes (ack_set words, bit 1 = still open); True: now all of them.

        `batch_size`: messages in the entry; 0 if it is not known.
        """
        is_acked = self._state.ack_batch(position, words, batch_size)
        self._changed()
        return is_acked

    def ack_cumulative(
        self, position: Position, words: Sequence[int] = (), batch_size: int = 0
    ) -> bool:
        """Acknowledge everything through `position`; with words, in that entry only bits 0."""
        if not self._state.ack_cumulative(position, words, batch_size):
            return False
        self._changed()
        return True

    # Life

    @abstractmethod
    async def persist(self) -> None:
        """Return when everything acknowledged before the call is durable, if it ever will be."""

    @abstractmethod
    async def reset(self, position: Position, words: Sequence[int] = ()) -> None:
        """Seek: `position` is the next entry to deliver; acknowledgements above it are forgotten.

        EARLIEST and LATEST are fine. A position that does not exist moves to the next one; one
        beyond the end means what is written from now on. Words mark passed batch indexes.
        """

    @abstractmethod
    async def close(self) -> None:
        """End the handle; the cursor stays."""

    @abstractmethod
    async def delete(self) -> None:
        """End the handle and the cursor."""

    @abstractmethod
    def _changed(self) -> None:
        """The state has changed and is to be saved some time."""


class NonDurableCursor(SubscriptionCursor):
    """A `SubscriptionCursor` that is never saved."""

    def __init__(
        self, log: LogShape, name: str, *, initial: Position, words: Sequence[int] = ()
    ) -> None:
        """Start so that `initial` is the first entry to deliver, as with `reset`."""
        state = AckState(log, EARLIEST)
        state.reset(initial, words)
        super().__init__(name, state)

    @property
    def is_durable(self) -> bool:
        return False

    @property
    def persisted_mark_delete(self) -> Position | None:
        return None

    async def persist(self) -> None:
        """Nothing to do."""

    async def reset(self, position: Position, words: Sequence[int] = ()) -> None:
        self._state.reset(position, words)

    async def close(self) -> None:
        """Nothing to do."""

    async def delete(self) -> None:
        """Nothing to do."""

    def _changed(self) -> None:
        pass
