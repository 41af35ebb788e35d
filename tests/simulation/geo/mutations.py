"""The rules of copying between clusters, each switched off.

Rules are named by their numbers in the geo-replication sheet. Where two rules cover one another,
both are off.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager

from magnetar.broker.features.replication import sending as sending_module
from magnetar.broker.features.replication.receiving import Receiving
from magnetar.broker.features.replication.replication import Replication
from magnetar.broker.features.replication.sending import Sending
from magnetar.broker.features.replication.source_marks import SourceMarks
from magnetar.broker.features.replication.subscriptions import received_updates
from magnetar.broker.features.replication.subscriptions.ack_exchange import AckExchange
from magnetar.broker.features.replication.subscriptions.origin_window import OriginWindow
from magnetar.broker.features.replication.subscriptions.origins import OriginIndex, _Run
from magnetar.broker.features.replication.subscriptions.received_updates import ReceivedUpdates
from magnetar.broker.features.replication.subscriptions.replicated_subscriptions import (
    ReplicatedSubscriptions,
)
from magnetar.broker.features.replication.subscriptions.snapshots import SnapshotTaking
from magnetar.broker.features.replication.window import SendWindow
from magnetar.broker.protocol.publishing import Publishing
from tests.simulation.geo.plan import GeoPlan
from tests.simulation.mutations.mutation import Mutation, edited

Apply = Callable[[], AbstractContextManager[None]]


def all_of(*changes: Apply) -> Apply:
    """Return what makes several changes at once."""

    @contextmanager
    def apply() -> Iterator[None]:
        with ExitStack() as stack:
            for each in changes:
                stack.enter_context(each())
            yield

    return apply


_COPIES: list[Mutation] = [
    Mutation(
        name="copies_come_twice",
        rule="18.5",
        defects=(),
        invariants=("G2",),
        description="the target stores a copy whatever its place at the source",
        apply=lambda: edited(SourceMarks, "accept", ("if position <= mark:", "if False:")),
    ),
    Mutation(
        name="what_follows_a_refused_copy_is_taken",
        rule="18.12a",
        defects=(),
        invariants=("G1",),
        description="behind a copy that was refused the target stores the next one",
        apply=all_of(
            lambda: edited(
                Publishing,
                "_reject",
                ("or naming.is_replicator(producer.name)", "or False"),
            ),
            lambda: edited(
                SourceMarks,
                "accept",
                ("if previous is not None and previous > mark:", "if False:"),
            ),
        ),
    ),
    Mutation(
        name="refused_copies_count_as_stored",
        rule="10.2",
        defects=(),
        invariants=("G1",),
        description="the source passes over a copy that the target refuses for good",
        apply=lambda: edited(
            sending_module._Session,
            "on_send_error",
            (
                "    self._fail(\n",
                "    if error.error == pb.NotAllowedError and self.window.awaited is not None:\n"
                "        self.window.receipt()\n"
                "        self._sending.progressed(self.window)\n"
                "    self._fail(\n",
            ),
        ),
    ),
    Mutation(
        name="marks_are_not_read_again",
        rule="18.6",
        defects=(),
        invariants=("G1", "G2", "GL1"),
        description="a topic that is loaded knows of copies what was saved, not what its log has",
        apply=lambda: edited(
            Receiving, "_begin", ("marks.replayed(copy.source, copy.place.position)", "pass")
        ),
    ),
    Mutation(
        name="marks_move_before_the_receipt",
        rule="18.7",
        defects=(),
        invariants=("G1", "GL1"),
        description="the source takes a copy for stored when it is sent",
        apply=lambda: edited(
            SendWindow,
            "send",
            (
                "self.previous = position",
                "self.previous = self.mark = self.receipted = position",
            ),
        ),
    ),
    Mutation(
        name="skipped_entries_are_named_as_sent",
        rule="18.7",
        defects=(),
        invariants=("GL1",),
        description="after a restart the next copy names an entry that was skipped as the one "
        "before it",
        apply=lambda: edited(
            Sending, "_save", ("sent_properties(window.receipted)", "sent_properties(window.mark)")
        ),
    ),
    Mutation(
        name="copies_travel_on",
        rule="18.9",
        defects=(),
        invariants=("G4", "GL1"),
        description="copies are copied",
        apply=lambda: edited(
            sending_module,
            "goes_to",
            ('if metadata.HasField("replicated_from"):', "if False:"),
        ),
    ),
    Mutation(
        name="lists_of_messages_are_ignored",
        rule="section 6",
        defects=(),
        invariants=("G5",),
        description="messages go to clusters that they do not name",
        apply=lambda: edited(
            sending_module,
            "goes_to",
            (
                "return not metadata.replicate_to or remote in metadata.replicate_to",
                "return True",
            ),
        ),
    ),
    Mutation(
        name="cursors_go_without_a_list",
        rule="2.2",
        defects=(),
        invariants=("G1",),
        description="a cursor is deleted while no list names any cluster",
        apply=lambda: edited(
            Replication,
            "_end",
            (
                "bool(self._topic.policies.replicated_to) and remote not in self._wanted()",
                "remote not in self._wanted()",
            ),
        ),
    ),
    Mutation(
        name="trimming_ignores_copies",
        rule="G4 of section 20",
        defects=(),
        invariants=("G1", "GL1"),
        description="what is not copied yet is trimmed",
        apply=lambda: edited(
            Replication, "cursors", ("return self._cursors.values()", "return ()")
        ),
    ),
    Mutation(
        name="lost_connections_wake_nobody",
        rule="17.8",
        defects=(),
        invariants=("GL1",),
        description="a sender that waits does not hear that its connection is lost",
        apply=lambda: edited(Sending, "lost", ("    self._news.set()\n", "")),
    ),
    Mutation(
        name="receipts_wake_nobody",
        rule="17.8",
        defects=(),
        invariants=("GL1",),
        description="a sender that waits for room does not hear of receipts",
        apply=lambda: edited(Sending, "progressed", ("    self._news.set()\n", "")),
    ),
]

_SUBSCRIPTIONS: list[Mutation] = [
    Mutation(
        name="snapshots_hold_before_their_responses",
        rule="section 11 step 3",
        defects=(),
        invariants=("GS1",),
        description="a snapshot counts for what stands before the last response",
        apply=lambda: edited(
            SnapshotTaking,
            "on_response",
            (
                "return Snapshot(pending.snapshot_id, position, pending.positions)",
                "return Snapshot(\n"
                "        pending.snapshot_id, Position(position.ledger_id, 0), pending.positions\n"
                "    )",
            ),
        ),
    ),
    Mutation(
        name="updates_pass_what_the_peer_never_had",
        rule="17.29",
        defects=(),
        invariants=("GS1",),
        description="an update acknowledges messages that the cluster that tells never had",
        apply=lambda: edited(ReceivedUpdates, "_reach", ("if stop is not None:", "if False:")),
    ),
    Mutation(
        name="updates_pass_what_was_there_before_copying_began",
        rule="17.29",
        defects=(),
        invariants=("GS1",),
        description="what was stored before copying began counts as copied",
        apply=lambda: edited(
            received_updates,
            "is_at_peer",
            ("if origin == here and not is_copied:", "if False:"),
        ),
    ),
    Mutation(
        name="markers_are_news",
        rule="17.20",
        defects=(),
        invariants=("GL2",),
        description="a snapshot is taken because markers were stored",
        apply=lambda: edited(ReplicatedSubscriptions, "stored", ("if batch.messages:", "if True:")),
    ),
    Mutation(
        name="news_of_others_are_nobodys",
        rule="section 11 step 3",
        defects=(),
        invariants=("GS2",),
        description="no snapshot follows when another cluster has got messages of a third one late",
        apply=lambda: edited(SnapshotTaking, "on_request", ("self._is_to_follow = True", "pass")),
    ),
    Mutation(
        name="snapshots_that_follow_are_followed",
        rule="17.20",
        defects=(),
        invariants=("GL2",),
        description="a snapshot that follows another one leads to one more, for ever",
        apply=lambda: edited(
            SnapshotTaking,
            "on_request",
            ("snapshot_id.endswith((FOLLOWING, SECOND_ROUND))", "False"),
        ),
    ),
]

_ACKS: list[Mutation] = [
    Mutation(
        name="runs_reach_over_what_is_not_here",
        rule="G11, 17.29",
        defects=(),
        invariants=("GS1",),
        description="copies that follow each other here share a run, whatever lies between them at "
        "their origin",
        apply=lambda: edited(
            _Run,
            "continues",
            (
                "and origin == Position(\n"
                "        self.origin_ledger_id, self.origin_entry_id + self.count\n"
                "    )",
                "",
            ),
        ),
    ),
    Mutation(
        name="copies_are_told_as_messages_of_this_cluster",
        rule="18.8",
        defects=(),
        invariants=("GS1", "GS3"),
        description="what is acknowledged is told by its position here, copy or not",
        apply=lambda: edited(
            OriginIndex,
            "_pieces",
            (
                "for source, runs in self._runs.items()",
                "for source, runs in self._runs.items() if source is None",
            ),
        ),
    ),
    Mutation(
        name="acknowledged_markers_are_told",
        rule="GL2 of section 20",
        defects=(),
        invariants=("GL2",),
        description="the acknowledgement of a marker is told by another marker",
        apply=lambda: edited(AckExchange, "marked", ("self._window is not None", "False")),
    ),
    Mutation(
        name="a_new_connection_is_not_told_what_others_were",
        rule="18.8",
        defects=(),
        invariants=("GS3",),
        description="what an owner lost that had not saved it is not told to the next one",
        apply=lambda: edited(
            AckExchange, "tell_again", ("self._telling_of(name).forget()", "pass")
        ),
    ),
    Mutation(
        name="what_was_there_before_is_not_read",
        rule="18.8",
        defects=(),
        invariants=("GS3",),
        description="a topic that is loaded knows the origins of new copies only",
        apply=lambda: edited(
            OriginWindow,
            "lacks",
            ("return before.entry_id >= 0 and", "return False and before.entry_id >= 0 and"),
        ),
    ),
]

MUTATIONS: list[Mutation] = [*_COPIES, *_SUBSCRIPTIONS, *_ACKS]

_BY_NAME = {each.name: each for each in MUTATIONS}
assert len(_BY_NAME) == len(MUTATIONS)


def mutation(name: str) -> Mutation:
    return _BY_NAME[name]


def _has(*kinds: str) -> Callable[[GeoPlan], bool]:
    return lambda plan: set(kinds) <= {step.what for step in plan.steps}


def _has_holes(plan: GeoPlan) -> bool:
    return _is_told(plan) and plan.ack_share < 1.0 and plan.ledger_entries == 100


def _is_told(plan: GeoPlan) -> bool:
    return bool(plan.consumers) and plan.topology in ("pair", "mesh")


def _comes_late(plan: GeoPlan) -> bool:
    """One of two clusters without a consumer gets late what the other one has."""
    is_late = any(
        step.what == "cut" and step.for_s > 0.4 and not {step.who, step.other} & {*plan.consumers}
        for step in plan.steps
    )
    is_judged = plan.topology == "mesh" and not plan.keeps_holes and not plan.changes_lists
    return bool(plan.consumers) and is_judged and is_late


def _forgets_acks(plan: GeoPlan) -> bool:
    """An owner that was told dies before it has saved that, and its successor does not read it."""
    dies = any(
        step.what == "crash_broker" and step.who not in plan.consumers for step in plan.steps
    )
    is_forgotten = plan.ack_persist_ms >= 1000 and plan.snapshot_entries == 1
    return plan.keeps_holes and is_forgotten and dies and not plan.changes_lists


def _anything(_: GeoPlan) -> bool:
    return True


_NEEDED: Mapping[str, Callable[[GeoPlan], bool]] = {
    "copies_travel_on": lambda plan: plan.topology == "pair",
    "what_follows_a_refused_copy_is_taken": _has("small_limit"),
    "refused_copies_count_as_stored": _has("small_limit"),
    "cursors_go_without_a_list": _has("no_list"),
    "trimming_ignores_copies": lambda plan: plan.trims,
    "snapshots_hold_before_their_responses": _has_holes,
    "updates_pass_what_the_peer_never_had": lambda plan: _is_told(plan) and plan.limited_share > 0,
    "updates_pass_what_was_there_before_copying_began": lambda plan: (
        _is_told(plan) and plan.changes_lists
    ),
    "markers_are_news": _is_told,
    "news_of_others_are_nobodys": _comes_late,
    "snapshots_that_follow_are_followed": lambda plan: _is_told(plan) and plan.topology == "mesh",
    "runs_reach_over_what_is_not_here": lambda plan: (
        _is_told(plan) and plan.kind == "shared" and plan.limited_share > 0
    ),
    "copies_are_told_as_messages_of_this_cluster": lambda plan: plan.keeps_holes,
    "acknowledged_markers_are_told": lambda plan: plan.keeps_holes,
    "a_new_connection_is_not_told_what_others_were": _forgets_acks,
    "what_was_there_before_is_not_read": _forgets_acks,
}


def may_notice(name: str, plan: GeoPlan) -> bool:
    """Return whether a plan has what a mutation needs to make a difference: others are not run."""
    return _NEEDED.get(name, _anything)(plan)
