"""The interface of every cursor, and the cursor that is only in memory.

`Cursor` keeps its progress durably, `NonDurableCursor` in memory. The methods here are plain
synchronous calls on the pure `AckState`. A durable cursor writes later, in the background. A broker
calls the methods once per ack command.
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
        """Whether the progress survives the process."""

    @property
    @abstractmethod
    def persisted_mark_delete(self) -> Position | None:
        """Position that trimming may rely on (rule 5.1); None if it holds none back."""

    # Reading

    @property
    def mark_delete(self) -> Position:
        """The mark-delete position: everything at or before it is acknowledged."""
        return self._state.mark_delete

    @property
    def backlog_entries(self) -> int:
        """Number of entries not yet acknowledged, partly acknowledged batches included."""
        return self._state.backlog_entries

    @property
    def individual_count(self) -> int:
        """Number of acknowledged entries above the mark-delete position."""
        return self._state.individual_count

    @property
    def range_count(self) -> int:
        """Number of runs of acknowledged entries above the mark-delete position."""
        return self._state.range_count

    def ranges(self, ranges_max: int) -> Sequence[AckRange]:
        """Return the first ranges of individually acknowledged entries, in log order."""
        return self._state.snapshot(ranges_max=ranges_max, batches_max=0).ranges

    def batches(self, batches_max: int) -> Sequence[BatchAck]:
        """Return the first partly acknowledged batches, in log order."""
        return self._state.snapshot(ranges_max=0, batches_max=batches_max).batches

    @property
    def batch_count(self) -> int:
        """Number of partly acknowledged batches."""
        return self._state.batch_count

    @property
    def batch_bytes(self) -> int:
        """Bytes of the bit sets of all partly acknowledged batches."""
        return self._state.batch_bytes

    @property
    def has_holes(self) -> bool:
        """Whether entries above the mark-delete position need filtering on dispatch."""
        return self._state.has_holes

    @property
    def is_caught_up(self) -> bool:
        """Whether every entry of the log is acknowledged."""
        return self._state.is_caught_up

    def is_acked(self, position: Position) -> bool:
        """Return whether the whole entry is acknowledged: do not dispatch it (rule 12.1)."""
        return self._state.is_acked(position)

    def is_untouched(self, ledger_id: int, first: int, last: int) -> bool:
        """Return whether no entry of the range is acknowledged, not even in part.

        Then there is nothing to filter. False may also mean that this is unknown.
        """
        return self._state.is_untouched(ledger_id, first, last)

    def next_unacked(self, position: Position) -> Position:
        """Return the first unacknowledged entry after `position`; at the end, the next append."""
        return self._state.next_unacked(position)

    def remaining_words(self, position: Position) -> tuple[int, ...]:
        """Return the ack_set words to send with a MESSAGE; () if the whole entry is still open."""
        return self._state.remaining_words(position)

    # Acknowledging

    def ack(self, position: Position) -> bool:
        """Acknowledge one entry. Return False if it was acknowledged already, or does not exist."""
        if not self._state.ack(position):
            return False
        self._changed()
        return True

    def ack_many(self, positions: Iterable[Position]) -> int:
        """Acknowledge entries; return the number of new ones."""
        count = self._state.ack_many(positions)
        if count:
            self._changed()
        return count

    def ack_range(self, ledger_id: int, first_entry_id: int, last_entry_id: int) -> int:
        """Acknowledge the existing entries of a range of one ledger; return how many were new."""
        count = self._state.ack_range(ledger_id, first_entry_id, last_entry_id)
        if count:
            self._changed()
        return count

    def ack_batch(
        self,
        position: Position,
        words: Sequence[int],
        batch_size: int = 0,
        *,
        batch_bytes_max: int | None = None,
    ) -> bool:
        """Acknowledge batch indexes (ack_set words, bit 1 = still open); return whether all are.

        `batch_size`: messages in the entry; 0 if unknown. `batch_bytes_max`: ignore the first
        indexes of an entry if the bit sets of other entries have that many bytes already.
        """
        state = self._state
        if state.is_acked(position):
            return True
        before = state.remaining_bits(position)
        is_acked = state.ack_batch(position, words, batch_size, batch_bytes_max=batch_bytes_max)
        if is_acked or state.remaining_bits(position) != before:
            self._changed()
        return is_acked

    def ack_cumulative(
        self, position: Position, words: Sequence[int] = (), batch_size: int = 0
    ) -> bool:
        """Acknowledge everything through `position`; with words, in that entry only the 0 bits."""
        if not self._state.ack_cumulative(position, words, batch_size):
            return False
        self._changed()
        return True

    # Life

    @abstractmethod
    async def persist(self) -> None:
        """Return when all acknowledgements made before the call are durable, if this cursor is."""

    @abstractmethod
    async def reset(self, position: Position, words: Sequence[int] = ()) -> None:
        """Seek: `position` is the next entry to deliver; acknowledgements above it are discarded.

        EARLIEST and LATEST are valid. A position that does not exist becomes the next existing one.
        A position beyond the end means the entries written from now on. Words mark passed batch
        indexes.
        """

    @abstractmethod
    async def close(self) -> None:
        """End the handle; the cursor stays."""

    @abstractmethod
    async def delete(self) -> None:
        """End the handle and delete the cursor."""

    @abstractmethod
    def _changed(self) -> None:
        """Schedule a save, since the state has changed."""


class NonDurableCursor(SubscriptionCursor):
    """A `SubscriptionCursor` that is never saved."""

    def __init__(
        self, log: LogShape, name: str, *, initial: Position, words: Sequence[int] = ()
    ) -> None:
        """Start so that `initial` is the first entry to deliver, see `reset`."""
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
        """Do nothing: there is no stored state."""

    async def reset(self, position: Position, words: Sequence[int] = ()) -> None:
        self._state.reset(position, words)

    async def close(self) -> None:
        """Do nothing: there is no stored state."""

    async def delete(self) -> None:
        """Do nothing: there is no stored state."""

    def _changed(self) -> None:
        pass
