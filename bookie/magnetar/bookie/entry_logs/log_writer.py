"""Writes runs to entry logs: one active log, begun lazily, closed with a footer when it is full.

Lives on the flush worker. Nothing that it writes counts before `sync` returned; the index may
point to a run only after that. After an error the active log is given up (`abandon`): what reached
the file is unknown, and a sync that failed once proves nothing when it is repeated.
"""

from itertools import pairwise
from typing import NamedTuple

from magnetar.bookie.entry_logs.entry_log import (
    LOG_HEADER_BYTES,
    LOG_ID_MAX,
    RunLocation,
    encode_footer,
    encode_log_header,
    encode_run_head,
    run_bytes_max,
)
from magnetar.bookie.entry_logs.pieces import piece_checksums
from magnetar.bookie.entry_logs.run_plan import PlannedRun
from magnetar.bookie.errors import StorageIOError
from magnetar.ledger.ports import Buffer, Clock, Disk, File

_WRITE_BYTES = 1 << 20
"""Runs are gathered to writes of about this size."""
_BUFFERS_PER_WRITE_MAX = 1024
"""As many as one writev takes."""
_JOIN_BUFFER_BYTES = 2048
"""Buffers that are smaller on average are joined: copying them is cheaper than their iovecs."""


def log_name(log_id: int) -> str:
    return f"{log_id:08x}.log"


def log_ids(names: list[str]) -> list[int]:
    """The ids of the entry logs among the names of a directory, ascending."""
    ids: list[int] = []
    for name in names:
        stem, dot, suffix = name.rpartition(".")
        if dot and suffix == "log" and len(stem) == 8:
            try:
                ids.append(int(stem, 16))
            except ValueError:
                continue  # not ours
    return sorted(ids)


class _Active(NamedTuple):
    log_id: int
    path: str
    file: File
    ledger_bytes: dict[int, int]


class EntryLogWriter:
    """Appends runs to the newest entry log."""

    def __init__(
        self, directory: str, *, last_log_id: int, log_bytes_max: int, disk: Disk, clock: Clock
    ) -> None:
        self._directory = directory
        self._log_bytes_max = log_bytes_max
        self._disk = disk
        self._clock = clock
        self.last_log_id = last_log_id
        """The highest id in use; the next log gets one more."""
        self._active: _Active | None = None
        self._active_is_indexed = False
        self._buffers: list[Buffer] = []
        self._buffered_bytes = 0
        self._directory_is_dirty = False

    def write(self, ledger_id: int, run: PlannedRun) -> RunLocation:
        """Append a run; durable only after `sync`.

        Raises:
            OSError, StorageIOError: call `abandon`.
        """
        size_bytes_max = run_bytes_max(run.packets_bytes, run.entries)
        active = self._active
        if active is not None and self._end(active) + size_bytes_max > self._log_bytes_max:
            self._finish()
            active = None
        if active is None:
            active = self._begin()
        offset = self._end(active)
        contiguous = run.is_contiguous
        packets = b"".join(
            [piece.run.packets_view(piece.start, piece.stop) for piece in run.pieces]
        )
        head = encode_run_head(
            log_id=active.log_id,
            offset=offset,
            ledger_id=ledger_id,
            first=run.first,
            last=run.last,
            length_table=b"".join(
                piece.run.length_table(piece.start, piece.stop) for piece in run.pieces
            ),
            gap_ids=None if contiguous else list(run.ids()),
            checksums=piece_checksums(packets),
        )
        self._buffers += (head, packets)
        size_bytes = len(head) + run.packets_bytes
        self._buffered_bytes += size_bytes
        active.ledger_bytes[ledger_id] = active.ledger_bytes.get(ledger_id, 0) + size_bytes
        if self._buffered_bytes >= _WRITE_BYTES or len(self._buffers) >= _BUFFERS_PER_WRITE_MAX:
            self._write_out(active)
        return RunLocation(active.log_id, offset, size_bytes, run.entries, not contiguous)

    def sync(self) -> None:
        """Make all written runs durable.

        Raises:
            OSError: call `abandon`.
        """
        if self._active is not None:
            self._write_out(self._active)
            self._active.file.datasync()
            # Bulk writes must not push out of the page cache what readers use. Pages freed at once
            # are also the cheapest to write the next flush into: on a virtual machine a page that
            # is touched for the first time costs more than the write itself (0.4 against 5 GB/s).
            self._active.file.drop_cache()
        if self._directory_is_dirty:
            self._disk.sync_directory(self._directory)
            self._directory_is_dirty = False

    def on_indexing(self) -> None:
        """From now on the index may point to everything written: the active log must stay."""
        self._active_is_indexed = self._active is not None

    def abandon(self) -> None:
        """Give the active log up after an error; the next write begins a new one."""
        self._buffers.clear()
        self._buffered_bytes = 0
        active, self._active = self._active, None
        if active is None:
            return
        try:
            active.file.close()
            if not self._active_is_indexed:
                # Nothing points into it, so it need not be kept. On a full disk, it must not.
                self._disk.remove(active.path)
        except OSError:
            pass  # it stays as garbage; its id is not used again
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
        if self.last_log_id >= LOG_ID_MAX:
            raise StorageIOError("entry log ids are used up")
        self.last_log_id += 1
        path = f"{self._directory}/{log_name(self.last_log_id)}"
        file = self._disk.create(path)
        self._active = active = _Active(self.last_log_id, path, file, {})
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
        active.file.close()

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
        assert offset == expected


def _bounded(buffers: list[Buffer]) -> list[Buffer]:
    """The same bytes in at most `_BUFFERS_PER_WRITE_MAX` buffers, so that one write does it."""
    surplus = -(-len(buffers) // _BUFFERS_PER_WRITE_MAX)
    if surplus == 1:
        return buffers
    bounds = [*range(0, len(buffers), surplus), len(buffers)]
    return [b"".join(buffers[start:stop]) for start, stop in pairwise(bounds)]
