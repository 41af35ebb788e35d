"""The rules of scalable topics, each switched off.

Rules are named by their numbers in the sheet of Pulsar 5, section 8.4. What a record must hold is
checked by the record itself, too: where a mutation breaks that, the check is off as well.
"""

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager

from magnetar.broker.features.scalable import changes, record
from magnetar.broker.features.scalable.assignment import SegmentAssignment
from magnetar.broker.features.scalable.coordinators import _Coordinator
from magnetar.broker.features.scalable.record_layouts import _RecordLayout
from magnetar.broker.features.scalable.scalable_topics import ScalableTopics
from magnetar.broker.features.scalable.whole_subscriptions import WholeSubscriptions
from magnetar.broker.policies import records
from magnetar.broker.protocol.consuming import Attacher
from magnetar.broker.protocol.layout_sessions import LayoutSessions
from magnetar.broker.topic.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.topic.dispatch.keys import KeyBook
from magnetar.broker.topics import segment_owners
from magnetar.broker.topics.creation import TopicCreation
from magnetar.broker.topics.opening import TopicOpener
from magnetar.broker.topics.segment_owners import OwnSegments, SegmentOwnersAnywhere
from magnetar.ledger.metadata.cell import Cell, V
from magnetar.sdk.wire import TopicName
from tests.simulation.mutations.mutation import Mutation, edited, replaced
from tests.simulation.scalable.plan import ScalablePlan

Apply = Callable[[], AbstractContextManager[None]]


def all_of(*parts: Apply) -> Apply:
    """Return what makes several changes at once."""

    @contextmanager
    def apply() -> Iterator[None]:
        with ExitStack() as stack:
            for each in parts:
                stack.enter_context(each())
            yield

    return apply


def _unchecked(*parts: Apply) -> Apply:
    """Changes, and records that nobody checks."""

    def no_fault(_record: record.ScalableTopicRecord) -> str:
        return ""

    return all_of(
        lambda: replaced(record, "fault_of", no_fault),
        lambda: replaced(changes, "fault_of", no_fault),
        *parts,
    )


class _BlindCell(Cell[V]):
    """Writes whatever version is there."""

    async def _write(self, data: bytes | None, version: int | None) -> int | None:
        found = await self._get()
        return await super()._write(data, found[1] if found is not None else None)


async def _no_copies(
    self: ScalableTopics,
    topic: TopicName,
    change: record.PendingChange,
    parents: Collection[TopicName],
    names: Mapping[TopicName, Collection[str]],
    carried: Mapping[TopicName, Collection[str]],
) -> None:
    return None


async def _any_segment(self: TopicCreation, name: TopicName) -> None:
    return None


@asynccontextmanager
async def _not_held_back(
    self: WholeSubscriptions,
    topic: TopicName,
    subscription: str,
    *,
    only: int | None = None,
) -> AsyncIterator[None]:
    yield


async def _not_told(self: SegmentOwnersAnywhere, topic: TopicName, subscription: str) -> None:
    return None


def _nobody_carries_on(self: _RecordLayout) -> None:
    return None


_LAYOUTS: list[Mutation] = [
    Mutation(
        name="halves_overlap",
        rule="S3",
        defects=(),
        invariants=("S3",),
        description="the halves of a split have one hash in common",
        apply=_unchecked(
            lambda: edited(
                changes, "begin_split", ("(parent.hash_start, at - 1)", "(parent.hash_start, at)")
            )
        ),
    ),
    Mutation(
        name="keys_go_before_the_parents_end",
        rule="S4",
        defects=(),
        invariants=("S4",),
        description="a change is committed without an end of the parents",
        apply=lambda: edited(
            ScalableTopics,
            "_take_steps",
            (
                "names = await self._seal(parents)",
                "names = {each: await self._subscriptions(each) for each in parents}",
            ),
        ),
    ),
    Mutation(
        name="records_are_overwritten",
        rule="S5",
        defects=(),
        invariants=("S5", "S6", "S13"),
        description="a record is written whatever version is stored",
        apply=lambda: replaced(records, "Cell", _BlindCell),
    ),
    Mutation(
        name="one_parent_is_sealed",
        rule="S5",
        defects=(),
        invariants=("S5",),
        description="the commit of a merge seals one of the parents",
        apply=_unchecked(
            lambda: edited(
                changes,
                "commit",
                ("if each.id in change.parents", "if each.id == change.parents[0]"),
            )
        ),
    ),
    Mutation(
        name="epochs_stand_still",
        rule="S6",
        defects=(),
        invariants=("S6",),
        description="pruning keeps the epoch",
        apply=lambda: edited(
            changes, "prune", ('"epoch": record.epoch + 1', '"epoch": record.epoch')
        ),
    ),
    Mutation(
        name="layouts_are_told_again",
        rule="S6",
        defects=(),
        invariants=("S6",),
        description="a session is told the layout whenever the record is written",
        apply=lambda: edited(
            LayoutSessions,
            "_look",
            ("elif what is Change.GROWN and now is not None:", "elif now is not None:"),
        ),
    ),
    Mutation(
        name="ids_are_given_twice",
        rule="S13",
        defects=(),
        invariants=("S13",),
        description="a change does not use its ids up",
        apply=_unchecked(
            lambda: edited(
                changes,
                "_begun",
                ('"next_segment_id": first_id + len(ranges)', '"next_segment_id": first_id'),
            )
        ),
    ),
    Mutation(
        name="nobody_carries_on",
        rule="S9",
        defects=(),
        invariants=("L1", "S8", "S7"),
        description="a change whose broker has died stays as it is",
        apply=lambda: replaced(_RecordLayout, "_carry_on", _nobody_carries_on),
    ),
]

