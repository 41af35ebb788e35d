"""Plans reads: topics, positions, slices.

Planning finds all errors that can be known before a slice is read.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from magnetar.arrow.stored.admin_client import AdminClient
from magnetar.arrow.stored.errors import DataLossError, OffsetError
from magnetar.arrow.stored.object_options import ObjectOptions
from magnetar.arrow.stored.offsets import BEFORE_FIRST, StartingOffsets, before, reach, shown_id
from magnetar.arrow.stored.planning import (
    EntryRange,
    SlicePlan,
    entries_between,
    joined_topics,
    plan_slices,
    slice_entries,
)
from magnetar.arrow.stored.scalable_states import ScalableStates
from magnetar.arrow.stored.segment_offsets import (
    begins_behind,
    begun_by,
    done_names,
    with_segments,
)
from magnetar.arrow.stored.segment_order import Begun, SegmentOrder
from magnetar.arrow.stored.slices import (
    LedgerPart,
    ObjectPart,
    Slice,
    ValueSchema,
)
from magnetar.arrow.stored.source_options import SourceOptions
from magnetar.arrow.stored.topic_schema import (
    BrokerSchemas,
    SchemaSource,
    with_versions,
)
from magnetar.arrow.stored.topic_states import TopicState, TopicStates
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.scalable.names import is_scalable_name
from magnetar.sdk.wire.topic_name import TopicName

if TYPE_CHECKING:
    from magnetar.arrow.stored.ledger_directory import LedgerDirectory
    from magnetar.arrow.stored.stored_topics import StoredTopics


_NOTHING_BEGUN = Begun()


class Beginning(NamedTuple):
    """The start of a streaming query."""

    starts: dict[str, MessageId]
    """Topics of the first offset, with the last entry of each that is *not* read."""
    ended: frozenset[str]
    """Segments among them with nothing left to read."""
    waiting: frozenset[str]
    """Segments that begin later, after the segments before them were read."""


class SourceDriver:
    """One query's view of its topics. For one thread.

    Methods raise, beside what is named:
        UnreachableError: a broker or the metadata store does not answer.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._admin: AdminClient | None = None
        self._stored: StoredTopics | None = None
        self._directory: LedgerDirectory | None = None
        self._states: TopicStates | StoredTopics
        self._scalable: ScalableStates | None = None
        self.schemas: SchemaSource
        """Source of the topics' schemas."""
        if options.objects is not None:
            self._stored = self._states = self.schemas = _stored_topics(options, options.objects)
        else:
            self._admin = AdminClient(options.connection)
            self._states = TopicStates(
                self._admin,
                options.selection,
                counts_messages=options.limits.counts_messages,
            )
            if options.selection.scalable is not None:
                self._scalable = ScalableStates(
                    self._admin,
                    options.selection.scalable,
                    allows_loss=not options.settings.fail_on_data_loss,
                    counts_messages=options.limits.counts_messages,
                )
            self.schemas = BrokerSchemas(self._admin)

    @property
    def admin(self) -> AdminClient:
        """Client of the brokers' administration interface. A query of objects alone has none."""
        assert self._admin is not None, "the query asks no broker"
        return self._admin

    def close(self) -> None:
        if self._admin is not None:
            self._admin.close()
        if self._stored is not None:
            self._stored.close()
        if self._directory is not None:
            self._directory.close()
            self._directory = None

    def topics(
        self, *, missing_ok: bool = False, hold_s: int = 0, begun: Begun = _NOTHING_BEGUN
    ) -> dict[str, TopicState]:
        """Return the topics as they are now; of scalable topics, the segments not fully read by
        `begun`.

        For `hold_s` seconds the brokers keep the topics although no client connects.

        Raises:
            TopicNotFoundError
            DataLossError: a scalable topic was deleted and created again.
        """
        states = self._states.read(missing_ok=missing_ok, hold_s=hold_s)
        if self._scalable is not None:
            states.update(self._scalable.read(begun, missing_ok=missing_ok, hold_s=hold_s))
        return states

    @property
    def orders(self) -> Mapping[str, SegmentOrder]:
        """The scalable topics at the last look, by `topic://` name."""
        return self._scalable.orders if self._scalable is not None else {}

    def order_of(self, name: str) -> SegmentOrder | None:
        """Return the scalable topic of a segment, as it was at the last look."""
        if self._scalable is None:
            return None
        return self._scalable.order_of(TopicName.parse(name))

    def selects(self, name: str) -> bool:
        """Return whether the options select this topic."""
        if self._states.selects(name):
            return True
        return self._scalable is not None and self._scalable.selects(TopicName.parse(name))

    def starts(self, states: Mapping[str, TopicState]) -> dict[str, MessageId]:
        """Return the start of the query: offsets, the last entry that is *not* read.

        Raises:
            OffsetError: the options do not fit the topics.
            DataLossError: the start was trimmed.
        """
        options = self.options
        if options.starting_subscription:
            segments = {name for order in self.orders.values() for name in order.names}
            return _behind_subscription(states, options.starting_subscription, segments)
        if options.starting_times:
            times = _times_of("startingTime", options.starting_times, states)
            return {**dict.fromkeys(states, BEFORE_FIRST), **self._since(states, times)}
        if options.starting_ms is not None:
            return self._states.first_since(states, options.starting_ms)
        starting = self._starting(states)
        return {
            name: self._start("startingOffsets", state, starting.of(name))
            for name, state in states.items()
        }

    def beginning(self, states: Mapping[str, TopicState]) -> Beginning:
        """Return the start of a streaming query.

        It is as `starts`; of scalable topics it has the segments that can be read first. Their
        children follow later, from their beginning.

        Raises:
            As `starts`; OffsetError also: a segment is to be read from a position on, and so is one
            of its descendants.
        """
        starts = self.starts(states)
        if not self.orders:
            return Beginning(starts, frozenset(), frozenset())
        if self._begins_by_offsets:
            starting = self._starting(states)
            return Beginning(*begun_by(self.orders.values(), states, starts, starting))
        found = Beginning(
            *begun_by(self.orders.values(), states, starts, StartingOffsets("earliest"))
        )
        self._check_waiting(states, starts, found.waiting)
        return found

    def _check_waiting(
        self,
        states: Mapping[str, TopicState],
        starts: Mapping[str, MessageId],
        waiting: Collection[str],
    ) -> None:
        """Check that segments that begin later are read from their first message.

        Raises:
            OffsetError: one of them is to be read from another position on. This does not apply to
                a time for all topics: earlier messages in such a segment come from a slow clock.
        """
        options = self.options
        for name in sorted(waiting):
            if options.starting_subscription:
                option = "startingSubscription"
            elif name in options.starting_times:
                option = "startingTime"
            else:
                continue
            before, _ = entries_between(states[name], BEFORE_FIRST, starts[name])
            if before:
                raise OffsetError(
                    f"option {option}: {name} is to be read behind {shown_id(starts[name])}, and a "
                    "segment before it is not read to its end; a stream reads it when all before "
                    "it was, from its first message. Begin by startingOffsets"
                )

    def next_names(
        self,
        begun: Mapping[str, MessageId],
        ended: Collection[str],
        states: Mapping[str, TopicState],
    ) -> set[str]:
        """Return the topics of the query's next offset: all but segments that cannot be read yet,
        or are done.

        Args:
            begun: the previous offset.
            ended: segments that are known to be read to their ends.
        """
        names = set(states)
        done = done_names(begun, states).union(ended)
        for order in self.orders.values():
            names.difference_update(order.names)
            names |= order.step(begun, done) & states.keys()
        return names

    @property
    def _begins_by_offsets(self) -> bool:
        """Whether `startingOffsets` determines where the query begins."""
        options = self.options
        return not (
            options.starting_subscription
            or options.starting_times
            or options.starting_ms is not None
        )

    def _starting(self, states: Mapping[str, TopicState]) -> StartingOffsets:
        """Return `startingOffsets`, with scalable topics replaced by their segments.

        Raises:
            OffsetError, DataLossError: it names a topic or segment that does not exist.
        """
        starting = self._of_segments("startingOffsets", self.options.starting, states)
        for order in self.orders.values():
            starting = begins_behind(starting, order)
        return starting

    def _of_segments(
        self, option: str, offsets: StartingOffsets, states: Mapping[str, TopicState]
    ) -> StartingOffsets:
        offsets = with_segments(offsets, self.orders.values())
        gone = [name for name in offsets.topics if name not in states and self._was_segment(name)]
        if gone and self.options.settings.fail_on_data_loss:
            raise DataLossError(
                f"option {option}: {gone[0]} is not in the layout of its topic any more: all of it "
                "was deleted. Name a later segment, or set failOnDataLoss to false"
            )
        offsets = replace(
            offsets, topics={name: at for name, at in offsets.topics.items() if name not in gone}
        )
        _check_names(option, offsets, states)
        return offsets

    def _was_segment(self, name: str) -> bool:
        if self._scalable is None or is_scalable_name(name):
            return False
        topic = TopicName.parse(name)
        return topic.is_segment and self._scalable.selects(topic)

    def ends(self, states: Mapping[str, TopicState]) -> dict[str, MessageId]:
        """Return the end of a batch query: offsets, the last entry that is read.

        Raises:
            OffsetError: the options do not fit the topics, or the query ends before it begins.
            DataLossError: the end was trimmed.
        """
        options = self.options
        if options.ending_times:
            times = _times_of("endingTime", options.ending_times, states)
            behind = {name: time_ms + 1 for name, time_ms in times.items()}
            last = {name: state.end for name, state in states.items()}
            return {**last, **self._since(states, behind)}
        if options.ending_ms is not None:
            # The first message after that time is the first that is not read.
            return self._states.first_since(states, options.ending_ms + 1)
        ending = self._of_segments("endingOffsets", options.ending, states)
        found = {}
        for name, state in states.items():
            at = ending.of(name)
            if at is None or at == MessageId.LATEST:
                found[name] = state.end
            elif at == MessageId.EARLIEST:
                found[name] = BEFORE_FIRST
            else:
                self._check_there("endingOffsets", state, at)
                _check_order(name, options.starting.of(name), at)
                found[name] = at
        return found

    def cuts(
        self,
        states: Mapping[str, TopicState],
        starts: Mapping[str, MessageId],
        ends: Mapping[str, MessageId],
    ) -> dict[str, int]:
        """Return the number of entries per slice, by topic."""
        size = self.options.slice_bytes
        return {
            name: slice_entries(states[name], starts[name], end, slice_bytes=size)
            for name, end in ends.items()
            if name in states
        }

    def joined(
        self,
        states: Mapping[str, TopicState],
        starts: Mapping[str, MessageId],
        ends: Mapping[str, MessageId],
        cuts: Mapping[str, int],
    ) -> dict[str, int]:
        """Group small topics for one task: topic -> number of the task; see `joined_topics`."""
        size = self.options.slice_bytes
        return joined_topics(states, starts, ends, cuts, slice_bytes=size)

    def tasks(
        self,
        states: Mapping[str, TopicState],
        starts: Mapping[str, MessageId],
        ends: Mapping[str, MessageId],
        value_schema: ValueSchema,
        cuts: Mapping[str, int],
        joined: Mapping[str, int],
    ) -> list[tuple[Slice, ...]]:
        """Return the tasks that read from `starts` to `ends`.

        Slices have as many entries as `cuts` says; those of `joined` topics share a task.

        Raises:
            DataLossError: a ledger was deleted meanwhile, and the options do not allow it.
        """
        groups: dict[object, list[Slice]] = {}
        for number, each in enumerate(self.slices(states, starts, ends, value_schema, cuts)):
            task = joined.get(each.topic)
            groups.setdefault(("alone", number) if task is None else ("joined", task), []).append(
                each
            )
        return [tuple(group) for group in groups.values()]

    def slices(
        self,
        states: Mapping[str, TopicState],
        starts: Mapping[str, MessageId],
        ends: Mapping[str, MessageId],
        value_schema: ValueSchema,
        cuts: Mapping[str, int] | None = None,
    ) -> list[Slice]:
        """Return the slices from `starts` to `ends`; `cuts` has their number of entries.

        `value_schema` makes the columns. The schema versions of the messages are looked up here.

        Raises:
            DataLossError: a ledger was deleted meanwhile, and the options do not allow it.
        """
        cuts = {**self.cuts(states, starts, ends), **(cuts or {})}
        plans = [
            plan
            for name, end in sorted(ends.items())
            if name in states
            for plan in plan_slices(states[name], starts[name], end, entries_max=cuts[name])
        ]
        schemas = self._value_schemas(plans, value_schema)
        if self.options.objects is not None:
            return [self._object_slice(each, states, schemas[each.topic]) for each in plans]
        if not self.options.reads_bookies:
            return [self._broker_slice(plan, schemas[plan.topic]) for plan in plans]
        return self._bookie_slices(plans, states, schemas)

    def _value_schemas(
        self, plans: list[SlicePlan], value_schema: ValueSchema
    ) -> dict[str, ValueSchema]:
        """Return the schema with its versions, for each topic or partition."""
        topics = {plan.topic: TopicName.parse(plan.topic).partitioned for plan in plans}
        found = with_versions(self.schemas, topics.values(), value_schema)
        return {name: found[topic] for name, topic in topics.items()}

    def _bookie_slices(
        self,
        plans: list[SlicePlan],
        states: Mapping[str, TopicState],
        schemas: Mapping[str, ValueSchema],
    ) -> list[Slice]:
        if not plans:
            return []
        # Imported here: this is most of what a process has to load, and queries that only need
        # columns, or read through brokers, do without it.
        from magnetar.arrow.stored.ledger_directory import LedgerDirectory, ledger_part

        if self._directory is None:
            self._directory = LedgerDirectory(self.options.metadata_url)
        wanted = {each.ledger_id for plan in plans for each in plan.ranges}
        wanted.update(ledger_id for plan in plans for ledger_id, _ in plan.before)
        known = self._directory.read(wanted)
        found = []
        for plan in plans:
            parts = []
            objects = _objects_of(states[plan.topic])
            for each in plan.ranges:
                metadata = known.get(each.ledger_id)
                if metadata is not None:
                    aborted = states[plan.topic].aborted.get(each.ledger_id, b"")
                    part = ledger_part(metadata, each.first, each.last, aborted)
                    parts.append(replace(part, object=objects.get(each.ledger_id)))
                elif each.ledger_id in objects:
                    parts.append(_object_part(each, objects[each.ledger_id], states[plan.topic]))
                elif self.options.settings.fail_on_data_loss:
                    raise DataLossError(
                        f"{plan.topic}: ledger {each.ledger_id} was deleted while the query was "
                        f"planned; set failOnDataLoss to false to go on with what is left"
                    )
            earlier = tuple(
                ledger_part(known[ledger_id], 0, last)
                if ledger_id in known
                else LedgerPart(ledger_id, 0, last, object=objects[ledger_id])
                for ledger_id, last in plan.before
                if ledger_id in known or ledger_id in objects
            )
            if not parts:
                continue
            bookies = {
                bookie
                for part in (*parts, *earlier)
                for ensemble in part.ensembles
                for bookie in ensemble.bookies
            }
            found.append(
                Slice(
                    plan.topic,
                    plan.partition,
                    tuple(parts),
                    before=earlier,
                    is_cut_off=plan.is_cut_off or len(earlier) < len(plan.before),
                    addresses=self._directory.addresses(bookies),
                    skip_through_batch_index=plan.skip_through_batch_index,
                    stop_at_batch_index=plan.stop_at_batch_index,
                    settings=self.options.settings,
                    value_schema=schemas[plan.topic],
                )
            )
        return found

    def _object_slice(
        self, plan: SlicePlan, states: Mapping[str, TopicState], value_schema: ValueSchema
    ) -> Slice:
        state = states[plan.topic]
        objects = _objects_of(state)
        return Slice(
            plan.topic,
            plan.partition,
            tuple(_object_part(each, objects[each.ledger_id], state) for each in plan.ranges),
            before=tuple(
                LedgerPart(ledger_id, 0, last, object=objects[ledger_id])
                for ledger_id, last in plan.before
            ),
            is_cut_off=plan.is_cut_off,
            skip_through_batch_index=plan.skip_through_batch_index,
            stop_at_batch_index=plan.stop_at_batch_index,
            settings=self.options.settings,
            value_schema=value_schema,
        )

    def _broker_slice(self, plan: SlicePlan, value_schema: ValueSchema) -> Slice:
        return Slice(
            plan.topic,
            plan.partition,
            tuple(LedgerPart(each.ledger_id, each.first, each.last) for each in plan.ranges),
            before=tuple(LedgerPart(each, 0, last) for each, last in plan.before),
            is_cut_off=plan.is_cut_off,
            skip_through_batch_index=plan.skip_through_batch_index,
            stop_at_batch_index=plan.stop_at_batch_index,
            settings=self.options.settings,
            value_schema=value_schema,
        )

    def _since(
        self, states: Mapping[str, TopicState], times: Mapping[str, int]
    ) -> dict[str, MessageId]:
        """Return the offset before the first message of each of these topics since its own time."""
        found: dict[str, MessageId] = {}
        for time_ms in sorted(set(times.values())):
            some = {name: states[name] for name, each_ms in times.items() if each_ms == time_ms}
            found.update(self._states.first_since(some, time_ms))
        return found

    def _start(self, option: str, state: TopicState, at: MessageId | None) -> MessageId:
        if at is None or at == MessageId.EARLIEST:
            return BEFORE_FIRST
        if at == MessageId.LATEST:
            return state.end
        self._check_there(option, state, at)
        return before(at)

    def _check_there(self, option: str, state: TopicState, at: MessageId) -> None:
        _check_reached(option, state, at)
        if at.ledger_id < state.first_ledger_id and self.options.settings.fail_on_data_loss:
            raise DataLossError(
                f"option {option}: {state.name}: message {shown_id(at)} was trimmed; the topic "
                f"begins with ledger {state.first_ledger_id} now: give a later message, or set "
                "failOnDataLoss to false"
            )


