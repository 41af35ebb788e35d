"""Integrity as one background service: the healer, the scrubbers, and the check after a loss."""

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial

from magnetar.bookie.engine.entry_storage import EntryStorage
from magnetar.bookie.entry_logs.damage import Damage
from magnetar.bookie.integrity.full_check import FullCheck
from magnetar.bookie.integrity.healer import Healer
from magnetar.bookie.integrity.local_check import LocalCheck
from magnetar.bookie.integrity.loss_mark import is_check_needed
from magnetar.bookie.integrity.own_requests import OwnRequests
from magnetar.bookie.integrity.peers import Peers
from magnetar.bookie.integrity.scrubber import Scrubber
from magnetar.bookie.parts import BookieParts
from magnetar.ledger.ports import Worker

_CHECK_RECORDS_MAX = 256
_CHECK_BYTES_MAX = 4 << 20


class IntegrityService:
    """The `BackgroundService` of all integrity checks."""

    def __init__(self, parts: BookieParts, found: Sequence[Damage] = ()) -> None:
        """`found` is the damage that the check at the start found."""
        self._parts = parts
        self._found = found
        settings = parts.settings
        self._metrics = parts.metrics.integrity
        self._peers = Peers(
            parts.bookie_id,
            parts.store,
            network=parts.network,
            clock=parts.clock,
            random=parts.random,
            fetch_bytes_max=settings.integrity_fetch_bytes_max,
        )
        self._requests = OwnRequests(parts.handler)
        self._worker: Worker | None = None
        self._checks: list[tuple[EntryStorage, LocalCheck]] = []
        self._scrubbers: list[Scrubber] = []
        self._healer = Healer(
            parts.bookie_id,
            peers=self._peers,
            requests=self._requests,
            check=self._check_range,
            flush=parts.storage.flush,
            clock=parts.clock,
            metrics=self._metrics,
            settings=settings,
        )
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        parts = self._parts
        self._worker = worker = parts.make_worker("bookie-integrity")
        for shard in parts.shards:
            maintenance = shard.maintenance
            check = LocalCheck(maintenance.index, maintenance.directory, parts.disk)
            self._checks.append((shard, check))
            shard.on_damage = self._healer.on_damage
        for damage in self._found:
            self._healer.on_damage(damage)
        self._spawn(self._healer.run(), "heal")
        self._start_scrubbers(worker)
        if is_check_needed(parts.disk, parts.directories.ledgers):
            self._metrics.check_needed = 1
            self._spawn(self._full_check(worker).run(), "integrity-check")

    def _start_scrubbers(self, worker: Worker) -> None:
        parts, settings = self._parts, self._parts.settings
        if settings.scrub_period_days <= 0:
            return
        directories = parts.directories.ledgers
        for directory, (shard, check) in zip(directories, self._checks, strict=False):
            scrubber = Scrubber(
                directory,
                check,
                known_ledgers=shard.known_ledgers,
                finished_logs=shard.maintenance.finished_logs,
                on_damage=self._healer.on_damage,
                disk=parts.disk,
                clock=parts.clock,
                worker=worker,
                metrics=self._metrics,
                settings=settings,
            )
            self._scrubbers.append(scrubber)
            self._spawn(scrubber.run(), "scrub")
        parts.metrics.before_export.append(self._before_export)

    def _full_check(self, worker: Worker) -> FullCheck:
        parts = self._parts
        return FullCheck(
            parts.bookie_id,
            storage=parts.storage,
            ledgers=parts.ledgers,
            peers=self._peers,
            requests=self._requests,
            flush=parts.storage.flush,
            ledger_directories=parts.directories.ledgers,
            disk=parts.disk,
            worker=worker,
            metrics=self._metrics,
            settings=parts.settings,
        )

    async def close(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for shard, _ in self._checks:
            shard.on_damage = _ignore
        for scrubber in self._scrubbers:
            await scrubber.save()
        self._requests.close()
        await self._peers.close()
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def _spawn(self, run: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(
            run, name=f"bookie-{name}-{self._parts.bookie_id}"
        )
        task.add_done_callback(self._on_done)
        self._tasks.append(task)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._parts.on_fatal(error)  # a bug: otherwise the stop would go unnoticed

    def _before_export(self) -> None:
        self._metrics.scrub_pass_share = min(each.pass_share for each in self._scrubbers)

    async def _check_range(self, ledger_id: int, first: int, last: int) -> list[Damage]:
        """Return the present damage on the disk in a range of entries. Raises StorageError."""
        worker = self._worker
        assert worker is not None
        damages: list[Damage] = []
        for shard, check in self._checks:
            if shard.state(ledger_id) is None:
                continue
            at = first
            while at >= 0:
                step = await worker.run(
                    partial(
                        check.check,
                        ledger_id,
                        at,
                        last,
                        records_max=_CHECK_RECORDS_MAX,
                        bytes_max=_CHECK_BYTES_MAX,
                    )
                )
                damages += step.damages
                at = step.next_entry_id
        return damages


def _ignore(damage: Damage) -> None:
    """Ignore damage: the healer has stopped."""
