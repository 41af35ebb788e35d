"""The disk watch: how full the directories are, whether they exist, and what follows.

Every `disk_check_interval_s` it checks all directories, on a worker. Full ledger directories close
the gate for ordinary adds and make the bookie register as read-only; free space opens the gate and
registers the bookie as writable (`disk_states.py` has the table). A directory that cannot be read,
or has lost its cookie (because it was unmounted), ends the bookie: it can no longer vouch for any
data.
"""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from magnetar.bookie.cookie import read_cookie
from magnetar.bookie.disks.directories import BookieDirectories
from magnetar.bookie.disks.disk_errors import is_disk_broken
from magnetar.bookie.disks.disk_states import (
    DiskLevel,
    DiskUse,
    Usage,
    is_allowed,
    judge,
    next_level,
)
from magnetar.bookie.disks.state_files import StateFiles
from magnetar.bookie.errors import BookieServiceError, DiskFullError, DiskLostError
from magnetar.bookie.metrics import DiskMetrics
from magnetar.bookie.requests.write_gate import ReadOnlyReason, WriteGate
from magnetar.bookie.settings import BookieSettings
from magnetar.ledger.bookie_facts import DirectoryFacts, DirectoryUse
from magnetar.ledger.ports import Disk, Worker

_log = structlog.get_logger(__name__)


