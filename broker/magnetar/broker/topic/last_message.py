"""The last message of a topic: its entry, its index in the batch, and its first chunk if it is
chunked."""

from magnetar.broker.base.chunks import chunk_metadata
from magnetar.broker.base.entry import MARKER, last_batch_index_of, messages_of
from magnetar.broker.base.errors import BrokerPersistenceError
from magnetar.broker.topic.dispatch.visibility import Visibility
from magnetar.broker.topic.surroundings import TopicLog
from magnetar.broker.topic.tail_cache import TailCache
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.position import Position
from magnetar.sdk.wire import MessageMetadata

_NOTHING = Position(-1, -1)

LOOK_BACK_ENTRIES_MAX = 1_000
"""Most entries searched for the first chunk of a message."""
LOOK_BACK_BYTES_MAX = 256 << 20
"""Most bytes of entries read to find the first chunk of a message. An entry is read as a whole,
from the cache or from bookies."""


class LastMessage:
    """Finds the last message with at most one read per last entry, not counting the broker's own
    entries after it."""

    def __init__(self, topic: str, log: TopicLog, cache: TailCache, visibility: Visibility) -> None:
        self._topic = topic
        self._log = log
        self._cache = cache
        self._visibility = visibility
        self._known: tuple[Position, int] = (_NOTHING, -1)
        self._chunk: MessageMetadata | None = None
        """Metadata of the known entry, if it is a chunk but not the first one of its message."""
        self._begun: tuple[Position, Position | None] = (_NOTHING, None)

    async def find(self) -> tuple[Position, int]:
        """Return the position of the last entry, and the index of the last message in it (-1: no
        batch).

        (-1, -1) and -1 if the topic is empty.

        Raises:
            BrokerPersistenceError: the entry could not be read.
        """
        if self._visibility.hidden is not None:
            return await self._find_visible()
        last = self._log.last_confirmed
        if last.entry_id < 0 or self._log.first_position() > last:
            return _NOTHING, -1
        if self._known[0] != last:
            entry = await self._entry_at(last)
            if messages_of(entry) == MARKER:
                return await self._find_visible()
            self._note(last, entry)
        return self._known

    async def first_chunk(self, last: Position) -> Position | None:
        """Return where the message begins whose later chunk `find` has returned.

        None: the last message is not such a chunk, or its beginning is trimmed or too far back. The
        search runs once per last entry.
        """
        chunk = self._chunk
        if chunk is None or self._known[0] != last:
            return None
        if self._begun[0] != last:
            try:
                self._begun = (last, await self._look_back(last, chunk))
            except BrokerPersistenceError:
                return None  # and the next call searches again
        return self._begun[1]

    async def _look_back(self, position: Position, chunk: MessageMetadata) -> Position | None:
        size = 0
        for _ in range(LOOK_BACK_ENTRIES_MAX):
            position = self._log.previous_position(position)
            if position.entry_id < 0 or position < self._log.first_position():
                return None
            entry = await self._entry_at(position)
            found = chunk_metadata(entry)
            if found is not None and found.uuid == chunk.uuid:
                # Producers that reconnect reuse ids for other messages.
                if found.publish_time != chunk.publish_time:
                    return None
                if found.chunk_id == 0:
                    return position
            size += len(entry)
            if size > LOOK_BACK_BYTES_MAX:
                return None
        return None

    def _note(self, position: Position, entry: bytes) -> None:
        self._known = (position, last_batch_index_of(entry))
        chunk = chunk_metadata(entry)
        self._chunk = chunk if chunk is not None and chunk.chunk_id > 0 else None

    async def _find_visible(self) -> tuple[Position, int]:
        """Find the last message before trailing markers or entries of aborted transactions."""
        position = self._visibility.last
        while position.entry_id >= 0 and self._log.first_position() <= position:
            if position == self._known[0]:
                return self._known
            if not self._visibility.is_aborted(position):
                entry = await self._entry_at(position)
                if messages_of(entry) != MARKER:
                    self._note(position, entry)
                    return self._known
            position = self._log.previous_position(position)
        return _NOTHING, -1

    async def _entry_at(self, position: Position) -> bytes:
        run = self._cache.find(position)
        if run is not None:
            return run.entries[run.index_of(position)]
        try:
            _, found = await self._log.read_range(position, entries_max=1, bytes_max=1)
        except LedgerError as error:
            raise BrokerPersistenceError(
                f"{self._topic}: the last message cannot be read: {error}"
            ) from error
        if not found:
            raise BrokerPersistenceError(f"{self._topic}: the last message is gone")
        return found[0]
