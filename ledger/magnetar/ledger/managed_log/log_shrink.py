"""Removing ledgers from the front of a log: from the list first, and only then from the bookies.

A crash between leaves orphans, never a hole (rule 6.1). A ledger whose deletion failed is tried
again with the next ones, a few times; then it is the orphan sweep's. A ledger is deleted only when
the list certainly does not name it any more: an update whose outcome is unknown deletes nothing,
until it is found to have happened.

Source: managed ledger, section 6.
"""

import structlog

from magnetar.ledger.errors import LogFencedError
from magnetar.ledger.managed_log.log_appender import LogAppender
from magnetar.ledger.managed_log.log_ledgers import LogLedgers
from magnetar.ledger.managed_log.log_list import LogList
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.ledger.position import Position

log = structlog.get_logger()

_ATTEMPTS = 5


class LogShrink:
    """Shrinks one log, on behalf of its owner."""

    def __init__(
        self, path: str, log_list: LogList, appender: LogAppender, ledgers: LogLedgers
    ) -> None:
        self._path = path
        self._list = log_list
        self._appender = appender
        self._ledgers = ledgers
        self._removed: dict[int, int] = {}
        """Ledgers that left the list, or may have, and how often their deletion failed."""

    async def unlist(self, before: Position) -> int:
        """Take the ledgers whose every entry is before `before` from the list; returns how many.

        Raises:
            LogFencedError: another owner has taken the log over.
            MetadataError: whether it happened is not known; call again.
        """
        removed: dict[int, None] = {}

        def change(metadata: LogMetadata) -> LogMetadata:
            shrunk = metadata.shrunk(before)
            for ledger in metadata.ledgers[: len(metadata.ledgers) - len(shrunk.ledgers)]:
                removed[ledger.ledger_id] = None
                self._removed.setdefault(ledger.ledger_id, 0)
            return shrunk

        try:
            await self._list.update(change)
        except LogFencedError as error:
            self._removed.clear()
            self._appender.fence(error)
            raise
        except BaseException:
            # What may have left the list already must take in no cursor: it could be deleted.
            if not self._list.is_resolved:
                kept = [each for each in self._list.ledgers if each.ledger_id not in self._removed]
                self._appender.extent.reshape(kept)
            raise
        self._appender.extent.reshape(self._list.ledgers)
        if removed:
            log.info("log_shrunk", path=self._path, ledgers=len(removed), before=str(before))
        return len(removed)

    async def delete_unlisted(self) -> None:
        """Delete what left the list; what fails is tried again at the next call."""
        if not self._list.is_resolved:
            return
        listed = {ledger.ledger_id for ledger in self._list.ledgers}
        for ledger_id in list(self._removed):
            if ledger_id in listed:
                del self._removed[ledger_id]  # the update did not happen after all
            elif await self._ledgers.delete(ledger_id):
                self._removed.pop(ledger_id, None)
            elif ledger_id in self._removed:
                self._removed[ledger_id] += 1
                if self._removed[ledger_id] >= _ATTEMPTS:
                    del self._removed[ledger_id]

    @property
    def left_behind(self) -> int:
        """Ledgers that left the list and are still to be deleted."""
        return len(self._removed)
