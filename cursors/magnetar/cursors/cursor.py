"""A durable cursor: acknowledgements change memory first, and are saved in the background.

An acknowledgement changes memory and starts a timer. When the timer fires, the whole state is saved
once, however many acknowledgements came meanwhile. At most one save is in progress, a save always
takes the newest state, and without changes there is no timer. So a crash repeats the messages
acknowledged within the last `ack_persist_interval_ms` (plus the time of a write), and loses
nothing.

Only `persisted_mark_delete` may be used to trim the log (rule 5.1). The caller must open a new
cursor, or choose its initial position, while the log is not being trimmed (rule 5.2). It must also
open the log first, which fences the cursor's former owner as a writer of the log.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog

from magnetar.cursors.ack_state import AckState
from magnetar.cursors.errors import (
    CursorClosedError,
    CursorError,
    CursorFencedError,
    CursorUnavailableError,
)
from magnetar.cursors.node import NO_LEDGER, CursorNode, OwnedNode, cursor_path
from magnetar.cursors.record import CursorRecord, fit_record
from magnetar.cursors.save_pace import SavePace
from magnetar.cursors.saver import (
    CursorLedgers,
    CursorLog,
    CursorSaver,
    get_or_create_node,
    recover_state,
)
from magnetar.cursors.settings import CursorSettings
from magnetar.cursors.subscription_cursor import SubscriptionCursor
from magnetar.ledger.errors import LedgerError, LogFencedError
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock
from magnetar.ledger.position import EARLIEST, Position

_log = structlog.get_logger(__name__)

# Opening competes at most with the former owner's last writes, so a few rounds are enough.
_OPEN_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class CursorStatistics:
    """Counters since the cursor was opened, and what the last save left out."""

    saves: int
    failed_saves: int
    ranges_not_saved: int
    batches_not_saved: int
    cursor_ledger_id: int
    ledger_last_entry: int
    """Last entry of the cursor ledger; -1 if there is no cursor ledger now."""
    ledger_created_ms: int
    """When the cursor ledger was created, ms since 1970; 0 if not since the cursor was opened."""
    record_bytes: int
    """Size in bytes of the last record in a cursor ledger."""


class Cursor(SubscriptionCursor):
    """Durable progress of one subscription. Make one with `await Cursor.open(...)`."""

    def __init__(
        self,
        name: str,
        state: AckState,
        saver: CursorSaver,
        *,
        path: str,
        position_properties: Mapping[str, int],
        settings: CursorSettings,
        pace: SavePace | None,
        clock: Clock,
    ) -> None:
        """Internal; call `open`."""
        super().__init__(name, state)
        self._saver = saver
        self._path = path
        self._settings = settings
        self._pace = pace
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._position_properties = dict(position_properties)
        self._persisted = state.mark_delete
        self._changes = 0
        self._saved_changes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._saving = asyncio.Lock()
        self._end: CursorError | None = None
        self._fenced_callbacks: list[Callable[[], None]] = []
        self._saves = 0
        self._failed_saves = 0
        self._ranges_not_saved = 0
        self._batches_not_saved = 0

    @classmethod
    async def open(
        cls,
        log: CursorLog,
        client: CursorLedgers,
        store: MetadataStore,
        name: str,
        *,
        initial: Position | None = None,
        initial_words: Sequence[int] = (),
        properties: Mapping[str, str] | None = None,
        position_properties: Mapping[str, int] | None = None,
        settings: CursorSettings | None = None,
        pace: SavePace | None = None,
        clock: Clock,
    ) -> "Cursor":
        """Open the cursor `name` of an open log, or register it.

        An existing cursor continues where it was; its former owner is fenced. A new one starts so
        that `initial` is the first entry to deliver (EARLIEST, LATEST or a position, see `reset`);
        `initial_words` (ack_set) mark passed indexes of that entry. It gets the given subscription
        and position properties, and is durable on return. `pace` is shared with the other cursors
        of the owner; without it, the cursor saves at its interval.

        Raises:
            NoSuchCursorError: the cursor does not exist, and `initial` is None.
            CursorUnavailableError: bookies or metadata cannot be reached; the stored state is
                unchanged, but the former owner may be fenced already.
            CursorFencedError: others keep opening the cursor at the same time, or the log has
                another owner.
            InvalidCursorNameError, InvalidCursorNodeError, UnsupportedCursorRecordError
        """
        settings = settings or CursorSettings()
        path = cursor_path(log.path, name)
        try:
            for _ in range(_OPEN_ATTEMPTS):
                try:
                    return await cls._try_open(
                        log,
                        client,
                        store,
                        name,
                        path,
                        initial,
                        initial_words,
                        properties or {},
                        position_properties or {},
                        settings,
                        pace,
                        clock,
                    )
                except CursorFencedError:
                    continue  # the former owner wrote once more: read the node again
        except LogFencedError as exc:
            raise CursorFencedError(f"cursor {path}: another owner has the log: {exc}") from exc
        except LedgerError as exc:
            raise CursorUnavailableError(f"cursor {path} cannot be opened now: {exc}") from exc
        raise CursorFencedError(f"cursor {path} is being opened by another process, too")

    @classmethod
    async def _try_open(
        cls,
        log: CursorLog,
        client: CursorLedgers,
        store: MetadataStore,
        name: str,
        path: str,
        initial: Position | None,
        initial_words: Sequence[int],
        properties: Mapping[str, str],
        position_properties: Mapping[str, int],
        settings: CursorSettings,
        pace: SavePace | None,
        clock: Clock,
    ) -> "Cursor":
        first: CursorNode | None = None
        if initial is not None:
            state = AckState(log, EARLIEST)
            state.reset(initial, initial_words)
            first = CursorNode(
                epoch=1,
                mark_delete=state.mark_delete,
                position_properties=dict(position_properties),
                properties=dict(properties),
                last_active_ms=clock.wall_ms(),
            ).with_snapshot(state.snapshot())
        stored, is_new = await get_or_create_node(store, path, first)
        owned = OwnedNode(store, path, stored)
        saver = CursorSaver(
            client, owned, log_path=log.path, name=name, settings=settings, clock=clock
        )
        recovered = await recover_state(client, owned.node, path)
        state = AckState.restore(log, recovered.snapshot)
        if not is_new:
            # The state was fitted to the log as this handle knows it. An owner that has lost the
            # log would cut off acknowledgements that were made at the next owner since.
            await log.check_owned()
            await saver.own(
                CursorRecord(state.snapshot(), clock.wall_ms(), recovered.position_properties)
            )
        return cls(
            name,
            state,
            saver,
            path=path,
            position_properties=recovered.position_properties,
            settings=settings,
            pace=pace,
            clock=clock,
        )

    @property
    def is_durable(self) -> bool:
        return True

    @property
    def persisted_mark_delete(self) -> Position:
        """The position up to which everything is known to be acknowledged durably."""
        return self._persisted

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties of the subscription."""
        return self._saver.node.properties

    @property
    def position_properties(self) -> Mapping[str, int]:
        """Values that the owner stores with the position, such as a deduplication snapshot."""
        return self._position_properties

    @property
    def last_active_ms(self) -> int:
        """When the node was last written, ms since 1970."""
        return self._saver.node.last_active_ms

    @property
    def statistics(self) -> CursorStatistics:
        return CursorStatistics(
            saves=self._saves,
            failed_saves=self._failed_saves,
            ranges_not_saved=self._ranges_not_saved,
            batches_not_saved=self._batches_not_saved,
            cursor_ledger_id=self._saver.node.cursor_ledger_id,
            ledger_last_entry=self._saver.last_entry,
            ledger_created_ms=self._saver.switched_ms,
            record_bytes=self._saver.record_bytes,
        )

    def on_fenced(self, callback: Callable[[], None]) -> None:
        """Run `callback` once when another owner is found to have the cursor."""
        self._fenced_callbacks.append(callback)

    def set_position_properties(self, properties: Mapping[str, int]) -> None:
        """Replace the position properties; the next save stores them with the acknowledgements."""
        self._position_properties = dict(properties)
        self._changed()

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        """Replace the subscription's properties, durably.

        Raises:
            CursorStateTooLargeError, CursorFencedError, CursorClosedError, CursorUnavailableError
        """
        async with self._exclusive():
            await self._saver.write_properties(dict(properties))

    async def persist(self) -> None:
        """Return when all acknowledgements made before the call are saved.

        Those that exceed the limits of a record are not saved; see `statistics`.

        Raises:
            CursorFencedError, CursorClosedError, CursorUnavailableError
        """
        target = self._changes
        async with self._exclusive():
            if self._saved_changes < target:  # else an earlier save did it
                await self._save()

    async def reset(self, position: Position, words: Sequence[int] = ()) -> None:
        self._check_open()
        self._state.reset(position, words)
        # The position may go back: from now on trimming must not rely on the old, saved position.
        self._persisted = min(self._persisted, self._state.mark_delete)
        self._changed()
        await self.persist()

    async def leave(self, before: Position) -> None:
        """Move the durable position out of the ledgers before `before`, which will be deleted.

        `before` is the beginning of a ledger, and everything before it is acknowledged. The place
        is the same, under a name that will still exist (managed ledger, section 6 step 4).

        Raises:
            CursorFencedError, CursorClosedError, CursorUnavailableError
        """
        self._check_open()
        if self._state.move_behind(before):
            self._changed()
        if self._persisted < Position(before.ledger_id, before.entry_id - 1):
            await self.persist()

    async def close(self) -> None:
        """Save the state a last time, into the node if it is small, and end the handle.

        On an error the handle stays open and the close may be tried again. Closing a fenced or
        closed handle is fine.

        Raises:
            CursorFencedError: the last save found another owner.
            CursorUnavailableError: not saved.
        """
        if self._end is not None:
            return
        async with self._exclusive():
            if self._is_dirty or self._saver.node.cursor_ledger_id != NO_LEDGER:
                changes, record = self._changes, self._record()
                self._note_saved(await self._saver.save_and_close(record), record, changes)
            self._finish(CursorClosedError(f"cursor {self._path} is closed"))

    async def delete(self) -> None:
        """Delete the cursor: its node first, then its ledger.

        Raises:
            CursorFencedError, CursorClosedError
            CursorUnavailableError: the node still exists, or may exist: call again.
        """
        async with self._exclusive():
            await self._saver.delete()
            self._finish(CursorClosedError(f"cursor {self._path} is deleted"))

    def abandon(self) -> None:
        """End the handle at once and write nothing more: for an owner that may have lost the log. A
        save in progress ends before its next write."""
        self._finish(CursorClosedError(f"cursor {self._path} was abandoned"))

    # Saving

    def _changed(self) -> None:
        self._changes += 1
        if self._timer is None and self._task is None:
            self._start_timer(self._settings.ack_persist_interval_ms)

    def _start_timer(self, delay_ms: int) -> None:
        if self._end is not None:
            return
        delay_s = delay_ms / 1000
        if self._pace is not None:
            delay_s = self._pace.delay_s(self._clock.monotonic_s(), delay_s)
        self._timer = self._loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._task = self._loop.create_task(self._save_in_background())

    async def _save_in_background(self) -> None:
        delay_ms = self._settings.ack_persist_interval_ms
        try:
            await self.persist()
        except (CursorFencedError, CursorClosedError):
            pass  # nothing is left to do; the fencing is logged already
        except CursorError as error:
            delay_ms = max(delay_ms, self._settings.persist_retry_ms)
            _log.warning("cursor_not_saved", cursor=self._path, reason=str(error))
        finally:
            self._task = None
        if self._is_dirty and self._timer is None:
            self._start_timer(delay_ms)

    @property
    def _is_dirty(self) -> bool:
        return self._saved_changes < self._changes

    async def _save(self) -> None:
        changes, record = self._changes, self._record()
        self._note_saved(await self._saver.save(record), record, changes)

    def _record(self) -> CursorRecord:
        settings = self._settings
        snapshot = self._state.snapshot(
            ranges_max=settings.unacked_ranges_persisted_max,
            batches_max=settings.batch_acks_persisted_max,
        )
        record = CursorRecord(snapshot, self._clock.wall_ms(), self._position_properties)
        return fit_record(record, bytes_max=settings.record_bytes_max)

    def _note_saved(self, saved: CursorRecord, record: CursorRecord, changes: int) -> None:
        self._saves += 1
        # A reset may have moved the position back while an older record was being written.
        self._persisted = min(saved.snapshot.mark_delete, self._state.mark_delete)
        ranges, batches = saved.snapshot.ranges_dropped, saved.snapshot.batches_dropped
        if (ranges or batches) and not (self._ranges_not_saved or self._batches_not_saved):
            # Log it once, not with each save: the numbers are in the statistics.
            _log.warning(
                "acknowledgements_not_saved", cursor=self._path, ranges=ranges, batches=batches
            )
        self._ranges_not_saved, self._batches_not_saved = ranges, batches
        if saved is record:
            # A record shortened for the node leaves the cursor dirty: a ledger may later take more
            # of it.
            self._saved_changes = changes

    @asynccontextmanager
    async def _exclusive(self) -> AsyncIterator[None]:
        """Run one operation at a time on an open handle; turn ledger errors into cursor errors."""
        async with self._saving:
            self._check_open()
            try:
                yield
            except CursorFencedError as error:
                _log.warning("cursor_fenced", cursor=self._path, reason=str(error))
                self._finish(error)
                for callback in self._fenced_callbacks:
                    callback()
                raise
            except LedgerError as exc:
                self._failed_saves += 1
                raise CursorUnavailableError(f"cursor {self._path}: {exc}") from exc

    def _check_open(self) -> None:
        if isinstance(self._end, CursorFencedError):
            raise CursorFencedError(str(self._end))
        if self._end is not None:
            raise CursorClosedError(str(self._end))

    def _finish(self, end: CursorError) -> None:
        if self._end is None:
            self._end = end
        self._saver.abandon()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
