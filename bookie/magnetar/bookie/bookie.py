"""The bookie: assembly of its parts, start and stop.

Start: lock the directories; check the cookies; open the storage; replay the journal, flush, persist
the mark; start journal and checkpoints; listen; register; start the background services. The bookie
registers only after it listens, so that no client asks before everything acknowledged is readable
again (defect B21). Before that, it makes sure that no new ledger gets the id of one that is stored
here.

A failed journal ends the bookie: it cuts the connections, answers nothing any more, and `on_fatal`
ends the process. Only a replay can then tell what is stored.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

import structlog

from magnetar.bookie.cookie import Cookie
from magnetar.bookie.cookie_rules import Wanted
from magnetar.bookie.cookie_stamping import Identity, check_cookies
from magnetar.bookie.disks.directories import directories_of, lock_directories
from magnetar.bookie.disks.disk_errors import is_disk_broken
from magnetar.bookie.disks.disk_watch import DiskWatch
from magnetar.bookie.disks.state_files import StateFiles
from magnetar.bookie.engine.entry_storage import EntryStorage, StorageOptions
from magnetar.bookie.engine.sharded_storage import ShardedStorage
from magnetar.bookie.entry_logs.damage import Damage
from magnetar.bookie.errors import (
    DirectoryUnusableError,
    OpenToAllError,
    StorageError,
)
from magnetar.bookie.gc.garbage_collector import GarbageCollector
from magnetar.bookie.health import BookieHealth
from magnetar.bookie.integrity.loss_mark import is_pass_needed
from magnetar.bookie.integrity.loss_pass import LossPass
from magnetar.bookie.integrity.service import IntegrityService
from magnetar.bookie.integrity.start_check import check_everything
from magnetar.bookie.journaling.journal import Journal, OnCommitted, RunningJournal
from magnetar.bookie.journaling.journal_files import JournalFiles
from magnetar.bookie.journaling.journal_format import LastMark, owner_of
from magnetar.bookie.journaling.last_mark import LastMarks
from magnetar.bookie.journaling.replay import Replayed, replay_journals
from magnetar.bookie.metrics import BookieMetrics
from magnetar.bookie.parts import BackgroundService, BookieParts
from magnetar.bookie.registrar import Registrar
from magnetar.bookie.requests.replies import BatchContext
from magnetar.bookie.requests.write_gate import ReadOnlyReason, WriteGate
from magnetar.bookie.serving import Serving, without_room
from magnetar.bookie.settings import BookieSettings
from magnetar.bookie.storage import LedgerStorage
from magnetar.ledger.ledger_manager import LedgerManager
from magnetar.ledger.link_settings import is_loopback
from magnetar.ledger.metadata.store import MetadataStore, SessionState
from magnetar.ledger.ports import Clock, Disk, Network, Worker
from magnetar.ledger.registration import BookieInfo, BookieRegistry
from magnetar.ledger.system import ThreadWorker

_log = structlog.get_logger(__name__)

_LEDGERS_ROOT = "/ledgers"
_IDS_PASSED_MAX = 1_000_000
"""Upper bound on the ledgers that may have been created since the backup that was restored."""


class Bookie:
    """One bookie server on its directories."""

    def __init__(
        self,
        settings: BookieSettings,
        store: MetadataStore,
        *,
        clock: Clock,
        network: Network,
        disk: Disk,
        random: random.Random,
        on_fatal: Callable[[BaseException], None],
        worker: Callable[[str], Worker] = ThreadWorker,
    ) -> None:
        """`on_fatal` must end the process; `worker` makes a named worker thread."""
        self._settings = settings
        self._store = store
        self._clock = clock
        self._network = network
        self._disk = disk
        self._random = random
        self._end_process = on_fatal
        self._make_worker = worker
        self.bookie_id = settings.effective_bookie_id
        self.metrics = BookieMetrics()
        self.metrics.before_export.append(self._note_mode)
        self._directories = directories_of(settings)
        self._registry = BookieRegistry(store, random=random)
        self._opened = AsyncExitStack()
        self._serving: Serving | None = None
        self._gate = WriteGate()
        self._disks: DiskWatch | None = None
        self._parts: BookieParts | None = None
        self._damages: Sequence[Damage] = ()
        """Damage that the check at the start found."""
        self._has_failed = False
        self._gc: GarbageCollector | None = None
        self._registrar: Registrar | None = None
        self._has_started = False
        self._was_unclean = False

    @property
    def port(self) -> int:
        """The port on which the bookie listens."""
        assert self._serving is not None, "start() comes first"
        return self._serving.server.port

    @property
    def disks(self) -> DiskWatch:
        """The disk watch on the directories."""
        assert self._disks is not None, "start() comes first"
        return self._disks

    @property
    def health(self) -> BookieHealth:
        """The present health of the bookie."""
        registered = self._registrar.registered_as if self._registrar is not None else None
        words = {None: None, True: "read-only", False: "writable"}
        return BookieHealth(
            has_session=self._store.session_state is SessionState.CONNECTED,
            registered_as=words[registered],
            journals_full=self.metrics.journals_full,
            read_only_reasons=[reason.value for reason in self._gate.reasons],
        )

    @property
    def gc(self) -> GarbageCollector:
        """The garbage collector; tools force its rounds."""
        assert self._gc is not None, "start() comes first"
        return self._gc

    @property
    def parts(self) -> BookieParts:
        """The parts of the bookie, for code that is composed around it."""
        assert self._parts is not None, "start() comes first"
        return self._parts

    @property
    def settings(self) -> BookieSettings:
        return self._settings

    def set_read_only(self, is_read_only: bool) -> None:
        """Refuse ordinary adds from now on, or take them again; not remembered across a restart.

        A bookie that is also read-only because of full disks stays so until there is room.
        """
        if is_read_only:
            self._gate.close(ReadOnlyReason.FORCED)
        else:
            self._gate.open(ReadOnlyReason.FORCED)

    async def start(self) -> None:
        """Start serving. After an error, nothing is left running.

        Raises:
            StartError: directory locked, wrong cookie, port taken, id in use, open to strangers:
                one line each.
            DiskError: a directory cannot be used, or is full and read-only mode is forbidden.
            JournalError, StorageError: the data cannot be trusted or read.
            MetadataError: the metadata store failed.
        """
        self._check_address()
        async with AsyncExitStack() as opened:
            started_s = self._clock.monotonic_s()
            opened.callback(lock_directories(self._disk, self._directories).close)
            cookie, lost = await self._check_identity()
            self._mark_running(opened)
            disks = await self._watch_disks(opened)
            storage, shards = self._make_storage(cookie)
            await storage.open()
            opened.push_async_callback(storage.close)
            if lost or is_pass_needed(self._disk, self._directories.ledgers):
                await self._note_loss(storage, lost)
            if lost:
                cookie, _ = await self._check_identity(is_restored=True)
            last_marks = LastMarks(
                self._disk, self._directories.ledgers, journals=len(self._directories.journals)
            )
            owners = self._journal_owners(cookie)
            replayed = await replay_journals(
                storage, last_marks, self._disk, self._directories.journals, owners=owners
            )
            if not replayed.is_flushed:
                count = len(self._directories.ledgers)
                disks.set_without_room(without_room(storage, directories=count))
                await disks.look()
            if self._settings.local_consistency_check:
                self._damages = await check_everything(shards, self._disk, self._make_worker)
            self._parts = parts = await self._serve(
                storage, shards, disks, last_marks, replayed, cookie, opened
            )
            await self._pass_ids(storage)
            await self._register(cookie.instance_id, opened)
            for service in self._background(parts):
                opened.push_async_callback(service.close)
                service.start()
            self._opened = opened.pop_all()
            self._has_started = True
        _log.info(
            "bookie_started",
            bookie=self.bookie_id,
            port=self.port,
            replayed_records=replayed.records,
            skipped_records=replayed.skipped,
            seconds=round(self._clock.monotonic_s() - started_s, 3),
        )

    def _check_address(self) -> None:
        """Refuse an address beyond loopback if clients need no secret and no certificate.

        Raises:
            OpenToAllError
        """
        settings = self._settings
        if is_loopback(settings.host) or settings.asks_for_proof or settings.insecure:
            return
        asked = "with shared_secret_optional and" if settings.shared_secret_file else "without"
        raise OpenToAllError(
            f"refusing to listen on {settings.host} {asked} a shared secret or TLS: anybody who "
            "reaches it could read and write every ledger. Set up shared_secret_file or the tls_ "
            "files (docs/security.md), listen on 127.0.0.1, or give --insecure"
        )

    async def drain(self) -> None:
        """Prepare an orderly stop, while everything but ordinary adds is still served.

        The bookie refuses ordinary adds, so that their writers move to other bookies at once. It
        registers as read-only, so that no writer begins a ledger here. It flushes its memory, so
        that the stop is short. All this takes `drain_timeout_s` at most: `stop`, or the replay of
        the next start, does the rest.
        """
        started_s = self._clock.monotonic_s()
        self._gate.close(ReadOnlyReason.DRAINING)
        try:
            async with asyncio.timeout(self._settings.drain_timeout_s):
                if self._registrar is not None:
                    await self._registrar.wait_read_only()
                if self._parts is not None:
                    await self._parts.storage.flush()
        except TimeoutError:
            _log.warning(
                "bookie_drain_overdue",
                bookie=self.bookie_id,
                timeout_s=self._settings.drain_timeout_s,
            )
        except (StorageError, OSError) as error:
            # Nothing is lost: the journal has the entries.
            _log.warning("flush_at_drain_failed", bookie=self.bookie_id, error=str(error))
        _log.info(
            "bookie_drained",
            bookie=self.bookie_id,
            seconds=round(self._clock.monotonic_s() - started_s, 3),
        )

    async def stop(self) -> None:
        """Stop in order; a second call does nothing.

        End the background services; unregister and refuse adds; take no more requests; wait for the
        journals, and answer; checkpoint; close journals, storage and directories.
        """
        opened, self._opened = self._opened, AsyncExitStack()
        await opened.aclose()

    # Start

    async def _check_identity(self, *, is_restored: bool = False) -> Identity:
        """Check the cookies; stamp new directories."""
        settings = self._settings
        wanted = Wanted(
            bookie_id=self.bookie_id,
            instance_id=await self._registry.instance_id(),
            engine=settings.storage_engine,
            journals=len(self._directories.journals),
            ledgers=len(self._directories.ledgers),
            may_expand=settings.allow_storage_expansion,
            may_restore=settings.integrity_stamp_missing_cookies,
        )
        return await check_cookies(
            self._registry,
            self._disk,
            self._directories,
            wanted,
            random=self._random,
            is_restored=is_restored,
        )

    async def _note_loss(self, storage: LedgerStorage, lost: Sequence[str]) -> None:
        """Put ledgers into limbo after a loss, before requests are served and cookies are
        written."""
        worker = self._make_worker("bookie-loss")
        try:
            await LossPass(
                self.bookie_id,
                storage,
                await self._ledger_manager(),
                directories=self._directories,
                disk=self._disk,
                clock=self._clock,
                worker=worker,
            ).run(lost)
        finally:
            worker.close()

    def _mark_running(self, opened: AsyncExitStack) -> None:
        """Leave a mark that an orderly stop removes; find out whether the previous run left one."""
        files = StateFiles(self._disk, self._directories.data)
        try:
            self._was_unclean = files.mark_running()
        except OSError as error:
            if is_disk_broken(error):
                raise DirectoryUnusableError(
                    f"{self._directories.data} cannot be written: {error}"
                ) from error
            _log.warning("running_mark_failed", bookie=self.bookie_id, error=str(error))
        if self._was_unclean:
            self.metrics.disks.unclean_starts += 1
            _log.warning("bookie_did_not_stop_in_order", bookie=self.bookie_id)

        def mark_stopped() -> None:
            if self._has_failed or (self._was_unclean and not self._has_started):
                return
            try:
                files.mark_stopped()
            except OSError as error:
                # The next start may find the mark and check more than it needs to. That is no
                # reason to fail this stop.
                _log.warning("running_mark_not_removed", bookie=self.bookie_id, error=str(error))

        opened.callback(mark_stopped)

    async def _watch_disks(self, opened: AsyncExitStack) -> DiskWatch:
        """Check the disks before anything is written there."""
        worker = self._make_worker("bookie-background")
        opened.callback(worker.close)
        disks = DiskWatch(
            self._directories,
            self._settings,
            disk=self._disk,
            worker=worker,
            gate=self._gate,
            metrics=self.metrics.disks,
            on_fatal=self._on_fatal,
        )
        await disks.look_first()
        self._disks = disks
        return disks

    def _make_storage(self, cookie: Cookie) -> tuple[LedgerStorage, tuple[EntryStorage, ...]]:
        """Make the storage that requests use, and its shards: one per ledger directory."""
        shards = tuple(self._make_shard(each) for each in self._directories.ledgers)
        self.metrics.before_export.append(
            lambda: self.metrics.storage.refresh(shard.sizes for shard in shards)
        )
        if len(shards) == 1:
            return shards[0], shards
        return ShardedStorage(shards, counts=cookie.storage_shards), shards

    def _make_shard(self, directory: str) -> EntryStorage:
        settings, count = self._settings, len(self._directories.ledgers)
        return EntryStorage(
            directory,
            disk=self._disk,
            clock=self._clock,
            make_worker=self._make_worker,
            options=StorageOptions(
                engine=settings.storage_engine,
                write_buffer_bytes=settings.write_cache_bytes_max // count // 2,
                read_cache_bytes=settings.read_cache_bytes_max // count,
                flush_spread_s=settings.flush_spread_s,
                entry_log_bytes_max=settings.entry_log_bytes_max,
                entry_log_ledgers_max=settings.entry_log_ledgers_max,
                index_page_bytes=settings.index_page_bytes,
                index_cache_bytes=settings.index_cache_bytes_max // count,
                index_open_files_max=settings.index_open_files_max,
            ),
            metrics=self.metrics.storage,
        )

    def _journal_owners(self, cookie: Cookie) -> list[bytes]:
        return [
            owner_of(instance_id=cookie.instance_id, bookie_id=cookie.bookie_id, journal=number)
            for number in range(len(self._directories.journals))
        ]

    async def _serve(
        self,
        storage: LedgerStorage,
        shards: tuple[EntryStorage, ...],
        disks: DiskWatch,
        last_marks: LastMarks,
        replayed: Replayed,
        cookie: Cookie,
        opened: AsyncExitStack,
    ) -> BookieParts:
        """Start journals, checkpoints and server."""
        self._serving = serving = Serving(
            self._settings,
            self._directories,
            storage,
            bookie_id=self.bookie_id,
            instance_id=cookie.instance_id,
            clock=self._clock,
            network=self._network,
            disk=self._disk,
            disks=disks,
            gate=self._gate,
            metrics=self.metrics,
            make_worker=self._make_worker,
            start_journal=self._start_journal,
            on_fatal=self._on_fatal,
        )
        await serving.start(last_marks, replayed, self._journal_owners(cookie), opened)
        return BookieParts(
            bookie_id=self.bookie_id,
            instance_id=cookie.instance_id,
            settings=self._settings,
            directories=self._directories,
            storage=storage,
            shards=shards,
            disks=disks,
            gate=self._gate,
            ledgers=serving.ledgers,
            handler=serving.handler,
            journals=serving.journals,
            checkpointer=serving.checkpointer,
            registry=self._registry,
            store=self._store,
            metrics=self.metrics,
            clock=self._clock,
            disk=self._disk,
            network=self._network,
            random=self._random,
            make_worker=self._make_worker,
            worker=disks.worker,
            was_unclean=self._was_unclean,
            on_fatal=self._on_fatal,
        )

    def _background(self, parts: BookieParts) -> list[BackgroundService]:
        """Return the background services, in the order of their start; they stop in the reverse
        order."""
        self._gc = GarbageCollector(parts)
        return [parts.disks, IntegrityService(parts, self._damages), self._gc]

    def _start_journal(
        self, files: JournalFiles, end: LastMark, on_committed: OnCommitted[BatchContext]
    ) -> RunningJournal[BatchContext]:
        settings = self._settings
        return Journal(
            files,
            mark=end,
            clock=self._clock,
            metrics=self.metrics,
            group_wait_ms_max=settings.journal_group_wait_ms_max,
            group_bytes_max=settings.journal_group_bytes_max,
            group_entries_max=settings.journal_group_entries_max,
            on_committed=on_committed,
            on_failed=self._on_fatal,
        )

    async def _pass_ids(self, storage: LedgerStorage) -> None:
        """Move the cluster's next ledger id past the ids stored here, before new ledgers are placed
        here.

        Otherwise, if a new ledger got the id of an old one, recovery would take the old entries for
        the end of the new ledger.
        """
        manager = await self._ledger_manager()
        await manager.pass_ids(
            storage.ledger_ids(),
            ids_max=_IDS_PASSED_MAX,
            on_behind=lambda ids: _log.warning(
                "ledger_ids_are_behind", bookie=self.bookie_id, ids=ids
            ),
        )

    async def _ledger_manager(self) -> LedgerManager:
        return await LedgerManager.of_root(
            self._store, random=self._random, clock=self._clock, root=_LEDGERS_ROOT
        )

    async def _register(self, instance_id: str, opened: AsyncExitStack) -> None:
        settings = self._settings
        info = BookieInfo(
            self.bookie_id,
            settings.effective_advertised_host,
            self.port,
            readonly=False,
            rack=settings.rack,
            zone=settings.zone,
            instance_id=instance_id,
            frame_bytes_max=settings.frame_bytes_max,
        )
        self._registrar = registrar = Registrar(
            self._registry,
            self._store,
            info,
            self._gate,
            check_identity=self._check_identity,
            wait_s=settings.registration_wait_s,
            on_fatal=self._on_fatal,
        )
        opened.push_async_callback(registrar.close)
        await registrar.start()

    # End

    def _note_mode(self) -> None:
        self.metrics.disks.writable = int(self._gate.is_writable)

    def _on_fatal(self, error: BaseException) -> None:
        if self._has_failed:
            return
        self._has_failed = True
        _log.critical("bookie_failed", bookie=self.bookie_id, error=str(error))
        if self._serving is not None:
            self._serving.abort()
        self._end_process(error)
