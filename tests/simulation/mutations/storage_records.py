"""More rules of a bookie's journal and logs: what is reported, replayed, moved and deleted."""

from magnetar.bookie.engine.stored_reads import StoredReads
from magnetar.bookie.gc import finish_compactions, ledger_collector
from magnetar.bookie.gc.ledger_collector import LedgerCollector
from magnetar.bookie.journaling.checkpoint import Checkpointer
from magnetar.bookie.journaling.journal import Journal
from magnetar.bookie.journaling.replay import StorageReplay
from tests.simulation.mutations.mutation import Mutation, edited

_JOURNAL = "tests/integration/bookie/test_journal.py::"
_COLLECTOR = "tests/unit/bookie/gc/test_ledger_collector.py::"
_TOLD = "self._tell_loop(self._committed, _Group(batches, mark, error, epoch, reason, times))"

MUTATIONS: list[Mutation] = [
    Mutation(
        name="marks_before_the_flush",
        rule="8.1",
        defects=(),
        description="a checkpoint persists its marks before it flushes",
        apply=lambda: edited(
            Checkpointer,
            "checkpoint",
            (
                "    await self._before_flush()\n",
                "    await self._worker.run(lambda: self._persist(marks))\n"
                "    await self._before_flush()\n",
            ),
        ),
    ),
    Mutation(
        name="replay_forgets_lacs",
        rule="3.5",
        defects=(),
        description="replay does not take the LACs that entries carry",
        apply=lambda: edited(
            StorageReplay, "_put_lacs", ("in self._lacs.items():", "in dict[int, int]().items():")
        ),
    ),
    Mutation(
        name="replay_forgets_the_last_record",
        rule="3.5",
        defects=(),
        description="replay leaves out the last record of each journal",
        apply=lambda: edited(
            StorageReplay,
            "run",
            ("for record in journal.records():", "for record in list(journal.records())[:-1]:"),
        ),
    ),
    Mutation(
        name="decided_compactions_move_nothing",
        rule="9",
        defects=(),
        description="a start removes the sources of a decided compaction without the move",
        apply=lambda: edited(
            finish_compactions, "_finish_all", ("_move_runs(index, record)", "pass")
        ),
    ),
    Mutation(
        name="places_stay_known_after_a_compaction",
        rule="9",
        defects=("B26",),
        description="places of runs stay known after a compaction has moved them",
        tests=(
            "tests/unit/bookie/test_hot_reads.py::"
            "test_b26_after_a_compaction_packets_come_from_their_new_place",
            "tests/unit/bookie/test_hot_reads.py::"
            "test_a_read_that_was_under_way_while_runs_moved_is_not_remembered",
        ),
        apply=lambda: edited(
            StoredReads,
            "forget_places",
            ("        self._hot.drop(ledger_id)\n    self._age += 1", "        pass"),
        ),
    ),
    Mutation(
        name="journal_files_deleted_by_the_largest_mark",
        rule="8.5",
        defects=(),
        description="journal files go by the largest copy of a mark, not by the smallest",
        tests=(
            "tests/unit/bookie/test_checkpoint.py::"
            "test_files_stay_while_one_ledger_directory_has_an_old_mark",
        ),
        apply=lambda: edited(
            Checkpointer, "_persist", ("self._last_marks.safe_marks", "self._last_marks.marks")
        ),
    ),
    Mutation(
        name="unreadable_metadata_means_deleted",
        rule="10.1",
        defects=("B10",),
        description="a ledger whose metadata cannot be read is garbage",
        tests=(f"{_COLLECTOR}test_rule_10_1_an_error_is_no_proof_of_death",),
        apply=lambda: edited(
            LedgerCollector,
            "_is_dead",
            (
                "error=str(error))\n        return False",
                "error=str(error))\n        return True",
            ),
        ),
    ),
    Mutation(
        name="a_listing_that_failed_goes_on",
        rule="10.2",
        defects=("B10",),
        description="what a listing of ledgers did not come to counts as listed, and empty",
        tests=(f"{_COLLECTOR}test_b10_a_listing_that_breaks_off_with_an_error_deletes_nothing",),
        apply=lambda: edited(
            ledger_collector,
            "missing_ledgers",
            (
                "    except InvariantError as error:\n",
                "    except Exception:\n"
                "        search._next_id = (1 << 63)\n"
                "    except InvariantError as error:\n",
            ),
        ),
    ),
    Mutation(
        name="batches_behind_a_full_group_are_committed",
        rule="3.2",
        defects=(),
        description="batches that did not hear of a full disk are committed behind it",
        tests=(f"{_JOURNAL}test_batches_that_did_not_know_of_the_full_disk_fail_too",),
        apply=lambda: edited(Journal, "_work", ("epoch += 1", "pass")),
    ),
    Mutation(
        name="groups_reported_before_their_sync",
        rule="3.2",
        defects=(),
        description="the journal's thread reports a group, and then commits it",
        tests=tuple(
            _JOURNAL + name
            for name in (
                "test_batches_are_reported_in_order_and_are_on_disk",
                "test_b18_an_io_error_is_final",
                "test_b18_a_sync_that_failed_is_not_tried_again",
            )
        ),
        apply=lambda: edited(
            Journal,
            "_work",
            (
                "                mark, times = self._commit(batches)\n",
                "                times = _Times(0.0, 0.0, 0.0, 0.0, False)\n"
                f"                {_TOLD}\n"
                "                mark, _ = self._commit(batches)\n"
                "                continue\n",
            ),
        ),
    ),
    Mutation(
        name="groups_reported_beside_their_sync",
        rule="3.2",
        defects=(),
        description="the journal's thread reports a group while another thread syncs it",
        tests=tuple(
            _JOURNAL + name
            for name in (
                "test_batches_are_reported_in_order_and_are_on_disk",
                "test_b18_an_io_error_is_final",
                "test_b18_a_sync_that_failed_is_not_tried_again",
            )
        ),
        apply=lambda: edited(
            Journal,
            "_commit",
            (
                "    mark = files.sync()\n",
                "    threading.Thread(target=files._file.datasync).start()\n"
                "    files._length += files._appended\n"
                "    mark = LastMark(files._file_id, files._length)\n",
            ),
        ),
    ),
]
