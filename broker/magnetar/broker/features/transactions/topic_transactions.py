"""The transactions of one topic: restores and stores them, and connects them to the topic.

A topic without any costs one look at a property when it is loaded. State that the topic's log
cannot give lies in a log beside it (`topic_log.py`), created with the first transaction. The state
is that log's last snapshot, the records behind it, and the entries of the topic's own log behind
the position in the snapshot. So the topic's log is not trimmed beyond that position.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

import structlog

from magnetar.broker.base.errors import NotAllowedError, ServiceNotReadyError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.features.transactions.acknowledging import TransactionalAcks
from magnetar.broker.features.transactions.buffer import TransactionBuffer
from magnetar.broker.features.transactions.buffer_state import BufferState
from magnetar.broker.features.transactions.errors import TransactionsDisabledError
from magnetar.broker.features.transactions.ids import TransactionId
from magnetar.broker.features.transactions.markers import mark_of
from magnetar.broker.features.transactions.pending_acks import load_all
from magnetar.broker.features.transactions.surroundings import TransactionalTopic
from magnetar.broker.features.transactions.topic_log import (
    TopicTransactionLog,
    property_of,
    since_in,
)
from magnetar.broker.topic import Feature, PublishRows, Topic, Work
from magnetar.broker.topic.dispatch.base import DispatchContext
from magnetar.broker.topic.subscription import Subscription
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.ports import Clock
from magnetar.ledger.position import EARLIEST, Position
from magnetar.sdk.wire import Send

_log = structlog.get_logger()

OpenLog = Callable[[], Awaitable[TopicTransactionLog]]
CursorNames = Callable[[], Awaitable[Collection[str]]]


class TopicTransactions(Feature):
    """Transactions of one persistent topic that this broker owns. All code runs on the event
    loop."""

    def __init__(
        self,
        topic: TransactionalTopic,
        open_log: OpenLog,
        settings: BrokerSettings,
        clock: Clock,
        *,
        cursor_names: CursorNames,
        begun: Callable[[], None],
    ) -> None:
        """Create the feature.

        Args:
            cursor_names: returns the names of the stored durable cursors, including subscriptions.
            begun: called when messages of transactions may arrive from now on: the rows of the
                publish line change, and ledgers no longer overlap.
        """
        self._topic = topic
        self._open_log = open_log
        self._cursor_names = cursor_names
        self._begun = begun
        self._settings = settings
        self._clock = clock
        self.log: TopicTransactionLog | None = None
        self.state: BufferState | None = None
        """Entries that transactions hide; None if the topic has had no transaction."""
        self.buffer = TransactionBuffer(topic, self, clock)
        self.acks = TransactionalAcks(
            topic, self, pending_acks_max=settings.transaction_pending_acks_max
        )
        self._enabling: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        """Held while a snapshot is being written."""
        self._entries_known = 0
        """Entries of the topic, by the publish line's count, that the last snapshot includes."""
        self._through = EARLIEST
        """Last entry of the topic's log that the last snapshot includes."""

    @property
    def is_enabled(self) -> bool:
        """Whether the topic has had a transaction."""
        return self.log is not None

    # Publishing

    def rows(self) -> PublishRows:
        if self.log is None:
            return PublishRows(
                takes_transactions=self._takes_transactions,
                closes_after_refusal=self._closes_after_refusal,
            )
        return PublishRows(
            checks=(self.buffer.check,),
            on_handed=(self.buffer.handed,),
            listeners=(self.buffer,),
            takes_transactions=self._takes_transactions,
            closes_after_refusal=self._closes_after_refusal,
        )

    def _closes_after_refusal(self, send: Send) -> bool:
        """Whether more messages of the transaction may be stored behind this one, which was
        refused.

        Closing costs the client a reconnect per message, so a transaction that has ended does not
        close: its late messages may be many. While the topic is being prepared, any may be stored.
        """
        if send.txn is None:
            return False
        if self.state is None:
            return self._settings.transaction_coordinator_enabled
        return not self.buffer.has_ended(TransactionId(*send.txn))

    def _takes_transactions(self) -> bool:
        """Whether the topic can take messages of transactions. If not, begin to prepare it.

        Raises:
            NotAllowedError: the broker takes none.
        """
        if self.log is None:
            self.want()
        return self.log is not None

    async def admit_producer(self, producer_name: str, *, is_transactional: bool) -> None:
        if is_transactional:
            await self.enable()
        if self._enabling is not None:
            await asyncio.wait([self._enabling])

    def last_sequence_id(self, producer_name: str) -> int:
        return self.buffer.last_sequence_id(producer_name)

    # Subscriptions

    def attach(self, subscription: Subscription, context: DispatchContext) -> DispatchContext:
        self.acks.attach(subscription)
        return context

    async def deleted(self, subscription: str) -> None:
        await self.acks.drop(subscription)

    # The first transaction

    async def enable(self) -> None:
        """Prepare the topic for transactions; from then on every owner of the topic restores them.

        Raises:
            NotAllowedError: the broker takes none.
            ServiceNotReadyError: the topic is closing.
            LedgerError
        """
        if self.log is not None:
            return
        self.want()
        assert self._enabling is not None
        await asyncio.shield(self._enabling)

    def want(self) -> None:
        """Begin to prepare the topic, without waiting.

        Raises:
            NotAllowedError: the broker takes none.
        """
        if not self._settings.transaction_coordinator_enabled:
            raise TransactionsDisabledError()
        if self.log is None and self._enabling is None:
            self._enabling = asyncio.get_running_loop().create_task(
                self._enable(), name=f"enable-transactions-{self._topic.name}"
            )
            self._enabling.add_done_callback(self._enabled)

    async def _enable(self) -> None:
        topic = self._topic
        log = await self._open_log()
        try:
            # Entries in the log by now belong to no transaction, nor do pending appends: no message
            # of a transaction is appended before this is done.
            since = topic.log.last_confirmed
            await topic.log.update_properties(property_of(since))
            if topic.is_closed:
                raise ServiceNotReadyError(f"{topic.name} is closing")
        except BaseException:
            await log.close()
            raise
        self._start(log, BufferState(), since)
        _log.info("transactions_enabled", topic=str(topic.name))

    def _enabled(self, task: "asyncio.Task[None]") -> None:
        self._enabling = None
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("transactions_not_enabled", topic=str(self._topic.name), error=str(error))

    def _start(self, log: TopicTransactionLog, state: BufferState, through: Position) -> None:
        topic = self._topic
        self._through = through
        state.ended_before = (state.committed_count, state.aborted_count)
        self.log = log
        log.on_fenced(lambda: topic.reload("another broker has its transactions"))
        self.state = topic.visibility.hidden = state
        self._begun()

    # Restoring

    async def restore(self) -> None:
        """Restore the state of former owners, before any subscription is opened.

        Raises:
            LedgerError, BrokerPersistenceError
        """
        await self._restore()
        await self.acks.drop_all_but(await self._cursor_names())

    async def _restore(self) -> None:
        topic = self._topic
        through = since_in(topic.log.properties, of=str(topic.name))
        if through is None:
            return
        log = await self._open_log()
        state = BufferState()
        try:
            for record in await log.read():
                if record["kind"] == "snapshot":
                    through = Position(*record["through"])
                    state = BufferState.load(record["buffer"])
                    self.acks.pending = load_all(record["pending"])
                elif record["kind"] == "end":
                    txn = TransactionId(*record["txn"])
                    state.on_end(txn, is_committed=record["commits"])
                else:
                    self.acks.apply(record)
            state.forget_trimmed_messages(topic.log.first_position())
            entries = await self._replay(state, through)
        except BaseException:
            await log.close()
            raise
        self._start(log, state, through)
        self._entries_known = -entries
        _log.info(
            "transactions_restored",
            topic=str(topic.name),
            entries_read=entries,
            open=len(state.open),
            aborted_entries=len(state.aborted),
        )

    async def _replay(self, state: BufferState, through: Position) -> int:
        log, settings = self._topic.log, self._settings
        count = 0
        position = log.next_position(through)
        while position <= log.last_confirmed:
            first, entries = await log.read_range(
                position,
                entries_max=settings.read_ahead_entries,
                bytes_max=settings.read_ahead_bytes,
            )
            if not entries:
                break
            for at, entry in enumerate(entries):
                mark = mark_of(entry)
                if mark is None:
                    continue
                if mark.is_committed is None:
                    state.on_entry(
                        mark.transaction,
                        Position(first.ledger_id, first.entry_id + at),
                        mark.sender,
                    )
                else:
                    state.on_end(mark.transaction, is_committed=mark.is_committed)
            count += len(entries)
            last = Position(first.ledger_id, first.entry_id + len(entries) - 1)
            position = log.next_position(last)
            await asyncio.sleep(0)
        return count

    # Snapshots

    def look(self) -> Work | None:
        """Return the work of writing a snapshot, if one is due."""
        if self.log is None or self._writing.locked() or self._topic.is_closed:
            return None
        behind = self._topic.line.entries_in - self._entries_known
        settings = self._settings
        if (
            behind < settings.transaction_snapshot_entries
            and self.log.records < settings.transaction_log_records
        ):
            return None
        return self.write_snapshot()

    async def write_snapshot(self) -> None:
        """Write a snapshot; a failed one is repeated later."""
        if self.log is None or self._writing.locked():
            return
        async with self._writing:
            try:
                await self._write(self.log)
            except LedgerError as error:
                topic = str(self._topic.name)
                _log.warning("transactions_not_written", topic=topic, error=str(error))

    async def before_trim(self, before: Position) -> None:
        """Write a snapshot unless the last one includes all that is trimmed.

        Otherwise the next owner would not know the transactions that ended there, and would take
        their late messages.
        """
        if self.log is None:
            return
        async with self._writing:
            if self._topic.log.next_position(self._through) < before:
                await self._write(self.log)

    async def _write(self, log: TopicTransactionLog) -> None:
        before = self._entries_known, self._through
        try:
            await log.write_snapshot(self._take)
        except BaseException:
            self._entries_known, self._through = before
            raise

    def _take(self) -> Mapping[str, Any]:
        topic = self._topic
        state = self.state
        assert state is not None
        state.trimmed(topic.log.first_position())
        self._entries_known = topic.line.entries_in
        self._through = state.known_through(topic.log.last_confirmed)
        return {
            "kind": "snapshot",
            "through": list(self._through),
            "buffer": self.buffer.dump(),
            "pending": {name: each.dump() for name, each in self.acks.pending.items()},
        }

    # The end

    def abandon(self) -> None:
        """Write nothing more: another broker may own the topic."""
        if self._enabling is not None:
            self._enabling.cancel()
        if self.log is not None:
            self.log.abandon("its topic was dropped")

    def ending(self) -> Work | None:
        return self._end() if self.log is not None or self._enabling is not None else None

    async def _end(self) -> None:
        if self._enabling is not None:
            await asyncio.wait([self._enabling])
        if self.log is not None:
            await self.log.close()

    # Statistics

    def shown(self) -> Mapping[str, Any]:
        """Return counts of transactions with messages on the topic: open ones, and ended ones as
        far as they are known."""
        state = self.state
        if state is None:
            return {}
        return {
            "open_transactions": len(state.open),
            "aborted_transactions": state.aborted_count,
            "committed_transactions": state.committed_count,
        }


def state_of(topic: Topic) -> BufferState | None:
    """Return the state of a topic's transactions; None if it has had none."""
    found = topic.find(TopicTransactions)
    return found.state if found is not None else None


def transactions_of(topic: Topic) -> TopicTransactions:
    """Return the transactions of a topic.

    Raises:
        NotAllowedError: the topic takes part in none.
    """
    found = topic.find(TopicTransactions)
    if found is None:
        raise NotAllowedError(f"{topic.name} is not persistent: it does not support transactions")
    return found
