"""Garbage collection as a background service of a bookie: its rounds, forced ones, and their
timers.

A round deletes the ledgers whose metadata is gone, removes the entry logs without a live ledger,
and compacts when a compaction is due. Its parts fail separately: without an answer of the metadata
store no ledger is deleted, but the space of earlier deletions is still freed. Once a day, a
separate task searches for ledgers that other bookies have, at the pace that the metadata store can
bear.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from zlib import crc32

import structlog

from magnetar.bookie.disks.disk_states import DiskUse
from magnetar.bookie.errors import (
    GarbageError,
    ImplausibleListingError,
    StorageClosedError,
    StorageError,
)
from magnetar.bookie.gc.dead_ledgers import Brake
from magnetar.bookie.gc.ledger_collector import LedgerCollector
from magnetar.bookie.gc.log_collector import LogCollector
from magnetar.bookie.gc.metadata_calls import MetadataCalls
from magnetar.bookie.gc.over_replicated import OverReplicatedLedgers
from magnetar.bookie.gc.schedule import CompactionKind, Intervals, Schedule
from magnetar.bookie.parts import BookieParts
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.ledger_manager import LedgerManager
from magnetar.ledger.ports import Worker

_log = structlog.get_logger(__name__)

_ROOT = "/ledgers"
_DISK_USES = {
    CompactionKind.MINOR: DiskUse.MINOR_COMPACTION,
    CompactionKind.MAJOR: DiskUse.MAJOR_COMPACTION,
}


@dataclass(frozen=True, slots=True)
class RoundReport:
    """Result of a garbage collection round."""

    deleted_ledgers: int
    removed_logs: int
    removed_bytes: int
    compacted_logs: int
    compacted_bytes: int
    problems: tuple[str, ...]
    """Why parts of the round failed or were put off."""


@dataclass(slots=True)
class _Forced:
    kind: CompactionKind
    accept_vanished: bool
    done: "asyncio.Future[RoundReport]"
    has_begun: bool = False


class GarbageCollector:
    """The `BackgroundService` of garbage collection."""

    def __init__(self, parts: BookieParts) -> None:
        self._parts = parts
        self._metrics = parts.metrics.gc
        settings = parts.settings
        self._calls = MetadataCalls(
            parts.registry,
            instance_id=parts.instance_id,
            clock=parts.clock,
            calls_per_s=settings.gc_metadata_calls_per_s,
        )
        self._ledgers = LedgerCollector(
            parts.storage,
            parts.ledgers,
            calls=self._calls,
            brake=Brake(
                vanish_share_max=settings.gc_vanish_share_max,
                patience_s=settings.gc_vanish_patience_s,
                ledgers_min=settings.gc_brake_ledgers_min,
            ),
            clock=parts.clock,
            metrics=self._metrics,
            known_ledgers=self._known_ledgers,
        )
        self._surplus = OverReplicatedLedgers(
            parts.storage,
            parts.ledgers,
            parts.store,
            bookie_id=parts.bookie_id,
            calls=self._calls,
            clock=parts.clock,
            random=parts.random,
            metrics=self._metrics,
            root=_ROOT,
        )
        self._stagger = crc32(parts.bookie_id.encode()) / (1 << 32)
        """From 0 to 1: it keeps bookies that were started together from asking the metadata
        together."""
        self._logs: list[LogCollector] = []
        self._worker: Worker | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._forced: list[_Forced] = []
        self._wanted = asyncio.Event()
        self._is_closing = False

    def start(self) -> None:
        parts, settings = self._parts, self._parts.settings
        self._worker = parts.make_worker("bookie-gc")
        self._logs = [
            LogCollector(
                shard,
                self._worker,
                disk=parts.disk,
                clock=parts.clock,
                settings=settings,
                metrics=self._metrics,
                may_compact=partial(self._may_compact, directory),
            )
            for directory, shard in zip(parts.directories.ledgers, parts.shards, strict=False)
        ]
        self._spawn(self._run_rounds(), "garbage-collection")
        if settings.gc_over_replicated_interval_s > 0:
            self._spawn(self._run_surplus(), "surplus-ledgers")

    async def close(self) -> None:
        self._is_closing = True
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for forced in self._forced:
            if not forced.done.done():
                forced.done.set_exception(StorageClosedError("the bookie is stopping"))
        self._forced.clear()
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    async def force(self, *, major: bool, accept_vanished: bool = False) -> RoundReport:
        """Run a round now, or right after the current one, with this kind of compaction.

        Args:
            accept_vanished: an operator knows that most ledgers have really been deleted: no brake.

        Raises:
            StorageClosedError: the bookie is stopping.
        """
        # The future may be shared: a caller that is cancelled must not cancel it for the others.
        return await asyncio.shield(self.request(major=major, accept_vanished=accept_vanished))

    def request(
        self, *, major: bool, accept_vanished: bool = False
    ) -> "asyncio.Future[RoundReport]":
        """Request a round as `force` does, for callers that need not wait for it.

        Equal requests that wait share one round, so that at most four rounds wait. A round that has
        begun is not shared: it may already have looked at what the caller means.

        Raises:
            StorageClosedError: the bookie is stopping.
        """
        if self._is_closing or self._worker is None:
            raise StorageClosedError("garbage collection does not run")
        kind = CompactionKind.MAJOR if major else CompactionKind.MINOR
        for forced in self._forced:
            if not forced.has_begun and (forced.kind, forced.accept_vanished) == (
                kind,
                accept_vanished,
            ):
                return forced.done
        done: asyncio.Future[RoundReport] = asyncio.get_running_loop().create_future()
        done.add_done_callback(_seen)
        self._forced.append(_Forced(kind, accept_vanished, done))
        self._wanted.set()
        return done

    async def collect_surplus(self) -> int:
        """Delete the ledgers that other bookies have; return their number.

        Raises:
            GarbageError, LedgerError, StorageError: as `OverReplicatedLedgers.collect`.
        """
        return await self._surplus.collect(await self._manager())

    # Rounds

    async def _run_rounds(self) -> None:
        settings, clock = self._parts.settings, self._parts.clock
        interval_s = settings.gc_interval_s
        schedule = Schedule(
            Intervals(
                round_s=interval_s,
                minor_s=settings.gc_minor_interval_s,
                major_s=settings.gc_major_interval_s,
            ),
            now_s=clock.monotonic_s(),
            first_delay_s=interval_s * (1 + self._stagger) / 2,
        )
        while True:
            await self._wait(schedule.wait_s(clock.monotonic_s()) if interval_s > 0 else None)
            if self._forced:
                forced = self._forced[0]
                forced.has_begun = True
                report = await self._round(schedule, forced.kind, forced.accept_vanished)
                del self._forced[0]  # only now: a stop fails the requests that still wait
                if not forced.done.done():
                    forced.done.set_result(report)
            else:
                kind = schedule.due_compaction(clock.monotonic_s())
                await self._round(schedule, kind, accept_vanished=False)

    async def _wait(self, seconds: float | None) -> None:
        """Wait until a round is due or forced."""
        if self._forced:
            return
        self._wanted.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._wanted.wait()
        except TimeoutError:
            pass  # due

    async def _round(
        self, schedule: Schedule, kind: CompactionKind | None, accept_vanished: bool
    ) -> RoundReport:
        clock, metrics = self._parts.clock, self._metrics
        started_s = clock.monotonic_s()
        before = replace(metrics)
        problems: list[str] = []
        await self._attempt("ledgers", problems, self._collect_ledgers(accept_vanished))
        looked = [logs for logs in self._logs if await self._attempt("look", problems, logs.look())]
        # The deletions that `look` found must be durable before their bytes are removed.
        is_flushed = await self._attempt("flush", problems, self._parts.storage.flush())
        compacted = 0
        for logs in looked:
            # A directory without room does not hold up the others.
            is_durable = is_flushed or (
                len(self._logs) > 1 and await self._attempt("flush", problems, logs.flush())
            )
            removal = logs.remove_unused(is_flushed=is_durable)
            is_done = await self._attempt("logs", problems, removal)
            if is_done and is_durable and kind is not None:
                compacted += await self._compact(logs, kind, problems)
        if kind is not None and compacted == len(self._logs):
            schedule.on_compaction(kind, clock.monotonic_s())
        schedule.on_round(clock.monotonic_s())
        self._count(started_s)
        return RoundReport(
            deleted_ledgers=metrics.deleted_ledgers - before.deleted_ledgers,
            removed_logs=metrics.removed_logs - before.removed_logs,
            removed_bytes=metrics.removed_bytes - before.removed_bytes,
            compacted_logs=metrics.compacted_logs - before.compacted_logs,
            compacted_bytes=metrics.compacted_bytes - before.compacted_bytes,
            problems=tuple(problems),
        )

    async def _collect_ledgers(self, accept_vanished: bool) -> None:
        self._parts.ledgers.tombstones.expire(self._parts.clock.monotonic_s())
        try:
            await self._ledgers.collect(await self._manager(), accept_vanished=accept_vanished)
        except ImplausibleListingError as error:
            self._metrics.brakes += 1
            _log.critical("ledger_listing_not_believed", error=str(error))
            raise

    async def _compact(self, logs: LogCollector, kind: CompactionKind, problems: list[str]) -> bool:
        """Compact the logs of one directory; return whether the run was completed."""
        clock, metrics = self._parts.clock, self._metrics
        started_s = clock.monotonic_s()
        run_s_max = self._parts.settings.gc_compaction_run_s_max
        until_s = started_s + run_s_max if run_s_max > 0 else None

        is_suspended = False

        async def compact() -> None:
            nonlocal is_suspended
            is_suspended = not await logs.compact(kind, until_s=until_s)

        if not await self._attempt("compaction", problems, compact()):
            return False
        metrics.compactions[kind.value] = metrics.compactions.get(kind.value, 0) + 1
        metrics.compaction_s.observe(clock.monotonic_s() - started_s)
        if is_suspended:
            suspended = metrics.suspended_compactions
            suspended[kind.value] = suspended.get(kind.value, 0) + 1
            problems.append(f"{kind.value} compaction is suspended: the disk has no room for it")
        return not is_suspended

    async def _attempt(
        self, part: str, problems: list[str], work: Coroutine[None, None, None]
    ) -> bool:
        """Run a part of a round; return whether it succeeded. A failure is reported, and retried
        next time."""
        try:
            await work
        except (GarbageError, LedgerError, StorageError, OSError) as error:
            failures = self._metrics.failures
            failures[part] = failures.get(part, 0) + 1
            problems.append(f"{part}: {error}")
            _log.error("garbage_collection_failed", part=part, error=str(error))
            return False
        return True

    def _count(self, started_s: float) -> None:
        metrics, uses = self._metrics, [use for logs in self._logs for use in logs.uses]
        metrics.rounds += 1
        metrics.round_s.observe(self._parts.clock.monotonic_s() - started_s)
        metrics.tombstones = len(self._parts.ledgers.tombstones)
        metrics.logs = len(uses)
        metrics.log_bytes = sum(use.file_bytes for use in uses)
        metrics.live_bytes = sum(use.live_bytes for use in uses)
        metrics.damaged_logs = sum(len(logs.incomplete) for logs in self._logs)

    # Surplus ledgers

    async def _run_surplus(self) -> None:
        interval_s = self._parts.settings.gc_over_replicated_interval_s
        wait_s = interval_s * (1 + self._stagger) / 2
        while True:
            await asyncio.sleep(wait_s)
            await self._attempt("surplus", [], self._collect_surplus())
            wait_s = interval_s

    async def _collect_surplus(self) -> None:
        await self.collect_surplus()

    # Parts

    def _known_ledgers(self) -> list[int]:
        shards = self._parts.shards
        if not shards:  # a simulation has a stand-in for the storage
            return self._parts.storage.ledger_ids()
        known = shards[0].known_ledgers()
        for shard in shards[1:]:
            known += shard.known_ledgers()
        return known

    async def _manager(self) -> LedgerManager:
        parts = self._parts
        return await LedgerManager.of_root(
            parts.store, random=parts.random, clock=parts.clock, root=_ROOT
        )

    def _may_compact(self, directory: str, kind: CompactionKind) -> bool:
        parts = self._parts
        return parts.settings.gc_compacts_when_full or parts.disks.allows(
            directory, _DISK_USES[kind]
        )

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(partial(_on_done, self._parts.on_fatal))
        self._tasks.append(task)


def _seen(done: "asyncio.Future[RoundReport]") -> None:
    """Mark the result as seen: a forced round that a stop ends is no error if no caller waits."""
    if not done.cancelled():
        done.exception()


def _on_done(on_fatal: Callable[[BaseException], None], task: asyncio.Task[None]) -> None:
    """Treat an error as fatal: without garbage collection the disk fills for no visible reason."""
    if not task.cancelled() and (error := task.exception()) is not None:
        on_fatal(error)
