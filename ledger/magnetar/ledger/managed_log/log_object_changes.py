"""Changes of where the ledgers of a log are in an object store, on behalf of its owner.

Each change is one compare-and-set on the log's node, and names the attempt that it is about. If the
node has another attempt, or no such ledger, nothing changes; the caller sees that in the result. If
the owner has lost the log, the change fails, as every other change of the list does.

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

    Every change returns the ledger's object as the node has it now; None if the ledger left the
    list, or has no object. A change raises LogFencedError if another owner has taken the log over,
    LogClosedError if this handle is closed, and MetadataError if the outcome is unknown: call it
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
        """Value and version of the node as they were last read or written, together."""
        return self._list.node

    def key(self, ledger_id: int, found: LedgerObject, attempt: str) -> str:
        """Return the key of an attempt to copy a ledger."""
        return self.base(found).key(ledger_id, attempt)

    def base(self, found: LedgerObject) -> ObjectBase:
        """Return the store of an object, and the prefix of its key."""
        return self._list.object_bases[found.base]

    async def reread(self, ledger_id: int) -> LedgerObject | None:
        """Read the node again; return the object that it names for a ledger, None if it has none.

        Raises:
            LogFencedError: another owner has taken the log over.
            MetadataError: the store cannot tell now.
        """
        try:
            await self._list.check_owned()
        except LogFencedError as error:
            self._appender.fence(error)
            raise
        ledger = self._find(ledger_id)
        return ledger.object if ledger is not None else None

    async def begin(self, ledger_id: int, attempt: str, base: ObjectBase) -> LedgerObject | None:
        """Name a new attempt to copy a closed ledger. A ledger with a copy is unchanged."""
        return await self._change(
            ledger_id, lambda metadata: metadata.with_copy_begun(ledger_id, attempt, base)
        )

    async def replace(self, ledger_id: int, attempt: str, *, by: str) -> LedgerObject | None:
        """Name a new attempt to copy a ledger whose object, of another attempt, is damaged."""
        return await self._change(
            ledger_id, lambda metadata: metadata.with_copy_replaced(ledger_id, attempt, by)
        )

    async def copied(
        self, ledger_id: int, attempt: str, *, size_bytes: int, check: int, at_ms: int
    ) -> LedgerObject | None:
        """Record that the object of the attempt is complete, and was checked in the store.

        An attempt that replaces an object must have been read back in full.
        """
        return await self._change(
            ledger_id,
            lambda metadata: metadata.with_copied(
                ledger_id, attempt, size_bytes=size_bytes, check=check, at_ms=at_ms
            ),
        )

    async def only(self, ledger_id: int, attempt: str) -> LedgerObject | None:
        """Record that the bookies may delete a ledger. This owner must have read the object back in
        full (rule 16.4)."""
        return await self._change(
            ledger_id, lambda metadata: metadata.with_object_only(ledger_id, attempt)
        )

    async def forget(self, ledger_id: int) -> bool:
        """Delete a ledger that is in an object only; return False if that failed: call again.

        From then on, the object serves the reads in progress.
        """
        ledger = self._find(ledger_id)
        if ledger is None or not ledger.is_in_object_only or not self._list.is_resolved:
            return False
        return await self._ledgers.delete(ledger_id)

    async def _change(self, ledger_id: int, change: Change) -> LedgerObject | None:
        refusal = self._appender.refusal()
        if isinstance(refusal, LogFencedError | LogClosedError):
            raise refusal  # else it may be terminated: its ledgers still move
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
