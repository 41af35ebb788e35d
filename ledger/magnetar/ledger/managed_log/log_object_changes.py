"""Changing where the ledgers of a log lie in an object store, on behalf of its owner.

Each change is one compare-and-set on the log's node, under the name of the attempt it is about. A
change that finds another attempt there, or no such ledger, changes nothing; the caller sees it by
what it gets back. An owner that lost the log fails, as with every other change of the list.

Source: tiered storage, section 16 (rules 16.1 and 16.3).
"""

from magnetar.ledger.errors import LogClosedError, LogFencedError
from magnetar.ledger.managed_log.log_appender import LogAppender
from magnetar.ledger.managed_log.log_ledgers import LogLedgers
from magnetar.ledger.managed_log.log_list import Change, LogList
from magnetar.ledger.managed_log.log_metadata import LogLedger, LogMetadata
from magnetar.ledger.managed_log.log_objects import LedgerObject, ObjectBase


class LogObjectChanges:
    """The objects of one log's ledgers.

    Every change returns the ledger's object as the node has it now; None: the ledger left the list,
    or has none. It raises LogFencedError when another owner has taken the log over, LogClosedError
    when this handle is closed, and MetadataError when it is not known whether it happened: call it
    again with the same attempt.
    """

    def __init__(self, log_list: LogList, appender: LogAppender, ledgers: LogLedgers) -> None:
        self._list = log_list
        self._appender = appender
        self._ledgers = ledgers

    @property
    def ledgers(self) -> tuple[LogLedger, ...]:
        """The list as it was last read or written. Counters of open ledgers are 0."""
        return self._list.ledgers

    @property
    def node(self) -> tuple[LogMetadata, int]:
        """The node's value and version as they were last read or written, together."""
        return self._list.node

    def key(self, ledger_id: int, found: LedgerObject, attempt: str) -> str:
        """The key of an attempt on a ledger."""
        return self.base(found).key(ledger_id, attempt)

    def base(self, found: LedgerObject) -> ObjectBase:
        """Where an object is: its store, and what its key begins with."""
        return self._list.object_bases[found.base]

    async def reread(self, ledger_id: int) -> LedgerObject | None:
        """Read the node again; return the object that it names for a ledger, None if it has none.

        Raises:
            LogFencedError: another owner has taken the log over.
            MetadataError: that cannot be told now.
        """
        try:
            await self._list.check_owned()
        except LogFencedError as error:
            self._appender.fence(error)
            raise
        ledger = self._find(ledger_id)
        return ledger.object if ledger is not None else None

    async def begin(self, ledger_id: int, attempt: str, base: ObjectBase) -> LedgerObject | None:
        """Name a new try to copy a closed ledger. What was copied already stays as it is."""
        return await self._change(
            ledger_id, lambda metadata: metadata.with_copy_begun(ledger_id, attempt, base)
        )

    async def replace(self, ledger_id: int, attempt: str, *, by: str) -> LedgerObject | None:
        """Name a new try to copy a ledger whose object, of another attempt, is damaged."""
        return await self._change(
            ledger_id, lambda metadata: metadata.with_copy_replaced(ledger_id, attempt, by)
        )

    async def copied(
        self, ledger_id: int, attempt: str, *, size_bytes: int, check: int, at_ms: int
    ) -> LedgerObject | None:
        """Note that the object of the attempt is complete, and was looked at in the store.

        Of an attempt that replaces an object it must have been read back in full.
        """
        return await self._change(
            ledger_id,
            lambda metadata: metadata.with_copied(
                ledger_id, attempt, size_bytes=size_bytes, check=check, at_ms=at_ms
            ),
        )

    async def only(self, ledger_id: int, attempt: str) -> LedgerObject | None:
        """Note that the bookies may forget a ledger. The object was read back in full, by the
        owner that calls (rule 16.4)."""
        return await self._change(
            ledger_id, lambda metadata: metadata.with_object_only(ledger_id, attempt)
        )

    async def forget(self, ledger_id: int) -> bool:
        """Delete a ledger that lies in an object only; False: that failed, call again.

        Reads that are under way are served by the object from here on.
        """
        ledger = self._find(ledger_id)
        if ledger is None or not ledger.is_in_object_only or not self._list.is_resolved:
            return False
        return await self._ledgers.delete(ledger_id)

    async def _change(self, ledger_id: int, change: Change) -> LedgerObject | None:
        refusal = self._appender.refusal()
        if isinstance(refusal, LogFencedError | LogClosedError):
            raise refusal  # else it is terminated: its ledgers move all the same
        try:
            await self._list.update(change)
        except LogFencedError as error:
            self._appender.fence(error)
            raise
        ledger = self._find(ledger_id)
        return ledger.object if ledger is not None else None

    def _find(self, ledger_id: int) -> LogLedger | None:
        for ledger in self._list.ledgers:
            if ledger.ledger_id == ledger_id:
                return ledger
        return None
