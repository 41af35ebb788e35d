"""The rules of journal, last mark, replay and checkpoint (storage sheet, sections 2, 3, 8)."""

from collections.abc import Iterator
from contextlib import contextmanager

from magnetar.bookie import bookie as bookie_module
from magnetar.bookie.engine.entry_storage import EntryStorage
from magnetar.bookie.engine.sharded_storage import ShardedStorage
from magnetar.bookie.journaling import journal_files, journal_format, journal_replay
from magnetar.bookie.journaling.checkpoint import Checkpointer
from magnetar.bookie.journaling.journal_files import JournalFiles, NewestRecord
from magnetar.bookie.journaling.journal_replay import JournalReplay
from magnetar.bookie.journaling.last_mark import LastMarks
from magnetar.bookie.journaling.replay import StorageReplay
from magnetar.bookie.requests.request_handler import AddRequests
from tests.simulation.mutations.mutation import Mutation, edited


@contextmanager
def _unbound_records() -> Iterator[None]:
    place = "_PLACE_AND_TAIL.pack(file_id, offset,"
    with (
        edited(
            journal_files,
            "encode_group",
            ("head = pack_place(file_id, place,", "head = pack_place(0, 0,"),
            ("bound = pack_place(file_id, place,", "bound = pack_place(0, 0,"),
        ),
        edited(journal_format, "is_head_valid", ("file_id, offset, size", "0, 0, size")),
        edited(journal_replay, "is_head_valid", ("file_id, offset, size", "0, 0, size")),
        edited(journal_replay, "decode_record", (place, "_PLACE_AND_TAIL.pack(0, 0,")),
    ):
        yield


