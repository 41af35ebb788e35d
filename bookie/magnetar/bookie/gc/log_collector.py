"""Freeing the space of one storage's entry logs: removal of unused logs, and compaction.

One round: `look`, then a flush of the storage, then `remove_unused`, then perhaps `compact`. Why a
removed log is not needed:

- The finished logs are listed first, between two flushes: nothing will be written to them, and
  the index has everything that flushes wrote there (defect B8).
- The live ledgers are read after that. A ledger that is not live, but has entries in such a log,
  was deleted before; if it came back since, its new entries are in newer logs.
- The flush after that makes these deletions durable, before the bytes go. If it fails, as it does
  on a full disk, only the deletions count that were durable at the look.

A log is removed because of its footer only if the footer is sound. For any other log, only a read
of the whole index proves that nothing points there; that comes with compaction.
"""

from collections.abc import Callable, Sequence
from functools import partial

import structlog
from pyroaring import BitMap64

from magnetar.bookie.engine.entry_storage import EntryStorage
from magnetar.bookie.entry_logs.damage import Damage
from magnetar.bookie.errors import StorageCorruptError, StorageIOError, StorageLogMissingError
from magnetar.bookie.gc.compaction_plan import CompactionRule, LogUse, choose_logs, group_logs
from magnetar.bookie.gc.compactor import MOVES_MAX, Compactor
from magnetar.bookie.gc.id_slices import id_set_of
from magnetar.bookie.gc.log_survey import LogSurvey, referenced_logs
from magnetar.bookie.gc.log_usage import LiveUse, LogUsage, UsageTable
from magnetar.bookie.gc.schedule import CompactionKind
from magnetar.bookie.metrics import GcMetrics
from magnetar.bookie.settings import BookieSettings
from magnetar.ledger.ports import Clock, Disk, Worker

_log = structlog.get_logger(__name__)


def compaction_rules(settings: BookieSettings) -> dict[CompactionKind, CompactionRule]:
    """Return which entry logs each kind of compaction rewrites."""
    return {
        CompactionKind.MINOR: CompactionRule(settings.gc_minor_live_share, merges_small=False),
        CompactionKind.MAJOR: CompactionRule(settings.gc_major_live_share, merges_small=True),
    }


