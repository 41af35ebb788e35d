"""Reads a log without owning it: no fencing, from any position, and on beyond the current end.

A reader walks the ledgers in list order. It reads the confirmed entries of an open ledger, and
waits for more. It leaves a ledger only after the ledger is closed and its last entry was read (rule
9.4): the end of an open ledger is not decided. It reads a ledger only after the *list* says that
all ledgers before it are closed. Until then the owner may still remove the ledger from the list and
write its entries again. That is so even if a new owner has closed the ledger before it: one
compare-and-set on the list decides between the two.

A ledger that was copied to an object store is closed. It is read from where it currently is
(`closed_ledgers.py`).

So no entry that a reader returned can vanish or move. Entries that a shrink removed before they
were read are not skipped silently: the read fails, and says where the log begins now.

Source: managed ledger, section 9.
"""

import asyncio

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import (
    BeyondLastConfirmedError,
    LedgerClosedError,
    LogClosedError,
    LogDataLossError,
    LogTrimmedError,
    NoNodeError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchLogError,
    ObjectError,
)
from magnetar.ledger.ledger_metadata import LedgerState
from magnetar.ledger.log import LogEntry
from magnetar.ledger.managed_log.closed_ledgers import ClosedLedgers
from magnetar.ledger.managed_log.log_metadata import LogLedger, LogMetadata
from magnetar.ledger.metadata.store import MetadataStore, Watch
from magnetar.ledger.ports import Clock
from magnetar.ledger.position import EARLIEST, LATEST, Position
from magnetar.ledger.reader import LedgerReader


class _CopiedLedger:
    """A ledger that was copied to an object store. It is complete, so reads never wait for more."""

    is_ledger_closed = True

    def __init__(self, ledger: LogLedger, closed: ClosedLedgers) -> None:
        self._ledger_id = ledger.ledger_id
        self.last_add_confirmed = ledger.entries - 1
        self._closed = closed

    async def read(self, first: int, last: int, *, bytes_max: int) -> list[bytes]:
        return await self._closed.read(self._ledger_id, first, last, bytes_max=bytes_max)

    async def close(self) -> None:
        await self._closed.forget_but(lambda _: False)


