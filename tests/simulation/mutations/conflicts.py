"""The rules of conflicts: unknown outcomes, other clients at a ledger, the writer's close."""

from magnetar.ledger.ledger_manager import LedgerManager
from magnetar.ledger.recovery import LedgerRecovery
from magnetar.ledger.writer import LedgerWriter
from magnetar.ledger.writing.writer_metadata import WriterMetadata
from tests.simulation.mover import Mover
from tests.simulation.mutations.mutation import Mutation, edited

MUTATIONS: list[Mutation] = [
    Mutation(
        name="writer_does_not_watch",
        rule="7.1",
        defects=("D16", "D17"),
        invariants=("W2",),
        description="a writer does not look at its metadata until it wants to write it",
        apply=lambda: edited(
            WriterMetadata, "_on_event", ("self._was_changed = True", "self._was_changed = False")
        ),
    ),
    Mutation(
        name="own_change_taken_for_a_conflict",
        rule="2.3",
        defects=("D26",),
        invariants=("W1",),
        description="an ensemble change whose reply was lost is taken for another client's",
        apply=lambda: edited(
            WriterMetadata, "commit_ensemble", ("if found == proposal:", "if False:")
        ),
    ),
    Mutation(
        name="own_close_taken_for_a_conflict",
        rule="2.3",
        defects=("D26",),
        invariants=("W1",),
        description="a close whose reply was lost is taken for another client's",
        apply=lambda: edited(
            WriterMetadata,
            "close",
            (
                "if (metadata.last_entry_id, metadata.length) == (last_entry_id, length):",
                "if False:",
            ),
        ),
    ),
    Mutation(
        name="unknown_change_taken_for_done",
        rule="2.3",
        defects=("D26",),
        invariants=("I1", "I2", "I16"),
        description="an ensemble change whose outcome is unknown is taken for committed",
        apply=lambda: edited(
            WriterMetadata,
            "commit_ensemble",
            ("elif found == before:", "elif False:"),
            ("raise self._foreign_ensemble(found) from None", "pass"),
        ),
    ),
    Mutation(
        name="unknown_recovery_close_taken_for_done",
        rule="2.3",
        defects=("D26",),
        invariants=("I3", "I4", "I18"),
        description="a recovery whose closing write has an unknown outcome takes it for done",
        apply=lambda: edited(
            LedgerRecovery,
            "_close",
            (
                "        except (BadVersionError, UnknownOutcomeError):\n",
                "        except UnknownOutcomeError:\n"
                "            return metadata.closed(\n"
                "                last_entry_id=last_entry_id, length=length, tail=tail\n"
                "            )\n"
                "        except BadVersionError:\n",
            ),
        ),
    ),
    Mutation(
        name="lost_create_taken_for_done",
        rule="3.1",
        defects=("D26", "D30"),
        invariants=("I1", "I18"),
        description="a creation with an unknown outcome is taken for done, whoever has the id",
        apply=lambda: edited(
            LedgerManager,
            "_create_with_id",
            ("return await self._find_own(metadata)", "pass"),
        ),
    ),
    Mutation(
        name="writer_closes_what_is_in_recovery",
        rule="6.1",
        defects=("D21",),
        invariants=("W4",),
        description="a writer closes at its own LAC a ledger that another client recovers",
        apply=lambda: edited(
            WriterMetadata,
            "close",
            ("            self._check_open(metadata)\n", ""),
            ("if metadata.last_fragment not in ours:", "if False:"),
        ),
    ),
    Mutation(
        name="failed_adds_count_for_the_length",
        rule="section 6 step 1",
        defects=("D27",),
        invariants=("I7",),
        description="a close writes the length of all that was sent, failed adds included",
        apply=lambda: edited(
            LedgerWriter,
            "close",
            (
                "self._metadata.close(self._last_add_confirmed, self._length_confirmed)",
                "self._metadata.close(self._last_add_confirmed, self._length_sent)",
            ),
        ),
    ),
    Mutation(
        name="close_behind_the_last_add_pushed",
        rule="section 6 step 2",
        defects=("D27",),
        invariants=("I7", "I10"),
        description="a close ends the ledger at the last add that was sent, confirmed or not",
        apply=lambda: edited(
            LedgerWriter,
            "close",
            (
                "self._metadata.close(self._last_add_confirmed, self._length_confirmed)",
                "self._metadata.close(self._next_entry_id - 1, self._length_sent)",
            ),
        ),
    ),
    Mutation(
        name="open_tail_is_moved",
        rule="section 2.2",
        defects=("D25",),
        invariants=("I21",),
        description="re-replication moves the fragment that is still written to",
        apply=lambda: edited(
            Mover, "move", ("if metadata.state is not LedgerState.CLOSED:", "if False:")
        ),
    ),
]
