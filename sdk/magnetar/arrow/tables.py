"""`table` and `changes`: the newest value of each key of a topic, whole or as a change feed.

The compacted ledger is read first, and then the topic after its horizon. Both come from one answer
of the topic's broker. Brokers trim nothing after the compaction's horizon, so there is no gap
between the two. The entries from the last one in the compacted ledger up to the horizon are read
again where they still exist. That changes nothing: what compaction removed of them was deleted, or
came again later.

Keys belong to their partition, as in compaction: a key in two partitions, or topics, is two rows. A
message with a key and without a value is a tombstone, and deletes its key.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import pyarrow as pa

from magnetar.arrow.change_token import Reached, check_unbroken, encode_token
from magnetar.arrow.compacted_ledger import NO_LEDGER, place_of_last
from magnetar.arrow.errors import (
    DataLossError,
    OptionError,
    SchemaMismatchError,
    UnreachableError,
)
from magnetar.arrow.newest_rows import NewestRows
from magnetar.arrow.reading import (
    HOLD_S,
    Batches,
    batches_in_order,
    open_driver,
    planned_columns,
    slice_order,
    warn_of_missing,
)
from magnetar.arrow.request import (
    ChangeArguments,
    Request,
    TableArguments,
    checked_changes,
    checked_table,
)
from magnetar.arrow.slice_jobs import SliceJob
from magnetar.arrow.stored.column_names import ERROR, KEY, MESSAGE_ID, TOPIC
from magnetar.arrow.stored.column_types import CHANGE, CHANGE_FIELD, all_columns
from magnetar.arrow.stored.driver import SourceDriver
from magnetar.arrow.stored.offsets import BEFORE_FIRST
from magnetar.arrow.stored.slices import Slice, ValueSchema
from magnetar.arrow.stored.topic_states import LedgerState, TopicState, state_of
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.wire.pulsar_pb2 import MessageIdData
from magnetar.sdk.wire.topic_name import TopicName

_log = logging.getLogger(__name__)

_PLANS_MAX = 5
"""Most attempts to read a table whose topic is compacted or trimmed meanwhile."""


def table(topic: str | Sequence[str], **arguments: Unpack[TableArguments]) -> pa.Table:
    """Return the newest value of each key of a topic, or of several with one schema, as an Arrow
    table.

    The table ends with the last message that is confirmed when the read begins, or shortly after.
    Messages without a key are not part of it; a message without a value deletes its key. Keys
    belong to their partition. A topic that was never compacted is read as a whole.

    Args:
        topic: a name, or several. A partitioned topic means all its partitions.
        arguments: where to read and what: see `TableArguments`.

    Raises:
        OptionError: an argument that is not allowed.
        MemoryLimitError: the table exceeds `table_bytes`, or a message is larger than a worker
            may hold.
        DataLossError: in each attempt, messages were deleted during the read.
        TopicNotFoundError, AccessDeniedError, SchemaMismatchError, CorruptDataError,
        UnreachableError, WorkerLostError
    """
    request, table_bytes = checked_table(topic, arguments)
    failure: DataLossError | None = None
    begun: Mapping[str, tuple[int, int]] = {}
    for _ in range(_PLANS_MAX):
        try:
            plan = _planned(request, {})
            if failure is not None and plan.begins == begun:
                break  # nothing has changed: the missing messages are lost
            begun = plan.begins
            rows = NewestRows(plan.schema, bytes_max=table_bytes)
            for batch in plan.batches():
                rows.add(batch)
            return rows.table().select(plan.wanted)
        except DataLossError as error:
            # Compaction replaces its ledger, and the topic is trimmed up to the horizon.
            failure = error
            _log.warning("%s; looking whether the topic has another beginning now", error)
    assert failure is not None
    raise failure


def changes(topic: str | Sequence[str], **arguments: Unpack[ChangeArguments]) -> "Changes":
    """Return the changes of a topic's newest values as batches, to keep a table up to date.

    The feed is bounded as `read` is. Pass its token as `after` to the next feed, which continues
    there. Without a token the feed begins with everything that exists: start with an empty table.

    Args:
        topic: a name, or several with one schema. A partitioned topic means all its partitions.
        arguments: where to read and what: see `ChangeArguments`.

    Raises:
        OptionError: an argument that is not allowed, or a token that is not valid.
        DataLossError: changes after the token are gone, or may be.
        TopicNotFoundError, AccessDeniedError, SchemaMismatchError, UnreachableError
    """
    request, after = checked_changes(topic, arguments)
    return Changes(_planned(request, after), after)


class Changes(Iterator[pa.RecordBatch]):
    """A change feed: batches in the order of the topic. For one thread; close it if you do not read
    it to its end.

    Beside the selected columns, a row has `__key`, `__messageId`, and `__change`: `upsert` or
    `delete`. A batch has only the newest change of each key. A deleted key may never have existed.
    """

    def __init__(self, plan: "_Plan", after: Mapping[str, Reached]) -> None:
        self._plan = plan
        self._reached = dict(after)
        self._names = list(dict.fromkeys((*plan.wanted, KEY, MESSAGE_ID, CHANGE)))
        self._batches = plan.batches()
        self.schema: pa.Schema = pa.schema([plan.schema.field(name) for name in self._names])

    @property
    def token(self) -> str:
        """Token of the last batch that was returned; the next feed continues after it. Store it
        together with the results of the batches."""
        return encode_token(self._reached)

    def __next__(self) -> pa.RecordBatch:
        """Return the next batch.

        Raises:
            DataLossError: messages were deleted before they were read.
            SchemaMismatchError, CorruptDataError, MemoryLimitError, UnreachableError,
            WorkerLostError
            AlreadyClosedError: the feed was closed, or interrupted.

        A feed that has failed stays so: begin another one after its token.
        """
        try:
            batch = next(self._batches)
            at = MessageIdData.FromString(batch.column(MESSAGE_ID)[-1].as_py())
            topic = str(batch.column(TOPIC)[-1])
            found = batch.select(self._names)
            self._reached[topic] = self._plan.reached(topic, (at.ledgerId, at.entryId))
        except StopIteration:
            self._reached |= self._plan.ends
            raise
        except BaseException:
            # The caller does not get this batch: a token of a later one would skip it.
            self.close()
            raise
        return found

    def close(self) -> None:
        """End the feed before its end. Closing twice is fine."""
        self._batches.close()


@dataclass(frozen=True, slots=True)
class _Topic:
    """A topic as its broker described it in one answer."""

    state: TopicState
    compacted: int
    """Id of the compacted ledger, or NO_LEDGER."""
    closed_at: frozenset[tuple[int, int]]
    """Last entries of the topic's closed ledgers."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """The read for a table or a feed."""

    request: Request
    schema: pa.Schema
    """Columns of the batches: the selected ones, and those that tables need."""
    wanted: list[str]
    jobs: list[SliceJob]
    topics: Mapping[str, _Topic]

    def batches(self) -> Batches:
        return batches_in_order(self.request, self.jobs)

    def reached(self, topic: str, place: tuple[int, int]) -> Reached:
        return Reached(*place, is_end=place in self.topics[topic].closed_at)

    @property
    def begins(self) -> dict[str, tuple[int, int]]:
        """The compacted ledger of each topic, and the first ledger that was not trimmed."""
        return {
            name: (each.compacted, each.state.first_ledger_id) for name, each in self.topics.items()
        }

    @property
    def ends(self) -> dict[str, Reached]:
        """The last entry of each topic in this read."""
        return {
            name: self.reached(name, (end.ledger_id, end.entry_id))
            for name, each in self.topics.items()
            if (end := each.state.end).entry_id >= 0
        }