_SUBSCRIPTIONS: list[Mutation] = [
    Mutation(
        name="children_are_given_at_once",
        rule="S1",
        defects=(),
        invariants=("S1", "K1"),
        description="stream consumers are given children before the parents are drained",
        apply=lambda: edited(
            SegmentAssignment,
            "_ready",
            (
                "all(ready[each] and each in self._drained for each in known)",
                "True",
            ),
        ),
    ),
    Mutation(
        name="sealed_counts_as_drained",
        rule="S1",
        defects=(),
        invariants=("S1", "S8"),
        description="the owner of a sealed segment says that it is drained, with a backlog",
        apply=lambda: edited(
            OwnSegments, "is_drained", ("return found.cursor.backlog_entries == 0", "return True")
        ),
    ),
    Mutation(
        name="buckets_move_at_once",
        rule="S10",
        defects=(),
        invariants=("E1", "K1"),
        description="a bucket that goes to another consumer does not wait for the former one",
        apply=all_of(
            lambda: edited(
                KeySharedDispatcher,
                "_send_slice",
                ("key.waiting or key.holder not in (None, owner)", "key.waiting"),
            ),
            lambda: edited(
                KeyBook, "_can_go", ("(self._is_unordered or not key.is_draining)", "True")
            ),
        ),
    ),
    Mutation(
        name="subscriptions_of_the_last_moment_stay_closed",
        rule="S7",
        defects=(),
        invariants=("S7", "S8"),
        description="children that are loaded ahead do not open what was carried since",
        apply=lambda: edited(
            TopicOpener, "catch_up", ("if name not in topic.subscriptions", "if False")
        ),
    ),
    Mutation(
        name="subscriptions_stay_behind",
        rule="S7",
        defects=(),
        invariants=("S7",),
        description="the children do not get the subscriptions of the parents",
        apply=lambda: replaced(ScalableTopics, "_carry", _no_copies),
    ),
    Mutation(
        name="seeks_hold_nothing_back",
        rule="S15",
        defects=(),
        invariants=("S15",),
        description="a subscription goes back on sealed segments while others have the children",
        apply=lambda: replaced(WholeSubscriptions, "_held_back", _not_held_back),
    ),
    Mutation(
        name="drained_stays_drained",
        rule="S15",
        defects=(),
        invariants=("S15",),
        description="a segment on which a subscription goes back counts as drained still",
        apply=lambda: edited(
            SegmentAssignment,
            "_undrain",
            ("self._drained.clear()", "pass"),
            ("self._drained.discard(segment_id)", "pass"),
        ),
    ),
    Mutation(
        name="new_coordinators_know_no_holds",
        rule="S15",
        defects=(),
        invariants=("S15",),
        description="a coordinator that begins while a subscription goes back does not heed it",
        apply=lambda: edited(
            _Coordinator,
            "prepare",
            (
                "held=self._held(layout)",
                "held=self._given_up.update((each.id, None) for each in layout.holds) or {}",
            ),
        ),
    ),
    Mutation(
        name="holds_are_heard_of_late",
        rule="S15",
        defects=(),
        invariants=("S15",),
        description="nobody tells a coordinator of a hold before the subscription goes back",
        apply=lambda: replaced(SegmentOwnersAnywhere, "hold_back", _not_told),
    ),
    Mutation(
        name="readers_begin_at_the_end",
        rule="C9",
        defects=(),
        invariants=("Q1",),
        description="a reader that names a message begins at the end of the segment",
        apply=lambda: edited(
            Attacher,
            "_initial_position",
            (
                "if start <= topic.log.last_confirmed:\n            return start, ()",
                "if start <= topic.log.last_confirmed:\n            return LATEST, ()",
            ),
        ),
    ),
]

