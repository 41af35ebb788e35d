"""What of a topic may be read: the end of what is visible, and runs as readers see them.

On a topic without transactions both are the log's own, and cost one comparison per run.
"""

from typing import Protocol

from magnetar.broker.entry import MARKER
from magnetar.broker.run import Run
from magnetar.broker.transactions.buffer_state import BufferState
from magnetar.ledger.position import Position


class EndingLog(Protocol):
    """What is needed of a log."""

    @property
    def last_confirmed(self) -> Position: ...


class Visibility:
    """Of one topic. `buffer` is set while it has transactions."""

    __slots__ = ("_log", "buffer")

    def __init__(self, log: EndingLog) -> None:
        self._log = log
        self.buffer: BufferState | None = None

    @property
    def last(self) -> Position:
        """The last position that may be read."""
        last = self._log.last_confirmed
        return last if self.buffer is None else self.buffer.limit(last)

    def is_aborted(self, position: Position) -> bool:
        """Whether the entry belongs to an aborted transaction: it is there for nobody."""
        return self.buffer is not None and position in self.buffer.aborted


class VisibleRuns:
    """Runs as one reader sees them: cut where the visible ends, aborted entries as markers.

    The last one is kept: whoever takes few messages at a time asks for the same again and again.
    """

    __slots__ = ("_given", "_of", "_version", "_visibility")

    def __init__(self, visibility: Visibility) -> None:
        self._visibility = visibility
        self._of: Run | None = None
        self._given: Run | None = None
        self._version = -1

    def see(self, run: Run) -> Run:
        """A run whose first visible entry is asked for, as it may be seen now."""
        buffer = self._visibility.buffer
        if buffer is None or buffer.is_plain:
            return run
        if self._of is run and self._version == buffer.version and self._given is not None:
            return self._given
        self._of, self._version = run, buffer.version
        self._given = self._cut(run, buffer)
        return self._given

    def _cut(self, run: Run, buffer: BufferState) -> Run:
        last, first = self._visibility.last, run.first_entry_id
        count = len(run.entries)
        if last < run.last:
            count = last.entry_id - first + 1 if last.ledger_id == run.ledger_id else 0
        assert count > 0, "somebody asks for a run that begins behind what is visible"
        has_aborted = buffer.aborted.has_any(run.ledger_id, first, first + count - 1)
        if count == len(run.entries) and not has_aborted:
            return run
        messages = run.messages[:count]
        if has_aborted:
            for at in range(count):
                if Position(run.ledger_id, first + at) in buffer.aborted:
                    messages[at] = MARKER
        return Run(
            run.ledger_id,
            first,
            run.entries[:count],
            messages=messages,
            kept_words=None if run.kept_words is None else run.kept_words[:count],
        )
