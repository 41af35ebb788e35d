"""What counts for what: quorums, LACs, lengths, and the ends of fragments and recoveries."""

from magnetar.bookie.requests.fence_requests import FenceRequests
from magnetar.bookie.requests.fencing import LedgerDescriptor, LedgerTable
from magnetar.ledger.quorum import Coverage
from magnetar.ledger.recovering.recovery_reads import RecoveryReads
from magnetar.ledger.recovery import LedgerRecovery
from magnetar.ledger.writer import LedgerWriter
from magnetar.ledger.writing.add_pipeline import AddPipeline, PendingAdds
from tests.simulation.mutations.mutation import Mutation, edited

MUTATIONS: list[Mutation] = [
    Mutation(
        name="confirmed_below_the_ack_quorum",
        rule="4.2",
        defects=(),
        invariants=("I1", "I2", "I16"),
        description="one acknowledgement less than the ack quorum confirms an add",
        apply=lambda: edited(
            PendingAdds,
            "__init__",
            ("self._ack_quorum = ack_quorum", "self._ack_quorum = max(1, ack_quorum - 1)"),
        ),
    ),
    Mutation(
        name="entries_say_that_the_one_before_is_confirmed",
        rule="9.1",
        defects=(),
        invariants=("I5", "I10", "I18", "W3"),
        description="an entry carries the id before its own as LAC, confirmed or not",
        apply=lambda: edited(
            LedgerWriter,
            "_send_one",
            (
                "seal_one(entry_id, last_add_confirmed,",
                "seal_one(entry_id, entry_id - 1,",
            ),
        ),
    ),
    Mutation(
        name="fragments_begin_one_entry_late",
        rule="section 5 step 3",
        defects=(),
        invariants=("I2", "I10", "I16", "W5"),
        description="a new fragment is recorded as if it began one entry later",
        apply=lambda: edited(
            AddPipeline,
            "_replace",
            (
                "self._commit(self._pending.first_unreleased, ensemble)",
                "self._commit(self._pending.first_unreleased + 1, ensemble)",
            ),
        ),
    ),
    Mutation(
        name="one_fence_less",
        rule="7.2",
        defects=(),
        invariants=("W6",),
        description="recovery goes on with one confirmed fence less than Qw - Qa + 1",
        apply=lambda: edited(
            Coverage,
            "__init__",
            ("write_quorum - ack_quorum + 1", "write_quorum - ack_quorum"),
        ),
    ),
    Mutation(
        name="an_undecided_entry_ends_the_ledger",
        rule="8.2",
        defects=("D15",),
        invariants=("W7", "I1", "L1"),
        description="an entry of which nobody knows whether it is there ends the ledger",
        apply=lambda: edited(
            RecoveryReads,
            "_read",
            (
                "if arrival is None:\n",
                "if arrival is None:\n                return []\n",
            ),
        ),
    ),
    Mutation(
        name="recovery_reads_one_run",
        rule="8.1 step 5",
        defects=(),
        invariants=("W7", "I1", "I9", "L1", "L3"),
        description="recovery writes back what its first read brought, and closes behind that",
        apply=lambda: edited(
            LedgerRecovery,
            "_recover_tail",
            (
                "last_entry_id, length = entries[-1].entry_id, entries[-1].length\n",
                "last_entry_id, length = entries[-1].entry_id, entries[-1].length\n"
                "            break\n",
            ),
        ),
    ),
    Mutation(
        name="replacements_lack_the_first_waiting_add",
        rule="section 5 step 7",
        defects=(),
        invariants=("W5",),
        description="a replacement is not sent the first of the adds that wait",
        apply=lambda: edited(
            AddPipeline,
            "_replace",
            (
                "[add for add in self._pending if add.is_sent]",
                "[add for add in self._pending if add.is_sent][1:]",
            ),
        ),
    ),
    Mutation(
        name="replacements_count_as_having_the_first_waiting_add",
        rule="section 5 step 7",
        defects=(),
        invariants=("I1", "I2", "I10", "I16", "W5"),
        description="a replacement counts at once as having the first of the adds that wait",
        apply=lambda: edited(
            AddPipeline,
            "_replace",
            (
                "    self._pending.revoke(replaced)\n",
                "    self._pending.revoke(replaced)\n"
                "    for index in replaced:\n"
                "        self._pending.on_ack(list(self._pending)[:1], index)\n",
            ),
        ),
    ),
    Mutation(
        name="the_first_bookie_is_not_fenced",
        rule="7.2",
        defects=(),
        invariants=("W6", "W11"),
        description="the first member of the ensemble is not fenced, and counted as if it were",
        apply=lambda: edited(
            LedgerRecovery,
            "_fence_one",
            (
                "    frame = await ask(\n",
                "    if bookie_id == self._ledger.metadata.last_fragment.bookies[0]:\n"
                "        return -1\n"
                "    frame = await ask(\n",
            ),
        ),
    ),
    Mutation(
        name="recovery_closes_with_the_length_at_the_lac",
        rule="8.1 step 8",
        defects=("D27",),
        invariants=("I7",),
        description="recovery closes behind the tail with the length that the LAC had",
        apply=lambda: edited(
            LedgerRecovery,
            "_recover_tail",
            (
                "last_entry_id, length = entries[-1].entry_id, entries[-1].length\n",
                "last_entry_id = entries[-1].entry_id\n",
            ),
        ),
    ),
    Mutation(
        name="fence_of_an_unknown_ledger_is_not_written",
        rule="7.4",
        defects=(),
        invariants=("I18", "I19"),
        description="a bookie that never saw the ledger confirms the fence, and writes no record",
        apply=lambda: edited(
            FenceRequests,
            "after_fence",
            (
                "    if ledger.request_fence():\n",
                "    if not ledger.is_key_journalled and ledger.fence is FenceState.OPEN:\n"
                "        ledger.fence = FenceState.DURABLE\n"
                "    if ledger.request_fence():\n",
            ),
        ),
    ),
    Mutation(
        name="ledgers_with_a_fence_on_its_way_are_evicted",
        rule="7.4",
        defects=(),
        description="a descriptor is evicted while its fence is on the way to the journal",
        tests=(
            "tests/unit/bookie/test_ledger_table_bound.py::"
            "test_a_fence_stays_in_the_table_until_it_is_durable",
        ),
        apply=lambda: edited(
            LedgerDescriptor,
            "is_settled",
            ("self.fence in (FenceState.OPEN, FenceState.DURABLE)", "True"),
        ),
    ),
    Mutation(
        name="a_bookies_lac_moves_back",
        rule="2.4",
        defects=(),
        description="a bookie takes the LAC that it was told last, also a lower one",
        tests=("tests/unit/bookie/test_fencing.py::test_2_4_a_last_add_confirmed_never_goes_back",),
        apply=lambda: edited(
            LedgerTable,
            "raise_last_add_confirmed",
            ("if value <= descriptor", "if value == descriptor"),
        ),
    ),
    Mutation(
        name="fenced_is_taken_for_a_failed_bookie",
        rule="7.1",
        defects=("D19",),
        description="an add that is refused as fenced has the bookie replaced",
        apply=lambda: edited(
            AddPipeline,
            "_on_error_reply",
            ("if is_member and reply.status == Status.FENCED:", "if False:"),
        ),
    ),
]
