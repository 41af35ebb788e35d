"""The visible part of a topic: where it ends, and runs as readers see them.

A feature may hide entries: those from the first open transaction on, and those of aborted ones. On
a topic that hides nothing, both are the log's own, and cost one comparison per run.
"""

from typing import Protocol

from magnetar.broker.base.entry import MARKER
from magnetar.broker.topic.run import Run
from magnetar.ledger.position import Position


class EndingLog(Protocol):
    """Interface of a log with an end."""

    @property
    def last_confirmed(self) -> Position: ...


class HiddenPositions(Protocol):
    """Positions that no reader may see."""

    def __contains__(self, position: Position, /) -> bool: ...

    def has_any(self, ledger_id: int, first: int, last: int, /) -> bool:
        """Whether one of these entries is hidden, both ends included."""
        ...

    def bits(self, ledger_id: int, /) -> bytes:
        """Return the hidden entries of a ledger: bit `i % 8` of byte `i // 8` is entry `i`; empty
        if none."""
        ...


class Hidden(Protocol):
    """Hidden entries of a topic; the state of its transactions is one implementation."""

    @property
    def is_plain(self) -> bool:
        """Whether nothing is hidden now."""
        ...

    @property
    def version(self) -> int:
        """Version number that changes whenever the answers may have changed."""
        ...

    @property
    def aborted(self) -> HiddenPositions:
        """Entries that no reader may ever see."""
        ...

    def limit(self, last: Position, /) -> Position:
        """Return the last position that may be read, if `last` is the end of the log."""
        ...


class Visibility:
    """The visible part of one topic. `hidden` is set while a feature hides entries."""

    __slots__ = ("_log", "hidden")

    def __init__(self, log: EndingLog) -> None:
        self._log = log
        self.hidden: Hidden | None = None

    @property
    def last(self) -> Position:
        """Last position that may be read."""
        last = self._log.last_confirmed
        return last if self.hidden is None else self.hidden.limit(last)

    def is_aborted(self, position: Position) -> bool:
        """Whether the entry belongs to an aborted transaction, so that no reader may see it."""
        return self.hidden is not None and position in self.hidden.aborted


class VisibleRuns:
    """Runs as one reader sees them: cut at the end of the visible part, aborted entries as markers.

    The last run is kept: a reader that takes few messages at a time requests it again and again.
    """

    __slots__ = ("_given", "_of", "_version", "_visibility")

    def __init__(self, visibility: Visibility) -> None:
        self._visibility = visibility
        self._of: Run | None = None
        self._given: Run | None = None
        self._version = -1

    def see(self, run: Run) -> Run:
        """Return a run, whose first visible entry is requested, as it may be seen now."""
        hidden = self._visibility.hidden
        if hidden is None or hidden.is_plain:
            return run
        if self._of is run and self._version == hidden.version and self._given is not None:
            return self._given
        self._of, self._version = run, hidden.version
        self._given = self._cut(run, hidden)
        return self._given

    def _cut(self, run: Run, hidden: Hidden) -> Run:
        last, first = self._visibility.last, run.first_entry_id
        count = len(run.entries)
        if last < run.last:
            count = last.entry_id - first + 1 if last.ledger_id == run.ledger_id else 0
        assert count > 0, "somebody asks for a run that begins behind what is visible"
        has_aborted = hidden.aborted.has_any(run.ledger_id, first, first + count - 1)
        if count == len(run.entries) and not has_aborted:
            return run
        messages = run.messages[:count]
        if has_aborted:
            for at in range(count):
                if Position(run.ledger_id, first + at) in hidden.aborted:
                    messages[at] = MARKER
        return Run(
            run.ledger_id,
            first,
            run.entries[:count],
            messages=messages,
            kept_words=None if run.kept_words is None else run.kept_words[:count],
            prefixes=None if run.prefixes is None else run.prefixes[:count],
        )
