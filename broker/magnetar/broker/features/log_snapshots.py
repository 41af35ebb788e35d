"""Snapshots of a feature's state, which is a function of the topic's log, in a durable cursor.

A snapshot and the position of the last entry in it are given to the cursor in one call, and a save
takes both (defect M19). The cursor holds back trimming of the entries that a replay would need.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

from magnetar.cursors import Cursor
from magnetar.ledger.ports import Clock
from magnetar.ledger.position import Position


class ReplayedLog(Protocol):
    """The parts of a log that a replay needs; `ManagedLog` has them."""

    @property
    def last_confirmed(self) -> Position: ...

    def next_position(self, position: Position, /) -> Position: ...

    async def read_range(
        self, start: Position, /, *, entries_max: int, bytes_max: int
    ) -> tuple[Position, list[bytes]]: ...


class SnapshotCursor(Protocol):
    """The parts of a cursor that snapshots need; `Cursor` has them."""

    @property
    def mark_delete(self) -> Position: ...

    @property
    def persisted_mark_delete(self) -> Position: ...

    @property
    def position_properties(self) -> Mapping[str, int]: ...

    def ack_cumulative(self, position: Position, /) -> bool: ...

    def set_position_properties(self, properties: Mapping[str, int], /) -> None: ...


OpenSnapshotCursor = Callable[[], Awaitable[SnapshotCursor]]


class LogSnapshots:
    """The snapshots of one state of one topic."""

    def __init__(
        self,
        cursor: SnapshotCursor,
        log: ReplayedLog,
        encode: Callable[[], Mapping[str, int]],
        *,
        clock: Clock,
    ) -> None:
        """Begin at the snapshot in the cursor.

        `encode` returns the present state, which covers all entries passed to `on_stored`.
        """
        self._cursor = cursor
        self._log = log
        self._encode = encode
        self._clock = clock
        self._last = cursor.mark_delete
        """Last entry that the state covers."""
        self._taken_s = clock.monotonic_s()
        self.entries_behind = 0
        """Entries that the newest snapshot does not cover: a load would have to read them."""

    @property
    def stored(self) -> Mapping[str, int]:
        """State in the newest snapshot."""
        return self._cursor.position_properties

    def cursors(self) -> Iterable[Cursor]:
        """Return the durable cursor, as `Feature.cursors` does."""
        return [self._cursor] if isinstance(self._cursor, Cursor) else ()

    async def replay(
        self, note: Callable[[bytes], None], *, entries_max: int, bytes_max: int
    ) -> int:
        """Pass every entry after the snapshot to `note`; return their number.

        The limits apply to one read.

        Raises:
            LedgerError: not all of them can be read now.
        """
        log, count = self._log, 0
        position = log.next_position(self._cursor.mark_delete)
        while position <= log.last_confirmed:
            first, entries = await log.read_range(
                position, entries_max=entries_max, bytes_max=bytes_max
            )
            if not entries:
                break
            for entry in entries:
                note(entry)
            count += len(entries)
            last = Position(first.ledger_id, first.entry_id + len(entries) - 1)
            position = log.next_position(last)
        self._last, self.entries_behind = log.last_confirmed, count
        return count

    def on_stored(self, last: Position, entries: int) -> None:
        """Note that the state covers `entries` more entries, up to `last`."""
        self._last = last
        self.entries_behind += entries

    def take_after_entries(self, entries_max: int) -> None:
        """Take a snapshot if it would cover at least `entries_max` new entries."""
        if self.entries_behind >= entries_max:
            self._take_unless_saving()

    def take_after_s(self, interval_s: float) -> None:
        """Take a snapshot if the last one is `interval_s` old and there are new entries."""
        if self.entries_behind and self._clock.monotonic_s() - self._taken_s >= interval_s:
            self._take_unless_saving()

    def _take_unless_saving(self) -> None:
        """Take a snapshot, unless the cursor must still save the last one.

        Under load, snapshots thus keep the cursor's own pace.
        """
        if self._cursor.persisted_mark_delete >= self._cursor.mark_delete:
            self._take()

    def close(self) -> None:
        """Take a last snapshot, for the cursor's last save."""
        if self.entries_behind:
            self._take()

    def _take(self) -> None:
        # Both at once: a save must take the state of one moment.
        self._cursor.set_position_properties(self._encode())
        self._cursor.ack_cumulative(self._last)
        self.entries_behind = 0
        self._taken_s = self._clock.monotonic_s()
