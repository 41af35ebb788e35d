"""Writing of runs to entry logs: one active log, created on demand, closed with a footer when full.

Runs on the flush worker. Nothing it writes counts before `sync` has returned; only then may the
index point to a run. After an error the active log is given up (`abandon`): the content of the file
is unknown, and repeating a failed sync proves nothing.
"""

from itertools import pairwise
from typing import NamedTuple

from magnetar.bookie.entry_logs.entry_log import (
    LOG_HEADER_BYTES,
    RunLocation,
    encode_footer,
    encode_log_header,
    encode_run_head,
    run_bytes_max,
)
from magnetar.bookie.entry_logs.log_names import LogIds, log_name
from magnetar.bookie.entry_logs.pieces import piece_checksums
from magnetar.bookie.entry_logs.run_plan import PlannedRun
from magnetar.ledger.errors import InvariantError
from magnetar.ledger.ports import Buffer, Clock, Disk, File

_WRITE_BYTES = 1 << 20
"""Runs are collected into writes of about this many bytes."""
_BUFFERS_PER_WRITE_MAX = 1024
"""Buffers that one writev takes at most."""
_JOIN_BUFFER_BYTES = 2048
"""Mean buffer size, in bytes, below which buffers are joined: copying is cheaper than their
iovecs."""


SYNC_BYTES = 2 << 20
"""Bytes of a flush after which it is synced and dropped from the page cache.

A journal's sync waits for other writes to the same disk, so this bounds how long acknowledgements
stand still during a flush. At 10,000 messages of 1 KB a second on three bookies with one disk, 99
of 100 were acknowledged within 102 ms with parts of 16 MB, and within 44 ms with parts of 2 MB.
Smaller parts slow the flush down: next to three busy journals it writes 470 MB/s in parts of 16 MB,
360 in parts of 2 MB, 290 in parts of 1 MB.

The next part reuses the pages that this part freed. So at most one part is free at a
time; a virtual machine may return free memory to its host, and getting it back is expensive.
"""


class _Active(NamedTuple):
    log_id: int
    path: str
    file: File
    ledger_bytes: dict[int, int]


