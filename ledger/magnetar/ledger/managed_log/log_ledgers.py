"""Creates and removes the ledgers of one log.

The next ledger is created ahead of its use and is a *spare* until the list names it. A spare whose
place in the list is uncertain is never deleted (rule 1.3). When the log closes, it waits for a
creation whose caller has gone, so that no ledger is left behind (rule 3.3).

Ledgers leave the front of a log in two steps: the list first, and only then the bookies. A crash in
between leaves orphans, never a hole (rule 6.1). A failed deletion is retried together with the next
ones, a few times; then it is left to the orphan sweep. A ledger is deleted only when the list
certainly does not name it any more. An update with an unknown outcome deletes nothing until it is
found to have happened.

Source: managed ledger, section 6.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError, LogFencedError, NoSuchLedgerError
from magnetar.ledger.managed_log.log_appender import LogAppender
from magnetar.ledger.managed_log.log_list import LogList
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.ledger.position import Position
from magnetar.ledger.settings import LogConfig
from magnetar.ledger.writer import LedgerWriter

log = structlog.get_logger()

COMPONENT = "managed-log"
"""Value of `component` in the metadata of ledgers of logs; `log` is the path of the log's node."""

RESTORED_PROPERTY: Final = "magnetar.restored-from"
"""Property of a log: the backup that it was restored from."""

_ATTEMPTS = 5
"""Maximum number of deletions of an unlisted ledger before it is left to the orphan sweep."""


async def delete_ledger_of(
    client: LedgerClient, path: str, ledger_id: int, properties: Mapping[str, str]
) -> None:
    """Delete a ledger that left a log, but not a ledger of that id that was made for another owner.

    A log that was restored from a backup of another cluster lists ledgers of that cluster. Those
    are in objects only, and in this cluster their ids may belong to other owners.

    Args:
        properties: of the log.

    Raises:
        NoSuchLedgerError, InvalidLedgerMetadataError, MetadataError
    """
    if RESTORED_PROPERTY in properties:
        made_for = (await client.manager.read(ledger_id)).metadata.custom_metadata
        owner = (made_for.get("component", COMPONENT), made_for.get("log", path))
        if owner != (COMPONENT, path):
            return
    await client.delete(ledger_id)


class LogLedgers:
    """Creates and deletes the ledgers of one log."""

    def __init__(
        self,
        client: LedgerClient,
        path: str,
        config: LogConfig,
        properties: Callable[[], Mapping[str, str]],
    ) -> None:
        """`properties`: returns the current properties of the log."""
        self._client = client
        self._path = path
        self._config = config
        self._properties = properties
        self._spare: asyncio.Task[LedgerWriter] | None = None

    def set_quorums(self, *, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        """Set the quorums of ledgers created from now on; an existing spare is unchanged."""
        changed = {
            "ensemble_size": ensemble_size,
            "write_quorum": write_quorum,
            "ack_quorum": ack_quorum,
        }
        self._config = LogConfig.model_validate({**self._config.model_dump(), **changed})

    async def create(self) -> LedgerWriter:
        """Create a ledger for this log.

        Raises:
            NotEnoughBookiesError, MetadataError
        """
        return await self._client.create(
            ensemble_size=self._config.ensemble_size,
            write_quorum=self._config.write_quorum,
            ack_quorum=self._config.ack_quorum,
            password=self._config.password,
            custom_metadata={"component": COMPONENT, "log": self._path},
        )

    async def delete(self, ledger_id: int) -> bool:
        """Delete an unreferenced ledger; return False if that failed, which leaves an orphan."""
        try:
            await delete_ledger_of(self._client, self._path, ledger_id, self._properties())
        except NoSuchLedgerError:
            pass
        except LedgerError as error:
            log.warning(
                "ledger_left_behind", path=self._path, ledger_id=ledger_id, error=str(error)
            )
            return False
        return True

    async def discard(self, writer: LedgerWriter) -> None:
        """Abandon a ledger that is no longer in the list, and delete it."""
        try:
            await writer.close(force=True)
        except LedgerError:
            writer.abandon()  # it is deleted either way
        await self.delete(writer.ledger_id)

    async def take_spare(self) -> LedgerWriter:
        """Return the next ledger, which stays the spare until `spare_listed`.

        Raises:
            NotEnoughBookiesError, MetadataError
        """
        if self._spare is None:
            self._spare = asyncio.get_running_loop().create_task(
                self.create(), name=f"create-ledger-{self._path}"
            )
        spare = self._spare
        try:
            return await asyncio.shield(spare)
        except LedgerError:
            if self._spare is spare:
                self._spare = None
            raise

    def spare_listed(self) -> None:
        """Record that the list names the spare, which then is no spare any more."""
        self._spare = None

    async def find_spare(self) -> LedgerWriter | None:
        """Wait for the spare to be created, if there is one, and return it. It stays the spare."""
        if self._spare is None:
            return None
        try:
            return await self.take_spare()
        except LedgerError:
            return None

    async def take_away_spare(self) -> LedgerWriter | None:
        """Wait for the spare to be created, if there is one, and hand it over to the caller."""
        spare, self._spare = self._spare, None
        if spare is None:
            return None
        try:
            return await spare
        except LedgerError:
            return None

    def abandon_spare(self) -> None:
        """End the handle of the spare, if there is one; at once, or when it is created. The ledger
        is left to the orphan sweep."""
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.add_done_callback(_abandon)


def _abandon(creating: "asyncio.Task[LedgerWriter]") -> None:
    if not creating.cancelled() and creating.exception() is None:
        creating.result().abandon()


class LogShrink:
    """Removes ledgers from the front of one log, on behalf of its owner."""

    def __init__(
        self, path: str, log_list: LogList, appender: LogAppender, ledgers: LogLedgers
    ) -> None:
        self._path = path
        self._list = log_list
        self._appender = appender
        self._ledgers = ledgers
        self._removed: dict[int, int] = {}
        """Ledgers that left the list, or may have, with the number of failed deletions."""

    async def unlist(self, before: Position) -> int:
        """Remove from the list the ledgers that end before `before`; return how many.

        Raises:
            LogFencedError: another owner has taken the log over.
            MetadataError: the outcome is unknown; call again.
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
            # No cursor may move into a ledger that may have left the list: it could be deleted.
            if not self._list.is_resolved:
                kept = [each for each in self._list.ledgers if each.ledger_id not in self._removed]
                self._appender.extent.reshape(kept)
            raise
        self._appender.extent.reshape(self._list.ledgers)
        if removed:
            log.info("log_shrunk", path=self._path, ledgers=len(removed), before=str(before))
        return len(removed)

    async def delete_unlisted(self) -> None:
        """Delete the ledgers that left the list; the next call retries failed deletions."""
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
        """Number of ledgers that left the list and are still to be deleted."""
        return len(self._removed)
