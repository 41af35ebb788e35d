"""The message index of one topic: stores with each entry its index and the broker's time.

Invariants: while one broker owns a topic, either every entry gets an index or none; a switch
reopens the topic. The node says that indexes are written before the first one is. Indexes are given
in the order of appends, and never twice. A failed append may be in the log all the same, so later
entries skip its indexes and begin a new unbroken stretch.

This module does not decide which clients see the index (`protocol/connection.py`), and does not
search by it (`finding.py`). Features for which the order of appends matters come before it: the
index is added last.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import structlog

from magnetar.broker.base.entry_metadata import PrefixEncoder
from magnetar.broker.features.message_index.index_end import IndexEnd, find_end
from magnetar.broker.features.message_index.index_record import (
    PROPERTY,
    IndexRecord,
    record_in,
)
from magnetar.broker.features.message_index.lag import (
    BacklogView,
    EntryFact,
    count_messages,
    fact_of,
    view_of,
)
from magnetar.broker.policies.model import Policies
from magnetar.broker.topic import Topic
from magnetar.broker.topic.feature import Feature, PublishRows, TopicPort, Work
from magnetar.broker.topic.publish_batch import PublishBatch
from magnetar.broker.topic.subscription import Subscription
from magnetar.broker.topic.surroundings import InternalAppend
from magnetar.broker.topic.tail_cache import TailCache
from magnetar.ledger.errors import LedgerError, LogError
from magnetar.ledger.log import AppendBatch
from magnetar.ledger.ports import Clock
from magnetar.ledger.position import Position

_log = structlog.get_logger()

_SWITCHED: Final = "the message index is switched on or off"
_LOOK_S_MAX: Final = 1.0
"""Longest wait of statistics, in seconds, for bookies to return the entries to count by."""
_FACTS_MAX: Final = 1_000
"""Facts about entries remembered per topic, so that statistics do not read a consumer's next entry
again and again."""
_READS_MAX: Final = 500
"""Entries read for one count of a topic's backlogs, at most. Backlogs that need more are not known
exactly."""
_READS_AT_ONCE: Final = 16


def initial_properties(policies: Policies) -> Mapping[str, str]:
    """Return the properties of a new log, so that its index needs no write later."""
    return {PROPERTY: IndexRecord(0, is_written=True).encode()} if policies.entry_metadata else {}


class MessageIndex(Feature):
    """The index of one topic that this broker owns. All methods run on the event loop."""

    def __init__(
        self,
        topic: TopicPort,
        *,
        clock: Clock,
        subscriptions: Mapping[str, Subscription],
        cache: TailCache,
        may_be_on: bool,
        changed: Callable[[], None],
    ) -> None:
        """Create the feature.

        Args:
            may_be_on: whether policies decide; system topics have no index.
            changed: called when `rows` has changed.
        """
        self._topic = topic
        self._clock = clock
        self._subscriptions = subscriptions
        self._cache = cache
        self._may_be_on = may_be_on
        self._changed = changed
        self._is_on = False
        self._next = 0
        """Index of the next message that goes to the log."""
        self._since = 0
        self._end: IndexEnd | None = None
        """End of the confirmed messages; None if no index is written."""
        self._end_at = topic.log.last_confirmed
        """Last entry before `_end`. If the log ends elsewhere, an append of unknown outcome was
        stored after all."""
        self._facts: dict[Position, EntryFact | None] = {}
        self._backlogs: Mapping[str, int] = {}

    # Life cycle

    async def restore(self) -> None:
        """Find the next index, and record in the node whether indexes are written from now on.

        Raises:
            LedgerError, MetadataError: the index cannot be found or recorded now.
        """
        log = self._topic.log
        record = record_in(log.properties)
        self._is_on = self._is_wanted
        if not self._is_on and (record is None or not record.is_written):
            return
        end = await find_end(log, record)
        is_noted = record is not None and record.is_written == self._is_on
        if not is_noted and (log.terminated is None or not self._is_on):
            await self._note(IndexRecord(end.next, is_written=self._is_on))
        if self._is_on:
            self._next, self._since = end.next, end.unbroken_since
            self.stored(end, log.last_confirmed)
            self._changed()
            _log.info("message_index_restored", topic=str(self._topic.name), next_index=end.next)

    @property
    def _is_wanted(self) -> bool:
        return self._may_be_on and self._topic.policies.entry_metadata

    async def _note(self, record: IndexRecord) -> None:
        await self._topic.log.update_properties({PROPERTY: record.encode()})

    async def before_trim(self, _before: Position) -> None:
        """Record the next index: trimming may delete the last entry that tells it."""
        record = IndexRecord(self._next, is_written=True)
        if self._is_on and record != record_in(self._topic.log.properties):
            await self._note(record)

    follows = frozenset({"entry_metadata"})

    def policies_changed(self, before: Policies) -> None:
        if self._is_wanted != self._is_on:
            self._topic.reopen(_SWITCHED)

    def look(self) -> Work | None:
        if self._end is None or not self._subscriptions:
            return None
        return self._look_at_backlogs()

    @property
    def counted(self) -> Mapping[str, int] | None:
        """Messages in backlogs at the last count, by subscription; None without an index."""
        return self._backlogs if self._is_on else None

    def rows(self) -> PublishRows:
        return PublishRows(stamp=self if self._is_on else None)

    @property
    def has_index(self) -> bool:
        """Whether entries of the topic have an index, or had one."""
        return self._is_on or record_in(self._topic.log.properties) is not None

    # Publishing

    def published(self, batch: PublishBatch) -> AppendBatch:
        """Return a batch with an index in front of each entry."""
        prefixes = self._prefixes(batch.counts)
        batch.prefixes = prefixes
        return self._stamped(batch, prefixes)

    def internal(self, record: InternalAppend) -> AppendBatch:
        """Return the broker's own entries, without messages, with the last message's index."""
        return self._stamped(record, self._prefixes([0] * len(record.payloads)))

    def _prefixes(self, counts: Iterable[int]) -> list[bytes]:
        encode = PrefixEncoder(self._clock.wall_ms(), unbroken_since=self._since).encode
        last = self._next - 1
        prefixes: list[bytes] = []
        for count in counts:
            last += count
            prefixes.append(encode(last))
        self._next = last + 1
        return prefixes

    def _stamped(self, batch: AppendBatch, prefixes: Sequence[bytes]) -> AppendBatch:
        pairs = zip(prefixes, batch.payloads, strict=True)
        payloads = [prefix + entry for prefix, entry in pairs]
        return _Stamped(self, batch, payloads, IndexEnd(self._next, self._since))

    def stored(self, end: IndexEnd, last: Position) -> None:
        """Note the end of the durable entries, and the last of them."""
        self._end, self._end_at = end, last

    def failed(self) -> None:
        """Begin a new unbroken stretch: entries may be missing, and their indexes stay unused."""
        self._since = self._next

    # Backlogs

    async def _look_at_backlogs(self) -> None:
        await self.count_backlogs()

    async def count_backlogs(self, *, reads: bool = True) -> Mapping[str, int]:
        """Count the messages of each backlog; leave out those that are not known exactly.

        `reads`: whether entries may be read from bookies for this.
        """
        end = self._end
        if end is None or self._end_at != self._topic.log.last_confirmed:
            return {}
        counted: dict[str, int] = {}
        views: dict[str, BacklogView] = {}
        for name, each in self._subscriptions.items():
            if each.is_open and each.cursor.is_caught_up:
                counted[name] = 0
            elif each.is_open and (view := view_of(each.cursor, end)) is not None:
                views[name] = view
        wanted = [position for view in views.values() for position in view.wanted()]
        facts = await self._facts_about(wanted, reads=reads)
        for name, view in views.items():
            count = count_messages(view, facts)
            if count is not None:
                counted[name] = count
        if reads:
            # Metrics show these until the next count: one without reads may lack most of them.
            self._backlogs = counted
        return counted

    async def _facts_about(
        self, positions: Sequence[Position], *, reads: bool
    ) -> Mapping[Position, EntryFact | None]:
        """Return the facts about entries, as far as they can be told now."""
        facts: dict[Position, EntryFact | None] = {}
        missing: list[Position] = []
        for position in dict.fromkeys(positions):
            if position in self._facts:
                facts[position] = self._facts[position]
                continue
            run = self._cache.find(position)
            if run is None or run.prefixes is None:
                missing.append(position)
                continue
            at = run.index_of(position)
            facts[position] = fact_of(run.prefixes[at], run.messages[at])
        if missing and reads:
            await self._read(missing[:_READS_MAX])
            facts.update((each, self._facts[each]) for each in missing if each in self._facts)
        return facts

    async def _read(self, positions: Sequence[Position]) -> None:
        """Read entries, and remember their facts; what is not read in time stays unknown."""
        if len(self._facts) + len(positions) > _FACTS_MAX:
            self._facts.clear()
        waiting = iter(positions)

        async def read_some() -> None:
            for position in waiting:
                first, found = await self._topic.log.read_range(
                    position, entries_max=1, bytes_max=1
                )
                if found and first == position:
                    self._facts[position] = fact_of(found[0])

        try:
            async with asyncio.timeout(_LOOK_S_MAX), asyncio.TaskGroup() as readers:
                for _ in range(min(_READS_AT_ONCE, len(positions))):
                    readers.create_task(read_some())
        except* (LedgerError, TimeoutError) as errors:
            _log.info(
                "backlog_not_counted", topic=str(self._topic.name), error=str(errors.exceptions[0])
            )


class _Stamped:
    """Entries with their prefixes, being appended to the log."""

    __slots__ = ("_batch", "_end", "_index", "payloads")

    def __init__(
        self, index: MessageIndex, batch: AppendBatch, payloads: Sequence[bytes], end: IndexEnd
    ) -> None:
        self.payloads = payloads
        self._index = index
        self._batch = batch
        self._end = end

    def on_appended(self, ledger_id: int, first_entry_id: int) -> None:
        last = Position(ledger_id, first_entry_id + len(self.payloads) - 1)
        self._index.stored(self._end, last)
        self._batch.on_appended(ledger_id, first_entry_id)

    def on_failed(self, error: LogError) -> None:
        self._index.failed()
        self._batch.on_failed(error)


async def exact_backlogs(topic: Topic, *, reads: bool = True) -> Mapping[str, int]:
    """Count the messages in the backlogs of a topic's subscriptions, by name.

    Backlogs that are not known exactly are left out. `reads`: whether entries may be read from
    bookies for this.
    """
    index = topic.find(MessageIndex)
    return {} if index is None else await index.count_backlogs(reads=reads)
