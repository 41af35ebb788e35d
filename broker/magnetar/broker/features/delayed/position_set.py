"""A set of positions as one bitmap per ledger: a bit for each entry up to the highest. Pure."""

import re
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping

from magnetar.ledger.position import Position

_NOT_FULL = re.compile(b"[^\xff]", re.DOTALL)
_NOT_EMPTY = re.compile(b"[^\x00]", re.DOTALL)
_GROWTH_BYTES = 256


class PositionSet:
    """A set of positions of entries."""

    def __init__(self) -> None:
        self._bits: dict[int, bytearray] = {}
        self._counts: dict[int, int] = {}

    def __len__(self) -> int:
        return sum(self._counts.values())

    def __bool__(self) -> bool:
        return bool(self._bits)

    def __contains__(self, position: Position) -> bool:
        ledger_id, entry_id = position
        bits = self._bits.get(ledger_id)
        if bits is None or entry_id >> 3 >= len(bits):
            return False
        return bool(bits[entry_id >> 3] & 1 << (entry_id & 7))

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self._bits.values()))

    def add(self, position: Position) -> bool:
        """Add a position; return False if it was already in the set."""
        ledger_id, entry_id = position
        bits = self._bits.get(ledger_id)
        if bits is None:
            bits = self._bits[ledger_id] = bytearray()
            self._counts[ledger_id] = 0
        at, mask = entry_id >> 3, 1 << (entry_id & 7)
        if at >= len(bits):
            bits.extend(bytes(at - len(bits) + _GROWTH_BYTES))
        if bits[at] & mask:
            return False
        bits[at] |= mask
        self._counts[ledger_id] += 1
        return True

    def update(self, other: "PositionSet") -> None:
        """Add all positions of another set."""
        for ledger_id, theirs in other._bits.items():
            ours = self._bits.setdefault(ledger_id, bytearray())
            size = max(len(ours), len(theirs))
            merged = int.from_bytes(ours, "little") | int.from_bytes(theirs, "little")
            self._bits[ledger_id] = bytearray(merged.to_bytes(size, "little"))
            self._counts[ledger_id] = merged.bit_count()

    def has_any(self, ledger_id: int, first: int, last: int) -> bool:
        """Whether the set has an entry from `first` through `last` of a ledger."""
        bits = self._bits.get(ledger_id)
        if bits is None:
            return False
        part = int.from_bytes(bits[first >> 3 : (last >> 3) + 1], "little") >> (first & 7)
        return bool(part & ((1 << (last - first + 1)) - 1))

    def bits(self, ledger_id: int) -> bytes:
        """Return a ledger's bitmap: bit `i % 8` of byte `i // 8` is entry `i`; may be empty."""
        return bytes(self._bits.get(ledger_id, b"")).rstrip(b"\0")

    def dump(self) -> dict[str, str]:
        """Return the set as JSON: for each ledger its bitmap, compressed by zlib, in base64.

        Entry 0 is the lowest bit of the first byte. Stored, never change.
        """
        return {
            str(ledger_id): b64encode(zlib.compress(bits)).decode()
            for ledger_id, bits in self._bits.items()
        }

    @classmethod
    def load(cls, stored: Mapping[str, str]) -> "PositionSet":
        """Return the set that `dump` encoded."""
        self = cls()
        for ledger, packed in stored.items():
            bits = self._bits[int(ledger)] = bytearray(zlib.decompress(b64decode(packed)))
            self._counts[int(ledger)] = int.from_bytes(bits, "little").bit_count()
        return self

    def discard(self, position: Position) -> bool:
        """Remove a position; return False if it was not in the set."""
        if position not in self:
            return False
        ledger_id, entry_id = position
        self._bits[ledger_id][entry_id >> 3] &= ~(1 << (entry_id & 7))
        self._counts[ledger_id] -= 1
        if not self._counts[ledger_id]:
            del self._bits[ledger_id], self._counts[ledger_id]
        return True

    def discard_ledgers_before(self, ledger_id: int) -> None:
        """Remove the positions of all lower ledgers."""
        for each in [each for each in self._bits if each < ledger_id]:
            del self._bits[each], self._counts[each]

    def clear(self) -> None:
        self._bits.clear()
        self._counts.clear()

    def stretch_from(self, position: Position) -> Position | None:
        """Return the end of the unbroken stretch from `position` on; None if that is not set."""
        ledger_id, entry_id = position
        bits = self._bits.get(ledger_id)
        at = entry_id >> 3
        if bits is None or at >= len(bits) or not bits[at] & 1 << (entry_id & 7):
            return None
        gaps = ~bits[at] & 0xFF & (0xFF << (entry_id & 7))
        if not gaps:
            found = _NOT_FULL.search(bits, at + 1)
            if found is None:
                return Position(ledger_id, len(bits) * 8 - 1)
            at = found.start()
            gaps = ~bits[at] & 0xFF
        return Position(ledger_id, at * 8 + _lowest(gaps) - 1)

    def count_after(self, position: Position) -> int:
        """Return the number of positions above `position`."""
        count = 0
        for ledger_id, bits in self._bits.items():
            if ledger_id > position.ledger_id:
                count += self._counts[ledger_id]
            elif ledger_id == position.ledger_id:
                first = position.entry_id + 1
                count += (int.from_bytes(bits[first >> 3 :], "little") >> (first & 7)).bit_count()
        return count

    def take(self, count_max: int) -> list[Position]:
        """Remove the lowest `count_max` positions, and return them."""
        taken: list[Position] = []
        for ledger_id in sorted(self._bits):
            bits = self._bits[ledger_id]
            at = 0
            while len(taken) < count_max:
                found = _NOT_EMPTY.search(bits, at)
                if found is None:
                    break
                at = found.start()
                while bits[at] and len(taken) < count_max:
                    bit = _lowest(bits[at])
                    bits[at] &= bits[at] - 1
                    taken.append(Position(ledger_id, at * 8 + bit))
                    self._counts[ledger_id] -= 1
            if not self._counts[ledger_id]:
                del self._bits[ledger_id], self._counts[ledger_id]
            if len(taken) >= count_max:
                break
        return taken


def _lowest(byte: int) -> int:
    """Return the number of the lowest bit that is set."""
    return (byte & -byte).bit_length() - 1
