"""Follows a ledger's metadata for a reader: reads it again after an event, or after a failed read.

Re-replication may move every replica of a closed ledger to other bookies. A handle that never read
the metadata again would ask dead bookies for ever (rule 2.6, defect D23). Only handles that follow
the ledger set a watch, which `close` ends. Other handles read it again after a failed read. So a
handle that is dropped without being closed leaves nothing behind.

A watch event means "read again"; a value counts only if it is newer than the known one.
"""

import asyncio
from collections.abc import Callable

import structlog

from magnetar.ledger.errors import (
    InvalidLedgerMetadataError,
    LedgerError,
    NoSuchLedgerError,
)
from magnetar.ledger.ledger_manager import LedgerManager, VersionedLedger
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.metadata.store import Watch, WatchEvent

_log = structlog.get_logger(__name__)


class MetadataFollower:
    """The metadata of a ledger that is being read."""

    def __init__(
        self,
        ledger: VersionedLedger,
        manager: LedgerManager,
        *,
        retry_delay_s: float,
        on_change: Callable[[LedgerMetadata], None],
        on_deleted: Callable[[NoSuchLedgerError], None],
        on_invalid: Callable[[InvalidLedgerMetadataError], None],
    ) -> None:
        """`on_change` gets each newer value; its errors go to the caller of `look`, or are logged.

        `on_invalid` gets the error for an invalid value, which is left unchanged for an operator to
        judge.
        """
        self._ledger = ledger
        self._manager = manager
        self._retry_delay_s = retry_delay_s
        self._on_change = on_change
        self._on_deleted = on_deleted
        self._on_invalid = on_invalid
        self._watch: Watch | None = None
        self._is_stale = False
        """Whether there was an event after the start of the last read."""
        self._looking: asyncio.Task[None] | None = None

    @property
    def current(self) -> LedgerMetadata:
        """The latest value known."""
        return self._ledger.metadata

    def watch(self) -> None:
        """Follow changes from now on, until `close`; and read once, for earlier changes."""
        if self._watch is None:
            self._watch = self._manager.watch(self.current.ledger_id, self._on_event)
            self._look_soon()

    async def look(self) -> None:
        """Read the metadata. If that fails, a change that was announced before is read later.

        Raises:
            NoSuchLedgerError: the ledger was deleted.
            InvalidLedgerMetadataError, MetadataError
        """
        was_stale, self._is_stale = self._is_stale, False
        try:
            ledger = await self._manager.read(self.current.ledger_id)
        except NoSuchLedgerError as error:
            self._on_deleted(error)
            raise
        except InvalidLedgerMetadataError as error:
            self._on_invalid(error)
            raise
        except BaseException as error:
            # Also if the caller was cancelled: there may be no other event, since a closed ledger
            # does not change again.
            is_worth_it = not isinstance(error, LedgerError) or error.retryable
            if was_stale and is_worth_it and self._watch is not None:
                self._look_soon()
            raise
        if ledger.version > self._ledger.version:
            self._ledger = ledger
            self._on_change(ledger.metadata)

    def close(self) -> None:
        """Stop watching and reading."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def _on_event(self, event: WatchEvent) -> None:
        if event is not WatchEvent.CHILDREN:
            self._look_soon()

    def _look_soon(self) -> None:
        self._is_stale = True
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(
                self._look_until_read(), name=f"follow-ledger-{self.current.ledger_id}"
            )

    async def _look_until_read(self) -> None:
        try:
            while self._is_stale:
                try:
                    await self.look()
                except NoSuchLedgerError:
                    break  # already reported; a ledger id is never used again
                except LedgerError as error:
                    _log.warning(
                        "ledger_metadata_unread", ledger_id=self.current.ledger_id, error=str(error)
                    )
                    if error.retryable:
                        await asyncio.sleep(self._retry_delay_s)
        finally:
            if self._looking is asyncio.current_task():
                self._looking = None
