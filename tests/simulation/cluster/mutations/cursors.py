"""The rules of what cursors store, and of what deduplication stores with them."""

from magnetar.broker.features.deduplication import deduplication as deduplication_module
from magnetar.broker.features.deduplication.deduplication import Deduplication
from magnetar.broker.features.deduplication.sequence_ids import SequenceIds
from magnetar.broker.features.log_snapshots import LogSnapshots
from magnetar.cursors import cursor as cursor_module
from magnetar.cursors.ack_state import AckState
from magnetar.cursors.cursor import Cursor
from magnetar.cursors.saver import CursorSaver
from tests.simulation.mutations.mutation import Mutation, edited

_CURSOR = "tests/unit/cursors/test_cursor.py::"
_SAVER = "tests/unit/cursors/test_saver.py::"

MUTATIONS: list[Mutation] = [
    Mutation(
        name="deduplication_replays_one_read",
        rule="3.2",
        defects=("M19",),
        invariants=("C14", "C15"),
        description="of what lies behind the last snapshot one read is made, and no more",
        apply=lambda: edited(
            LogSnapshots,
            "replay",
            ("        position = log.next_position(last)\n", "        break\n"),
        ),
    ),
    Mutation(
        name="snapshots_one_entry_ahead",
        rule="3.2",
        defects=("M19",),
        invariants=("C15",),
        description="the position of a snapshot is one entry behind what its ids are of",
        tests=(
            "tests/unit/broker/test_deduplication.py::"
            "test_m19_a_snapshot_holds_what_is_stored_and_nothing_newer",
            "tests/unit/broker/test_deduplication.py::test_closing_takes_a_last_snapshot",
        ),
        apply=lambda: edited(
            LogSnapshots,
            "_take",
            (
                "self._cursor.ack_cumulative(self._last)",
                "self._cursor.ack_cumulative("
                "Position(self._last.ledger_id, self._last.entry_id + 1))",
            ),
        ),
    ),
    Mutation(
        name="snapshots_leave_out_who_has_gone",
        rule="3.2",
        defects=(),
        invariants=("C14", "C15"),
        description="a snapshot has the ids of the name that was used last, and no other",
        apply=lambda: edited(SequenceIds, "snapshot", ("len(kept) >= names_max", "len(kept) >= 1")),
    ),
    Mutation(
        name="undecided_counts_as_stored",
        rule="3.2",
        defects=("M19",),
        description="what is sent again while its write is under way is answered as a duplicate",
        tests=("tests/unit/broker/test_deduplication.py::test_what_is_being_stored_is_undecided",),
        apply=lambda: edited(
            SequenceIds, "judge", ("    return Verdict.UNDECIDED", "    return Verdict.DUPLICATE")
        ),
    ),
    Mutation(
        name="producers_are_told_what_is_under_way",
        rule="3.2",
        defects=("M19",),
        description="a producer that comes back is let in while its own writes are under way",
        tests=(
            "tests/unit/broker/test_deduplication.py::"
            "test_it_is_told_when_what_its_former_self_sent_is_decided",
        ),
        apply=lambda: edited(
            Deduplication,
            "settled",
            ("while not self._is_closed and not", "while False and not"),
        ),
    ),
    Mutation(
        name="cursors_recovered_from_their_first_record",
        rule="5.3",
        defects=(),
        invariants=("C5",),
        description="a cursor goes on from the first record of its ledger, not from the last",
        apply=lambda: edited(
            cursor_module,
            "recover_state",
            ("reader.read(last_entry_id, last_entry_id)", "reader.read(0, 0)"),
        ),
    ),
    Mutation(
        name="cursors_roll_back_on_any_error",
        rule="5.3",
        defects=("M16",),
        invariants=("C5",),
        description="whatever goes wrong with a cursor's ledger, its node counts",
        apply=lambda: edited(
            cursor_module,
            "recover_state",
            ("    except (\n        NoSuchLedgerError,\n", "    except (\n        Exception,\n"),
        ),
    ),
    Mutation(
        name="cursors_taken_over_without_a_new_epoch",
        rule="5.3",
        defects=(),
        invariants=("C5",),
        description="whoever takes a cursor over leaves its node, and the epoch, as they were",
        tests=(
            f"{_CURSOR}test_an_owner_that_wakes_up_without_a_ledger_is_fenced_by_the_node",
            f"{_SAVER}test_recovery_folds_a_small_state_into_the_node",
        ),
        apply=lambda: edited(Cursor, "_try_open", ("await saver.own(", "(lambda record: None)(")),
    ),
    Mutation(
        name="positions_count_as_stored_at_once",
        rule="5.1",
        defects=("M7",),
        invariants=("C6", "C13"),
        description="what is acknowledged in memory counts as stored",
        apply=lambda: edited(
            Cursor, "persisted_mark_delete", ("self._persisted", "self._state.mark_delete")
        ),
    ),
    Mutation(
        name="nodes_name_cursor_ledgers_too_soon",
        rule="5.2",
        defects=(),
        description="a cursor's node names its next ledger before the state is in it",
        tests=(f"{_SAVER}test_a_node_names_a_ledger_only_when_the_state_is_in_it",),
        apply=lambda: edited(
            CursorSaver,
            "_switch_ledger",
            ("        await writer.add(data)\n", ""),
            (
                "    self._writer = writer\n",
                "    await writer.add(data)\n    self._writer = writer\n",
            ),
        ),
    ),
    Mutation(
        name="resets_leave_the_old_position_to_trimming",
        rule="5.1",
        defects=(),
        description="a cursor that goes back is trimmed by where it was until that is stored",
        tests=(
            f"{_CURSOR}test_a_reset_is_durable_on_return_and_frees_the_old_position_at_once",
            f"{_CURSOR}test_a_save_under_way_does_not_undo_a_reset",
        ),
        apply=lambda: edited(
            Cursor,
            "reset",
            ("    self._persisted = min(self._persisted, self._state.mark_delete)\n", ""),
        ),
    ),
    Mutation(
        name="a_part_of_a_batch_acknowledges_it",
        rule="5.1",
        defects=(),
        description="who acknowledges one message of a batch has acknowledged all of them",
        tests=(
            "tests/unit/cursors/test_ack_state.py::"
            "test_batch_indexes_are_anded_as_the_clients_send_them",
            "tests/unit/cursors/test_ack_state.py::"
            "test_a_cumulative_ack_with_words_stops_inside_the_batch",
        ),
        apply=lambda: edited(AckState, "ack_batch", ("    if not remaining:\n", "    if True:\n")),
    ),
    Mutation(
        name="acknowledgements_beyond_the_end_count",
        rule="4.2",
        defects=(),
        description="everything up to a position beyond the end of the log can be acknowledged",
        tests=(
            "tests/unit/cursors/test_ack_state.py::test_a_cumulative_ack_beyond_the_end_is_ignored",
        ),
        apply=lambda: edited(
            AckState, "ack_cumulative", (" or position > self._shape.last_confirmed:", ":")
        ),
    ),
    Mutation(
        name="every_chunk_counts",
        rule="3.2",
        defects=(),
        description="the first chunk of a message makes the others duplicates",
        tests=(
            "tests/unit/broker/test_deduplication.py::test_only_the_last_chunk_of_a_message_counts",
        ),
        apply=lambda: edited(
            deduplication_module,
            "is_open_chunk",
            ("return chunks > 1 and metadata.chunk_id != chunks - 1", "return False"),
        ),
    ),
]
