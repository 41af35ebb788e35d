"""The highest entry of each ledger in the index, as far as it is known without a look.

Together with the write buffers, it gives the last entry of a ledger in use from memory. Unknown is
always a valid answer: then the index is asked. A ledger that this process created has nothing in
the index; for others, the first lookup finds out. The event loop owns it.
"""

from collections.abc import Container, Iterator

from magnetar.bookie.engine.write_cache import WriteBuffer

_STEP_LEDGERS = 2_000
"""Ledgers per step after a flush; a step takes less than a millisecond."""


class LastEntries:
    """Highest stored entry ids by ledger; -1 for none."""

    def __init__(self) -> None:
        self._stored: dict[int, int] = {}
        self.flushes = 0
        """Number of flushes; an older lookup may be too low."""

    def begin(self, ledger_id: int) -> None:
        """Note a new ledger: entries that the index still has under its id do not count."""
        self._stored[ledger_id] = -1

    def forget(self, ledger_id: int) -> None:
        """Forget a deleted ledger."""
        self._stored.pop(ledger_id, None)

    def find(self, ledger_id: int) -> int | None:
        """Return the highest entry in the index; -1 if there is none, None if it is not known."""
        return self._stored.get(ledger_id)

    def learn(self, ledger_id: int, entry_id: int, *, flushes: int) -> None:
        """Note the result of an index lookup that was made when `flushes` had this value."""
        if flushes == self.flushes:
            self._stored[ledger_id] = entry_id

    def note(self, buffer: WriteBuffer, deleted_since: Container[int]) -> Iterator[None]:
        """Note that the index now has the entries of the buffer, in steps.

        Run it to the end, with other work between the steps, before reads lose the buffer. Until
        then, the higher one of this value and the buffer's is the same before and after each step.

        `deleted_since`: the ledgers deleted since the buffer was frozen, up to date at each step.
        """
        # First of all: a lookup from before the buffer was frozen must not be learned after the
        # step that passed its ledger.
        self.flushes += 1
        stored = self._stored
        for number, (ledger_id, runs) in enumerate(buffer.ledgers.items(), 1):
            known = stored.get(ledger_id)
            if known is not None and known < runs.last and ledger_id not in deleted_since:
                stored[ledger_id] = runs.last
            if number % _STEP_LEDGERS == 0:
                yield
