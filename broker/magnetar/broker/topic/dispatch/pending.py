"""Pending entries of a consumer: a compact mapping from positions to numbers. Pure.

There may be very many: a consumer that acknowledges every second message holds half of all there
are. A dict of positions takes 190 bytes for each, half of it in objects that the garbage collector
walks. Here neighbours share an array, which takes 20 to 40 bytes where the entries lie close
together.
"""

import weakref
from array import array
from collections.abc import Iterator, MutableMapping, Sequence
from typing import TypeAlias

from magnetar.ledger.position import Position

_SHIFT = 5
_ENTRIES = 1 << _SHIFT
_MASK = _ENTRIES - 1
_EMPTY = bytes(8 * (_ENTRIES + 1))

_Chunk: TypeAlias = "array[int]"
"""Number of entries in the chunk; then, for each entry, 0 or its number plus 1."""


class PendingIndex:
    """Index of pending entries by neighbourhood: finds an entry's owner without asking all owners.

    It changes when an owner gets its first entry of a neighbourhood, or loses its last one.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], dict[int, PendingEntries]] = {}
        """Entries by ledger and neighbourhood, then by the number of the owner."""
        self._joined = 0

    def owner(self, position: Position) -> object | None:
        """Return the owner of an entry; None if it has none.

        Asks at most as many owners as a neighbourhood has entries.
        """
        ledger_id, entry_id = position
        for entries in self._held.get((ledger_id, entry_id >> _SHIFT), {}).values():
            if position in entries:
                return entries.owner
        return None

    def _join(self) -> int:
        self._joined += 1
        return self._joined

    def _add(self, ledger_id: int, chunk: int, number: int, entries: "PendingEntries") -> None:
        self._held.setdefault((ledger_id, chunk), {})[number] = entries

    def _remove(self, ledger_id: int, chunk: int, number: int) -> None:
        held = self._held[ledger_id, chunk]
        del held[number]
        if not held:
            del self._held[ledger_id, chunk]


class PendingEntries(MutableMapping[Position, int]):
    """Non-negative numbers by position, in log order."""

    __slots__ = ("_count", "_index", "_ledgers", "_number", "_owner")

    def __init__(self) -> None:
        self._ledgers: dict[int, dict[int, _Chunk]] = {}
        self._count = 0
        # Weak references: a closed connection, its consumers and their entries are freed at once.
        self._index: weakref.ref[PendingIndex] | None = None
        self._owner: weakref.ref[object] | None = None
        self._number = 0

    def join(self, index: PendingIndex, owner: object) -> None:
        """Register the entries of an owner with the index from now on."""
        assert not self._count, "nothing is pending yet"
        self._index, self._owner = weakref.ref(index), weakref.ref(owner)
        self._number = index._join()

    @property
    def owner(self) -> object | None:
        """Owner of the entries; None if there is no index, or the owner is freed."""
        return self._owner() if self._owner is not None else None

    def _indexed(self) -> PendingIndex | None:
        return self._index() if self._index is not None else None

    def part(self) -> None:
        """Forget the owner, which has left.

        Otherwise the two would refer to each other, and only a full garbage collection would free
        them.
        """
        assert not self._count, "entries are still pending"
        self._index = self._owner = None

    def __len__(self) -> int:
        return self._count

    def __contains__(self, position: object) -> bool:
        return isinstance(position, tuple) and self._find(*position) >= 0

    def __getitem__(self, position: Position) -> int:
        value = self._find(*position)
        if value < 0:
            raise KeyError(position)
        return value

    def _find(self, ledger_id: int, entry_id: int) -> int:
        chunks = self._ledgers.get(ledger_id)
        chunk = chunks.get(entry_id >> _SHIFT) if chunks is not None else None
        return -1 if chunk is None else chunk[(entry_id & _MASK) + 1] - 1

    def __setitem__(self, position: Position, value: int) -> None:
        ledger_id, entry_id = position
        self.put(ledger_id, (entry_id,), (value,))

    def put(self, ledger_id: int, entry_ids: Sequence[int], values: Sequence[int]) -> None:
        """Set the numbers of entries of one ledger, as many as there are ids."""
        if not entry_ids:
            return
        chunks = self._ledgers.get(ledger_id)
        if chunks is None:
            chunks = self._ledgers[ledger_id] = {}
        for entry_id, value in zip(entry_ids, values, strict=True):
            chunk = chunks.get(entry_id >> _SHIFT)
            if chunk is None:
                chunk = chunks[entry_id >> _SHIFT] = array("q", _EMPTY)
                if (index := self._indexed()) is not None:
                    index._add(ledger_id, entry_id >> _SHIFT, self._number, self)
            at = (entry_id & _MASK) + 1
            if not chunk[at]:
                chunk[0] += 1
                self._count += 1
            chunk[at] = value + 1

    def __delitem__(self, position: Position) -> None:
        if self.take((position,))[0] < 0:
            raise KeyError(position)

    def take(self, positions: Sequence[Position]) -> list[int]:
        """Remove entries; return their numbers, -1 for those that are not here."""
        ledgers = self._ledgers
        taken: list[int] = []
        for ledger_id, entry_id in positions:
            chunks = ledgers.get(ledger_id)
            chunk = chunks.get(entry_id >> _SHIFT) if chunks is not None else None
            at = (entry_id & _MASK) + 1
            if chunk is None or not (value := chunk[at]):
                taken.append(-1)
                continue
            taken.append(value - 1)
            self._count -= 1
            if chunk[0] > 1:
                chunk[0] -= 1
                chunk[at] = 0
                continue
            assert chunks is not None
            del chunks[entry_id >> _SHIFT]
            if (index := self._indexed()) is not None:
                index._remove(ledger_id, entry_id >> _SHIFT, self._number)
            if not chunks:
                del ledgers[ledger_id]
        return taken

    def first(self) -> Position | None:
        """Return the first position in log order; None if there are no entries.

        Looks at each neighbourhood of one ledger, and at no entries of other ledgers.
        """
        if not self._ledgers:
            return None
        ledger_id = min(self._ledgers)
        chunks = self._ledgers[ledger_id]
        index = min(chunks)
        at = next(at for at, value in enumerate(chunks[index]) if at and value)
        return Position(ledger_id, (index << _SHIFT) + at - 1)

    def clear(self) -> None:
        if (index := self._indexed()) is not None:
            for ledger_id, chunks in self._ledgers.items():
                for chunk in chunks:
                    index._remove(ledger_id, chunk, self._number)
        self._ledgers.clear()
        self._count = 0

    def __iter__(self) -> Iterator[Position]:
        for ledger_id, chunks in sorted(self._ledgers.items()):
            for index in sorted(chunks):
                chunk, first = chunks[index], (index << _SHIFT) - 1
                for at in range(1, _ENTRIES + 1):
                    if chunk[at]:
                        yield Position(ledger_id, first + at)
