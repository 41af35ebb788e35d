"""A ledger storage over several directories: each is a whole storage with its own workers.

A ledger is in one shard, chosen by its id. When directories are added, existing ledgers stay in
place: a ledger belongs to the first shard that knows it, in the order in which directories were
added (`counts`). A new ledger goes to the shard of the newest count.

A flush here covers all shards, each from a moment after the call (rule 8.2): only that lets a
checkpoint move the marks of the journals. If the buffer of one shard is full during such a flush,
that shard flushes once more by itself, so that a slow disk holds up only its own ledgers. Such a
flush completes no caller's flush and moves no mark (defect B5): it only makes room.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial

import structlog

from magnetar.bookie.disks.disk_errors import is_out_of_room
from magnetar.bookie.errors import StorageError
from magnetar.bookie.storage import LedgerState, LedgerStorage
from magnetar.ledger.wire import EntryBlock
from magnetar.ledger.wire_bodies import EntryList

_log = structlog.get_logger(__name__)


class ShardedStorage:
    """A `LedgerStorage` made of shards; that interface documents the methods."""

    def __init__(self, shards: Sequence[LedgerStorage], *, counts: Sequence[int] = ()) -> None:
        """`counts`: numbers of shards over time, oldest first; the last one is the present number.

        Empty: the number never changed.
        """
        self._shards = tuple(shards)
        counts = tuple(counts) or (len(shards),)
        assert counts[-1] == len(self._shards)
        assert list(counts) == sorted(counts)
        self._former_counts, self._count = counts[:-1], counts[-1]
        self.on_wants_flush: Callable[[], None] = _nothing
        self.on_room: Callable[[], None] = _nothing
        """Called when a shard has flushed, perhaps before the others. Set by the owner."""
        self.on_flush_failure: Callable[[BaseException], None] = _ignore
        self.on_own_flush_failure: Callable[[BaseException], None] = _ignore
        """Called with the error of a shard's own flush, which is retried. Set by the owner."""
        self._flushes = 0
        """Number of running flushes of all shards."""
        self._alone: dict[int, asyncio.Task[None]] = {}
        """Tasks of shards that flush by themselves."""
        self._failing: dict[int, StorageError] = {}
        """The last error of each shard that has failed to flush since its last success: the next
        flush of all shards retries it."""
        for number, shard in enumerate(self._shards):
            shard.on_wants_flush = partial(self._on_shard_wants_flush, number)
            shard.on_flush_failure = lambda error: self.on_flush_failure(error)

    def shard_number(self, ledger_id: int) -> int:
        """Return the shard that has the ledger, or would get it."""
        for count in self._former_counts:
            number = ledger_id % count
            if self._shards[number].state(ledger_id) is not None:
                return number
        return ledger_id % self._count

    # Opening and closing

    async def open(self) -> None:
        try:
            await _all([shard.open() for shard in self._shards])
        except BaseException:
            await _all([shard.close() for shard in self._shards])
            raise

    async def close(self) -> None:
        await _all([shard.close() for shard in self._shards])
        await asyncio.gather(*self._alone.values(), return_exceptions=True)

    # Changes

    def add(self, ledger_id: int, block: EntryBlock, entry_ids: Sequence[int]) -> None:
        self._shards[self.shard_number(ledger_id)].add(ledger_id, block, entry_ids)

    def state(self, ledger_id: int) -> LedgerState | None:
        return self._shard(ledger_id).state(ledger_id)

    def put_state(self, ledger_id: int, state: LedgerState) -> None:
        self._shard(ledger_id).put_state(ledger_id, state)

    def ledger_ids(self) -> list[int]:
        return sorted({each for shard in self._shards for each in shard.ledger_ids()})

    def delete_ledger(self, ledger_id: int) -> None:
        # In every shard that may have it. A ledger may be in two of them after a crash: it was
        # deleted in an older one and created again in a newer one, and not both were flushed.
        for number in {ledger_id % count for count in (*self._former_counts, self._count)}:
            self._shards[number].delete_ledger(ledger_id)

    # Reads

    def read_now(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[bytes] | None:
        return self._shard(ledger_id).read_now(ledger_id, first, last, bytes_max)

    async def read(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[bytes]:
        return await self._shard(ledger_id).read(ledger_id, first, last, bytes_max)

    async def last_packet(self, ledger_id: int) -> bytes | None:
        return await self._shard(ledger_id).last_packet(ledger_id)

    def last_packet_now(self, ledger_id: int) -> bytes | None:
        return self._shard(ledger_id).last_packet_now(ledger_id)

    async def list_entries(self, ledger_id: int, first: int, bitmap_bytes_max: int) -> EntryList:
        return await self._shard(ledger_id).list_entries(ledger_id, first, bitmap_bytes_max)

    # Flush

    @property
    def wants_flush(self) -> bool:
        return bool(self._failing) or any(shard.wants_flush for shard in self._shards)

    @property
    def without_room(self) -> frozenset[int]:
        """Shards whose last flush found no room on their disk."""
        failing = self._failing.items()
        return frozenset(number for number, error in failing if is_out_of_room(error))

    async def flush(self, *, is_gentle: bool = False) -> None:
        self._flushes += 1
        try:
            numbers = range(len(self._shards))
            await _all([self._flush_shard(number, is_gentle=is_gentle) for number in numbers])
        finally:
            self._flushes -= 1

    def hurry(self) -> None:
        for shard in self._shards:
            shard.hurry()

    async def _flush_shard(self, number: int, *, is_gentle: bool = False) -> None:
        try:
            await self._shards[number].flush(is_gentle=is_gentle)
        except StorageError as error:
            self._failing[number] = error
            raise
        # Here, and not when all shards have ended: a later flush of this shard may have failed by
        # then, and would be forgotten.
        self._failing.pop(number, None)
        self.on_room()

    def _on_shard_wants_flush(self, number: int) -> None:
        if (
            self._flushes
            and self._shards[number].wants_flush
            and number not in self._alone
            and number not in self._failing
        ):
            self._alone[number] = asyncio.get_running_loop().create_task(
                self._flush_alone(number), name=f"flush-shard-{number}"
            )
        self.on_wants_flush()

    async def _flush_alone(self, number: int) -> None:
        try:
            await self._flush_shard(number)
        except StorageError as error:
            _log.warning("shard_flush_failed", shard=number, error=str(error))
            self.on_own_flush_failure(error)
        finally:
            del self._alone[number]

    def _shard(self, ledger_id: int) -> LedgerStorage:
        return self._shards[self.shard_number(ledger_id)]


async def _all(calls: Sequence[Coroutine[None, None, None]]) -> None:
    """Wait until all calls have ended, then raise the first error."""
    for result in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def _ignore(error: BaseException) -> None:
    """Do nothing, while no listener is set."""


def _nothing() -> None:
    """Do nothing, while no listener is set."""