class DiskWatch:
    """The background service that watches the disks.

    `levels` and `usages` are those of the ledger directories.
    """

    def __init__(
        self,
        directories: BookieDirectories,
        settings: BookieSettings,
        *,
        disk: Disk,
        worker: Worker,
        gate: WriteGate,
        metrics: DiskMetrics,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._directories = directories
        self._settings = settings
        self._disk = disk
        self.worker = worker
        self._gate = gate
        self._metrics = metrics
        self._on_fatal = on_fatal
        self._state_files = StateFiles(disk, directories.data)
        self.levels = [DiskLevel.FREE] * len(directories.ledgers)
        self.usages: list[Usage] = []
        self._all_usages: list[Usage] = []
        """Usages of all directories, in their order."""
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self._without_room: frozenset[int] = frozenset()
        """Ledger directories that a flush found full, whatever their sizes say."""
        self._is_closing = False

    async def look_first(self) -> None:
        """Check all directories before the bookie serves, for a first result.

        Raises:
            DiskLostError: a directory cannot be used.
            DiskFullError: it is full, and the settings forbid read-only mode.
            OSError: whether the last run was read-only cannot be told.
        """
        settings = self._settings
        if settings.read_only_forced:
            self._gate.close(ReadOnlyReason.FORCED)
        if settings.read_only_persisted and self._state_files.was_read_only():
            # Full until proven otherwise: only below the low-water mark it is writable again.
            self.levels = [DiskLevel.FULL] * len(self.levels)
        # A directory that is to be restored has no cookie yet.
        await self._look(needs_cookies=False)
        await self._remember()

    async def look(self) -> None:
        """Check all directories now, and apply the result.

        Raises:
            DiskLostError: a directory cannot be used.
            DiskFullError: it is full, and the settings forbid read-only mode.
        """
        await self._look(needs_cookies=True)

    async def _look(self, *, needs_cookies: bool) -> None:
        usages = await self.worker.run(
            lambda: [self._usage(each, needs_cookie=needs_cookies) for each in self._directories]
        )
        gate = self._gate
        was_full = ReadOnlyReason.DISK_FULL in gate.reasons
        self._all_usages = usages
        self._apply(usages[-len(self._directories.ledgers) :])
        is_full = ReadOnlyReason.DISK_FULL in gate.reasons
        if is_full is not was_full:
            _log.warning("bookie_mode_changed", read_only=is_full)
            self._metrics.mode_changes += 1
            await self._remember()
        for directory, usage in zip(self._directories, usages, strict=True):
            self._metrics.free_bytes[directory] = usage.free
            self._metrics.used_share[directory] = usage.used_share

    async def _remember(self) -> None:
        if self._settings.read_only_persisted:
            is_full = ReadOnlyReason.DISK_FULL in self._gate.reasons
            await self.worker.run(lambda: self._state_files.set_read_only(is_full))

    def set_without_room(self, directories: frozenset[int]) -> None:
        """Treat these ledger directories (their positions) as full, whatever their sizes say.

        Their last flush found no room: inodes or a quota may be used up. For all others, the sizes
        decide again.
        """
        if directories != self._without_room:
            self._without_room = directories
            self._wanted.set()

    def allows(self, directory: str, use: DiskUse) -> bool:
        """Return whether a ledger directory (its path) now allows such writes."""
        return is_allowed(self.levels[self._directories.ledgers.index(directory)], use)

    def facts(self) -> list[DirectoryFacts]:
        """Return the result of the last check, for operators. Directories may share a disk."""
        directories = self._directories
        uses: list[DirectoryUse] = ["bookie"]
        uses += ["journal" for _ in directories.journals]
        uses += ["ledgers" for _ in directories.ledgers]
        levels = [""] * (1 + len(directories.journals)) + [each.value for each in self.levels]
        return [
            DirectoryFacts(
                path=path, use=use, free_bytes=usage.free, total_bytes=usage.total, level=level
            )
            for path, use, usage, level in zip(
                directories, uses, self._all_usages, levels, strict=True
            )
        ]

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="disk-watch")

    async def close(self) -> None:
        self._is_closing = True
        self._wanted.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while not self._is_closing:
            try:
                async with asyncio.timeout(self._settings.disk_check_interval_s):
                    await self._wanted.wait()
            except TimeoutError:
                pass  # the interval is over
            if self._is_closing:
                return
            self._wanted.clear()
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001  # unwatched disks fill up silently
                self._metrics.check_failures += 1
                if is_disk_broken(error):
                    self._on_fatal(error)
                    return
                _log.warning("disk_look_failed", error=str(error))

    def _usage(self, directory: str, *, needs_cookie: bool) -> Usage:
        """Read the usage of a directory. Runs on the worker.

        Raises:
            DiskLostError
        """
        try:
            if needs_cookie and read_cookie(self._disk, directory) is None:
                raise DiskLostError(
                    f"{directory} has lost its cookie: it was emptied, replaced or unmounted while "
                    "the bookie ran; bring it back and start again"
                )
            return Usage(self._disk.free_bytes(directory), self._disk.total_bytes(directory))
        except (OSError, BookieServiceError) as error:
            if isinstance(error, DiskLostError):
                raise
            raise DiskLostError(f"{directory} cannot be used any more: {error}") from error

    def _apply(self, usages: Sequence[Usage]) -> None:
        self.usages = list(usages)
        ledgers = self._directories.ledgers
        levels = [
            DiskLevel.FULL
            if number in self._without_room
            else next_level(level, usage, self._settings)
            for number, (level, usage) in enumerate(zip(self.levels, usages, strict=True))
        ]
        for directory, before, level, usage in zip(
            ledgers, self.levels, levels, usages, strict=True
        ):
            self._metrics.level[directory] = list(DiskLevel).index(level)
            if level is not before:
                _log.warning(
                    "disk_level_changed",
                    directory=directory,
                    level=level.value,
                    before=before.value,
                    used_share=round(usage.used_share, 4),
                    free_bytes=usage.free,
                )
        self.levels = levels
        settings = self._settings
        verdict = judge(
            levels,
            usages,
            is_one_enough=settings.read_only_on_any_disk_full,
            recovery_bytes_min=settings.recovery_add_free_bytes_used,
        )
        if verdict.is_read_only and not settings.read_only_enabled:
            raise DiskFullError(
                f"full: {', '.join(ledgers[i] for i in sorted(verdict.full))}; make room, add "
                f"ledger directories, or allow the bookie to be read-only (read_only_enabled)"
            )
        self._gate.set_room(
            full_shards=verdict.full, has_room_for_recovery=verdict.takes_recovery_adds
        )
        if verdict.is_read_only:
            self._gate.close(ReadOnlyReason.DISK_FULL)
        else:
            self._gate.open(ReadOnlyReason.DISK_FULL)
