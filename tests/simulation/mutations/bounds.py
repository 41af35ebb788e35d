"""The rules of missing copies and of bounded memory."""

from magnetar.ledger.channel import BookieChannel
from magnetar.ledger.under_replication import RepairQueue
from magnetar.ledger.writer import LedgerWriter
from magnetar.ledger.writing.add_pipeline import AddPipeline
from magnetar.ledger.writing.follow_up import WriteQuorumFollowUp
from tests.simulation.mutations.mutation import Mutation, edited

MUTATIONS: list[Mutation] = [
    Mutation(
        name="missed_adds_are_forgotten",
        rule="4.5",
        defects=("D22",),
        invariants=("W5",),
        description="a copy beyond the ack quorum that failed is neither made nor recorded",
        apply=lambda: edited(LedgerWriter, "_on_missed", ("self._parts.follow_up.take(", "(")),
    ),
    Mutation(
        name="failures_before_the_release_are_forgotten",
        rule="4.5",
        defects=("D22",),
        invariants=("W5",),
        description="a copy that failed before its add was confirmed is not made up for",
        apply=lambda: edited(AddPipeline, "_release", ("if add.failed:", "if False:")),
    ),
    Mutation(
        name="holes_are_not_published",
        rule="4.5",
        defects=("D22",),
        invariants=("W5",),
        description="a copy that could not be made in time is not recorded",
        apply=lambda: edited(RepairQueue, "note", ("ranges.append((first, last))", "return")),
    ),
    Mutation(
        name="channels_are_not_bounded",
        rule="4.6",
        defects=("D29",),
        invariants=(),
        description="what a slow bookie has not answered is kept without limit",
        apply=lambda: edited(
            BookieChannel,
            "send",
            (
                "if self._outstanding_bytes + size > self._settings.channel_bytes_max "
                "and self._requests:",
                "if False:",
            ),
        ),
    ),
    Mutation(
        name="pending_adds_are_not_bounded",
        rule="4.6",
        defects=("D29",),
        invariants=(),
        description="a ledger takes adds without limit while nothing is confirmed",
        apply=lambda: edited(
            LedgerWriter,
            "append",
            ("if self.pending_bytes + size > self._settings.pending_bytes_max:", "if False:"),
        ),
    ),
    Mutation(
        name="follow_up_is_not_bounded",
        rule="4.6",
        defects=("D29",),
        invariants=(),
        description="what is kept for a second try has no limit",
        apply=lambda: edited(
            WriteQuorumFollowUp,
            "take",
            ("if self.kept_bytes + size > self._bytes_max:", "if False:"),
        ),
    ),
]