def _stored_topics(options: SourceOptions, objects: ObjectOptions) -> "StoredTopics":
    # Imported here: other queries do without it, and it has to load much.
    from magnetar.arrow.stored.stored_topics import StoredTopics

    return StoredTopics(
        objects,
        options.selection,
        skips_holes=not options.settings.fail_on_data_loss,
        key_file=options.settings.object_key_file,
    )


def _objects_of(state: TopicState) -> dict[int, ObjectPart]:
    """Return the objects of a topic's ledgers, by ledger."""
    found = {}
    for each in state.ledgers:
        if each.object is not None:
            store, key = each.object
            found[each.ledger_id] = ObjectPart(state.stores.get(store, ""), key)
    return found


def _object_part(wanted: EntryRange, found: ObjectPart, state: TopicState) -> LedgerPart:
    aborted = state.aborted.get(wanted.ledger_id, b"")
    return LedgerPart(wanted.ledger_id, wanted.first, wanted.last, aborted=aborted, object=found)


def _behind_subscription(
    states: Mapping[str, TopicState], subscription: str, segments: Collection[str]
) -> dict[str, MessageId]:
    """Return the positions up to which a subscription has acknowledged everything.

    A segment that has ended without the subscription counts as read: subscriptions are not carried
    over to segments that were sealed before.

    Raises:
        OffsetError: a topic has no such subscription.
    """
    found: dict[str, MessageId] = {}
    for name, state in states.items():
        place = (state.mark_deletes or {}).get(subscription)
        if place is None and name in segments and (state.has_ended or state.mark_deletes is None):
            place = state.end  # Of an unused segment: before its first message.
        elif place is None and state.is_there:
            raise OffsetError(
                f"option startingSubscription: {name} has no subscription {subscription}: begin by "
                f"startingOffsets or startingTime, or read the topics that have it"
            )
        found[name] = place or BEFORE_FIRST
    return found


