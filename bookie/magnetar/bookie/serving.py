"""The serving part of a bookie: handler, journals, checkpoints and sockets; their start and stop.

Each start pushes its stop onto `opened`, so that all stops run in the reverse order: take no more
requests, drain the journals and answer, close the connections, make a last checkpoint, close the
journals.
"""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

import structlog

from magnetar.bookie.disks.directories import BookieDirectories
from magnetar.bookie.disks.disk_errors import is_disk_broken, is_out_of_room
from magnetar.bookie.disks.disk_watch import DiskWatch
from magnetar.bookie.engine.sharded_storage import ShardedStorage
from magnetar.bookie.errors import (
    JournalFullError,
    PortTakenError,
    StorageClosedError,
    StorageError,
)
from magnetar.bookie.integrity.horizon_file import read_horizon
from magnetar.bookie.journaling.checkpoint import Checkpointer
from magnetar.bookie.journaling.journal import JournalSet, OnCommitted, RunningJournal
from magnetar.bookie.journaling.journal_files import JournalFiles
from magnetar.bookie.journaling.journal_format import LastMark, Marks
from magnetar.bookie.journaling.last_mark import LastMarks
from magnetar.bookie.journaling.replay import Replayed
from magnetar.bookie.metrics import BookieMetrics
from magnetar.bookie.requests.fencing import LedgerTable
from magnetar.bookie.requests.past_ledgers import Tombstones
from magnetar.bookie.requests.replies import Batch, BatchContext
from magnetar.bookie.requests.request_handler import RequestHandler
from magnetar.bookie.requests.write_gate import WriteGate
from magnetar.bookie.server import BookieServer
from magnetar.bookie.settings import BookieSettings
from magnetar.bookie.storage import LedgerStorage
from magnetar.ledger.ports import Clock, Disk, Network, Worker

_log = structlog.get_logger(__name__)

VERSION = "0.1.0"
_CLOSE_TIMEOUT_S = 1.0
"""At a stop, seconds to wait for clients that do not take their replies."""

StartJournal = Callable[
    [JournalFiles, LastMark, OnCommitted[BatchContext]], RunningJournal[BatchContext]
]


