"""Which message is the newest of each key: learnt by the first pass, asked by the second. Pure.

Messages of a key are compared by their place: the later one counts. A chunked message counts from
its last chunk on, and all its chunks stay or go together; chunks whose end was not seen stay. A
uuid does not name one message: a producer that comes back with its name counts its messages from
the beginning. So a chunk is a part of the message that ends next behind it. Nor is each last chunk
the end of one: who lost its connection sends again what it had no receipt for, perhaps the last
chunk alone. There is a first chunk between two ends.
"""

from bisect import bisect_left
from collections import defaultdict

from magnetar.broker.features.compaction.errors import TooManyKeysError
from magnetar.broker.features.compaction.messages import KeyedMessage, Kind, OpenedEntry
from magnetar.ledger.position import Position

_KEY_COST_BYTES = 320
"""Memory of one key beside its characters: its place, and its share of the table."""


class NewestMessages:
    """The newest message of each key, within a bound on memory."""

    def __init__(self, *, bytes_max: int, keeps_keyless: bool) -> None:
        """`keeps_keyless`: messages without a key stay."""
        self._bytes_max = bytes_max
        self._keeps_keyless = keeps_keyless
        self._newest: dict[str, tuple[Position, int]] = {}
        self._begun: set[str] = set()
        """Chunked messages with a first chunk and no end yet."""
        self._chunks_ends: defaultdict[str, list[Position]] = defaultdict(list)
        """Where chunked messages end, in order, by their uuid."""
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._newest)

    def note(self, position: Position, opened: OpenedEntry) -> None:
        """The next entry, in the order of the topic.

        Raises:
            TooManyKeysError
        """
        if opened.kind is Kind.CHUNK and not self._ends_message(position, opened):
            return
        for message in opened.messages:
            if message.key is None:
                continue
            if message.is_tombstone:
                if self._newest.pop(message.key, None) is not None:
                    self._pay(-len(message.key), -1)
                continue
            if message.key not in self._newest:
                self._pay(len(message.key))
            self._newest[message.key] = (position, message.index)

    def keeps(self, position: Position, opened: OpenedEntry, message: KeyedMessage) -> bool:
        """Whether a message of the entry stays."""
        if opened.kind is Kind.CHUNK:
            ends = self._chunks_ends.get(opened.chunk_of, ())
            at = bisect_left(ends, position)
            if at == len(ends):
                return True
            position = ends[at]
        if message.key is None:
            return self._keeps_keyless
        return self._newest.get(message.key) == (position, message.index)

    def _ends_message(self, position: Position, chunk: OpenedEntry) -> bool:
        uuid = chunk.chunk_of
        if chunk.is_first_chunk and uuid not in self._begun:
            self._pay(len(uuid))  # for its end, too
            self._begun.add(uuid)
        if not chunk.is_last_chunk or uuid not in self._begun:
            return False
        self._begun.remove(uuid)
        self._chunks_ends[uuid].append(position)
        return True

    def _pay(self, characters: int, count: int = 1) -> None:
        self._size_bytes += count * _KEY_COST_BYTES + characters
        if self._size_bytes > self._bytes_max:
            raise TooManyKeysError(
                f"more than {len(self._newest)} keys: they do not fit into {self._bytes_max} "
                f"bytes; raise compaction_keys_bytes_max"
            )
