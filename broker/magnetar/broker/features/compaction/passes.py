"""The two passes of a compaction: learn what is newest, then write what stays.

Both read the same: what the compaction before has left, and the log behind its horizon. They read
in bounded portions, and no faster than they may. What is written keeps the order and the positions
of the topic.

Messages of a key are compared by their place: the later one counts. A chunked message counts from
its last chunk on, and all its chunks stay or go together; chunks whose end was not seen stay. A
uuid does not name one message: a producer that comes back with its name counts its messages from
the beginning. So a chunk is a part of the message that ends next behind it. Nor is each last chunk
the end of one: who lost its connection sends again what it had no receipt for, perhaps the last
chunk alone. There is a first chunk between two ends.

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
"""Memory of one key beside its characters: its place, and its share of the table."""


class NewestMessages:
    """The newest message of each key, within a bound on memory."""

    def __init__(self, *, bytes_max: int, keeps_keyless: bool) -> None:
        """`keeps_keyless`: messages without a key stay."""
        self._bytes_max = bytes_max
        self._keeps_keyless = keeps_keyless
        self._newest: dict[str, tuple[Position, int]] = {}
        self._begun: set[str] = set()
        """Chunked messages with a first chunk and no end yet."""
        self._chunks_ends: defaultdict[str, list[Position]] = defaultdict(list)
        """Where chunked messages end, in order, by their uuid."""
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._newest)

    def note(self, position: Position, opened: OpenedEntry) -> None:
        """The next entry, in the order of the topic.

        Raises:
            TooManyKeysError
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
            self._pay(len(uuid))  # for its end, too
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
    """What a compaction needs of a log; `ManagedLog` is one."""

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
    """What there is to compact, in order; read twice."""

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
        """`before`: what was compacted already. `check` raises if it is not to go on. `is_aborted`:
        whether an entry is of a transaction that was aborted, and so is not there."""
        self._is_aborted = is_aborted
        self._log = log
        self._before = before
        self._horizon = horizon
        self._settings = settings
        self._clock = clock
        self._pace = Pace(settings.compaction_bytes_per_s)
        self._check = check

    async def portions(self) -> AsyncIterator[Portion]:
        """All entries up to the horizon.

        Raises:
            LedgerError, UnreadableRecordError: not all of them can be read now.
            CompactionStoppedError
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

    async def _wait(self, portion: Portion) -> None:
        self._check()
        size_bytes = sum(len(entry) for _, entry in portion)
        await asyncio.sleep(self._pace.take(size_bytes, self._clock.monotonic_s()))
        self._check()


async def learn(source: Source, settings: BrokerSettings) -> NewestMessages:
    """The first pass.

    Raises:
        TooManyKeysError, and as `Source.portions`.
    """
    newest = NewestMessages(
        bytes_max=settings.compaction_keys_bytes_max,
        keeps_keyless=settings.compaction_retains_keyless,
    )
    async for portion in source.portions():
        for position, entry in portion:
            newest.note(
                position, open_entry(entry, batch_bytes_max=settings.compaction_batch_bytes_max)
            )
    return newest


@dataclass(slots=True)
class Written:
    """What the second pass has written."""

    entries: int = 0
    removed: int = 0
    """Messages that did not stay."""


async def write(
    source: Source, newest: NewestMessages, writer: EntryWriter, settings: BrokerSettings
) -> Written:
    """The second pass; everything is confirmed on return.

    Raises:
        LedgerError, and as `Source.portions`.
    """
    written = Written()
    async for portion in source.portions():
        stays: list[bytes] = []
        for position, entry in portion:
            rest, removed = _rest(position, entry, newest, settings)
            written.removed += removed
            if rest is not None:
                stays.append(pack(position, rest))
        if stays:
            written.entries += len(stays)
            await _append(writer, stays)
    return written


def _rest(
    position: Position, entry: bytes, newest: NewestMessages, settings: BrokerSettings
) -> tuple[bytes | None, int]:
    """What stays of an entry, and how many messages do not."""
    opened = open_entry(entry, batch_bytes_max=settings.compaction_batch_bytes_max)
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