def _planned(request: Request, after: Mapping[str, Reached]) -> _Plan:
    """Plan to read the changes after these positions, and all of the topics that have none."""
    with open_driver(request) as driver:
        topics = _topics(driver, after)
        states = {name: each.state for name, each in topics.items()}
        value_schema, wanted = planned_columns(request, driver, states)
        schema = _with_places(request, wanted, value_schema)
        starts: dict[str, MessageId] = {}
        compacted: dict[str, _Topic] = {}
        for name, each in topics.items():
            starts[name] = after[name].offset if name in after else BEFORE_FIRST
            if name not in after and _is_read(name, each, request):
                compacted[name] = each
        slices = _compacted_slices(request, driver, compacted, value_schema)
        starts |= {name: MessageId(*place_of_last(found[-1])) for name, found in slices.items()}
        ends = {name: state.end for name, state in states.items()}
        rest = driver.slices(states, starts, ends, value_schema)
    made = (tuple(schema.names), request.rows)
    jobs = [SliceJob(each, *made, is_compacted=True) for found in slices.values() for each in found]
    jobs += [SliceJob(each, *made) for each in rest]
    # A stable sort: the compacted rows of each topic come first.
    jobs.sort(key=lambda job: slice_order(job.wanted))
    return _Plan(request, schema, list(wanted.names), jobs, topics)


