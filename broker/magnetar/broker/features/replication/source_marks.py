"""How far the copies of each source have come at the topic that they are copied to. Pure.

A source is a cluster, and one life of the log there (its *incarnation*). Within it positions only
ascend, and copies come in their order; so one position says all, the *mark*: what is not above it
is here. A copy also says which one was sent before it. If that one is above the mark, something
between is missing (a *gap*), and nothing may be stored before it: the mark would deny it for ever.
Apache Pulsar does not say it, and gaps of its copies cannot be seen.

There are two marks, as with sequence ids: what was *accepted*, and what is *stored*. What lies
between is undecided. A failed append ends the topic's time here, so the first never goes back.

Source: geo-replication sheet, sections 7, 17 (rows 1, 4, 5, 28) and 18.5; docs/decisions/0023.
"""

from collections.abc import Iterator, Mapping
from enum import Enum, auto
from typing import Final, NamedTuple

from magnetar.ledger.position import EARLIEST, Position

SOURCES_MAX: Final = 64
"""Sources of one topic. Marks are never forgotten by themselves: what was forgotten would be stored
twice."""

NO_INCARNATION: Final = 0
"""Of sources that have none: those of Apache Pulsar."""

START: Final = EARLIEST
"""Stands for the copy before the first one."""


class Source(NamedTuple):
    """Where copies come from."""

    cluster: str
    incarnation: int
    """A number for the life of the log; `NO_INCARNATION`: the source does not say."""


class CopyPlace(NamedTuple):
    """What a copy says of its place in the log that it was copied from."""

    position: Position
    previous: Position | None = None
    """Of the copy that was sent before it; `START`: it is the first; None: it does not say."""


class Verdict(Enum):
    """What becomes of a copy."""

    NEW = auto()
    DUPLICATE = auto()
    """A copy that is stored."""
    UNDECIDED = auto()
    """A copy that is being stored."""
    GAP = auto()
    """A copy before it is missing."""


class SourceMarks:
    """The marks of all sources of a topic."""

    def __init__(self, stored: Mapping[str, int] | None = None) -> None:
        """`stored`: of a snapshot."""
        self._stored = dict(_decode(stored or {}))
        self._accepted = dict(self._stored)

    def __len__(self) -> int:
        return len(self._accepted)

    def mark_of(self, source: Source) -> Position | None:
        """How far the source's copies are stored; None: none is."""
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
        """Judge the copy that comes next, and accept it if it is new."""
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
        """Copies up to that position are stored. In the order in which they were accepted."""
        self._stored[source] = position

    def replayed(self, source: Source, position: Position) -> None:
        """A stored copy was read again."""
        highest = max(position, self._stored.get(source, START))
        self._stored[source] = highest
        self._accepted[source] = highest

    def snapshot(self) -> dict[str, int]:
        """What is stored, as numbers under names: two for each source, written together."""
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
