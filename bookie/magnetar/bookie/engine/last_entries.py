"""The highest entry of each ledger that is in the index, as far as that is known without a look.

With it, and the write buffers, the last entry of a ledger in use is known from memory. Unknown is
always a good answer: then the index is asked. A ledger that was made by this process has nothing in
the index; of others the first look tells. The event loop owns it.
"""

from collections.abc import Container

from magnetar.bookie.engine.write_cache import WriteBuffer


class LastEntries:
    """Highest stored entry ids by ledger; -1 for none."""

    def __init__(self) -> None:
        self._stored: dict[int, int] = {}
        self.flushes = 0
        """Grows with each flush: what was looked up before may be too low since."""

    def begin(self, ledger_id: int) -> None:
        """A ledger was made: whatever the index has of its id does not count."""
        self._stored[ledger_id] = -1

    def forget(self, ledger_id: int) -> None:
        """The ledger was deleted."""
        self._stored.pop(ledger_id, None)

    def find(self, ledger_id: int) -> int | None:
        """None if it is not known."""
        return self._stored.get(ledger_id)

    def learn(self, ledger_id: int, entry_id: int, *, flushes: int) -> None:
        """The index was asked when `flushes` was so."""
        if flushes == self.flushes:
            self._stored[ledger_id] = entry_id

    def on_flushed(self, buffer: WriteBuffer, deleted_since: Container[int]) -> None:
        """The index has the entries of the buffer now."""
        self.flushes += 1
        stored = self._stored
        for ledger_id, runs in buffer.ledgers.items():
            known = stored.get(ledger_id)
            if known is not None and known < runs.last and ledger_id not in deleted_since:
                stored[ledger_id] = runs.last
