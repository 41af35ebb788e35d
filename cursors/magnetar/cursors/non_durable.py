"""A cursor in memory, for readers: gone with its consumer, and no reason to keep a ledger.

When trimming takes ledgers from under it, it moves to the first entry that is left.
"""

from collections.abc import Sequence

from magnetar.cursors.ack_state import AckState, LogShape
from magnetar.cursors.subscription_cursor import SubscriptionCursor
from magnetar.ledger.position import EARLIEST, Position


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
