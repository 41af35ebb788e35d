"""The topics that one watcher is told of, and what it is to be told next. Pure.

Changes that cannot be told at once are added up, so that a client that does not read costs no more
than the names themselves.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from magnetar.broker.protocol.topic_watch.pattern import TopicPattern
from magnetar.broker.topics.topic_lists import NAME_BYTES, topics_hash


@dataclass(frozen=True, slots=True)
class Update:
    """One WATCH_TOPIC_UPDATE: names, sorted, and the hash of the list that follows from it."""

    new: Sequence[str]
    deleted: Sequence[str]
    topics_hash: str


class WatchedList:
    """What matches the pattern of one watcher."""

    def __init__(self, pattern: TopicPattern, matching: Iterable[str]) -> None:
        """`matching`: what the watcher is told at the beginning."""
        self._pattern = pattern
        self._names = set(matching)
        self._new: set[str] = set()
        self._deleted: set[str] = set()

    @property
    def names(self) -> list[str]:
        """What matches now, sorted."""
        return sorted(self._names)

    def change(self, new: Sequence[str], deleted: Sequence[str]) -> None:
        """The namespace has these topics now, and those no more."""
        for name in self._pattern.matching(new):
            if name not in self._names:
                self._names.add(name)
                _move(name, self._new, self._deleted)
        for name in self._names.intersection(deleted):
            self._names.discard(name)
            _move(name, self._deleted, self._new)

    @property
    def has_news(self) -> bool:
        """There is something to tell."""
        return bool(self._new or self._deleted)

    def take_updates(self, bytes_max: int) -> Iterator[Update]:
        """What is to be told, in pieces whose names have at most about so many bytes.

        After each piece the hash is that of the list as the client knows it by then: one that comes
        back with it is told the rest.
        """
        told = (self._names - self._new) | self._deleted
        for new, deleted in _cut(sorted(self._new), sorted(self._deleted), bytes_max):
            told.update(new)
            told.difference_update(deleted)
            yield Update(new, deleted, topics_hash(sorted(told)))
        self._new.clear()
        self._deleted.clear()


def _move(name: str, to: set[str], other: set[str]) -> None:
    """A change to be told; one that takes back the other kind is not told at all."""
    if name in other:
        other.discard(name)
    else:
        to.add(name)


def _cut(
    new: Sequence[str], deleted: Sequence[str], bytes_max: int
) -> Iterator[tuple[list[str], list[str]]]:
    piece: tuple[list[str], list[str]] = ([], [])
    room = bytes_max
    for at, names in enumerate((new, deleted)):
        for name in names:
            size = len(name.encode()) + NAME_BYTES
            if size > room and room < bytes_max:
                yield piece
                piece, room = ([], []), bytes_max
            piece[at].append(name)
            room -= size
    if room < bytes_max:
        yield piece