class EntryLogWriter:
    """Appends runs to the newest entry log."""

    def __init__(
        self,
        directory: str,
        *,
        ids: LogIds,
        log_bytes_max: int,
        log_ledgers_max: int,
        disk: Disk,
        clock: Clock,
        sync_bytes: int = SYNC_BYTES,
    ) -> None:
        """`log_ledgers_max`: maximum number of ledgers in one log; their sizes are in memory until
        the log is finished.

        `sync_bytes`: bytes written between two syncs at most, plus one write.
        """
        self._directory = directory
        self._log_bytes_max = log_bytes_max
        self._log_ledgers_max = log_ledgers_max
        self._disk = disk
        self._clock = clock
        self._ids = ids
        self._active: _Active | None = None
        self._active_is_indexed = False
        self._buffers: list[Buffer] = []
        self._buffered_bytes = 0
        self._sync_bytes = sync_bytes
        self._unsynced_bytes = 0
        self._directory_is_dirty = False

    @property
    def active_log_id(self) -> int | None:
        """The log that is being written; None if there is none."""
        return None if self._active is None else self._active.log_id

    @property
    def last_log_id(self) -> int:
        """The highest id allocated so far, to this writer or others."""
        return self._ids.last

    def free_bytes(self) -> int:
        """Return the free bytes of the disk.

        Raises:
            OSError: the disk failed.
        """
        return self._disk.free_bytes(self._directory)

    def write(self, ledger_id: int, run: PlannedRun) -> RunLocation:
        """Append a run; durable only after `sync`.

        Raises:
            OSError, StorageIOError: call `abandon`.
        """
        size_bytes_max = run_bytes_max(run.packets_bytes, run.entries)
        active = self._active
        if active is not None and self._is_full(active, ledger_id, size_bytes_max):
            self._finish()
            active = None
        if active is None:
            active = self._begin()
        offset = self._end(active)
        head, packets = encode_run(active.log_id, offset, ledger_id, run)
        self._buffers += (head, packets)
        size_bytes = len(head) + run.packets_bytes
        self._buffered_bytes += size_bytes
        active.ledger_bytes[ledger_id] = active.ledger_bytes.get(ledger_id, 0) + size_bytes
        if self._buffered_bytes >= _WRITE_BYTES or len(self._buffers) >= _BUFFERS_PER_WRITE_MAX:
            self._write_out(active)
            if self._unsynced_bytes >= self._sync_bytes:
                self._sync_data(active)
        return RunLocation(active.log_id, offset, size_bytes, run.entries, not run.is_contiguous)

    def _is_full(self, active: _Active, ledger_id: int, size_bytes_max: int) -> bool:
        """Return whether the log has no room for a run of the ledger."""
        ledgers = active.ledger_bytes
        return self._end(active) + size_bytes_max > self._log_bytes_max or (
            len(ledgers) >= self._log_ledgers_max and ledger_id not in ledgers
        )

    def sync(self) -> None:
        """Make all written runs durable.

        Raises:
            OSError: call `abandon`.
        """
        self.sync_part()
        if self._directory_is_dirty:
            self._disk.sync_directory(self._directory)
            self._directory_is_dirty = False

    def sync_part(self) -> None:
        """Write out and sync the pending runs. They do not count before `sync`.

        Raises:
            OSError: call `abandon`.
        """
        if self._active is not None:
            self._write_out(self._active)
            self._sync_data(self._active)

    def on_indexing(self) -> None:
        """Note that the index may now point to everything written: the active log must stay."""
        self._active_is_indexed = self._active is not None

    def abandon(self) -> None:
        """Give the active log up after an error; the next write begins a new one."""
        self._buffers.clear()
        self._buffered_bytes = self._unsynced_bytes = 0
        active, self._active = self._active, None
        if active is None:
            return
        try:
            active.file.close()
            if not self._active_is_indexed:
                # Nothing points into it, so it is useless. On a full disk it must go.
                self._disk.remove(active.path)
        except OSError:
            pass  # it stays as garbage; its id is not reused
        self._active_is_indexed = False

    def close(self) -> None:
        """Close the active log with its footer.

        Raises:
            OSError: the log has no footer and will be scanned; its synced runs are safe.
        """
        if self._active is not None:
            self._finish()

    def _end(self, active: _Active) -> int:
        return active.file.size + self._buffered_bytes

    def _begin(self) -> _Active:
        log_id = self._ids.new()
        path = f"{self._directory}/{log_name(log_id)}"
        file = self._disk.create(path)
        self._active = active = _Active(log_id, path, file, {})
        self._active_is_indexed = False
        self._directory_is_dirty = True
        file.append([encode_log_header(active.log_id, self._clock.wall_ms())])
        assert file.size == LOG_HEADER_BYTES
        return active

    def _finish(self) -> None:
        active = self._active
        assert active is not None
        self._write_out(active)
        active.file.append([encode_footer(active.log_id, active.file.size, active.ledger_bytes)])
        active.file.datasync()
        self._active = None
        self._unsynced_bytes = 0
        active.file.close()

    def _sync_data(self, active: _Active) -> None:
        active.file.datasync()
        # Bulk writes must not push readers' data out of the page cache. Pages freed at once are
        # also the cheapest to write the next part into: on a virtual machine, the first touch of a
        # page costs more than the write itself (0.4 against 5 GB/s).
        active.file.drop_cache()
        self._unsynced_bytes = 0

    def _write_out(self, active: _Active) -> None:
        if not self._buffers:
            return
        buffers, size = self._buffers, self._buffered_bytes
        self._buffers, self._buffered_bytes = [], 0
        expected = active.file.size
        if size < len(buffers) * _JOIN_BUFFER_BYTES:
            offset = active.file.append([b"".join(buffers)])
        else:
            offset = active.file.append(_bounded(buffers))
        if offset != expected:
            raise InvariantError(
                f"{active.path} was written at {offset}; its entries are indexed at {expected}"
            )
        self._unsynced_bytes += size


def encode_run(log_id: int, offset: int, ledger_id: int, run: PlannedRun) -> tuple[bytes, bytes]:
    """Return head and packets of a run for `offset` of the log."""
    packets = b"".join([piece.run.packets_view(piece.start, piece.stop) for piece in run.pieces])
    head = encode_run_head(
        log_id=log_id,
        offset=offset,
        ledger_id=ledger_id,
        first=run.first,
        last=run.last,
        length_table=b"".join(
            [piece.run.length_table(piece.start, piece.stop) for piece in run.pieces]
        ),
        gap_ids=None if run.is_contiguous else list(run.ids()),
        checksums=piece_checksums(packets),
    )
    return head, packets


def _bounded(buffers: list[Buffer]) -> list[Buffer]:
    """Join buffers so that there are at most `_BUFFERS_PER_WRITE_MAX`, for a single write."""
    surplus = -(-len(buffers) // _BUFFERS_PER_WRITE_MAX)
    if surplus == 1:
        return buffers
    bounds = [*range(0, len(buffers), surplus), len(buffers)]
    return [b"".join(buffers[start:stop]) for start, stop in pairwise(bounds)]
