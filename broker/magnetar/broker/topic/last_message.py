"""The last message of a topic: where its last entry is, and the last message in that."""

from magnetar.broker.dispatch.visibility import Visibility
from magnetar.broker.entry import MARKER, last_batch_index_of, messages_of
from magnetar.broker.errors import BrokerPersistenceError
from magnetar.broker.tail_cache import TailCache
from magnetar.broker.topic.surroundings import TopicLog
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.position import Position

_NOTHING = Position(-1, -1)


class LastMessage:
    """Finds it, with at most one read for each last entry."""

    def __init__(self, topic: str, log: TopicLog, cache: TailCache, visibility: Visibility) -> None:
        self._topic = topic
        self._log = log
        self._cache = cache
        self._visibility = visibility
        self._known: tuple[Position, int] = (_NOTHING, -1)

    async def find(self) -> tuple[Position, int]:
        """Position of the last entry, and the index of the last message in it (-1: no batch).

        (-1, -1) and -1 if the topic holds nothing.

        Raises:
            BrokerPersistenceError: the entry could not be read.
        """
        if self._visibility.hidden is not None:
            return await self._find_visible()
        last = self._log.last_confirmed
        if last.entry_id < 0 or self._log.first_position() > last:
            return _NOTHING, -1
        if self._known[0] != last:
            self._known = (last, last_batch_index_of(await self._entry_at(last)))
        return self._known

    async def _find_visible(self) -> tuple[Position, int]:
        """As `find` where entries are hidden: back over markers, and what nobody may read."""
        position = self._visibility.last
        while position.entry_id >= 0 and self._log.first_position() <= position:
            if position == self._known[0]:
                return self._known
            if not self._visibility.is_aborted(position):
                entry = await self._entry_at(position)
                if messages_of(entry) != MARKER:
                    self._known = (position, last_batch_index_of(entry))
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