class LogReader:
    """A reader of one log. Make one with `LogReader.open`; one call at a time."""

    def __init__(
        self,
        client: LedgerClient,
        store: MetadataStore,
        path: str,
        *,
        clock: Clock,
        password: bytes | None = None,
    ) -> None:
        self._client = client
        self._store = store
        self.path = path
        self._clock = clock
        self._password = password
        self._metadata = LogMetadata()
        self._position = EARLIEST
        self._ledger: LedgerReader | _CopiedLedger | None = None
        """The ledger of the position; None until it is opened."""
        self._closed = ClosedLedgers(client, path, lambda: self._metadata, password=password)
        self._list_changed = asyncio.Event()
        self._watch: Watch | None = None
        self._is_closed = False

    @classmethod
    async def open(
        cls,
        client: LedgerClient,
        store: MetadataStore,
        path: str,
        *,
        clock: Clock,
        start: Position = EARLIEST,
        password: bytes | None = None,
    ) -> "LogReader":
        """Open a log for reading from `start` on, without disturbing its owner.

        Args:
            password: of the log's ledgers. None uses the one in their metadata.

        Raises:
            NoSuchLogError: the log does not exist.
            LedgerError: see `seek`.
        """
        reader = cls(client, store, path, clock=clock, password=password)
        reader._watch = store.watch(path, lambda _: reader._list_changed.set())
        try:
            await reader.seek(start)
        except BaseException:
            await reader.close()
            raise
        return reader

    async def close(self) -> None:
        """End watches; later calls fail with LogClosedError."""
        self._is_closed = True
        if self._watch is not None:
            self._watch.close()
        self._list_changed.set()
        await self._leave_ledger()
        await self._closed.close()

    # Where it stands

    @property
    def position(self) -> Position:
        """The next entry to read: an entry, a future entry, or the end of the previous ledger."""
        return self._position

    @property
    def is_at_end(self) -> bool:
        """Whether the log was terminated, and all of it was read."""
        terminated = self._metadata.terminated
        if terminated is None:
            return False
        return self._position > terminated or terminated.entry_id < 0

    async def seek(self, position: Position) -> None:
        """Continue at `position`: EARLIEST, LATEST, an entry, or the place behind the last entry.

        LATEST is the place behind the last entry that is confirmed now.

        Raises:
            BeyondLastConfirmedError: the log does not reach that far; seek to LATEST, and wait.
            LogTrimmedError: a shrink removed that ledger; the log begins at `first` of the error.
            NoSuchLogError, MetadataError, LedgerError
        """
        self._check_open()
        before = self._position
        await self._leave_ledger()
        await self._load()
        try:
            if position == EARLIEST:
                first = self._metadata.ledgers[:1]
                self._position = Position(first[0].ledger_id, 0) if first else EARLIEST
            elif position == LATEST:
                await self._seek_end()
            else:
                await self._seek_entry(position)
        except BaseException:
            await self._leave_ledger()
            self._position = before
            raise

    async def _seek_end(self) -> None:
        """Seek behind the last confirmed entry of the first open ledger, or of the last one."""
        self._position = EARLIEST
        for listed in self._metadata.ledgers:
            self._position = Position(listed.ledger_id, listed.entries)
            if listed.is_closed:
                continue
            ledger = await self._open_ledger()
            if ledger is None:
                return
            end = await self._bound(ledger)
            self._position = Position(self._position.ledger_id, end + 1)
            return

    async def _seek_entry(self, position: Position) -> None:
        ledger_id, entry_id = position.ledger_id, max(position.entry_id, 0)
        self._position = Position(ledger_id, entry_id)
        listed = {ledger.ledger_id: ledger for ledger in self._metadata.ledgers}
        here = listed.get(ledger_id)
        if here is None:
            self._check_not_trimmed(ledger_id)
            if not any(later > ledger_id for later in listed):
                raise self._beyond(position)
        elif here.is_closed:
            if entry_id > here.entries:
                raise self._beyond(position)
        elif entry_id > 0:
            ledger = await self._open_ledger()
            if ledger is None or entry_id > await self._bound(ledger) + 1:
                raise self._beyond(position)

    def _beyond(self, position: Position) -> BeyondLastConfirmedError:
        return BeyondLastConfirmedError(
            f"{self.path}: {position} is beyond the end of the log; to read what will be appended, "
            f"seek to LATEST"
        )

    # Reading

    async def read(
        self, *, entries_max: int = 1000, bytes_max: int = 1 << 20, wait_s: float = 0.0
    ) -> list[LogEntry]:
        """Return the next entries, all of one ledger, and about `bytes_max` bytes of them.

        At the end of the log, wait up to `wait_s` for more. An empty list means that there are none
        so far, or that the log is terminated (`is_at_end`).

        Raises:
            LogTrimmedError: the next entry was removed by a shrink; seek to `first` of the error.
            LogDataLossError: a ledger of the list is gone.
            LogClosedError: this reader is closed.
            LedgerError: no replica could serve it just now; call again.
        """
        deadline_s = self._clock.monotonic_s() + wait_s
        while True:
            self._check_open()
            if self.is_at_end:
                return []
            ledger = await self._open_ledger()
            left_s = max(0.0, deadline_s - self._clock.monotonic_s())
            if ledger is None:
                if not await self._wait_list(left_s):
                    return []
                continue
            # The end is decided only if the ledger was closed before its bound was read.
            is_closed = ledger.is_ledger_closed
            first = self._position.entry_id
            last = min(ledger.last_add_confirmed, first + entries_max - 1)
            if first <= last:
                entries = await self._read(ledger, first, last, bytes_max)
                if entries:
                    return entries
            elif is_closed:
                is_moved = await self._next_ledger()
                if not is_moved and (self.is_at_end or not await self._wait_list(left_s)):
                    return []
            elif isinstance(ledger, LedgerReader) and not await self._wait_entry(ledger, left_s):
                return []

    async def _read(
        self, ledger: LedgerReader | _CopiedLedger, first: int, last: int, bytes_max: int
    ) -> list[LogEntry]:
        """Read the entries; return none if the ledger has moved, so that the caller looks again."""
        ledger_id = self._position.ledger_id
        try:
            payloads = await ledger.read(first, last, bytes_max=bytes_max)
        except (NoSuchEntryError, NoSuchLedgerError, LogDataLossError, ObjectError) as error:
            before = self._listed(ledger_id)
            await self._load()
            now = self._listed(ledger_id)
            if now is None:
                self._check_not_trimmed(ledger_id)
            elif before is not None and now.object != before.object:
                await self._leave_ledger()
                return []
            elif isinstance(error, NoSuchLedgerError):
                # The next call opens it again: an operator may have restored its metadata.
                await self._leave_ledger()
                raise self._why_lost(ledger_id) from error
            raise
        self._position = Position(ledger_id, first + len(payloads))
        return [
            LogEntry(Position(ledger_id, first + at), payload)
            for at, payload in enumerate(payloads)
        ]

    async def _wait_entry(self, ledger: LedgerReader, left_s: float) -> bool:
        """Wait for an entry of an open ledger, or for its close; return False if neither came."""
        first = self._position.entry_id
        try:
            if left_s > 0:
                await ledger.wait_beyond(first - 1, timeout_s=left_s)
            else:
                await self._bound(ledger)
        except NoSuchLedgerError:
            await self._pass_gone_ledger()
            return True
        except LedgerClosedError:
            self._check_open()
            raise
        if ledger.last_add_confirmed >= first or ledger.is_ledger_closed:
            return True
        # The news of a close may be late: check before reporting that there is nothing more.
        try:
            metadata = (await self._client.manager.read(ledger.metadata.ledger_id)).metadata
        except NoSuchLedgerError:
            await self._pass_gone_ledger()
            return True
        if metadata.state is LedgerState.CLOSED:
            await self._leave_ledger()
            return True
        return False

    async def _bound(self, ledger: LedgerReader | _CopiedLedger) -> int:
        """Return the last add confirmed; ask the bookies again if it can still grow."""
        if isinstance(ledger, LedgerReader) and not ledger.is_ledger_closed:
            await ledger.read_last_add_confirmed()
        return ledger.last_add_confirmed

    # Ledgers and their list

    async def _load(self) -> None:
        """Read the list. The event is cleared first, so a later change sets it again."""
        self._list_changed.clear()
        try:
            node = await self._store.get(self.path)
        except NoNodeError as error:
            raise NoSuchLogError(
                f"{self.path}: there is no log, or it was deleted; check the path"
            ) from error
        self._metadata = LogMetadata.from_json(node.value, path=self.path)

    async def _wait_list(self, left_s: float) -> bool:
        """Wait for a changed list; return False if it has not changed in time."""
        before = self._metadata
        await self._load()
        if self._metadata != before:
            return True
        try:
            async with asyncio.timeout(left_s):
                await self._list_changed.wait()
        except TimeoutError:
            return False
        await self._load()
        return True

    def _listed(self, ledger_id: int) -> LogLedger | None:
        for listed in self._metadata.ledgers:
            if listed.ledger_id == ledger_id:
                return listed
        return None

    async def _open_ledger(self) -> LedgerReader | _CopiedLedger | None:
        """Open the ledger of the position, or the one that follows it. None if there is none yet,
        or if an earlier ledger is still open."""
        while self._ledger is None:
            ledger_id = self._position.ledger_id
            listed = self._listed(ledger_id)
            if listed is None:
                self._check_not_trimmed(ledger_id)
                if not self._go_on_behind(ledger_id):
                    return None
                continue
            if not self._is_decided(ledger_id):
                return None
            if listed.is_in_object:
                self._ledger = _CopiedLedger(listed, self._closed)
                break
            try:
                self._ledger = await self._client.open(ledger_id, password=self._password)
            except NoSuchLedgerError:
                await self._pass_gone_ledger()
        return self._ledger

    def _go_on_behind(self, ledger_id: int) -> bool:
        """Move to the first listed ledger behind this one; return False if there is none."""
        ids = [listed.ledger_id for listed in self._metadata.ledgers]
        if ledger_id in ids:
            behind = ids[ids.index(ledger_id) + 1 :]
        else:
            behind = [each for each in ids if each > ledger_id]
        if behind:
            self._position = Position(behind[0], 0)
        return bool(behind)

    def _is_decided(self, ledger_id: int) -> bool:
        """Return whether a listed ledger is certain to stay: all before it have their ends."""
        for listed in self._metadata.ledgers:
            if listed.ledger_id == ledger_id:
                return True
            if not listed.is_closed:
                return False
        return False

    async def _next_ledger(self) -> bool:
        """Leave a closed ledger that was read to its end; return False if none follows it yet."""
        done = self._position.ledger_id
        await self._load()
        if done < self._metadata.removed_through:
            self._check_not_trimmed(done)
        if any(each.ledger_id == done and not each.is_closed for each in self._metadata.ledgers):
            return False  # the client that closed it has yet to record that in the list
        if not self._go_on_behind(done):
            return False
        await self._leave_ledger()
        return True

    async def _pass_gone_ledger(self) -> None:
        """Handle a ledger without metadata: it was removed, was empty, or lies in an object."""
        gone = self._position.ledger_id
        await self._leave_ledger()
        await self._load()
        listed = self._listed(gone)
        if listed is not None and listed.is_in_object:
            return  # it is in an object now
        if listed is not None:
            raise self._why_lost(gone)
        self._check_not_trimmed(gone)

    def _why_lost(self, ledger_id: int) -> LogDataLossError:
        return LogDataLossError(
            f"{self.path}: ledger {ledger_id} is listed, but its metadata is gone, and its entries "
            "cannot be read; to skip them, seek behind it"
        )

    def _check_not_trimmed(self, ledger_id: int) -> None:
        if not 0 <= ledger_id <= self._metadata.removed_through:
            return
        ledgers = self._metadata.ledgers
        first = Position(ledgers[0].ledger_id, 0) if ledgers else LATEST
        raise LogTrimmedError(
            f"{self.path}: ledger {ledger_id} was deleted by retention. The log now begins at "
            f"{first}: seek there to continue",
            first,
        )

    async def _leave_ledger(self) -> None:
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            await ledger.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise LogClosedError(f"{self.path}: the reader is closed; open another one")
