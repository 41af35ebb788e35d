"""Waiting entries of Key_Shared: their bytes as far as there is room, and reading the rest.

`KeyBook` knows which entries wait, and for which key. Their bytes are kept up to a bound, so that
entries left behind need not be read again when their consumer is ready. Withheld entries that are
*due* wait here until they are read: their keys are unknown before.

The number of entries left behind is bounded, too. When no more bytes can be kept, slower consumers
first get some time to take their entries: most have more permits soon, and nothing is read twice.
"""

import asyncio
from collections.abc import Callable, Iterable

from magnetar.broker.base.weakly import weakly
from magnetar.broker.topic.consumer import Consumer
from magnetar.broker.topic.dispatch.base import DispatchContext
from magnetar.broker.topic.dispatch.keys import Key, KeyBook
from magnetar.broker.topic.dispatch.replay import ENTRIES_PER_LOAD_MAX, LoadedEntry, ReplayReader
from magnetar.ledger.position import Position


class LeftBehind:
    """The waiting entries of one subscription."""

    def __init__(
        self,
        context: DispatchContext,
        book: KeyBook,
        *,
        hash_in: Callable[[bytes], int],
        wake: Callable[[], None],
    ) -> None:
        """`hash_in`: returns the hash by which an entry is selected. `wake`: called when entries
        may be sent."""
        self._context = context
        self._settings = context.settings
        self._book = book
        self._hash_in = hash_in
        self._wake = wake
        self._kept: dict[Position, bytes] = {}
        self._kept_bytes = 0
        self._due: dict[Position, None] = {}
        self._patience: asyncio.TimerHandle | None = None
        self._is_impatient = False
        """Whether slower consumers took nothing for a while: more entries may be left behind
        without their bytes."""
        self._reader = ReplayReader(
            context.log,
            context.settings,
            label=context.label,
            on_read=weakly(self._on_read),
            on_ready=wake,
        )

    def __len__(self) -> int:
        """Number of waiting entries: for redelivery, for permits, or for their keys."""
        return len(self._book.waiting) + len(self._due)

    # Waiting

    def room(self, consumers: int) -> int:
        """Return how many more entries may be left behind."""
        settings = self._settings
        is_full = self._kept_bytes >= settings.look_ahead_bytes_max
        if is_full and self._book.waiting and not self._is_impatient:
            if self._patience is None:
                self._patience = asyncio.get_running_loop().call_later(
                    settings.look_ahead_patience_ms / 1000, self._lose_patience
                )
            return 0
        return min(
            settings.look_ahead_per_consumer_max * consumers,
            settings.look_ahead_per_subscription_max,
        ) - len(self._book.waiting)

    def leave(self, position: Position, key_hash: int, entry: bytes) -> None:
        """Leave an entry behind, with its bytes if there is room for them."""
        self._book.wait(position, key_hash)
        if (
            position not in self._kept
            and self._kept_bytes + len(entry) <= self._settings.look_ahead_bytes_max
        ):
            self._keep(position, entry)

    def fall_due(self, positions: Iterable[Position]) -> None:
        """Accept withheld entries that are due, except those that wait already."""
        for position in positions:
            if position not in self._book.waiting:
                self._due[position] = None

    # Sending

    def find_due(self) -> list[Position]:
        """Move due entries whose bytes are at hand to their keys; return those that must be read
        first."""
        missing: list[Position] = []
        for position in sorted(self._due)[:ENTRIES_PER_LOAD_MAX] if self._due else ():
            entry = self._entry_at(position)
            if entry is None:
                missing.append(position)
            else:
                self._wait_due(position, entry)
        return missing

    def next_for(self, consumer: Consumer) -> tuple[Position, bytes | None] | None:
        """Return the next waiting entry for the consumer; if its bytes are None, it must be
        read."""
        position = self._book.next_for(consumer)
        return None if position is None else (position, self._entry_at(position))

    def take(self, position: Position) -> Key:
        """Remove a waiting entry that is sent; return its key, which may be idle now."""
        key = self._book.discard(position)
        assert key is not None
        self._forget_kept(position)
        return key

    def discard(self, position: Position) -> None:
        """Remove an entry that need not be sent any more, if it waits."""
        key = self._book.discard(position)
        if key is not None:
            self._forget_kept(position)
            self._book.forget_if_idle(key)

    def forget(self, position: Position) -> None:
        """Remove an entry that need not be sent any more, whether it waits or is due."""
        self._due.pop(position, None)
        self.discard(position)

    def discard_through(self, position: Position) -> None:
        """Remove all entries at or before the position, whether they wait or are due."""
        for each in self._book.waiting_through(position):
            self.discard(each)
        for each in [each for each in self._due if each <= position]:
            del self._due[each]

    def clear(self) -> None:
        """Remove all entries, and cancel the read."""
        self._book.clear()
        self._reader.stop()
        self._kept.clear()
        self._kept_bytes = 0
        self._due.clear()
        self._have_patience()

    # Reading

    @property
    def is_reading(self) -> bool:
        return self._reader.is_busy

    @property
    def unreadable(self) -> tuple[Position, str] | None:
        """First waiting entry that cannot be read, and why."""
        found = self._reader.unreadable
        waits = found is not None and (found[0] in self._book.waiting or found[0] in self._due)
        return found if waits else None

    def read(self, positions: Iterable[Position]) -> None:
        """Read some of these entries, unless a read is running; `wake` follows."""
        if not self._reader.is_busy:
            wanted = sorted(set(positions) - self._kept.keys())
            self._reader.read(wanted[:ENTRIES_PER_LOAD_MAX])

    def _on_read(
        self, found: list[LoadedEntry], gone: list[Position], left: list[Position]
    ) -> None:
        """Keep waiting entries that were read, even beyond the bound: they are about to be sent."""
        for position, entry, _ in found:
            if position in self._due:
                self._wait_due(position, entry)
            elif position in self._book.waiting and position not in self._kept:
                self._keep(position, entry)
        for position in gone:
            self._due.pop(position, None)
            self.discard(position)

    def _wait_due(self, position: Position, entry: bytes) -> None:
        del self._due[position]
        self.leave(position, self._hash_in(entry), entry)

    # Bytes

    def _entry_at(self, position: Position) -> bytes | None:
        entry = self._kept.get(position)
        if entry is None:
            run = self._context.cache.find(position)
            if run is not None:
                entry = run.stored(run.index_of(position))
        return entry

    def _keep(self, position: Position, entry: bytes) -> None:
        self._kept[position] = entry
        self._kept_bytes += len(entry)

    def _forget_kept(self, position: Position) -> None:
        entry = self._kept.pop(position, None)
        if entry is not None:
            self._kept_bytes -= len(entry)
            if self._kept_bytes * 2 <= self._settings.look_ahead_bytes_max:
                self._have_patience()

    # Patience

    def _lose_patience(self) -> None:
        self._patience = None
        self._is_impatient = True
        self._wake()

    def _have_patience(self) -> None:
        """End the impatience: some consumer took waiting entries."""
        self._is_impatient = False
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
