"""A run: consecutive entries of one ledger, as they were appended or read together.

Entries move through the broker in runs. A batch of publishes becomes one run in the tail cache, a
read behind the tail becomes one, and dispatchers walk through runs. The entries are what clients
sent; the prefixes that a broker stored in front of them are kept separately
(`base/entry_metadata.py`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Never

from magnetar.broker.base.chunks import ChunkOf, chunks_of
from magnetar.broker.base.entry import delayed_of, look_through
from magnetar.broker.base.entry_metadata import part_prefixes
from magnetar.broker.topic.sticky_key import entry_hashes_of, key_hashes_of
from magnetar.ledger.position import Position

_NONE: Mapping[int, Never] = {}


class Run:
    """Entries `first_entry_id`, `first_entry_id + 1`, … of a ledger. At least one; immutable."""

    __slots__ = (
        "_chunk_indexes",
        "_chunks",
        "_delayed",
        "_entry_hashes",
        "_key_hashes",
        "_messages",
        "entries",
        "first_entry_id",
        "is_plain",
        "kept_words",
        "last_entry_id",
        "ledger_id",
        "prefixes",
        "size_bytes",
    )

    def __init__(
        self,
        ledger_id: int,
        first_entry_id: int,
        entries: Sequence[bytes],
        *,
        messages: list[int] | None = None,
        kept_words: Sequence[tuple[int, ...]] | None = None,
        is_plain: bool = False,
        chunk_indexes: Sequence[int] | None = None,
        prefixes: Sequence[bytes] | None = None,
    ) -> None:
        """Make a run of entries without their prefixes; `of_stored` takes entries as read from a
        log.

        Args:
            messages: the messages in each entry, if known.
            kept_words: for each entry, the messages that compaction has kept, as ack_set words; ():
                all.
            is_plain: whether it is known that no entry is delayed, a chunk or a marker.
            chunk_indexes: indexes of the entries that may be chunks, if known.
            prefixes: for each entry, what a broker stored in front of it; None: nothing.
        """
        assert entries
        assert messages is None or len(messages) == len(entries)
        self.ledger_id = ledger_id
        self.first_entry_id = first_entry_id
        self.last_entry_id = first_entry_id + len(entries) - 1
        self.entries = entries
        self.size_bytes = sum(map(len, entries))
        if prefixes is not None:
            self.size_bytes += sum(map(len, prefixes))
        self.kept_words = kept_words
        self.is_plain = is_plain
        self.prefixes = prefixes
        self._messages = messages
        self._key_hashes: list[int] | None = None
        self._entry_hashes: list[int] | None = None
        self._chunk_indexes = chunk_indexes
        self._chunks: Mapping[int, ChunkOf] | None = (
            _NONE if is_plain or (chunk_indexes is not None and not chunk_indexes) else None
        )
        self._delayed: Mapping[int, int] | None = _NONE if is_plain else None

    @classmethod
    def of_stored(
        cls,
        ledger_id: int,
        first_entry_id: int,
        stored: Sequence[bytes],
        *,
        kept_words: Sequence[tuple[int, ...]] | None = None,
    ) -> "Run":
        """Return a run of entries as a log has them, some of them perhaps with a prefix."""
        entries, prefixes = part_prefixes(stored)
        return cls(ledger_id, first_entry_id, entries, kept_words=kept_words, prefixes=prefixes)

    def stored(self, index: int) -> bytes:
        """Return one entry as the log stores it."""
        entry = self.entries[index]
        return entry if self.prefixes is None else self.prefixes[index] + entry

    def getter(self, *, with_prefixes: bool) -> Callable[[int], bytes]:
        """Return a function from an index to the entry as a client gets it.

        `with_prefixes`: whether the client requested what the broker stored. Prefix and entry are
        joined for each consumer, because keeping all entries twice would cost more.
        """
        if with_prefixes and self.prefixes is not None:
            return self.stored
        return self.entries.__getitem__

    @property
    def first(self) -> Position:
        return Position(self.ledger_id, self.first_entry_id)

    @property
    def last(self) -> Position:
        return Position(self.ledger_id, self.last_entry_id)

    @property
    def messages(self) -> list[int]:
        """Messages in each entry. Computed once, for all subscriptions of the topic."""
        if self._messages is None:
            self._messages, self._chunk_indexes = look_through(self.entries)
        return self._messages

    @property
    def key_hashes(self) -> list[int]:
        """Murmur3 hash of each entry's sticky key. Computed at the first use."""
        if self._key_hashes is None:
            self._key_hashes = key_hashes_of(self.entries)
        return self._key_hashes

    @property
    def entry_hashes(self) -> list[int]:
        """Hash that assigns each entry to an entry bucket. Computed at the first use."""
        if self._entry_hashes is None:
            self._entry_hashes = entry_hashes_of(self.entries)
        return self._entry_hashes

    @property
    def chunks(self) -> Mapping[int, ChunkOf]:
        """Entries that are part of a chunked message, by index. Computed at the first use."""
        if self._chunks is None:
            indexes = self._chunk_indexes
            self._chunks = chunks_of(
                self.entries, indexes if indexes is not None else range(len(self.entries))
            )
        return self._chunks

    def chunks_among(self, entry_ids: Iterable[int]) -> int:
        """Count the chunks among entries of this run, given by their ids."""
        first, chunks = self.first_entry_id, self.chunks
        return sum(each - first in chunks for each in entry_ids)

    @property
    def delayed(self) -> Mapping[int, int]:
        """Due times of delayed entries, ms since the epoch, by index."""
        if self._delayed is None:
            self._delayed = delayed_of(self.entries)
        return self._delayed

    def index_of(self, position: Position) -> int:
        """Index of the entry at `position`; -1 if it is not in this run."""
        ledger_id, entry_id = position
        first = self.first_entry_id
        if ledger_id == self.ledger_id and first <= entry_id <= self.last_entry_id:
            return entry_id - first
        return -1
