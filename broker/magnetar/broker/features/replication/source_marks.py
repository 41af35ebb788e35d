"""How far a topic has stored the copies of each source. Pure.

A source is a cluster, and one life of the log there (its *incarnation*). Within a source, positions
only ascend, and copies arrive in their order. One position, the *mark*, therefore tells everything:
copies at or before it are stored here. A copy also names the one that was sent before it. If that
one is after the mark, something in between is missing (a *gap*). The copy must then not be stored,
because the mark would cover the gap for ever. Copies of Apache Pulsar do not name the previous one,
so their gaps cannot be detected.

There are two marks, as with sequence ids: the last *accepted* and the last *stored* copy. Copies
between them are undecided. After a failed append this broker drops the topic, so the first mark
never goes back.

Source: geo-replication sheet, sections 7, 17 (rows 1, 4, 5, 28) and 18.5; docs/decisions/0023.
"""

from collections.abc import Iterator, Mapping
from enum import Enum, auto
from typing import Final, NamedTuple

from magnetar.ledger.position import EARLIEST, Position

SOURCES_MAX: Final = 64
"""Most sources of one topic. Marks are never dropped automatically: copies of a dropped source
would be stored twice."""

NO_INCARNATION: Final = 0
"""Incarnation of sources that have none: those of Apache Pulsar."""

START: Final = EARLIEST
"""Position of the copy before the first one."""


class Source(NamedTuple):
    """A source of copies."""

    cluster: str
    incarnation: int
    """Number of the log's life; `NO_INCARNATION` if the source does not name it."""


class CopyPlace(NamedTuple):
    """Place of a copy in the log that it was copied from."""

    position: Position
    previous: Position | None = None
    """Position of the copy sent before it; `START` for the first copy, None if it is not named."""


class Verdict(Enum):
    """Decision about a copy."""

    NEW = auto()
    DUPLICATE = auto()
    """The copy is stored already."""
    UNDECIDED = auto()
    """The copy is being stored."""
    GAP = auto()
    """An earlier copy is missing."""


class SourceMarks:
    """The marks of all sources of a topic."""

    def __init__(self, stored: Mapping[str, int] | None = None) -> None:
        """Begin with the marks of a snapshot."""
        self._stored = dict(_decode(stored or {}))
        self._accepted = dict(self._stored)

    def __len__(self) -> int:
        return len(self._accepted)

    def mark_of(self, source: Source) -> Position | None:
        """Return the position up to which the source's copies are stored; None if none is."""
        return self._stored.get(source)

    def is_known(self, source: Source) -> bool:
        """Whether a copy of that source was ever accepted."""
        return source in self._accepted

    def is_settled(self, cluster: str) -> bool:
        """Whether no copy of that cluster is being stored."""
        return all(
            self._stored.get(source) == accepted
            for source, accepted in self._accepted.items()
            if source.cluster == cluster
        )

    def accept(self, source: Source, place: CopyPlace) -> Verdict:
        """Decide about the next copy, and accept it if it is new."""
        position, previous = place
        mark = self._accepted.get(source, START)
        if position <= mark:
            return self._judge_known(source, position)
        if previous is not None and previous > mark:
            return Verdict.GAP
        self._accepted[source] = position
        return Verdict.NEW

    def _judge_known(self, source: Source, position: Position) -> Verdict:
        if position <= self._stored.get(source, START):
            return Verdict.DUPLICATE
        return Verdict.UNDECIDED

    def on_stored(self, source: Source, position: Position) -> None:
        """Note that copies up to that position are stored. Call this in the order of acceptance."""
        self._stored[source] = position

    def replayed(self, source: Source, position: Position) -> None:
        """Note a stored copy that a replay has read."""
        highest = max(position, self._stored.get(source, START))
        self._stored[source] = highest
        self._accepted[source] = highest

    def snapshot(self) -> dict[str, int]:
        """Return the stored marks as numbers: two names for each source, written together."""
        found: dict[str, int] = {}
        for source, mark in self._stored.items():
            name = f"{source.cluster}.{source.incarnation}"
            found[f"{name}.ledger"], found[f"{name}.entry"] = mark
        return found


def _decode(stored: Mapping[str, int]) -> Iterator[tuple[Source, Position]]:
    for name, ledger_id in stored.items():
        if name.endswith(".ledger"):
            source = name.removesuffix(".ledger")
            cluster, _, incarnation = source.rpartition(".")
            entry_id = stored[f"{source}.entry"]
            yield Source(cluster, int(incarnation)), Position(ledger_id, entry_id)
