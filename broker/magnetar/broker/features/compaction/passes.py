"""The two passes of a compaction: find the newest message of each key, then write what stays.

Both passes read the same entries: those that the last compaction left, and the log after its
horizon. They read in bounded portions, within a rate limit. Written entries keep the order and the
positions of the topic.

Messages of one key are compared by their position: the later one counts. A chunked message counts
at the position of its last chunk, and its chunks stay or go together. Chunks whose last chunk was
not seen stay. A uuid does not identify one message: a producer that returns under its name numbers
its messages from the beginning. So a chunk belongs to the next message of that uuid that ends at or
after it. Nor does each last chunk end a message. A producer that lost its connection sends
unconfirmed chunks again, perhaps the last chunk alone. Between two ends there must be a first
chunk.

Source: managed ledger; protocol sheet, section 8.
"""

import asyncio
from bisect import bisect_left
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.features.compaction.compacted_ledger import (
    CompactedLedger,
    TooManyKeysError,
    pack,
)
from magnetar.broker.features.compaction.messages import (
    KeyedMessage,
    Kind,
    OpenedEntry,
    open_entry,
    rest_of_batch,
)
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.pace import Pace
from magnetar.ledger.ports import Clock
from magnetar.ledger.position import EARLIEST, Position

_KEY_COST_BYTES = 320
"""Memory of one key beside its characters: its position, and its share of the table."""

_WORK_PER_TURN_BYTES = 1 << 20
"""Decompressed bytes after which a pass lets other tasks run: some milliseconds of work."""

_MESSAGE_WORK_BYTES = 2_048
"""Work of decoding one message, as the number of bytes that are decompressed in that time."""


class NewestMessages:
    """The newest message of each key, within a limit on memory."""

    def __init__(self, *, bytes_max: int, keeps_keyless: bool) -> None:
        """Begin without keys. `keeps_keyless`: whether messages without a key stay."""
        self._bytes_max = bytes_max
        self._keeps_keyless = keeps_keyless
        self._newest: dict[str, tuple[Position, int]] = {}
        self._begun: set[str] = set()
        """Chunked messages with a first chunk but no last one yet."""
        self._chunks_ends: defaultdict[str, list[Position]] = defaultdict(list)
        """Positions at which chunked messages end, in order, by uuid."""
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._newest)

    def note(self, position: Position, opened: OpenedEntry) -> None:
        """Note the next entry, in the order of the topic.

        Raises:
            TooManyKeysError: the keys exceed the memory limit.
        """
        if opened.kind is Kind.CHUNK and not self._ends_message(position, opened):
            return
        for message in opened.messages:
            if message.key is None:
                continue
            if message.is_tombstone:
                if self._newest.pop(message.key, None) is not None:
                    self._pay(-len(message.key), -1)
                continue
            if message.key not in self._newest:
                self._pay(len(message.key))
            self._newest[message.key] = (position, message.index)

    def keeps(self, position: Position, opened: OpenedEntry, message: KeyedMessage) -> bool:
        """Whether a message of the entry stays."""
        if opened.kind is Kind.CHUNK:
            ends = self._chunks_ends.get(opened.chunk_of, ())
            at = bisect_left(ends, position)
            if at == len(ends):
                return True
            position = ends[at]
        if message.key is None:
            return self._keeps_keyless
        return self._newest.get(message.key) == (position, message.index)

    def _ends_message(self, position: Position, chunk: OpenedEntry) -> bool:
        uuid = chunk.chunk_of
        if chunk.is_first_chunk and uuid not in self._begun:
            self._pay(len(uuid))  # pays for its end, too
            self._begun.add(uuid)
        if not chunk.is_last_chunk or uuid not in self._begun:
            return False
        self._begun.remove(uuid)
        self._chunks_ends[uuid].append(position)
        return True

    def _pay(self, characters: int, count: int = 1) -> None:
        self._size_bytes += count * _KEY_COST_BYTES + characters
        if self._size_bytes > self._bytes_max:
            raise TooManyKeysError(
                f"more than {len(self._newest)} keys: they do not fit into {self._bytes_max} "
                f"bytes; raise compaction_keys_bytes_max"
            )


Portion = Sequence[tuple[Position, bytes]]


class CompactableLog(Protocol):
    """The parts of a log that a compaction needs; `ManagedLog` has them."""

    @property
    def last_confirmed(self) -> Position: ...

    def next_position(self, position: Position, /) -> Position: ...

    async def read_range(
        self, start: Position, /, *, entries_max: int, bytes_max: int
    ) -> tuple[Position, list[bytes]]: ...


class EntryWriter(Protocol):
    """A ledger that is being written; `LedgerWriter` is one."""

    @property
    def ledger_id(self) -> int: ...

    def append(
        self, payloads: Sequence[bytes], on_done: Callable[[LedgerError | None], None], /
    ) -> int: ...

    async def close(self) -> object: ...

    def abandon(self) -> None: ...