class Serving:
    """One run of the serving parts; the attributes are set by `start`."""

    ledgers: LedgerTable
    handler: RequestHandler
    journals: JournalSet[BatchContext]
    checkpointer: Checkpointer
    server: BookieServer

    def __init__(
        self,
        settings: BookieSettings,
        directories: BookieDirectories,
        storage: LedgerStorage,
        *,
        bookie_id: str,
        instance_id: str,
        clock: Clock,
        network: Network,
        disk: Disk,
        disks: DiskWatch,
        gate: WriteGate,
        metrics: BookieMetrics,
        make_worker: Callable[[str], Worker],
        start_journal: StartJournal,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._settings = settings
        self._directories = directories
        self._storage = storage
        self._bookie_id = bookie_id
        self._instance_id = instance_id
        self._clock = clock
        self._network = network
        self._disk = disk
        self._disks = disks
        self._gate = gate
        self._metrics = metrics
        self._make_worker = make_worker
        self._start_journal = start_journal
        self._on_fatal = on_fatal
        self._is_listening = False
        self._has_failed = False

    async def start(
        self,
        last_marks: LastMarks,
        replayed: Replayed,
        owners: Sequence[bytes],
        opened: AsyncExitStack,
    ) -> None:
        """Start all parts. The journals go on at the ends that the replay found.

        Raises:
            PortTakenError, HorizonDamagedError
        """
        self._make_handler()
        self._start_journals(replayed.ends, owners)
        opened.callback(self.journals.close)
        self._start_checkpoints(last_marks, replayed.unflushed_bytes, opened)
        await self._listen()
        opened.push_async_callback(self._stop)

    def abort(self) -> None:
        """Stop answering at once: from now on only a replay can tell what is stored."""
        self._has_failed = True
        if self._is_listening:
            self.server.close_connections(abort=True)

    def _make_handler(self) -> None:
        settings, storage = self._settings, self._storage
        tombstones = Tombstones(keep_s=settings.tombstone_s, count_max=settings.tombstones_max)
        horizon = read_horizon(self._disk, self._directories.ledgers)
        self.ledgers = LedgerTable(
            storage, tombstones, horizon, descriptors_max=settings.ledger_descriptors_max
        )
        self.handler = RequestHandler(
            storage,
            self.ledgers,
            settings,
            clock=self._clock,
            metrics=self._metrics,
            bookie_id=self._bookie_id,
            instance_id=self._instance_id,
            version=VERSION,
            free_bytes=lambda: min(usage.free for usage in self._disks.usages),
            on_bug=self._on_fatal,
            gate=self._gate,
            directories=self._disks.facts,
        )
        storage.on_flush_failure = self._end_if_broken
        if isinstance(storage, ShardedStorage):
            storage.on_room = self._on_flushed
            storage.on_own_flush_failure = self._on_flush_failure
            self._gate.use_shards(storage.shard_number)

    def _start_journals(self, ends: Marks, owners: Sequence[bytes]) -> None:
        settings, handler = self._settings, self.handler

        def on_committed(batches: Sequence[Batch], error: JournalFullError | None) -> None:
            handler.on_committed(batches, error)
            if self._is_listening:
                self.server.on_committed()

        journals: list[RunningJournal[BatchContext]] = []
        for directory, end, owner in zip(self._directories.journals, ends, owners, strict=True):
            files = JournalFiles(
                self._disk,
                directory,
                owner=owner,
                last_mark=end,
                first_file_id=self._clock.wall_ms(),
                file_bytes_max=settings.journal_file_bytes_max,
                preallocate_bytes=settings.journal_preallocate_bytes,
            )
            journals.append(self._start_journal(files, end, on_committed))
        handler.use_journal(*journals)
        self.journals = JournalSet(journals)

    def _start_checkpoints(
        self, last_marks: LastMarks, unflushed_bytes: int, opened: AsyncExitStack
    ) -> None:
        settings = self._settings
        worker = self._make_worker("bookie-checkpoint")
        opened.callback(worker.close)
        self.checkpointer = Checkpointer(
            self._storage,
            last_marks,
            disk=self._disk,
            journal_directories=self._directories.journals,
            worker=worker,
            clock=self._clock,
            metrics=self._metrics,
            interval_s=settings.flush_interval_s,
            retry_s=settings.flush_retry_s,
            journal_backups=settings.journal_backups,
            journal_spares=settings.journal_spares,
            journal_marks=lambda: self.journals.marks,
            before_flush=self.ledgers.put_changed_states,
            after_flush=self._on_flushed,
            on_bug=self._on_fatal,
            on_failure=self._on_flush_failure,
            unflushed_bytes=unflushed_bytes,
        )
        self.checkpointer.start()
        opened.push_async_callback(self.checkpointer.close)

    async def _listen(self) -> None:
        settings = self._settings
        self.server = BookieServer(
            self.handler,
            self.journals,
            network=self._network,
            metrics=self._metrics,
            frame_bytes_max=settings.frame_bytes_max,
            connections_max=settings.connections_max,
            connection_buffer_bytes_max=settings.connection_buffer_bytes_max,
            connection_read_bytes_max=settings.connection_read_bytes_max,
            journal_queue_bytes_max=settings.journal_queue_bytes_max,
            reads_bytes_max=settings.reads_bytes_max,
            replies_bytes_max=settings.replies_bytes_max,
            turn_bytes_max=settings.turn_bytes_max,
        )
        self._is_listening = True
        try:
            await self.server.start(settings.host, settings.port)
        except OSError as error:
            raise PortTakenError(
                f"cannot listen on {settings.host}:{settings.port} ({error.strerror}); "
                f"stop what listens there, or choose another port"
            ) from error

    async def _stop(self) -> None:
        await self.server.stop_reading()
        if not self._has_failed:
            await self.journals.wait_drained()
        self.server.close_connections()
        await self.server.wait_closed(timeout_s=_CLOSE_TIMEOUT_S)
        await self.handler.close()
        await self.checkpointer.close()
        if not self._has_failed:
            try:
                await self.checkpointer.checkpoint()
            except (StorageError, OSError) as error:
                # Nothing is lost: the journal has the entries. The next start takes a little
                # longer.
                _log.warning("checkpoint_at_stop_failed", bookie=self._bookie_id, error=str(error))

    def _on_flushed(self) -> None:
        self.handler.on_flushed()
        self._disks.set_without_room(_known_without_room(self._storage))

    def _on_flush_failure(self, error: BaseException) -> None:
        """Handle a failed flush, which is retried; until it succeeds, a full disk takes no adds."""
        self._end_if_broken(error)
        if is_out_of_room(error):
            count = len(self._directories.ledgers)
            self._disks.set_without_room(without_room(self._storage, directories=count))

    def _end_if_broken(self, error: BaseException) -> None:
        """End the bookie if the disk is broken; a full disk gets a retry (defect B18)."""
        if not isinstance(error, StorageClosedError) and is_disk_broken(error):
            self._on_fatal(error)


def without_room(storage: LedgerStorage, *, directories: int) -> frozenset[int]:
    """Return which ledger directories have no room, after a write to one of them found none.

    All of `directories` if no flush tells: the last marks found no room in any of them.
    """
    return _known_without_room(storage) or frozenset(range(directories))


def _known_without_room(storage: LedgerStorage) -> frozenset[int]:
    return storage.without_room if isinstance(storage, ShardedStorage) else frozenset()
