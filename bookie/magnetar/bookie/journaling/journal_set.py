"""The journals of a bookie, together: which one a ledger has, and what they all have waiting.

A ledger's journal is chosen by its id, so that all its records of one process lie in one journal,
in the order in which they were handed over (rule 2.3). Their number may grow between two processes
(`replay.py` says why). Each journal has a thread, files and a mark of its own; a full disk under
one of them refuses only the ledgers it serves, a failed sync under one of them ends the bookie.
"""

import asyncio
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from magnetar.bookie.journaling.grouping import JournalBatch
from magnetar.bookie.journaling.journal_format import LastMark, Marks

T = TypeVar("T")


class RunningJournal(Protocol[T]):
    """One journal, as those see it who hand it batches."""

    @property
    def mark(self) -> LastMark:
        """Everything before it was synced and reported."""
        ...

    @property
    def queued_bytes(self) -> int:
        """Handed over and not yet reported."""
        ...

    def append(self, batch: JournalBatch[T]) -> None:
        """Hand over a batch; never blocks. It is reported once, in the order of the calls."""
        ...

    async def wait_drained(self) -> None:
        """Wait until every batch was reported, or the journal failed."""
        ...

    def close(self) -> None:
        """Commit what waits, then end. Blocks."""
        ...


class JournalSet(Generic[T]):
    """All journals, in the order of their directories. At least one."""

    def __init__(self, journals: Sequence[RunningJournal[T]]) -> None:
        assert journals
        self._journals = tuple(journals)

    @property
    def each(self) -> tuple[RunningJournal[T], ...]:
        return self._journals

    @property
    def marks(self) -> Marks:
        """The mark of each journal, each as of now."""
        return tuple([journal.mark for journal in self._journals])

    @property
    def queued_bytes(self) -> int:
        """Handed over and not yet reported, by all of them."""
        return sum([journal.queued_bytes for journal in self._journals])

    def of(self, ledger_id: int) -> RunningJournal[T]:
        """The journal that takes the records of this ledger."""
        return self._journals[journal_number(ledger_id, len(self._journals))]

    async def wait_drained(self) -> None:
        """Wait until every batch was reported, or its journal failed."""
        await asyncio.gather(*[journal.wait_drained() for journal in self._journals])

    def close(self) -> None:
        """Commit what waits, then end the threads. Blocks; reports arrive on the loop later."""
        for journal in self._journals:
            journal.close()


def journal_number(ledger_id: int, journals: int) -> int:
    """Which of so many journals a ledger has."""
    return ledger_id % journals
