"""The rules of entry logs, indexes and caches (storage sheet, sections 4 to 7)."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from magnetar.bookie.engine.entry_storage import EntryStorage
from magnetar.bookie.engine.flusher import Flusher
from magnetar.bookie.engine.memory_view import MemoryView
from magnetar.bookie.engine.run_reader import Loaded, RunReader, Wanted
from magnetar.bookie.engine.write_cache import WriteBuffer
from magnetar.bookie.entry_logs import log_reader, packet_span
from magnetar.bookie.entry_logs.log_writer import EntryLogWriter
from magnetar.bookie.errors import StorageCorruptError, StorageLogMissingError
from magnetar.bookie.indexes.pages.double_write import DoubleWrite
from magnetar.bookie.indexes.rocks_index import RocksIndex
from tests.simulation.mutations.mutation import Mutation, edited, replaced


@contextmanager
def _no_checksums() -> Iterator[None]:
    def nothing(data: bytes, checksums: Sequence[int], size_bytes: int) -> list[int]:
        return []

    with (
        replaced(log_reader, "damaged_pieces", nothing),
        replaced(packet_span, "damaged_pieces", nothing),
    ):
        yield


@contextmanager
def _damage_means_absent() -> Iterator[None]:
    real = RunReader.read

    def read(
        self: RunReader, wanted: Wanted, lacks_file: Callable[[int], bool] = lambda log_id: False
    ) -> Loaded | None:
        try:
            return real(self, wanted, lacks_file)
        except StorageCorruptError:
            return None

    with replaced(RunReader, "read", read):
        yield


@contextmanager
def _missing_log_means_absent() -> Iterator[None]:
    real = RunReader._read

    def read(self: RunReader, wanted: Wanted, lacks_file: Callable[[int], bool]) -> Loaded | None:
        try:
            return real(self, wanted, lacks_file)
        except StorageLogMissingError:
            return None

    with replaced(RunReader, "_read", read):
        yield


@contextmanager
def _one_buffer() -> Iterator[None]:
    def buffers(self: MemoryView) -> Sequence[WriteBuffer]:
        return (self.active,)

    with replaced(MemoryView, "buffers", property(buffers)):
        yield


MUTATIONS: list[Mutation] = [
    Mutation(
        name="log_is_not_synced_before_the_index",
        rule="5.1",
        defects=("B16",),
        description="the index points to runs whose bytes were never synced",
        apply=lambda: edited(EntryLogWriter, "_sync_data", ("active.file.datasync()", "pass")),
    ),
    Mutation(
        name="entry_log_without_a_name",
        rule="3.3",
        defects=("B16",),
        description="the directory is not synced when an entry log is begun",
        apply=lambda: edited(
            EntryLogWriter, "sync", ("self._disk.sync_directory(self._directory)", "pass")
        ),
    ),
    Mutation(
        name="finished_log_is_not_synced",
        rule="5.1",
        defects=("B16",),
        description="a log that becomes full in the middle of a flush is left without a sync",
        apply=lambda: edited(EntryLogWriter, "_finish", ("active.file.datasync()", "pass")),
    ),
    Mutation(
        name="checksums_of_packets_are_not_compared",
        rule="4.1",
        defects=("B14", "B15"),
        description="packets are served as they are read, whatever their checksums say",
        apply=_no_checksums,
    ),
    Mutation(
        name="damage_means_absent",
        rule="4.2",
        defects=("B14",),
        description="an entry in a damaged place of a log is denied",
        apply=_damage_means_absent,
    ),
    Mutation(
        name="missing_log_means_absent",
        rule="4.2",
        defects=("B14",),
        description="an entry whose log is not there is denied",
        apply=_missing_log_means_absent,
    ),
    Mutation(
        name="index_is_not_synced",
        rule="6",
        defects=("B16",),
        description="a flush of the db engine ends before its index records are durable",
        apply=lambda: edited(RocksIndex, "commit", ("    self._store.sync()\n", "")),
    ),
    Mutation(
        name="lost_index_records_are_not_noticed",
        rule="6",
        defects=("B14",),
        description="an index that comes back with less than was promised is taken for whole",
        apply=lambda: edited(
            RocksIndex, "_keep_promise", ("elif sequence < promise.sequence:", "elif False:")
        ),
    ),
    Mutation(
        name="pages_are_written_in_place_alone",
        rule="5",
        defects=("B16",),
        description="pages of the interleaved engine are not written beside first",
        apply=lambda: edited(DoubleWrite, "write", ("self._write_beside(todo)", "pass")),
    ),
    Mutation(
        name="pages_are_not_synced",
        rule="5",
        defects=("B16",),
        description="pages of the interleaved engine are not synced in their place",
        apply=lambda: edited(DoubleWrite, "_write_file", ("file.datasync()", "pass")),
    ),
    Mutation(
        name="page_files_without_names",
        rule="3.3",
        defects=("B16",),
        description="the directories of new and removed page files are not synced",
        apply=lambda: edited(
            DoubleWrite, "_carry_out", ("self._disk.sync_directory(directory)", "pass")
        ),
    ),
    Mutation(
        name="deletions_are_not_flushed",
        rule="8.4",
        defects=("B25",),
        description="a flush forgets which ledgers were deleted",
        apply=lambda: edited(Flusher, "flush", ("deleted=buffer.deleted,", "deleted=(),")),
    ),
    Mutation(
        name="buffer_being_flushed_is_not_read",
        rule="7.1",
        defects=(),
        description="reads look into the active write buffer alone, before they ask the index",
        apply=_one_buffer,
    ),
    Mutation(
        name="overlaid_runs_stay_in_memory",
        rule="C5",
        defects=("B26",),
        description="what was read of an entry is served after a newer copy was flushed",
        apply=lambda: edited(EntryStorage, "_note_flushed", ("self._stored.forget_read(", "str(")),
    ),
]