class Source:
    """The entries to compact, in order; read twice."""

    def __init__(
        self,
        log: CompactableLog,
        before: CompactedLedger | None,
        horizon: Position,
        settings: BrokerSettings,
        *,
        clock: Clock,
        check: Callable[[], None],
        is_aborted: Callable[[Position], bool] = lambda _: False,
    ) -> None:
        """Create a source of the entries up to `horizon`.

        Args:
            before: result of the last compaction.
            check: raises if the compaction must stop.
            is_aborted: whether an entry belongs to an aborted transaction, and is left out.
        """
        self._is_aborted = is_aborted
        self._log = log
        self._before = before
        self._horizon = horizon
        self._settings = settings
        self._clock = clock
        self._pace = Pace(settings.compaction_bytes_per_s)
        self._check = check
        self._unpaid_bytes = 0
        """Bytes that decompression added, and that the pace does not include yet."""
        self._work_bytes = 0
        """Work since other tasks could run."""

    async def portions(self) -> AsyncIterator[Portion]:
        """Yield all entries up to the horizon.

        Raises:
            LedgerError, UnreadableRecordError: not all of them can be read now.
            CompactionStoppedError: the compaction must stop.
        """
        after = EARLIEST
        if self._before is not None:
            async for portion in self._compacted(self._before):
                yield portion
            after = self._before.horizon
        while (start := self._log.next_position(after)) <= self._horizon:
            first, entries = await self._log.read_range(
                start,
                entries_max=self._settings.read_ahead_entries,
                bytes_max=self._settings.read_ahead_bytes,
            )
            if not entries:
                return
            after = Position(first.ledger_id, first.entry_id + len(entries) - 1)
            portion = [
                (Position(first.ledger_id, first.entry_id + at), entry)
                for at, entry in enumerate(entries)
            ]
            await self._wait(portion)
            yield [
                each
                for each in portion
                if each[0] <= self._horizon and not self._is_aborted(each[0])
            ]

    async def _compacted(self, before: CompactedLedger) -> AsyncIterator[Portion]:
        after = EARLIEST
        while portion := await before.read_behind(
            after,
            entries_max=self._settings.read_ahead_entries,
            bytes_max=self._settings.read_ahead_bytes,
        ):
            after = portion[-1][0]
            await self._wait(portion)
            yield portion

    async def pause_after(self, entry: bytes, opened: OpenedEntry) -> None:
        """Account for an entry that a pass has worked on; let other tasks run if it is time to.

        A portion of compressed batches can hold a hundred times its bytes, in more messages than
        the event loop may wait for. An entry is one step: a batch of 65,536 messages takes some
        tenths of a second.

        Raises:
            CompactionStoppedError: the compaction must stop.
        """
        added_bytes = max(0, opened.decompressed_bytes - len(entry))
        self._unpaid_bytes += added_bytes
        self._work_bytes += len(entry) + added_bytes
        self._work_bytes += _MESSAGE_WORK_BYTES * max(1, len(opened.items))
        if self._work_bytes >= _WORK_PER_TURN_BYTES:
            await self._wait(())

    async def _wait(self, portion: Portion) -> None:
        """Let other tasks run, for as long as the rate limit asks for."""
        self._check()
        size_bytes = self._unpaid_bytes + sum(len(entry) for _, entry in portion)
        await asyncio.sleep(self._pace.take(size_bytes, self._clock.monotonic_s()))
        self._unpaid_bytes = self._work_bytes = 0
        self._check()


async def learn(source: Source, settings: BrokerSettings) -> NewestMessages:
    """Run the first pass: find the newest message of each key.

    Raises:
        TooManyKeysError: the keys exceed the memory limit.
        LedgerError, UnreadableRecordError: not all entries can be read now.
        CompactionStoppedError: the compaction must stop.
    """
    newest = NewestMessages(
        bytes_max=settings.compaction_keys_bytes_max,
        keeps_keyless=settings.compaction_retains_keyless,
    )
    async for portion in source.portions():
        for position, entry in portion:
            opened = open_entry(entry, batch_bytes_max=settings.compaction_batch_bytes_max)
            newest.note(position, opened)
            await source.pause_after(entry, opened)
    return newest


@dataclass(slots=True)
class Written:
    """Figures of the second pass."""

    entries: int = 0
    removed: int = 0
    """Messages that were removed."""


async def write(
    source: Source, newest: NewestMessages, writer: EntryWriter, settings: BrokerSettings
) -> Written:
    """Run the second pass: write what stays. All of it is confirmed on return.

    Raises:
        LedgerError, UnreadableRecordError: an entry cannot be read or written now.
        CompactionStoppedError: the compaction must stop.
    """
    written = Written()
    async for portion in source.portions():
        stays: list[bytes] = []
        for position, entry in portion:
            opened = open_entry(entry, batch_bytes_max=settings.compaction_batch_bytes_max)
            rest, removed = _rest(position, entry, opened, newest)
            written.removed += removed
            if rest is not None:
                stays.append(pack(position, rest))
            await source.pause_after(entry, opened)
        if stays:
            written.entries += len(stays)
            await _append(writer, stays)
    return written


def _rest(
    position: Position, entry: bytes, opened: OpenedEntry, newest: NewestMessages
) -> tuple[bytes | None, int]:
    """Return the rest of an entry, None if nothing stays, and the number of removed messages."""
    if opened.kind is Kind.OPAQUE:
        return entry, 0
    if opened.kind is Kind.INTERNAL:
        return None, 0
    if opened.kind is Kind.BATCH:
        return rest_of_batch(entry, opened, lambda message: newest.keeps(position, opened, message))
    if newest.keeps(position, opened, opened.messages[0]):
        return entry, 0
    return None, 1


async def _append(writer: EntryWriter, payloads: list[bytes]) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_done(error: LedgerError | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    writer.append(payloads, on_done)
    await done