def _topics(driver: SourceDriver, after: Mapping[str, Reached]) -> dict[str, _Topic]:
    """Look up the topics, and check that nothing after these positions is lost.

    Raises:
        OptionError: the positions are of other topics.
        DataLossError: entries after a position are gone.
    """
    there = driver.topics(hold_s=HOLD_S)
    warn_of_missing(there)
    if after and not any(driver.selects(name) for name in after):
        raise OptionError("after", f"the token is of {next(iter(after))}, and not of these topics")
    # A second request, for what the driver does not keep: all facts about a topic are of one
    # moment.
    answers = driver.admin.ask_topics(
        "internalStats", [name for name, state in there.items() if state.is_there]
    )
    for refusal in answers.refused.values():
        raise refusal
    topics = {name: _topic(name, stats) for name, stats in answers.found.items()}
    for name, at in after.items():
        if driver.selects(name):
            check_unbroken(name, topics[name].state if name in topics else None, at)
    return topics


def _topic(name: str, stats: Mapping[str, Any]) -> _Topic:
    closed_at = {
        (each["ledgerId"], each["entries"] - 1) for each in stats["ledgers"] if each["entries"] > 0
    }
    compacted = int(stats.get("compactedLedger", {}).get("ledgerId", NO_LEDGER))
    return _Topic(state_of(TopicName.parse(name), stats), compacted, frozenset(closed_at))


def _with_places(request: Request, wanted: pa.Schema, value_schema: ValueSchema) -> pa.Schema:
    """Return the columns of the batches: the selected ones, and those that tables need.

    Raises:
        SchemaMismatchError: the topic's schema has a field with the name of such a column.
    """
    known = all_columns(value_schema, request.source.settings.mode)
    if CHANGE in known.names:
        raise SchemaMismatchError(
            f"the topic's schema has a field {CHANGE}, which is a column of change feeds: read its "
            f"bytes, with decode=False"
        )
    added = [known.field(name) for name in (KEY, TOPIC, MESSAGE_ID, ERROR) if name in known.names]
    fields = {each.name: each for each in (*wanted, *added, CHANGE_FIELD)}
    return pa.schema(list(fields.values()))


def _is_read(name: str, topic: _Topic, request: Request) -> bool:
    """Return whether the compacted ledger of a topic is read.

    Raises:
        OptionError: it must be read, and cannot be.
    """
    if topic.compacted == NO_LEDGER:
        return False
    if not request.source.reads_bookies and topic.state.removed_through >= 0:
        raise OptionError(
            "metadata_url",
            f"it is required: the beginning of {name} is in its compacted ledger alone, which is "
            f"read from the bookies",
        )
    return request.source.reads_bookies


def _compacted_slices(
    request: Request,
    driver: SourceDriver,
    topics: Mapping[str, _Topic],
    value_schema: ValueSchema,
) -> dict[str, list[Slice]]:
    """Return slices of the compacted ledgers, by topic. Each is planned as if it were the only
    ledger of its topic.

    Raises:
        DataLossError: a compacted ledger is gone already.
        UnreachableError: the metadata store does not answer.
    """
    if not topics:
        return {}
    from magnetar.arrow.stored.ledger_directory import LedgerDirectory

    directory = LedgerDirectory(request.source.metadata_url)
    try:
        ledgers = directory.read(each.compacted for each in topics.values())
    finally:
        directory.close()
    states: dict[str, TopicState] = {}
    for name, topic in topics.items():
        found = ledgers.get(topic.compacted)
        if found is None:
            raise DataLossError(
                f"{name}: its compacted ledger {topic.compacted} is gone: the topic was compacted "
                f"again, or deleted; begin anew"
            )
        if found.last_entry_id < 0:
            raise UnreachableError(
                f"{name}: its compacted ledger {topic.compacted} is not closed: try again"
            )
        ledger = LedgerState(topic.compacted, found.last_entry_id + 1, found.length)
        end = MessageId(topic.compacted, found.last_entry_id)
        states[name] = replace(
            topic.state, ledgers=(ledger,), end=end, aborted={}, removed_through=-1
        )
    slices: dict[str, list[Slice]] = {}
    starts = dict.fromkeys(states, BEFORE_FIRST)
    ends = {name: state.end for name, state in states.items()}
    for each in driver.slices(states, starts, ends, value_schema):
        slices.setdefault(each.topic, []).append(each)
    if len(slices) < len(topics):
        raise DataLossError("a compacted ledger was deleted while it was looked up; begin anew")
    return slices