MUTATIONS: list[Mutation] = [
    Mutation(
        name="journal_before_storage",
        rule="2.1",
        defects=("B3",),
        description="an add is handed to the journal first, and comes into the storage later",
        apply=lambda: edited(
            AddRequests,
            "_add",
            (
                "self._storage.add(ledger_id, block, entry_ids)",
                "asyncio.get_running_loop().call_later("
                "0.004, self._storage.add, ledger_id, block, entry_ids)",
            ),
        ),
    ),
    Mutation(
        name="records_are_not_bound_to_their_place",
        rule="3.1",
        defects=("B19",),
        description="the checksum of a journal record does not cover its file and offset",
        apply=_unbound_records,
    ),
    Mutation(
        name="confirmed_before_the_sync",
        rule="3.2",
        defects=(),
        description="a group counts as durable when it is written; nobody waits for its sync",
        apply=lambda: edited(JournalFiles, "sync", ("self._file.datasync()", "pass")),
    ),
    Mutation(
        name="journal_file_without_a_name",
        rule="3.3",
        defects=(),
        description="the directory is not synced when a journal file is begun",
        apply=lambda: edited(
            JournalFiles,
            "_sync_new_name",
            ("self._disk.sync_directory(self._directory)", "pass"),
        ),
    ),
    Mutation(
        name="newest_journal_is_not_named",
        rule="3.3",
        defects=(),
        description="the first group of a journal file is answered, and no record names the file",
        apply=lambda: edited(
            JournalFiles,
            "_have_file",
            ("    self._newest.name(NewestFile(self._file_id, self._allocated))\n", ""),
        ),
    ),
    Mutation(
        name="newest_journal_is_named_before_it_is_there",
        rule="3.3",
        defects=(),
        description="the record names a journal file that is still to be made",
        apply=lambda: edited(
            JournalFiles,
            "_create_next",
            (
                "    spares = spare_names",
                "    self._newest.name(NewestFile(file_id, FILE_HEADER_BYTES))\n"
                "    spares = spare_names",
            ),
        ),
    ),
    Mutation(
        name="missing_newest_journal_is_passed_over",
        rule="3.5 (1)",
        defects=(),
        description="a start does not look whether the newest journal file is there, and how long",
        apply=lambda: edited(
            NewestRecord,
            "check",
            ("if newest is None or newest.file_id < mark.file_id:", "if True:"),
        ),
    ),
    Mutation(
        name="newest_journal_may_be_shorter",
        rule="3.5 (1)",
        defects=(),
        description="a start does not look how long the newest journal file is",
        apply=lambda: edited(NewestRecord, "check", ("if size < newest.length:", "if False:")),
    ),
    Mutation(
        name="mark_written_in_place",
        rule="3.4",
        defects=("B17",),
        description="the last mark is overwritten where it is, not replaced by a rename",
        apply=lambda: edited(
            LastMarks,
            "_advance_one",
            (
                "self._disk.replace_file(path, data)",
                "self._disk.update(path).write_at(data, 0)",
            ),
        ),
    ),
    Mutation(
        name="failed_sync_is_repeated",
        rule="3.6",
        defects=("B18",),
        description="a sync of the journal that failed is tried again, and believed",
        apply=lambda: edited(
            JournalFiles,
            "sync",
            (
                "    try:\n        self._file.datasync()\n",
                "    try:\n"
                "        try:\n            self._file.datasync()\n"
                "        except OSError:\n            self._file.datasync()\n",
            ),
        ),
    ),
    Mutation(
        name="file_goes_on_after_a_failed_group",
        rule="3.4 (full disk)",
        defects=(),
        description="a group that found no room stays in its file, and the next is put behind it",
        apply=lambda: edited(JournalFiles, "append", ("        self._give_up_file()\n", "")),
    ),
    Mutation(
        name="replay_stops_at_damage",
        rule="3.5 (3)",
        defects=("B20",),
        description="replay takes any bad record for the torn end, and drops what comes behind it",
        apply=lambda: edited(
            JournalReplay,
            "_file_records",
            ("if at != stop:", "if False:"),
            ("if later is not None:", "if False:"),
        ),
    ),
    Mutation(
        name="replay_minds_the_fence",
        rule="3.5 (2)",
        defects=(),
        description="replay drops the entries of ledgers that are fenced by now",
        apply=lambda: edited(
            StorageReplay,
            "_add",
            (
                "if self._storage.state(ledger_id) is None:",
                "if (state := self._storage.state(ledger_id)) is None or state.fenced:",
            ),
        ),
    ),
    Mutation(
        name="replay_forgets_explicit_lacs",
        rule="3.5 (2)",
        defects=(),
        description="replay skips explicit LACs",
        apply=lambda: edited(
            StorageReplay, "_apply", ("self._keep_lac(record.ledger_id, record.body)", "pass")
        ),
    ),
    Mutation(
        name="mark_moves_before_the_replayed_is_flushed",
        rule="3.5 (5)",
        defects=(),
        description="after a replay the marks are persisted, and nothing was flushed",
        apply=lambda: edited(
            bookie_module,
            "replay_journals",
            ("        if not covers(marks, ends):\n            await storage.flush()\n", ""),
        ),
    ),
    Mutation(
        name="tail_of_a_dead_process_is_not_synced",
        rule="3.5 (5)",
        defects=(),
        description="replay believes a tail that is only in the page cache, and moves the mark",
        apply=lambda: edited(
            JournalReplay,
            "_file_records",
            ("file.datasync()", "pass"),
            ("self._disk.sync_directory(self._directory)", "pass"),
        ),
    ),
    Mutation(
        name="mark_captured_behind_the_flush",
        rule="8.1",
        defects=(),
        description="a checkpoint takes the marks as they are when its flush has ended",
        apply=lambda: edited(
            Checkpointer,
            "checkpoint",
            ("    marks = self._journal_marks()\n", ""),
            ("    self._after_flush()\n", "    marks = self._journal_marks()\n"),
        ),
    ),
    Mutation(
        name="one_shard_completes_a_checkpoint",
        rule="8.2",
        defects=("B5",),
        description="a checkpoint flushes one ledger directory, and moves the marks",
        apply=lambda: edited(
            ShardedStorage,
            "flush",
            ("for number in numbers]", "for number in numbers[:1]]"),
        ),
    ),
    Mutation(
        name="marks_of_one_journal_count_for_all",
        rule="8.3",
        defects=("B7",),
        description="the mark of each journal moves as far as that of the furthest one",
        apply=lambda: edited(
            LastMarks,
            "advance",
            ("max(mark, *self._copies[number])", "max(max(marks), *self._copies[number])"),
        ),
    ),
    Mutation(
        name="states_alone_are_not_flushed",
        rule="8.4",
        defects=("B4",),
        description="a flush with changed ledger states and no entries returns at once",
        apply=lambda: edited(
            EntryStorage, "_start_flush", ("if buffer.is_empty:", "if not buffer.ledgers:")
        ),
    ),
    Mutation(
        name="lacs_are_not_put_before_a_flush",
        rule="8.4",
        defects=("B4",),
        description="the LACs that moved in memory are not given to the storage before a flush",
        apply=lambda: edited(Checkpointer, "checkpoint", ("    await self._before_flush()\n", "")),
    ),
    Mutation(
        name="marks_move_back",
        rule="8.5",
        defects=("B6",),
        description="a slow checkpoint that ends late persists its older marks",
        apply=lambda: edited(LastMarks, "advance", ("max(mark, *self._copies[number])", "mark")),
    ),
    Mutation(
        name="journal_forgets_too_much",
        rule="8 step 4",
        defects=("B6",),
        description="the journal file that the mark is in is deleted with those before it",
        apply=lambda: edited(
            Checkpointer,
            "_forget",
            ("if file_id < first_needed]", "if file_id <= first_needed]"),
        ),
    ),
    Mutation(
        name="failed_flush_loses_its_buffer",
        rule="8.6",
        defects=(),
        description="what a failed flush should have written leaves memory all the same",
        apply=lambda: edited(
            EntryStorage,
            "_on_written",
            ("        # The buffer", "        self._memory.flushing = None\n        # The buffer"),
        ),
    ),
]
