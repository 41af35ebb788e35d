"""The rules of a recovered tail: in what order, with which LAC, and when it is the ledger's end."""

from collections.abc import Iterator
from contextlib import contextmanager

from magnetar.ledger.recovering.recovery_reads import RecoveryReads
from magnetar.ledger.recovering.write_back import WriteBack
from magnetar.ledger.recovery import LedgerRecovery
from tests.simulation.mutations.mutation import Mutation, edited


@contextmanager
def _gaps_are_skipped() -> Iterator[None]:
    """What was read ahead of a gap is recovered, as its own entries."""
    with (
        edited(
            RecoveryReads,
            "_take",
            (
                "    return await task",
                "    found = await task\n"
                "    while not found and self._ahead:\n"
                "        found = await self._ahead.popleft()[1]\n"
                "    return found",
            ),
        ),
        edited(
            LedgerRecovery,
            "_recover_tail",
            (
                "            if entries[0].entry_id != last_entry_id + 1:  # D28\n",
                "            entries = [\n"
                "                each._replace(entry_id=last_entry_id + 1 + number)\n"
                "                for number, each in enumerate(entries)\n"
                "            ]\n"
                "            if entries[0].entry_id != last_entry_id + 1:  # D28\n",
            ),
        ),
    ):
        yield


MUTATIONS: list[Mutation] = [
    Mutation(
        name="recovery_adds_advance_the_lac",
        rule="8.3",
        defects=("D21",),
        invariants=("I5", "I6"),
        description="a recovery add tells the LAC just below it, before the ledger's end is fixed",
        apply=lambda: edited(
            WriteBack,
            "send",
            (
                "packets = self._codec.reseal(self._last_add_confirmed, entries)",
                "packets = [\n"
                "        packet\n"
                "        for entry in entries\n"
                "        for packet in self._codec.reseal(entry.entry_id - 1, [entry])\n"
                "    ]",
            ),
        ),
    ),
    Mutation(
        name="gaps_in_the_tail_are_skipped",
        rule="8.1",
        defects=("D28",),
        invariants=("I1", "I7"),
        description="entries behind a missing one are recovered, and move up into its place",
        apply=_gaps_are_skipped,
    ),
    Mutation(
        name="closed_before_the_tail_is_written_back",
        rule="8.1 step 8",
        defects=(),
        invariants=("I1", "I10"),
        description="recovery closes the ledger while its tail is still on the way",
        apply=lambda: edited(
            LedgerRecovery, "_recover_tail", ("await write_back.wait_pending(0)", "pass")
        ),
    ),
    Mutation(
        name="tail_is_not_written_back",
        rule="8.1 step 6",
        defects=(),
        invariants=("I1", "I10"),
        description="recovery takes what one bookie has, and brings it to no other",
        apply=lambda: edited(LedgerRecovery, "_recover_tail", ("write_back.send(entries)", "pass")),
    ),
    Mutation(
        name="one_negative_ends_the_ledger",
        rule="8.1 step 5",
        defects=("D5",),
        invariants=("I1", "I9"),
        description="a single bookie that does not have the entry is enough to end the ledger",
        apply=lambda: edited(
            RecoveryReads,
            "_read",
            ("while negatives < self._negatives_needed:", "while negatives < 1:"),
        ),
    ),
    Mutation(
        name="loser_keeps_its_own_end",
        rule="8.1 step 9",
        defects=("D21",),
        invariants=("I3", "I4"),
        description="a recovery that finds the ledger closed reports the end that it had found",
        apply=lambda: edited(
            LedgerRecovery,
            "_close",
            (
                "            return metadata  # another",
                "            from dataclasses import replace\n"
                "            return replace(metadata, last_entry_id=last_entry_id)  # another",
            ),
        ),
    ),
    Mutation(
        name="length_is_that_of_the_tail",
        rule="10",
        defects=("D27",),
        invariants=("I7",),
        description="recovery counts the ledger's length from the tail alone",
        apply=lambda: edited(
            LedgerRecovery,
            "run",
            ("length = await self._length_at(snapshot, last_add_confirmed)", "length = 0"),
        ),
    ),
    Mutation(
        name="recovery_without_in_recovery",
        rule="8.1 step 2",
        defects=("D3",),
        invariants=("I11", "I12"),
        description="recovery fences and closes a ledger that its metadata still calls OPEN",
        apply=lambda: edited(
            LedgerRecovery,
            "_start",
            ("if metadata.state is not LedgerState.OPEN:", "if True:"),
        ),
    ),
]
