"""Reading topics in a streaming query.

Spark keeps one process on the driver for each streaming query, which calls all of `StreamReader`
but `read`; that runs on executors. The checkpoint is the truth: after a restart Spark may ask for
the slices between two offsets of its log before it asks anything else, and what the process knew
before is gone.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from magnetar.arrow.stored.driver import SourceDriver
from magnetar.arrow.stored.hold import Hold
from magnetar.arrow.stored.offsets import BEFORE_FIRST, reach, shown_id
from magnetar.arrow.stored.planning import entries_left, limited_ends, releasable, unread
from magnetar.arrow.stored.segment_offsets import done_names
from magnetar.arrow.stored.segment_order import Begun
from magnetar.arrow.stored.slices import ValueSchema
from magnetar.arrow.stored.source_options import SourceOptions
from magnetar.arrow.stored.topic_states import TopicState
from magnetar.arrow.stored.trigger_limits import BatchDelay, in_sum
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.ports import Clock, SystemClock
from magnetar.sdk.spark.errors import DataLossError, one_line_errors
from magnetar.sdk.spark.kept_segments import (
    check_gone,
    check_new,
    check_read,
    check_waiting,
    is_empty_for_good,
)
from magnetar.sdk.spark.lag import report_of
from magnetar.sdk.spark.partitions import partition_of, slices_of
from magnetar.sdk.spark.query_columns import value_columns, wants_bytes_only
from magnetar.sdk.spark.query_offset import QueryOffset
from magnetar.sdk.spark.query_schema import query_values

_LIMITED = (1 << 63) - 1
"""Stands for limits of our own in what Spark is told of them: it only hands it back."""


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """The reader of a streaming query.

    Raises:
        OptionError
    """
    return StreamReader(SourceOptions.read(options, is_stream=True), schema)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query: on the driver with everything, on executors with `read` alone."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._driver: SourceDriver | None = None
        self._hold: Hold | None = None
        self._value_schema: ValueSchema | None = None
        self._states: dict[str, TopicState] = {}
        """Of the last look, for the slices that are planned right after it."""
        self._target: dict[str, MessageId] | None = None
        """Where a query that takes what is available now will end."""
        self._beginning: dict[str, Any] | None = None
        """What Spark was told of the beginning of the query."""
        self._began_at: Mapping[str, MessageId] | None = None
        self._planned_from: Mapping[str, MessageId] | None = None
        """Where the last micro-batch began that this process has planned."""
        self._planned_end: Mapping[str, MessageId] | None = None
        self._done_through: Mapping[str, MessageId] | None = None
        """As Spark has said last, by `commit`."""
        self._left: dict[str, MessageId] = {}
        """Segments that no offset names any more, to be released at these places: their ends."""
        self._has_released = False
        """What offsets of earlier processes do not name any more was looked at."""
        self._clock: Clock = SystemClock()
        self._new_at_s = self._clock.monotonic_s()
        """When there was something new last."""
        self._delay = BatchDelay(options.limits, self._clock)
        self._read_to: Mapping[str, MessageId] = {}
        """Where the micro-batch ends that was last spoken of; for the lag."""

    def __getstate__(self) -> dict[str, Any]:
        """For executors: without what only a driver has."""
        return {"_options": self._options, "_schema": self._schema}

    # On the driver

    def initialOffset(self) -> dict[str, Any]:
        """Spark does not log this, but asks again when it runs the first micro-batch: it gets the
        same answer, or a query that begins at the end would pass over what came in between. A
        process that is restarted in that micro-batch has no answer of before: a query that begins
        at the end begins behind it then. One subscription holds all from the first time on.
        """
        if self._beginning is not None:
            return self._beginning
        with one_line_errors():
            driver = self._started()
            states = driver.topics()
            self._check_schema(driver, states)
            starts, ended, later = driver.beginning(states)
            waiting = [name for name in later if not is_empty_for_good(states[name])]
            places = {**starts, **dict.fromkeys(waiting, BEFORE_FIRST)}
            if self._hold is None:
                number = random.SystemRandom().getrandbits(48)
                random_name = f"{self._options.subscription_prefix}-{number:012x}"
                self._hold = Hold(driver.admin, self._options.subscription or random_name)
            name = self._hold.subscription
            self._hold.keep(
                {
                    topic: (through, (states[topic].mark_deletes or {}).get(name))
                    for topic, through in places.items()
                    if topic not in ended
                }
            )
            self._began_at = starts
            offset = _offset(states, starts, name, removed=_removed(states, waiting))
            self._beginning = replace(offset, ended=ended, epochs=_epochs(driver)).to_json()
            return self._beginning

    def getDefaultReadLimit(self) -> ReadLimit:
        limits = self._options.limits
        if limits.has_maximum or limits.has_minimum:
            return ReadMaxRows(_LIMITED)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        with one_line_errors():
            states = self._started().topics(missing_ok=True)
            self._target = {name: state.end for name, state in states.items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with one_line_errors():
            begun = QueryOffset.from_json(start)
            states = self._looked(begun)
            starts = self._starts(begun, states)
            driver = self._started()
            names = driver.next_names(begun.topics, begun.ended, states)
            ends: Mapping[str, MessageId] = {
                name: max(starts[name], self._end(states[name]), key=reach)
                for name in states
                if name in names
            }
            if not isinstance(limit, ReadAllAvailable):
                ends = self._limited(states, starts, ends)
            self._read_to = {**begun.topics, **ends}
            ended = frozenset(name for name in done_names(ends, states) if driver.order_of(name))
            if ends == begun.topics and ended == begun.ended:
                self._release_idle(begun, states)
                return start  # Spark compares the whole of it to see whether there is anything new
            self._new_at_s = self._clock.monotonic_s()
            self._left.update(
                (name, states[name].end)
                for name in begun.topics.keys() - ends.keys()
                if name in states
            )
            cuts = driver.cuts(states, starts, ends)
            joined = driver.joined(states, starts, ends, cuts)
            waiting = _waiting(driver, states, ends)
            removed = _removed(states, waiting, begun.removed_through)
            offset = _offset(states, ends, begun.subscription, cuts, joined, removed)
            return replace(offset, ended=ended, epochs=_epochs(driver)).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """For the progress of the query alone: nobody reads this back."""
        return report_of(self._states, self._read_to) if self._states else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with one_line_errors():
            begun, ended = QueryOffset.from_json(start), QueryOffset.from_json(end)
            driver = self._started()
            if self._planned_from is None and not self._states:
                self._began_at = begun.topics  # after a restart, with what Spark has logged
            self._planned_from, self._planned_end = begun.topics, ended.topics
            if begun.subscription != ended.subscription:
                begun = self._restarted(begun, ended)
            states = self._states
            if any(
                name not in states or reach(states[name].end) < reach(through)
                for name, through in ended.topics.items()
            ):
                # After a restart: these offsets were planned by a process that is gone.
                states = self._looked(begun, epochs=ended.epochs)
            ended = _without_passed(driver, begun, ended)
            self._check_reaches(begun, ended, states)
            starts = self._starts(begun, states)
            if self._value_schema is None:
                self._check_schema(driver, states)
            assert self._value_schema is not None
            ends = {name: at for name, at in ended.topics.items() if name in states}
            cuts = {**driver.cuts(states, starts, ends), **ended.slice_entries}
            tasks = driver.tasks(states, starts, ends, self._value_schema, cuts, ended.joined)
            return [partition_of(each) for each in tasks]

    def commit(self, end: dict[str, Any]) -> None:
        with one_line_errors():
            done = QueryOffset.from_json(end)
            self._release_done(done, self._states)
            self._done_through = done.topics

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    # On executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Here, not above: the driver, whose process is a new one for each query, never reads.
        from magnetar.sdk.spark.tasks import read_slices

        return read_slices(self._schema, slices_of(partition))

    # Parts of the above

    def _started(self) -> SourceDriver:
        if self._driver is None:
            self._driver = SourceDriver(self._options)
        return self._driver

    def _held(self, subscription: str) -> Hold:
        if self._hold is None or self._hold.subscription != subscription:
            self._hold = Hold(self._started().admin, subscription)
        return self._hold

    def _restarted(self, begun: QueryOffset, ended: QueryOffset) -> QueryOffset:
        """Of a first micro-batch that another process has planned: its end was logged with the
        subscription of then. The one that came with the beginning is not needed."""
        if not self._options.subscription:
            self._held(begun.subscription).drop({**begun.topics, **begun.removed_through})
        return replace(begun, subscription=ended.subscription)

    def _limited(
        self,
        states: Mapping[str, TopicState],
        starts: Mapping[str, MessageId],
        ends: Mapping[str, MessageId],
    ) -> Mapping[str, MessageId]:
        """Where the next micro-batch ends; where it begins, if it waits for more.

        What is in segments that wait for others counts as there: these others get no more. A query
        that takes what is available now waits for nothing: more need not come.
        """
        limits = self._options.limits
        if self._target is None and limits.has_minimum:
            every = {name: max(starts[name], each.end, key=reach) for name, each in states.items()}
            if self._delay.puts_off(in_sum(unread(states, starts, every))):
                self._new_at_s = self._clock.monotonic_s()  # It is not idle.
                return {name: starts[name] for name in ends}
        return limited_ends(states, starts, ends, limits) if limits.has_maximum else ends

    def _release_left(self, done: QueryOffset, hold: Hold) -> None:
        """Hold nothing of segments that were read to their ends and are named no more. Those of
        earlier processes are looked at once: a crash may have come before their commit."""
        driver = self._started()
        passed = {
            name for order in driver.orders.values() for name in order.passed(done.topics.keys())
        }
        passed -= done.topics.keys()
        if not self._has_released:
            self._has_released = True
            earlier = driver.topics(missing_ok=True) if passed - self._left.keys() else {}
            for name in passed & earlier.keys():
                stands_at = (earlier[name].mark_deletes or {}).get(done.subscription)
                if stands_at is not None:
                    self._left.setdefault(name, earlier[name].end)
        released = {name: at for name, at in self._left.items() if name in passed}
        hold.release(released)
        for name in released:
            del self._left[name]

    def _release_idle(self, begun: QueryOffset, states: Mapping[str, TopicState]) -> None:
        """Hold nothing of a query that has read everything: `commit` of its last micro-batch comes
        when there is another one, and a backlog quota by age may keep that from ever coming.

        Spark asks for what is behind a micro-batch when it has logged that this is done. Not so
        when it tracks progress asynchronously; it has said then, by `commit`, no more than that
        some earlier one is. So where the last one began must be known to be done.
        """
        if self._planned_from not in (None, self._done_through, self._began_at):
            return
        idle_s = self._clock.monotonic_s() - self._new_at_s
        # By the trigger that takes what is available now, this is the last look for long.
        if self._target is None and idle_s < self._options.idle_release_s:
            self._release_done(begun, states)
            return
        read = {name: at for name, at in begun.topics.items() if name in states}
        hold = self._held(begun.subscription)
        hold.release(read, is_idle=True)
        self._release_left(begun, hold)

    def _release_done(self, done: QueryOffset, states: Mapping[str, TopicState]) -> None:
        """Release a micro-batch that is done, but for what the next one may need of it. An idle
        query does so as soon as it is logged; `commit`, which comes later, finds nothing to do.

        Where a subscription stands at the end of that micro-batch, it may be this that has put it
        there: all goes free only of a topic that the micro-batch had nothing of.
        """
        hold = self._held(done.subscription)
        is_last = done.topics == self._planned_end
        moved = {}
        for name, through in done.topics.items():
            if name not in states:
                continue
            if name in done.ended:  # No message in chunks goes on in another segment.
                moved[name] = through
                continue
            place = releasable(states[name], hold.stands_at(name), through)
            if is_last:
                assert self._planned_from is not None
                was_idle = self._planned_from.get(name) == through
            else:
                was_idle = self._done_through is not None
            if was_idle or place != through:
                moved[name] = place
        hold.release(moved)
        self._release_left(done, hold)

    def _check_schema(self, driver: SourceDriver, states: Mapping[str, TopicState]) -> None:
        self._value_schema = query_values(
            driver, states, self._options, bytes_do=wants_bytes_only(self._schema)
        )
        value_columns(self._schema, self._value_schema)

    def _looked(
        self, begun: QueryOffset, *, epochs: Mapping[str, int] | None = None
    ) -> dict[str, TopicState]:
        """The topics as they are now; what the query needs of them is held from here on.

        Args:
            epochs: of layouts that must be known at least, beside those of the offset.

        Raises:
            DataLossError: a topic was deleted, or trimmed, or is not named any more, and that is
                not allowed.
        """
        driver = self._started()
        seen = Begun(begun.topics.keys(), {**begun.epochs, **(epochs or {})})
        states = driver.topics(missing_ok=True, begun=seen)
        hold = self._held(begun.subscription)
        kept: dict[str, tuple[MessageId, MessageId | None]] = {}
        for name, state in states.items():
            stands_at = (state.mark_deletes or {}).get(begun.subscription)
            if name not in begun.ended and not is_empty_for_good(state):
                kept[name] = begun.topics.get(name, BEFORE_FIRST), stands_at
        if self._options.settings.fail_on_data_loss:
            self._check_there(driver, begun, states)
        hold.keep(kept)
        self._states = states
        return states

    def _check_there(
        self, driver: SourceDriver, begun: QueryOffset, states: Mapping[str, TopicState]
    ) -> None:
        """
        Raises:
            DataLossError: something that the query has not read is gone, or is not named any more.
        """
        for name, through in begun.topics.items():
            if name in begun.ended:
                continue
            state = states.get(name)
            if state is not None:
                stands_at = (state.mark_deletes or {}).get(begun.subscription)
                _check_kept(state, begun, stands_at)
                continue
            if not driver.selects(name):
                raise DataLossError(
                    f"{name}: the options no longer name this topic, and the query has read it "
                    f"up to {shown_id(through)}. Name it again, or set failOnDataLoss to false "
                    f"to go on without it; then delete its subscription {begun.subscription}, "
                    "which retains its messages"
                )
            order = driver.order_of(name)
            if order is None:
                raise DataLossError(
                    f"{name}: the topic was deleted; the query has read it up to "
                    f"{shown_id(through)}. Set failOnDataLoss to false to go on without it"
                )
            check_gone(name, begun, order, states)
        for order in driver.orders.values():
            check_new(order, begun, states)
        check_waiting(begun, states, driver.orders.values())

    def _starts(self, begun: QueryOffset, states: Mapping[str, TopicState]) -> dict[str, MessageId]:
        """Topics and partitions that are new are read from their beginning."""
        return {name: begun.topics.get(name, BEFORE_FIRST) for name in states}

    def _end(self, state: TopicState) -> MessageId:
        if self._target is None:
            return state.end
        return min(state.end, self._target.get(state.name, BEFORE_FIRST), key=reach)

    def _check_reaches(
        self, begun: QueryOffset, ended: QueryOffset, states: Mapping[str, TopicState]
    ) -> None:
        """
        Raises:
            DataLossError: a topic ends before what the checkpoint says was there. One without any
                entry has lost nothing of this batch if the batch has nothing of it.
        """
        if not self._options.settings.fail_on_data_loss:
            return
        for name, through in ended.topics.items():
            state = states.get(name)
            if state is None:
                check_read(name, begun, through)
                continue
            if reach(state.end) >= reach(through):
                continue
            if state.end != BEFORE_FIRST:
                raise DataLossError(
                    f"{name}: it ends at {shown_id(state.end)}, and the checkpoint says "
                    f"{shown_id(through)}: it is another topic of the same name"
                )
            if reach(begun.topics.get(name, BEFORE_FIRST)) < reach(through):
                raise DataLossError(
                    f"{name}: it is empty, and the checkpoint says that it had messages up to "
                    f"{shown_id(through)}: it was truncated, or deleted and created again. Set "
                    "failOnDataLoss to false to go on"
                )


def _offset(
    states: Mapping[str, TopicState],
    topics: Mapping[str, MessageId],
    subscription: str,
    slice_entries: Mapping[str, int] | None = None,
    joined: Mapping[str, int] | None = None,
    removed: Mapping[str, int] | None = None,
) -> QueryOffset:
    """With what will tell later whether something behind it is gone."""
    waiting = {name: BEFORE_FIRST for name in removed or () if name in states}
    left = {name: entries_left(states[name], at) for name, at in {**waiting, **topics}.items()}
    return QueryOffset(
        topics,
        subscription,
        slice_entries or {},
        entries_left={name: count for name, count in left.items() if count},
        removed_through={
            **(removed or {}),
            **_removed(states, [name for name, at in topics.items() if at == BEFORE_FIRST]),
        },
        joined=joined or {},
    )


def _removed(
    states: Mapping[str, TopicState], names: Iterable[str], known: Mapping[str, int] | None = None
) -> dict[str, int]:
    """The last ledger that had been removed of each topic when it was first seen."""
    return {name: (known or {}).get(name, states[name].removed_through) for name in names}


def _waiting(
    driver: SourceDriver, states: Mapping[str, TopicState], ends: Mapping[str, MessageId]
) -> list[str]:
    """Segments with messages, or with messages to come, that are begun later."""
    return [
        name
        for order in driver.orders.values()
        for name in order.unread(ends.keys())
        if name not in ends and name in states and not is_empty_for_good(states[name])
    ]


def _without_passed(driver: SourceDriver, begun: QueryOffset, ended: QueryOffset) -> QueryOffset:
    """The end of a micro-batch without segments that lie before where it begins: its beginning may
    be a later one, when another process has planned the first micro-batch of a query."""
    passed = {name for each in driver.orders.values() for name in each.passed(begun.topics.keys())}
    kept = {name: at for name, at in ended.topics.items() if name not in passed}
    return replace(ended, topics=kept)


def _epochs(driver: SourceDriver) -> dict[str, int]:
    return {name: order.epoch for name, order in driver.orders.items()}


def _check_kept(state: TopicState, begun: QueryOffset, stands_at: MessageId | None) -> None:
    """
    Raises:
        DataLossError: something behind the offset of the topic is gone.
    """
    through, left = begun.topics[state.name], begun.entries_left.get(state.name, 0)
    if through.ledger_id < 0:
        # What had gone when this was logged was no part of the query.
        removed_then = begun.removed_through.get(state.name, state.removed_through)
        if state.removed_through > removed_then:
            raise DataLossError(
                f"{state.name}: ledger {state.removed_through} was trimmed, and the query has read "
                f"nothing of the topic yet. Set failOnDataLoss to false to go on with what is left"
            )
        return
    if state.removed_through > through.ledger_id:
        raise DataLossError(
            f"{state.name}: ledger {state.removed_through} was trimmed, and the query has read the "
            f"topic up to {shown_id(through)}. Set failOnDataLoss to false to go on with what is "
            f"left"
        )
    if not state.ledgers:
        # All of it may be behind an open transaction. But trimming leaves the last ledger that
        # holds anything: with the subscription gone as well, this is another topic.
        if stands_at is None:
            raise DataLossError(
                f"{state.name}: it is empty, and has no subscription of the query, which has read "
                f"it up to {shown_id(through)}: it was truncated, or deleted and created again. "
                "Set failOnDataLoss to false to go on"
            )
        return
    known = {each.ledger_id: each.entries for each in state.ledgers}
    if through.ledger_id in known or through.ledger_id > state.ledgers[-1].ledger_id:
        return
    # Its ledger was trimmed. That is as it should be if the query had read all of it: then its
    # subscription has let it go, and stands where the checkpoint does, or at the next ledger.
    if left:
        raise DataLossError(
            f"{state.name}: ledger {through.ledger_id} was trimmed, and the query has read it up "
            f"to {shown_id(through)}: {left} later entries are lost. Set failOnDataLoss to false "
            "to go on with what is left"
        )
    if stands_at is not None and reach(stands_at) <= max(
        reach(through), (state.first_ledger_id, 0, -1)
    ):
        return
    raise DataLossError(
        f"{state.name}: it begins with ledger {state.first_ledger_id} now, and the query has read "
        f"it up to {shown_id(through)}: everything between was trimmed. Set failOnDataLoss to "
        "false to go on with what is left"
    )
