"""Reads runs, or single packets of runs, from entry logs. Lives on the reader worker.

Whatever is read is checked: the run's checksum, that it is the run the index means, and that each
packet begins with its ledger id and entry id. What does not match is an I/O error: it never means
that an entry is absent.
"""

from collections import OrderedDict

from magnetar.bookie.entry_logs.entry_log import (
    RUN_HEADER_BYTES,
    RunHeader,
    RunLocation,
    decode_run_head,
)
from magnetar.bookie.entry_logs.log_writer import log_name
from magnetar.bookie.entry_logs.packet_run import PacketRun, first_foreign, stop_within
from magnetar.bookie.errors import StorageCorruptError, StorageIOError, StorageLogMissingError
from magnetar.ledger.ports import Disk, File

_READ_ONCE_BYTES_MIN = 64 << 10


class EntryLogReader:
    """Reads from all entry logs of a directory; keeps the files used last open."""

    def __init__(self, directory: str, *, open_files_max: int, disk: Disk) -> None:
        assert open_files_max > 0
        self._directory = directory
        self._open_files_max = open_files_max
        self._disk = disk
        self._files: OrderedDict[int, File] = OrderedDict()

    def load_run(self, ledger_id: int, location: RunLocation) -> PacketRun:
        """The whole run with one read.

        Raises:
            StorageIOError: unreadable, damaged, missing, or not the run that was meant.
        """
        data = self._pread(location.log_id, location.size_bytes, location.offset, once=True)
        head = _checked_head(data, ledger_id, location)
        if len(data) != location.size_bytes:
            raise StorageCorruptError(
                f"entry log {location.log_id}: run at {location.offset} of ledger {ledger_id} "
                f"ends after {len(data)} of {location.size_bytes} bytes"
            )
        foreign = first_foreign(data, head.offsets, ledger_id, head.ids)
        if foreign < location.entries:
            raise _foreign_packet(ledger_id, head.ids[foreign], location)
        return PacketRun(
            data,
            ids=head.ids,
            table_at=RUN_HEADER_BYTES,
            packets_at=head.tables_bytes,
            offsets=head.offsets,
        )

    def load_tables(self, ledger_id: int, location: RunLocation) -> PacketRun:
        """The run without its packets: good for ids and offsets only.

        Raises:
            StorageIOError: as for `load_run`.
        """
        data = self._pread(location.log_id, location.tables_bytes, location.offset)
        head = _checked_head(data, ledger_id, location)
        return PacketRun(
            data,
            ids=head.ids,
            table_at=RUN_HEADER_BYTES,
            packets_at=head.tables_bytes,
            offsets=head.offsets,
        )

    def load_packets(
        self,
        ledger_id: int,
        location: RunLocation,
        tables: PacketRun,
        entry_id: int,
        last: int,
        bytes_max: int,
    ) -> list[bytes]:
        """The packets of `entry_id` (held by the run), `entry_id + 1`, ... as `PacketRun.take`.

        A damaged packet behind the first one ends the list.

        Raises:
            StorageIOError: the first packet is unreadable or damaged.
        """
        offsets = tables.offsets()
        start, stop = tables.positions(entry_id, last)
        stop = stop_within(offsets, start, stop, bytes_max)
        begin = offsets[start]
        size = offsets[stop] - begin
        data = self._pread(location.log_id, size, location.offset + begin)
        bounds = [offset - begin for offset in offsets[start : stop + 1]]
        whole = stop - start
        while whole and bounds[whole] > len(data):
            whole -= 1
        whole = first_foreign(data, bounds, ledger_id, range(entry_id, entry_id + whole))
        if whole == 0:
            raise _foreign_packet(ledger_id, entry_id, location)
        return [data[bounds[at] : bounds[at + 1]] for at in range(whole)]

    def forget(self, log_id: int) -> None:
        """Close the log's file, if it is open."""
        file = self._files.pop(log_id, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        for log_id in list(self._files):
            self.forget(log_id)

    def _pread(self, log_id: int, size: int, offset: int, *, once: bool = False) -> bytes:
        try:
            file = self._file(log_id)
            # A whole run goes into the read cache: a second copy in the page cache is memory that
            # others want, and on a virtual machine fresh pages for it cost more than the read.
            if once and size >= _READ_ONCE_BYTES_MIN:
                return file.read_once(size, offset)
            return file.pread(size, offset)
        except FileNotFoundError as exc:
            raise StorageLogMissingError(f"entry log {log_id} does not exist") from exc
        except OSError as exc:
            self.forget(log_id)
            raise StorageIOError(f"entry log {log_id}: cannot read at {offset}: {exc}") from exc

    def _file(self, log_id: int) -> File:
        file = self._files.get(log_id)
        if file is not None:
            self._files.move_to_end(log_id)
            return file
        file = self._disk.open(f"{self._directory}/{log_name(log_id)}")
        self._files[log_id] = file
        if len(self._files) > self._open_files_max:
            self.forget(next(iter(self._files)))
        return file


def _checked_head(data: bytes, ledger_id: int, location: RunLocation) -> RunHeader:
    head = decode_run_head(data, log_id=location.log_id, offset=location.offset)
    if (
        head.ledger_id != ledger_id
        or len(head.ids) != location.entries
        or head.offsets[-1] != location.size_bytes
        or head.tables_bytes != location.tables_bytes
    ):
        raise StorageCorruptError(
            f"entry log {location.log_id}: the run at {location.offset} is not the one the index "
            f"means: ledger {head.ledger_id}, expected {ledger_id}"
        )
    return head


def _foreign_packet(ledger_id: int, entry_id: int, location: RunLocation) -> StorageCorruptError:
    return StorageCorruptError(
        f"entry log {location.log_id}: the packet of ledger {ledger_id} entry {entry_id} in the "
        f"run at {location.offset} is damaged"
    )
