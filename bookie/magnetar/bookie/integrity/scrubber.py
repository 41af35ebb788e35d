"""The scrubber: reads everything stored in one ledger directory periodically, and reports damage.

A pass goes through all ledgers and their index records in order, reads their entries past all
caches, and compares every checksum; it begins with the headers and footers of the entry logs. A
pass takes the configured period. After each small step, the scrubber sleeps until that step's share
of the period is over; if it is behind, it sleeps as long as its limit of bytes per second demands.
Its position survives a restart. Damage goes to the log, the metrics and the healer.
"""

import asyncio
import posixpath
from array import array
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import structlog

from magnetar.bookie.entry_logs.damage import Damage
from magnetar.bookie.errors import StorageClosedError, StorageIOError
from magnetar.bookie.integrity.local_check import LocalCheck
from magnetar.bookie.integrity.scrub_position import (
    POSITION_NAME,
    ScrubPosition,
    decode_position,
    due_in_s,
)
from magnetar.bookie.metrics import IntegrityMetrics
from magnetar.bookie.settings import BookieSettings
from magnetar.ledger.ports import Clock, Disk, Worker

_log = structlog.get_logger(__name__)

_STEP_RECORDS_MAX = 64
_DAY_S = 86_400.0
_STEP_BYTES_MAX = 1 << 20
_SLEEP_S_MAX = 3600.0
"""Longest sleep, in seconds, before the scrubber checks again for new data."""
_PASS_S_MIN = 1.0
"""Minimum seconds between the starts of two passes, however short the period is."""
_SAVE_INTERVAL_S = 60.0
_SIZE_INTERVAL_S = 600.0
"""Seconds between two measurements of the size of all logs."""
_RETRY_S = 10.0
_FAILURES_MAX = 3
"""Read failures of one ledger before a pass skips it."""
_SORTED_AT_ONCE = 10_000
"""Ledger ids sorted in one call."""


