"""Garbage collection of the logs of a simulated bookie, as its service does it in a round."""

from pathlib import Path

from magnetar.bookie.errors import StorageError
from magnetar.bookie.gc.log_collector import LogCollector
from magnetar.bookie.gc.schedule import CompactionKind
from magnetar.bookie.metrics import GcMetrics
from magnetar.bookie.parts import BookieParts
from magnetar.bookie.settings import BookieSettings
from tests.simulation.storing.machine import Machine

_LIVE_SHARE_MAX = 0.95
_MOVES_MAX = 7
"""Runs copied at once: a log of many takes several goes."""


class Collecting:
    """The collectors of one process, one for each shard."""

    def __init__(self, machine: Machine, parts: BookieParts) -> None:
        self._parts = parts
        settings = BookieSettings(
            data_directory=Path("nowhere"),
            gc_major_live_share=_LIVE_SHARE_MAX,
            gc_compaction_bytes_per_s=0,
            gc_compacts_when_full=True,
        )
        worker = machine.make_worker("collect")
        self._collectors = [
            LogCollector(
                shard,
                worker,
                disk=machine.disk,
                clock=parts.clock,
                settings=settings,
                moves_max=_MOVES_MAX,
                metrics=GcMetrics(),
                may_compact=lambda kind: True,
            )
            for shard in parts.shards
        ]

    async def collect(self) -> None:
        """One round with a compaction in it.

        Raises:
            StorageError: a part of it failed; the other directories had their turn.
        """
        failure: StorageError | None = None
        for collector in self._collectors:
            try:
                await collector.look()
                is_flushed = True
                try:
                    await self._parts.storage.flush()
                except StorageError as error:
                    failure, is_flushed = error, False
                await collector.remove_unused(is_flushed=is_flushed)
                if is_flushed:
                    await collector.compact(CompactionKind.MAJOR)
            except StorageError as error:
                failure = error
        if failure is not None:
            raise failure