class LogCollector:
    """Collector of the entry logs of one storage."""

    def __init__(
        self,
        shard: EntryStorage,
        worker: Worker,
        *,
        disk: Disk,
        clock: Clock,
        settings: BookieSettings,
        metrics: GcMetrics,
        may_compact: Callable[[CompactionKind], bool],
        moves_max: int = MOVES_MAX,
    ) -> None:
        """`may_compact` says whether the disk now has room for that kind of compaction."""
        self._shard = shard
        self._maintenance = shard.maintenance
        self._worker = worker
        self._disk = disk
        self._clock = clock
        self._rules = compaction_rules(settings)
        self._free_share_min = (
            0.0 if settings.gc_compacts_when_full else 1 - settings.disk_full_share
        )
        """Share of the file system that a compaction must leave free."""
        self._metrics = metrics
        self._may_compact = may_compact
        self._survey = LogSurvey(self._maintenance.directory, disk)
        self._usages = UsageTable(settings.gc_usage_bytes_max)
        self._compactor = Compactor(
            self._maintenance,
            worker,
            disk=disk,
            clock=clock,
            copied_bytes_per_s=settings.gc_compaction_bytes_per_s,
            moves_max=moves_max,
            on_damage=self._on_damage,
        )
        self._finished: list[int] = []
        self._alive = BitMap64()
        self._deletions_in_memory: list[int] = []
        self.uses: list[LogUse] = []
        """The logs that were in use at the last round."""
        self.incomplete: set[int] = set()
        """Damaged logs that could not be compacted completely, until they are healed."""

    async def look(self) -> None:
        """List the finished logs and live ledgers; flush the storage before the next call.

        Raises:
            StorageIOError: nothing may be removed in this round.
        """
        await self._compactor.finish_left_over()
        self._finished = await self._maintenance.finished_logs()
        # Both of one moment: in between, a deletion may become durable, or a ledger be deleted.
        known = self._shard.known_ledgers()
        self._deletions_in_memory = self._shard.deletions_in_memory()
        self._alive = await id_set_of(known)
        self._usages.keep_only(set(self._finished))
        self.incomplete &= set(self._finished)

    async def flush(self) -> None:
        """Make the deletions of this directory durable.

        Raises:
            StorageIOError: they are not durable.
        """
        await self._shard.flush()

    async def remove_unused(self, *, is_flushed: bool) -> None:
        """Remove the finished logs without a live ledger; determine the live bytes of the others.

        Unless `is_flushed`, ledgers count as live whose deletion was only in memory at the last
        look, and still is.

        Raises:
            StorageIOError: a log could not be removed; the others wait for the next round.
        """
        if not is_flushed:
            still = set(self._shard.deletions_in_memory())
            self._alive.update([each for each in self._deletions_in_memory if each in still])
        uses: list[LogUse] = []
        for log_id in list(self._finished):
            usage = await self._usage(log_id)
            if usage is None:
                continue
            live: LiveUse = await self._worker.run(partial(usage.live, self._alive))
            if usage.is_certain and live.ledgers == 0:
                await self._remove(log_id, usage.file_bytes)
            else:
                uses.append(LogUse(log_id, usage.file_bytes, live.bytes))
                self._metrics.live_share.observe(uses[-1].live_share)
        self.uses = uses
        self._alive = BitMap64()

    async def compact(self, kind: CompactionKind, *, until_s: float | None = None) -> bool:
        """Run one compaction, emptiest logs first, until `until_s` (monotonic time).

        Return False if it was put off or cut short because the disk is full, or would be with the
        copies.

        Raises:
            StorageIOError: it failed; it is undone, or finished by the next try.
        """
        rule = self._rules[kind]
        log_bytes_max = self._shard.options.entry_log_bytes_max
        chosen = choose_logs(self.uses, rule, log_bytes_max=log_bytes_max)
        if kind is CompactionKind.MAJOR and chosen != self.uses:
            # Logs that could not be read last time may be healed by now, however full they are.
            known = {log.log_id for log in chosen}
            again = self.incomplete - known
            chosen += [log for log in self.uses if log.log_id in again]
        incomplete: set[int] = set()
        is_suspended = False
        room_bytes = await self._room_bytes()
        for group in group_logs(chosen, log_bytes_max=min(log_bytes_max, room_bytes)):
            if until_s is not None and self._clock.monotonic_s() >= until_s:
                break
            if not self._may_compact(kind):
                is_suspended = True
                break
            if sum(log.live_bytes for log in group) > await self._room_bytes():
                is_suspended = True
                continue
            incomplete |= await self._compact_group([log.log_id for log in group])
        if is_suspended:
            _log.warning("compaction_suspended", kind=kind.value)
        await self._remove_unreferenced(incomplete)
        return not is_suspended

    async def _room_bytes(self) -> int:
        """Return how many bytes may be copied now: journal and adds need the rest.

        Raises:
            StorageIOError: the disk cannot be read.
        """
        directory, share = self._maintenance.directory, self._free_share_min

        def look() -> int:
            kept = int(share * self._disk.total_bytes(directory))
            return max(0, self._disk.free_bytes(directory) - kept)

        try:
            return await self._worker.run(look)
        except OSError as error:
            raise StorageIOError(f"{directory} cannot be looked at: {error}") from error

    async def _compact_group(self, log_ids: Sequence[int]) -> set[int]:
        """Compact the logs into one; return those that could not be read completely."""
        sizes = {log.log_id: log.file_bytes for log in self.uses}
        left, incomplete = list(log_ids), set[int]()
        while left:
            copied = await self._compactor.compact(left)
            gone = set(copied.complete)
            incomplete.update(copied.incomplete)
            for log_id in gone:
                self._forget(log_id)
            self._metrics.compacted_logs += len(gone)
            self._metrics.copied_bytes += copied.written_bytes
            given_back = sum(sizes[log_id] for log_id in gone) - copied.written_bytes
            self._metrics.compacted_bytes += max(0, given_back)
            _log.info(
                "logs_compacted",
                logs=sorted(gone),
                copied_bytes=copied.written_bytes,
                given_back_bytes=given_back,
            )
            left = [each for each in left if each not in gone and each not in incomplete]
        return incomplete

    async def _remove_unreferenced(self, log_ids: set[int]) -> None:
        """Remove those of the logs that no record points to, after their live packets were
        copied."""
        if not log_ids:
            return
        index = self._maintenance.index
        try:
            needed = await self._worker.run(partial(referenced_logs, index, frozenset(log_ids)))
        except StorageCorruptError as error:
            _log.error("index_damaged", error=str(error))
            needed = log_ids
        sizes = {log.log_id: log.file_bytes for log in self.uses}
        if log_ids - needed:
            await self._maintenance.sync_index()
        for log_id in sorted(log_ids - needed):
            await self._remove(log_id, sizes[log_id])
        self.incomplete = (self.incomplete | needed) & set(self._finished)
        for log_id in sorted(needed):
            _log.error("log_not_compacted", log_id=log_id, reason="part of it cannot be read")

    async def _usage(self, log_id: int) -> LogUsage | None:
        """Return the usage of a log; None if it cannot be read now, and is left as it is."""
        usage = self._usages.find(log_id)
        if usage is not None:
            return usage
        try:
            usage = await self._worker.run(partial(self._survey.usage, log_id))
        except StorageLogMissingError:
            return None
        except StorageIOError as error:
            _log.error("log_not_surveyed", log_id=log_id, error=str(error))
            return None
        self._usages.put(usage)
        return usage

    async def _remove(self, log_id: int, file_bytes: int) -> None:
        await self._maintenance.remove_log(log_id)
        self._forget(log_id)
        self._metrics.removed_logs += 1
        self._metrics.removed_bytes += file_bytes
        _log.info("log_removed", log_id=log_id, bytes=file_bytes)

    def _forget(self, log_id: int) -> None:
        self._usages.forget(log_id)
        self.incomplete.discard(log_id)
        self._finished.remove(log_id)
        self.uses = [log for log in self.uses if log.log_id != log_id]

    def _on_damage(self, damage: Damage) -> None:
        self._shard.on_damage(damage)
