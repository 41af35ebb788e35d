"""Sequence ids of a topic's producers: the highest *accepted*, and the highest *stored*. Pure.

They are kept by producer name, because a producer that returns has nothing else. The ids of a name
ascend: a message whose id is not above the highest accepted one was sent before. If its id is not
above the highest stored one either, it is a *duplicate*: it is stored, or it was refused before a
later message was stored. Between the two it is *undecided*: its write is pending.

Only the last chunk of a chunked message counts: all chunks have the same id.

Source: protocol sheet, section 7.
"""

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from enum import Enum, auto
from itertools import islice
from operator import lt

SEQUENCE_ID_MAX = (1 << 63) - 1
"""Highest sequence id: a snapshot and PRODUCER_SUCCESS hold signed 64-bit numbers."""

_NUMBER_BYTES = 24
"""Bytes of one id with its punctuation in the JSON of a cursor's node."""


class Verdict(Enum):
    """Decision about one message."""

    NEW = auto()
    DUPLICATE = auto()
    UNDECIDED = auto()


class SequenceIds:
    """The highest sequence ids of each producer name."""

    def __init__(self, stored: Mapping[str, int] | None = None, *, now_s: float = 0.0) -> None:
        """Begin with the ids of a snapshot; its names count as used at `now_s` (monotonic)."""
        self._stored = dict(stored or {})
        self._accepted = dict(self._stored)
        self._used_s = dict.fromkeys(self._stored, now_s)
        """When each name was last used, oldest first."""

    def __len__(self) -> int:
        return len(self._accepted)

    def last_of(self, name: str) -> int:
        """Return the highest id accepted from that name; -1 if none."""
        return self._accepted.get(name, -1)

    def is_settled(self, name: str) -> bool:
        """Whether no write under that name is pending."""
        return self._accepted.get(name) == self._stored.get(name)

    # Publishing

    def accept(
        self, name: str, sequence_ids: Sequence[int], highest_ids: Sequence[int], now_s: float
    ) -> int:
        """Accept messages if all of them are new, as nearly always; return the highest id.

        Return -1 if one is not new. Nothing is accepted then; call `judge` for each. No message may
        be a chunk before the last of its message.

        Args:
            highest_ids: the highest id of each batch; 0 for a message that is no batch.
        """
        if any(highest_ids):
            highs: Sequence[int] = list(map(max, sequence_ids, highest_ids))
        else:
            highs = sequence_ids
        if sequence_ids[0] <= self._accepted.get(name, -1):
            return -1
        if len(sequence_ids) > 1 and not all(map(lt, highs, islice(sequence_ids, 1, None))):
            return -1
        self._use(name, highs[-1], now_s)
        return highs[-1]

    def judge(self, name: str, sequence_id: int, highest_id: int, now_s: float) -> Verdict:
        """Decide about one message, and accept it if it is new. Not for chunks before the last."""
        if sequence_id > self._accepted.get(name, -1):
            self._use(name, max(sequence_id, highest_id), now_s)
            return Verdict.NEW
        if sequence_id <= self._stored.get(name, -1):
            return Verdict.DUPLICATE
        return Verdict.UNDECIDED

    def _use(self, name: str, accepted: int, now_s: float) -> None:
        self._accepted[name] = accepted
        self._used_s.pop(name, None)
        self._used_s[name] = now_s

    def on_stored(self, name: str, highest: int) -> None:
        """Note that messages up to that id are stored. Call this in the order of acceptance."""
        self._stored[name] = highest

    def replayed(self, name: str, highest: int, now_s: float) -> None:
        """Note a stored message that a replay has read; ids of one name may come in any order."""
        highest = max(highest, self._stored.get(name, -1))
        self._stored[name] = highest
        self._use(name, highest, now_s)

    # Snapshots

    def forget(self, *, unused_since_s: float, names_max: int, connected: Container[str]) -> int:
        """Forget names unused since `unused_since_s`, or beyond `names_max`, oldest use first.

        Names that are connected or have a pending write stay. Return the number of forgotten names.
        """
        surplus = len(self._used_s) - names_max
        gone: list[str] = []
        for name, used_s in self._used_s.items():
            if used_s >= unused_since_s and len(gone) >= surplus:
                break
            if name not in connected and self.is_settled(name):
                gone.append(name)
        for name in gone:
            del self._used_s[name]
            del self._accepted[name]
            del self._stored[name]
        return len(gone)

    def snapshot(self, *, names_max: int, bytes_max: int) -> dict[str, int]:
        """Return the stored ids; if not all fit, those of the most recently used names.

        `bytes_max` limits the names with their ids, as JSON in UTF-8.
        """
        kept: dict[str, int] = {}
        room = bytes_max
        for name in _newest(self._used_s):
            stored = self._stored.get(name)
            if stored is None:
                continue
            room -= len(json.dumps(name, ensure_ascii=False).encode()) + _NUMBER_BYTES
            if room < 0 or len(kept) >= names_max:
                break
            kept[name] = stored
        return kept


def _newest(names: Mapping[str, float]) -> Iterable[str]:
    return reversed(dict(names))
