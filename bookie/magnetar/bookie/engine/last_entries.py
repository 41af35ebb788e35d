"""The highest entry of each ledger that is in the index, as far as that is known without a look.

With it, and the write buffers, the last entry of a ledger in use is known from memory. Unknown is
always a good answer: then the index is asked. A ledger that was made by this process has nothing in
the index; of others the first look tells. The event loop owns it.
"""

from collections.abc import Container, Iterator

from magnetar.bookie.engine.write_cache import WriteBuffer

_STEP_LEDGERS = 2_000
"""Ledgers that are noted at once after a flush, less than a millisecond."""


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

    def note(self, buffer: WriteBuffer, deleted_since: Container[int]) -> Iterator[None]:
        """The index has the entries of the buffer, too. To be called on to the end, with other work
        between the steps, before reads forget the buffer: until then the higher of this and the
        buffer is the same before and after each step.

        `deleted_since`: ledgers deleted since the buffer was frozen, as they are at each step.
        """
        # At the beginning: what was looked up before the buffer was frozen must not be learned
        # behind the step that passed its ledger.
        self.flushes += 1
        stored = self._stored
        for number, (ledger_id, runs) in enumerate(buffer.ledgers.items(), 1):
            known = stored.get(ledger_id)
            if known is not None and known < runs.last and ledger_id not in deleted_since:
                stored[ledger_id] = runs.last
            if number % _STEP_LEDGERS == 0:
                yield