_ENDS: list[Mutation] = [
    Mutation(
        name="pruned_with_a_backlog",
        rule="S14",
        defects=(),
        invariants=("S14", "S8"),
        description="a sealed segment is pruned though a subscription is not done with it",
        apply=lambda: edited(
            segment_owners,
            "is_used_up",
            ("if any(cursor.persisted_mark_delete < end for cursor in cursors):", "if False:"),
        ),
    ),
    Mutation(
        name="pruned_before_its_time",
        rule="S14",
        defects=(),
        invariants=("S14",),
        description="a sealed segment is pruned before retention is over",
        apply=lambda: edited(
            segment_owners,
            "is_used_up",
            (
                "return retention.size_bytes == 0 or INFINITE < retention.time_s < min(ages_s)",
                "return bool(ages_s) or bool(retention)",
            ),
        ),
    ),
    Mutation(
        name="pruned_before_its_parents",
        rule="S14",
        defects=(),
        invariants=("S14",),
        description="a sealed segment is pruned while its parents are there",
        apply=lambda: edited(
            changes,
            "prunable",
            ("each.is_sealed and known.isdisjoint(each.parents)", "each.is_sealed"),
        ),
    ),
    Mutation(
        name="pruned_segments_leave_their_logs",
        rule="S16",
        defects=(),
        invariants=("S5", "S16"),
        description="what is pruned is not named, so that nobody deletes its log",
        apply=lambda: edited(
            changes, "prune", ('"pruned": (*record.pruned, *gone)', '"pruned": record.pruned')
        ),
    ),
    Mutation(
        name="segments_come_back",
        rule="S16",
        defects=(),
        invariants=("S13", "S16"),
        description="a client that knows a segment which is gone has it created again",
        apply=lambda: replaced(TopicCreation, "_check_segment", _any_segment),
    ),
    Mutation(
        name="stored_and_not_answered",
        rule="S18",
        defects=(),
        invariants=("S18", "K2"),
        description="producers of a segment that ends are closed before what they sent is answered",
        apply=lambda: edited(
            segment_owners,
            "terminate",
            (
                "topic.line.is_terminating = True\n",
                "topic.line.is_terminating = True\n"
                "    for producer in list(topic.producers.values()):\n"
                "        producer.close_by_broker()\n",
            ),
        ),
    ),
]

MUTATIONS = (*_LAYOUTS, *_SUBSCRIPTIONS, *_ENDS)

_PRUNED = (
    "epochs_stand_still",
    "pruned_with_a_backlog",
    "pruned_before_its_parents",
    "pruned_segments_leave_their_logs",
    "segments_come_back",
)
_SOUGHT = ("seeks_hold_nothing_back", "drained_stays_drained", "holds_are_heard_of_late")
_MOVED = frozenset({"unload", "crash_broker", "stop_broker", "expire"})


def mutation(name: str) -> Mutation:
    """The mutation of a name."""
    return next(each for each in MUTATIONS if each.name == name)


def may_notice(name: str, plan: ScalablePlan) -> bool:
    """Whether a plan has what the rule is about."""
    if name in _PRUNED:
        return plan.prunes
    if name in _SOUGHT:
        return "seek" in plan.kinds
    match name:
        case "new_coordinators_know_no_holds":
            return "seek" in plan.kinds and bool(plan.kinds & _MOVED)
        case "pruned_before_its_time":
            return plan.prunes and plan.keeps_min > 0
        case "one_parent_is_sealed":
            return "merge" in plan.kinds
        case "nobody_carries_on":
            return bool(plan.kinds & {"crash_writer", "crash_broker"})
        case "subscriptions_stay_behind" | "subscriptions_of_the_last_moment_stay_closed":
            return "late_away" in plan.kinds
        case "buckets_move_at_once":
            return "rebucket" in plan.kinds
        case "readers_begin_at_the_end":
            return plan.has_reader and "restart_reader" in plan.kinds
        case _:
            return True
