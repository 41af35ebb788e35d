"""Reads of runs, or single packets of runs, from entry logs. Runs on a read worker.

All data is checked before it is returned (rule 4.2): the checksum of the run's head, its match with
the index, the checksums of all touched pieces of packets, and the ledger id and entry id at the
start of each packet. A mismatch is an I/O error that names the place and the entries: it never
means that an entry is absent (defect B14).
"""

import posixpath

from magnetar.bookie.entry_logs.damage import Damage
from magnetar.bookie.entry_logs.entry_log import (
    RUN_HEADER_BYTES,
    RunHead,
    StoredRun,
    decode_run_head,
    run_tables_bytes,
)
from magnetar.bookie.entry_logs.log_names import log_name
from magnetar.bookie.entry_logs.open_files import OpenFiles
from magnetar.bookie.entry_logs.packet_run import PacketRun, first_foreign, stop_within
from magnetar.bookie.entry_logs.packet_span import check_span, span_of
from magnetar.bookie.entry_logs.pieces import PIECE_BYTES, damaged_pieces, stretches
from magnetar.bookie.errors import StorageCorruptError, StorageIOError, StorageLogMissingError
from magnetar.ledger.ports import Disk, File

_READ_ONCE_BYTES_MIN = 64 << 10


class EntryLogReader:
    """Reads from all entry logs of a directory; keeps the last used files open."""

    def __init__(self, directory: str, *, open_files_max: int, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        self._files = OpenFiles(open_files_max)

    def load_head(self, run: StoredRun) -> RunHead:
        """Read header and tables.

        Raises:
            StorageIOError: unreadable, damaged, missing, or not the run that the index means.
        """
        location = run.location
        return self._head(run, self._pread(run, location.tables_bytes, location.offset))

    def load_whole(self, run: StoredRun) -> tuple[RunHead, bytes]:
        """Read head and packets with one read, for small runs; the packets are not checked yet.

        Raises:
            StorageIOError: unreadable, damaged, missing, or not the run that the index means.
        """
        data = self._pread(run, run.location.size_bytes, run.location.offset)
        head = self._head(run, data)
        return head, data[head.tables_bytes :]

    def load_run(
        self, run: StoredRun, head: RunHead | None = None, packets: bytes | None = None
    ) -> PacketRun:
        """Read all packets with one read.

        `head` and `packets` are those of the run, if they were loaded before.

        Raises:
            StorageIOError: the run is unreadable, missing or not the one that the index means, or a
                packet is damaged: other packets may be whole.
        """
        if head is None:
            head = self.load_head(run)
        if packets is None:
            packets = self._load_packets_area(run, head)
        damages = self._damages(run, head, packets)
        if damages:
            raise StorageCorruptError(str(damages[0]), damages[0])
        return PacketRun(packets, ids=head.ids, packets_at=0, offsets=head.offsets)

    def load_packets(
        self, run: StoredRun, head: RunHead, entry_id: int, last: int, bytes_max: int
    ) -> list[bytes]:
        """Read the packets of `entry_id` (held by the run), `entry_id + 1`, ... as `PacketRun.take`
        does.

        A damaged packet after the first one ends the list.

        Raises:
            StorageIOError: the first packet is unreadable or damaged.
        """
        start, stop = head.positions(entry_id, last)
        span = span_of(head, start, stop_within(head.offsets, start, stop, bytes_max))
        offset = run.location.offset + head.tables_bytes + span.begin
        data = self._pread(run, span.size_bytes, offset)
        packets, damaged = check_span(head, span, data, run.ledger_id, entry_id)
        if not packets and damaged:
            raise self._piece_damage(run, head, *stretches(damaged)[0])
        if not packets:
            raise self._foreign_packet(run, head, entry_id, head.offsets[start])
        return packets

    def check_run(self, run: StoredRun) -> list[Damage]:
        """Read the whole run, and return all its damage.

        Raises:
            StorageIOError: it cannot be read at all (missing log, I/O error).
        """
        try:
            head = self.load_head(run)
        except StorageCorruptError as error:
            if error.damage is None:
                raise
            return [error.damage]
        return self._damages(run, head, self._load_packets_area(run, head))

    def locate(self, log_id: int, offset: int) -> StoredRun:
        """Return the run at a place, for an index that stores only places.

        Raises:
            StorageIOError: there is no valid run.
        """
        header = self._pread_at(log_id, RUN_HEADER_BYTES, offset)
        tables_bytes = run_tables_bytes(header)
        if tables_bytes is None:
            raise StorageCorruptError(f"{self._path(log_id)} at {offset}: no run begins here")
        data = self._pread_at(log_id, tables_bytes, offset)
        head = decode_run_head(data, log_id=log_id, offset=offset)
        return StoredRun(head.ledger_id, head.first, head.last, head.location(log_id, offset))

    def open_file(self, log_id: int) -> File:
        """Open the log's file for the caller, who closes it.

        Raises:
            OSError: it cannot be opened.
        """
        return self._disk.open(self._path(log_id))

    def forget(self, log_id: int) -> None:
        """Close the log's file, if it is open."""
        self._files.forget(log_id)

    def close(self) -> None:
        self._files.close()

    # Heads and packets

    def _head(self, run: StoredRun, data: bytes) -> RunHead:
        """Decode and check the head of the run at the start of `data`."""
        location = run.location
        try:
            head = decode_run_head(data, log_id=location.log_id, offset=location.offset)
        except StorageCorruptError as error:
            raise self._corrupt(run, 0, run.first, run.last, str(error)) from None
        # The ids are not compared: a record may cover ids that its run does not hold. That happens
        # if newer copies were laid over a run with gaps, and compaction dropped what they replaced.
        # The head's checksum binds it to its place.
        is_meant = (
            head.ledger_id == run.ledger_id
            and head.location(location.log_id, location.offset) == location
        )
        if not is_meant:
            reason = (
                f"the run is not the one the index means, but entries {head.first} to {head.last} "
                f"of ledger {head.ledger_id}"
            )
            raise self._corrupt(run, 0, run.first, run.last, reason)
        return head

    def _load_packets_area(self, run: StoredRun, head: RunHead) -> bytes:
        at = run.location.offset + head.tables_bytes
        return self._pread(run, head.packets_bytes, at, once=True)

    def _damages(self, run: StoredRun, head: RunHead, data: bytes) -> list[Damage]:
        size = head.packets_bytes
        damages = [
            self._piece_damage(run, head, begin, end).damage
            for begin, end in stretches(damaged_pieces(data, head.checksums, size))
        ]
        if not damages:
            foreign = first_foreign(data, head.offsets, run.ledger_id, head.ids)
            if foreign < head.entries:
                begin = head.offsets[foreign]
                damages = [self._foreign_packet(run, head, head.ids[foreign], begin).damage]
        return [damage for damage in damages if damage is not None]

    # Errors

    def _corrupt(
        self, run: StoredRun, at: int, first: int, last: int, reason: str
    ) -> StorageCorruptError:
        """Make an error for damage at `at`, relative to the start of the run."""
        path, offset = self._path(run.location.log_id), run.location.offset + at
        damage = Damage(path, offset, run.ledger_id, first, last, reason)
        return StorageCorruptError(str(damage), damage)

    def _piece_damage(
        self, run: StoredRun, head: RunHead, begin: int, end: int
    ) -> StorageCorruptError:
        at = begin * PIECE_BYTES
        first, last = head.ids_within(at, min(end * PIECE_BYTES, head.packets_bytes))
        return self._corrupt(
            run, head.tables_bytes + at, first, last, "packets have a wrong checksum"
        )

    def _foreign_packet(
        self, run: StoredRun, head: RunHead, entry_id: int, begin: int
    ) -> StorageCorruptError:
        return self._corrupt(
            run,
            head.tables_bytes + begin,
            entry_id,
            entry_id,
            "the packet is of another entry",
        )

    # Files

    def _pread(self, run: StoredRun, size: int, offset: int, *, once: bool = False) -> bytes:
        """Read bytes of a run; an error names the entries that cannot be read."""
        try:
            return self._pread_at(run.location.log_id, size, offset, once=once)
        except StorageIOError as error:
            path = self._path(run.location.log_id)
            error.damage = Damage(path, offset, run.ledger_id, run.first, run.last, str(error))
            raise

    def _pread_at(self, log_id: int, size: int, offset: int, *, once: bool = False) -> bytes:
        try:
            file = self._file(log_id)
            # A whole run goes into the read cache. A second copy in the page cache takes memory
            # that others need, and on a virtual machine fresh pages for it cost more than the read.
            if once and size >= _READ_ONCE_BYTES_MIN:
                return file.read_once(size, offset)
            return file.pread(size, offset)
        except FileNotFoundError as exc:
            raise StorageLogMissingError(f"{self._path(log_id)} does not exist") from exc
        except OSError as exc:
            self.forget(log_id)
            raise StorageIOError(f"{self._path(log_id)}: cannot read at {offset}: {exc}") from exc

    def _path(self, log_id: int) -> str:
        return posixpath.join(self._directory, log_name(log_id))

    def _file(self, log_id: int) -> File:
        file = self._files.get(log_id)
        if file is None:
            file = self._disk.open(self._path(log_id))
            self._files.put(log_id, file)
        return file