def _times_of(
    option: str, times: Mapping[str, int], states: Mapping[str, TopicState]
) -> dict[str, int]:
    """Return the times of the topics that have one: a partition's or segment's own, or its topic's.

    Raises:
        OffsetError: a time is of a topic that the query does not read.
    """
    found: dict[str, int] = {}
    used: set[str] = set()
    for name in states:
        whole = TopicName.parse(name).partitioned
        for known in (name, str(whole), f"topic://{whole.namespace_name}/{whole.local_name}"):
            if known in times:
                found.setdefault(name, times[known])
                used.add(known)
    unknown = sorted(set(times) - used)
    if unknown:
        known_names = ", ".join(sorted(states)[:5])
        raise OffsetError(
            f"option {option}: {unknown[0]} is not among the topics of the query, which are "
            f"{known_names}{' …' if len(states) > 5 else ''}"
        )
    return found


def _check_names(option: str, offsets: StartingOffsets, states: Mapping[str, TopicState]) -> None:
    unknown = sorted(set(offsets.topics) - set(states))
    if unknown:
        known = ", ".join(sorted(states)[:5])
        raise OffsetError(
            f"option {option}: {unknown[0]} is not among the topics of the query, which are "
            f"{known}{' …' if len(states) > 5 else ''}; partitions have names of their own"
        )


def _check_reached(option: str, state: TopicState, at: MessageId) -> None:
    if (at.ledger_id, at.entry_id) > (state.end.ledger_id, state.end.entry_id):
        raise OffsetError(
            f"option {option}: {state.name}: message {shown_id(at)} does not exist; the last one "
            f"is {shown_id(state.end)}"
        )


def _check_order(name: str, first: MessageId | None, last: MessageId) -> None:
    """Check that the options' first message does not come after their last one."""
    if first is None or first in (MessageId.EARLIEST, MessageId.LATEST):
        return
    if reach(last) < (first.ledger_id, first.entry_id, max(0, first.batch_index)):
        raise OffsetError(
            f"option endingOffsets: {name}: {shown_id(last)} is before {shown_id(first)}, where "
            f"startingOffsets begins"
        )
