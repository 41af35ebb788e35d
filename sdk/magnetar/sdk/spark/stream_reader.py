"""Reading topics in a streaming query.

Spark keeps one process on the driver for each streaming query. It calls all methods of
`StreamReader` except `read`, which runs on executors. The checkpoint is the truth: after a restart
Spark may first ask for the slices between two offsets of its log. The state of the previous process
is gone then.
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
"""Limit that Spark gets in place of the source's own limits; Spark only passes it back."""


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """Return the reader of a streaming query.

    Raises:
        OptionError
    """
    return StreamReader(SourceOptions.read(options, is_stream=True), schema)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query: on the driver with all its state, on executors with `read` alone."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._driver: SourceDriver | None = None
        self._hold: Hold | None = None
        self._value_schema: ValueSchema | None = None
        self._states: dict[str, TopicState] = {}
        """Topics of the last look, for the slices that are planned right after it."""
        self._target: dict[str, MessageId] | None = None
        """End of a query that reads what is available now."""
        self._beginning: dict[str, Any] | None = None
        """The initial offset that Spark got."""
        self._began_at: Mapping[str, MessageId] | None = None
        self._planned_from: Mapping[str, MessageId] | None = None
        """Start of the last micro-batch that this process has planned."""
        self._planned_end: Mapping[str, MessageId] | None = None
        self._done_through: Mapping[str, MessageId] | None = None
        """The last end that Spark has reported by `commit`."""
        self._left: dict[str, MessageId] = {}
        """Segments that no offset names any more, with the positions to release them at: their
        ends."""
        self._has_released = False
        """Whether segments that earlier processes left behind were looked up."""
        self._clock: Clock = SystemClock()
        self._new_at_s = self._clock.monotonic_s()
        """Time of the last new data."""
        self._delay = BatchDelay(options.limits, self._clock)
        self._read_to: Mapping[str, MessageId] = {}
        """End of the last micro-batch that was returned; for the lag."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for executors, without what only a driver has."""
        return {"_options": self._options, "_schema": self._schema}

    # On the driver

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of the query.

        Spark does not log this offset, but asks again when it runs the first micro-batch. The
        answer must be the same, or a query that begins at the end would miss messages in between. A
        process that restarts within that micro-batch has lost the answer. A query that begins at
        the end then begins at the new end. One subscription retains everything from the first time
        on.
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
                return start  # Spark compares the whole offset to see whether there is new data
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
        """Return the lag for the progress of the query; Spark does not use it otherwise."""
        return report_of(self._states, self._read_to) if self._states else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with one_line_errors():
            begun, ended = QueryOffset.from_json(start), QueryOffset.from_json(end)
            driver = self._started()
            if self._planned_from is None and not self._states:
                self._began_at = begun.topics  # after a restart, from Spark's log
            self._planned_from, self._planned_end = begun.topics, ended.topics
            if begun.subscription != ended.subscription:
                begun = self._restarted(begun, ended)
            states = self._states
            if any(
                name not in states or reach(states[name].end) < reach(through)
                for name, through in ended.topics.items()
            ):
                # After a restart: another process has planned these offsets.
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
        # Imported here: the driver, whose process is a new one for each query, never reads.
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
        """Adopt the subscription of a first micro-batch that another process has planned.

        Its end was logged with the subscription of that process. The subscription of the new
        beginning is not needed.
        """
        if not self._options.subscription:
            self._held(begun.subscription).drop({**begun.topics, **begun.removed_through})
        return replace(begun, subscription=ended.subscription)

    def _limited(
        self,
        states: Mapping[str, TopicState],
        starts: Mapping[str, MessageId],
        ends: Mapping[str, MessageId],
    ) -> Mapping[str, MessageId]:
        """Return the end of the next micro-batch; its start if the micro-batch waits for more data.

        Data in segments that wait for others counts: those others get no more. A query that reads
        what is available now never waits: more data may never come.
        """
        limits = self._options.limits
        if self._target is None and limits.has_minimum:
            every = {name: max(starts[name], each.end, key=reach) for name, each in states.items()}
            if self._delay.puts_off(in_sum(unread(states, starts, every))):
                self._new_at_s = self._clock.monotonic_s()  # The query is not idle.
                return {name: starts[name] for name in ends}
        return limited_ends(states, starts, ends, limits) if limits.has_maximum else ends

    def _release_left(self, done: QueryOffset, hold: Hold) -> None:
        """Release segments that were read to their ends and are not named any more.

        Those of earlier processes are looked up once: a crash may have come before their commit.
        """
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
        """Release everything if the query has read everything and is idle.

        The `commit` of its last micro-batch comes only when there is another one, and a backlog
        quota by age may prevent that for ever.

        Spark asks for the offset after a micro-batch once it has logged that the micro-batch is
        done. With asynchronous progress tracking it asks earlier; `commit` then only confirms some
        earlier micro-batch. The start of the last micro-batch must therefore be known to be done.
        """
        if self._planned_from not in (None, self._done_through, self._began_at):
            return
        idle_s = self._clock.monotonic_s() - self._new_at_s
        # With the trigger that reads what is available now, this is the last look for a long time.
        if self._target is None and idle_s < self._options.idle_release_s:
            self._release_done(begun, states)
            return
        read = {name: at for name, at in begun.topics.items() if name in states}
        hold = self._held(begun.subscription)
        hold.release(read, is_idle=True)
        self._release_left(begun, hold)

    def _release_done(self, done: QueryOffset, states: Mapping[str, TopicState]) -> None:
        """Release a micro-batch that is done, except for what the next one may need of it.

        An idle query does so as soon as the micro-batch is logged; the later `commit` then finds
        nothing to do. A subscription at the end of that micro-batch may be there because of this
        method. So a topic is released completely only if the micro-batch had nothing of it.
        """
        hold = self._held(done.subscription)
        is_last = done.topics == self._planned_end
        moved = {}
        for name, through in done.topics.items():
            if name not in states:
                continue
            if name in done.ended:  # No chunked message continues in another segment.
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
            driver,
            states,
            self._options,
            bytes_do=wants_bytes_only(self._schema),
            columns=self._schema.names,
        )
        value_columns(self._schema, self._value_schema)

    def _looked(
        self, begun: QueryOffset, *, epochs: Mapping[str, int] | None = None
    ) -> dict[str, TopicState]:
        """Return the topics as they are now, and retain what the query needs of them from here on.

        Args:
            epochs: lowest epochs of layouts, beside those of the offset.

        Raises:
            DataLossError: a topic was deleted, or trimmed, or is no longer selected, and the
                options do not allow it.
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
        """Check that everything the query has not read still exists.

        Raises:
            DataLossError: unread data is gone, or its topic is no longer selected.
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
        """Return the start of each topic; new topics and partitions are read from their
        beginning."""
        return {name: begun.topics.get(name, BEFORE_FIRST) for name in states}

    def _end(self, state: TopicState) -> MessageId:
        if self._target is None:
            return state.end
        return min(state.end, self._target.get(state.name, BEFORE_FIRST), key=reach)

    def _check_reaches(
        self, begun: QueryOffset, ended: QueryOffset, states: Mapping[str, TopicState]
    ) -> None:
        """Check that topics reach as far as the end of a micro-batch.

        Raises:
            DataLossError: a topic ends before the position in the checkpoint. A topic without any
                entry has lost nothing of this micro-batch if the micro-batch has nothing of it.
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
    """Return an offset with the facts that later reveal losses after it."""
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
    """Return, for each topic, the last ledger that had been trimmed when the topic was first
    seen."""
    return {name: (known or {}).get(name, states[name].removed_through) for name in names}


def _waiting(
    driver: SourceDriver, states: Mapping[str, TopicState], ends: Mapping[str, MessageId]
) -> list[str]:
    """Return segments that begin later, and have messages or may get some."""
    return [
        name
        for order in driver.orders.values()
        for name in order.unread(ends.keys())
        if name not in ends and name in states and not is_empty_for_good(states[name])
    ]


def _without_passed(driver: SourceDriver, begun: QueryOffset, ended: QueryOffset) -> QueryOffset:
    """Return the end of a micro-batch without segments that are before its start.

    Its start may be later than planned, if another process has planned the first micro-batch of a
    query.
    """
    passed = {name for each in driver.orders.values() for name in each.passed(begun.topics.keys())}
    kept = {name: at for name, at in ended.topics.items() if name not in passed}
    return replace(ended, topics=kept)


def _epochs(driver: SourceDriver) -> dict[str, int]:
    return {name: order.epoch for name, order in driver.orders.items()}


def _check_kept(state: TopicState, begun: QueryOffset, stands_at: MessageId | None) -> None:
    """Check that nothing after the offset of a topic is gone.

    Raises:
        DataLossError: something after the offset is gone.
    """
    through, left = begun.topics[state.name], begun.entries_left.get(state.name, 0)
    if through.ledger_id < 0:
        # Ledgers that were gone when this was logged were never part of the query.
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
        # All of it may be after an open transaction. But trimming leaves the last ledger that holds
        # anything: with the subscription gone as well, this is another topic.
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
    # The ledger was trimmed. That is expected if the query had read all of it: its subscription has
    # then released the ledger, and is at the position of the checkpoint, or at the next ledger.
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
