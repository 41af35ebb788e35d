"""The last message of a topic: where its last entry is, and the last message in that."""

from magnetar.broker.entry import last_batch_index_of
from magnetar.broker.errors import BrokerPersistenceError
from magnetar.broker.tail_cache import TailCache
from magnetar.broker.topic.surroundings import TopicLog
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.position import Position

_NOTHING = Position(-1, -1)


class LastMessage:
    """Finds it, with at most one read for each last entry."""

    def __init__(self, topic: str, log: TopicLog, cache: TailCache) -> None:
        self._topic = topic
        self._log = log
        self._cache = cache
        self._known: tuple[Position, int] = (_NOTHING, -1)

    async def find(self) -> tuple[Position, int]:
        """Position of the last entry, and the index of the last message in it (-1: no batch).

        (-1, -1) and -1 if the topic holds nothing.

        Raises:
            BrokerPersistenceError: the entry could not be read.
        """
        last = self._log.last_confirmed
        if last.entry_id < 0 or self._log.first_position() > last:
            return _NOTHING, -1
        if self._known[0] != last:
            self._known = (last, last_batch_index_of(await self._entry_at(last)))
        return self._known

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