class Scrubber:
    """The scrubber of one ledger directory. Owned by the event loop; reads on `worker`."""

    def __init__(
        self,
        directory: str,
        check: LocalCheck,
        *,
        known_ledgers: Callable[[], list[int]],
        finished_logs: Callable[[], Awaitable[list[int]]],
        on_damage: Callable[[Damage], None],
        disk: Disk,
        clock: Clock,
        worker: Worker,
        metrics: IntegrityMetrics,
        settings: BookieSettings,
    ) -> None:
        self._path = posixpath.join(directory, POSITION_NAME)
        self._check = check
        self._known_ledgers = known_ledgers
        self._finished_logs = finished_logs
        self._on_damage = on_damage
        self._disk = disk
        self._clock = clock
        self._worker = worker
        self._metrics = metrics
        self._period_s = settings.scrub_period_days * _DAY_S
        self._bytes_per_s_max = settings.scrub_bytes_per_s_max
        self._position = ScrubPosition(pass_started_ms=0)
        self._is_loaded = False
        self._saved_at_s = 0.0
        self._total_bytes = 1
        self._sized_at_s = float("-inf")

    @property
    def pass_share(self) -> float:
        """Share of the present pass that is done, 0 to 1."""
        if self._position.is_done:
            return 1.0
        return min(1.0, self._position.bytes_done / max(1, self._total_bytes))

    async def run(self) -> None:
        """Run passes, for ever."""
        self._position = await self._load()
        self._is_loaded = True
        try:
            while True:
                await self._wait_pass_due()
                await self._run_pass()
        except StorageClosedError:
            pass  # the bookie stops

    async def save(self) -> None:
        """Save the position for the next start. A failure costs a part of a pass."""
        if not self._is_loaded:
            return  # stopped before `run` had read the file: what it says still holds
        data = self._position.encode()
        try:
            await self._worker.run(partial(self._disk.replace_file, self._path, data))
        except OSError as error:
            _log.warning("scrub_position_not_saved", path=self._path, error=str(error))
        self._saved_at_s = self._clock.monotonic_s()

    # A pass

    async def _wait_pass_due(self) -> None:
        while self._position.is_done:
            self._rebase()
            started_ms = self._position.pass_started_ms
            elapsed_s = max(0.0, (self._clock.wall_ms() - started_ms) / 1000)
            left_s = max(self._period_s, _PASS_S_MIN) - elapsed_s
            if left_s <= 0:
                self._position = ScrubPosition(pass_started_ms=self._clock.wall_ms())
                return
            await asyncio.sleep(min(left_s, _SLEEP_S_MAX))

    async def _run_pass(self) -> None:
        ledgers = await self._worker.run(partial(in_order, self._known_ledgers()))
        at = bisect_left(ledgers, self._position.ledger_id)
        is_same = at < len(ledgers) and ledgers[at] == self._position.ledger_id
        entry_id = self._position.entry_id if is_same else 0
        if self._position.bytes_done == 0:
            await self._check_logs()
        failures = 0
        while at < len(ledgers):
            await self._wait_step_due()
            try:
                step = await self._worker.run(
                    partial(
                        self._check.check_ledgers,
                        ledgers,
                        at,
                        entry_id,
                        records_max=_STEP_RECORDS_MAX,
                        bytes_max=_STEP_BYTES_MAX,
                    )
                )
            except StorageClosedError:
                raise
            except StorageIOError as error:
                self._metrics.scrub_errors += 1
                failures += 1
                _log.error("scrub_failed", path=self._path, near=ledgers[at], error=str(error))
                await asyncio.sleep(_RETRY_S)
                if failures >= _FAILURES_MAX:
                    at, entry_id, failures = at + 1, 0, 0
                continue
            failures = 0
            self._report(step.damages, step.records, step.bytes)
            at, entry_id = step.at, step.next_entry_id
            if at < len(ledgers):
                await self._move(ledgers[at], entry_id, step.bytes)
            await asyncio.sleep(step.bytes / self._bytes_per_s_max)
        self._position = self._position.model_copy(update={"is_done": True})
        self._metrics.scrub_passes += 1
        await self.save()

    async def _wait_step_due(self) -> None:
        while True:
            self._rebase()
            await self._learn_total_bytes()
            delay_s = due_in_s(
                self._position,
                total_bytes=self._total_bytes,
                now_ms=self._clock.wall_ms(),
                period_s=self._period_s,
            )
            if delay_s <= 0:
                return
            await asyncio.sleep(min(delay_s, _SLEEP_S_MAX))

    def _rebase(self) -> None:
        """If the wall clock was set back, let the pass begin now.

        Otherwise it would be due at the former clock's time, and nothing would be scrubbed until
        then.
        """
        now_ms = self._clock.wall_ms()
        if self._position.pass_started_ms > now_ms:
            self._position = self._position.model_copy(update={"pass_started_ms": now_ms})

    async def _learn_total_bytes(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._sized_at_s < _SIZE_INTERVAL_S:
            return
        self._sized_at_s = now_s
        try:
            self._total_bytes = max(1, await self._worker.run(self._check.total_bytes))
        except OSError as error:
            _log.warning("scrub_size_unknown", path=self._path, error=str(error))

    async def _move(self, ledger_id: int, entry_id: int, size: int) -> None:
        self._position = self._position.model_copy(
            update={
                "ledger_id": ledger_id,
                "entry_id": entry_id,
                "bytes_done": self._position.bytes_done + size,
            }
        )
        if self._clock.monotonic_s() - self._saved_at_s >= _SAVE_INTERVAL_S:
            await self.save()

    async def _check_logs(self) -> None:
        try:
            logs = await self._finished_logs()
        except StorageIOError as error:
            # Perhaps too many files are open: whether the bookie must end is decided elsewhere.
            self._note_failure(error)
            return
        for log_id in logs:
            try:
                damage = await self._worker.run(partial(self._check.check_log, log_id))
            except StorageIOError as error:
                self._note_failure(error)
                continue  # the next pass checks it
            if damage is not None:
                # The damage hides no entry, and there is nothing to heal: garbage collection scans
                # the log instead, and a tool can write the footer anew.
                self._metrics.scrub_damages += 1
                _log.error("entry_log_end_damaged", **damage._asdict())

    def _note_failure(self, error: StorageIOError) -> None:
        self._metrics.scrub_errors += 1
        _log.error("scrub_failed", path=self._path, error=str(error))

    def _report(self, damages: list[Damage], records: int, size: int) -> None:
        self._metrics.scrub_records += records
        self._metrics.scrub_bytes += size
        self._metrics.scrub_damages += len(damages)
        for damage in damages:
            self._on_damage(damage)

    async def _load(self) -> ScrubPosition:
        try:
            data = await self._worker.run(partial(self._disk.read_file, self._path))
        except OSError:
            data = b""  # none yet
        position, now_ms = decode_position(data), self._clock.wall_ms()
        if position is None or position.pass_started_ms > now_ms:
            return ScrubPosition(pass_started_ms=now_ms)  # none, or the clock was set back
        return position


def in_order(ids: Sequence[int]) -> "array[int]":
    """Return the ids, ascending, without blocking other threads for long.

    Sorting a list is one call during which no other thread runs. The ids are almost in order, since
    they are assigned in ascending order. So parts are sorted one by one, and the whole only if that
    was not enough.
    """
    ordered = array("q")
    for start in range(0, len(ids), _SORTED_AT_ONCE):
        part = sorted(ids[start : start + _SORTED_AT_ONCE])
        if ordered and ordered[-1] > part[0]:
            return array("q", sorted(ids))
        ordered.extend(part)
    return ordered
