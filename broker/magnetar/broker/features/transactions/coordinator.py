"""A coordinator of transactions: the shell around `coordinator_state.py`, on a topic's log.

The topic is a partition of `persistent://pulsar/system/transaction_coordinator_assign`. Its owner
is the coordinator: it takes the log over when it loads the topic, and loses both together. Every
answer to a client or participant is durable in that log first.

Once COMMITTING or ABORTING is durable, this owner or the next one carries the decision out. It
notifies every participant until that participant answers, then writes the end.
"""

import asyncio
import heapq
import json
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from magnetar.broker.base.errors import (
    BrokerPersistenceError,
    NotAllowedError,
    UnknownFailureError,
)
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.base.turn_gate import TurnGate
from magnetar.broker.features.transactions.coordinator_state import (
    ENDED,
    ENDING,
    CoordinatorState,
    Status,
    Stored,
    Transaction,
)
from magnetar.broker.features.transactions.errors import CoordinatorNotFoundError
from magnetar.broker.features.transactions.ids import TransactionId
from magnetar.broker.features.transactions.snapshot_parts import SnapshotParts, encode_parts
from magnetar.broker.features.transactions.topic_log import Record
from magnetar.broker.topic import Feature, TopicPort
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.ports import Clock
from magnetar.ledger.position import Position

_log = structlog.get_logger()

_READ_ENTRIES = 1000
_READ_BYTES = 4 << 20
_RECORDS_PER_TURN = 500
"""Records that are applied or encoded before other tasks get a turn."""
_SNAPSHOT_RETRY_S = 10.0
"""Pause in seconds after a snapshot that could not be stored: each attempt begins a ledger."""
_ENDED_DEADLINES_MAX = 1000
"""Deadlines of ended transactions that are kept, beside as many again as there are open ones."""
_ENDS_AT_ONCE = 50
"""Transactions that are decided at once: thousands can time out together."""


class Participants(Protocol):
    """Port that notifies the participants of transactions of the outcome; see `Messenger`."""

    async def end_on_topic(
        self, topic: str, txn: TransactionId, *, commits: bool, low_watermark: int
    ) -> None:
        """End a transaction on a topic. Return when that is durable on the topic, or the topic is
        gone. This may take arbitrarily long."""
        ...

    async def end_on_subscription(
        self, topic: str, name: str, txn: TransactionId, *, commits: bool, low_watermark: int
    ) -> None:
        """End a transaction on a subscription. Return when that is durable on the subscription, or
        the subscription is gone."""
        ...


@dataclass(slots=True)
class CoordinatorCounters:
    """Counts since this broker became the coordinator."""

    created: int = 0
    committed: int = 0
    aborted: int = 0
    timed_out: int = 0
    appended: int = 0


class Coordinator(Feature):
    """One coordinator, while this broker owns its topic."""

    reserved_as = "the log of a coordinator of transactions"

    def __init__(
        self,
        number: int,
        topic: TopicPort,
        participants: Participants,
        settings: BrokerSettings,
        clock: Clock,
    ) -> None:
        self.number = number
        self.state = CoordinatorState(number, finished_max=settings.transaction_finished_max)
        self.counters = CoordinatorCounters()
        self._topic = topic
        self._participants = participants
        self._settings = settings
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._endings: dict[int, asyncio.Task[None]] = {}
        self._gate = TurnGate()
        """Limits how many notifications begin in each turn: thousands of transactions may be
        decided at once, or be found decided after a restart. A participant that cannot be reached
        delays no other."""
        self._deadlines: list[tuple[float, int]] = []
        """A heap. Transactions that have ended stay in it until their deadline, or until they are
        too many."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_timing_out = False
        """Overdue transactions are being aborted; the timer is set again when these are decided."""
        self._records = 0
        """Records since the last durable snapshot."""
        self._compacting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    # Opening

    async def restore(self) -> None:
        """Read the log, and carry out what was decided.

        Raises:
            LedgerError: not all of it can be read now.
        """
        log = self._topic.log
        position = log.first_position()
        records: list[Stored] = []
        parts = SnapshotParts()
        while position <= log.last_confirmed:
            first, entries = await log.read_range(
                position, entries_max=_READ_ENTRIES, bytes_max=_READ_BYTES
            )
            if not entries:
                break
            for entry in entries:
                record = parts.join(json.loads(entry))
                if record is None:
                    continue
                if record["kind"] == "snapshot":
                    # A snapshot contains all that precedes it. The log may have only a part of
                    # that: the records appended to the snapshot's own ledger while the snapshot was
                    # being written.
                    records.clear()
                records.append(record)
            last = Position(first.ledger_id, first.entry_id + len(entries) - 1)
            position = log.next_position(last)
        for at, record in enumerate(records, 1):
            self.state.apply(record)
            if at % _RECORDS_PER_TURN == 0:
                await asyncio.sleep(0)
        self._records = len(records)
        for at, found in enumerate(list(self.state.transactions.values()), 1):
            if found.status is Status.OPEN:
                self._watch(found)
            else:
                self._carry_out(found)
            if at % _ENDS_AT_ONCE == 0:
                await asyncio.sleep(0)
        _log.info(
            "coordinator_restored", number=self.number, transactions=len(self.state.transactions)
        )

    # Requests

    async def begin(self, timeout_ms: int, owner: str = "") -> TransactionId:
        """Begin a transaction; durable on return.

        Raises:
            NotAllowedError: too many are open, or the timeout is out of bounds.
            CoordinatorNotFoundError, BrokerPersistenceError
        """
        settings = self._settings
        if not 0 < timeout_ms <= settings.transaction_timeout_max_ms:
            raise NotAllowedError(
                f"the transaction timeout is {timeout_ms} ms; allowed are 1 to "
                f"{settings.transaction_timeout_max_ms} ms"
            )
        if len(self.state.transactions) >= settings.transaction_open_max:
            raise NotAllowedError(
                f"coordinator {self.number} has {len(self.state.transactions)} open transactions, "
                "which is its limit"
            )
        record = self.state.begin(now_ms=self._clock.wall_ms(), timeout_ms=timeout_ms, owner=owner)
        txn = TransactionId(self.number, record["id"])
        done = self._write(record)
        self._watch(self.state.transactions[txn.least])
        self.counters.created += 1
        await self._durable(done)
        return txn

    async def join(
        self,
        txn: TransactionId,
        topics: Iterable[str] = (),
        subscriptions: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Add participants; durable on return.

        Raises:
            TransactionNotFoundError, InvalidTransactionStatusError, NotAllowedError
            CoordinatorNotFoundError, BrokerPersistenceError
        """
        record = self.state.join(txn, topics, subscriptions)
        if record is None:
            # Those that joined before may not be durable yet. When a later append is durable, they
            # are.
            await self._durable(self._write_nothing())
            return
        found = self.state.transactions[txn.least]
        count = len(found.topics) + len(found.subscriptions)
        count += len(record["topics"]) + len(record["subscriptions"])
        if count > self._settings.transaction_participants_max:
            raise NotAllowedError(
                f"transaction {txn} would have {count} topics and subscriptions; the limit is "
                f"{self._settings.transaction_participants_max}"
            )
        await self._durable(self._write(record))

    async def end(self, txn: TransactionId, *, commits: bool) -> None:
        """Decide a transaction and notify its participants.

        On return the decision is durable. All participants have been notified, unless that takes
        longer than `transaction_end_wait_ms`.

        Raises:
            TransactionNotFoundError, InvalidTransactionStatusError
            CoordinatorNotFoundError, BrokerPersistenceError
        """
        found = self.state.ending(txn, commits=commits)
        if found is None:
            # The end may have been noted just now; wait until it is durable.
            await self._durable(self._write_nothing())
            return
        if found.status is Status.OPEN:
            await self._decide(found, commits=commits)
        ending = self._endings.get(txn.least)
        if ending is not None:
            await asyncio.wait([ending], timeout=self._settings.transaction_end_wait_ms / 1000)
        elif txn.least in self.state.transactions:
            await self._durable(self._write_nothing())  # Another request is deciding it now.
        self._check_here()

    def owner_of(self, txn: TransactionId) -> str:
        """Return the role that began a transaction; empty if it had none, or the transaction has
        ended."""
        found = self.state.transactions.get(txn.least)
        return found.owner if found is not None else ""

    async def _decide(self, found: Transaction, *, commits: bool) -> None:
        await self._durable(self._write(self.state.status(found.id, ENDING[commits])))
        self._carry_out(found)

    # Carrying out

    def _carry_out(self, found: Transaction) -> None:
        least = found.id.least
        if least in self._endings or self._is_closed:
            return
        task = self._loop.create_task(self._tell_all(found), name=f"end-transaction-{found.id}")
        self._endings[least] = task
        task.add_done_callback(lambda done: self._told_all(least, done))

    def _told_all(self, least: int, task: "asyncio.Task[None]") -> None:
        self._endings.pop(least, None)
        if task.cancelled():
            if self._is_closed:
                return
            # By something that it waited for, not by `close`: participants may not know the end.
            error: BaseException | None = asyncio.CancelledError()
        else:
            error = task.exception()
        if error is not None:
            _log.error("transaction_not_ended", number=self.number, least=least, exc_info=error)
            if not self._topic.is_closed:
                self._topic.reload("an end of a transaction was not carried out")

    async def _tell_all(self, found: Transaction) -> None:
        await self._gate.enter()
        commits = found.status is Status.COMMITTING
        low_watermark = self.state.low_watermark
        participants = self._participants
        async with asyncio.TaskGroup() as group:
            told = [
                group.create_task(
                    participants.end_on_subscription(
                        topic, name, found.id, commits=commits, low_watermark=low_watermark
                    )
                )
                for topic, name in found.subscriptions
            ]
            told += [
                group.create_task(
                    participants.end_on_topic(
                        topic, found.id, commits=commits, low_watermark=low_watermark
                    )
                )
                for topic in found.topics
            ]
        if any(each.cancelled() for each in told):
            # A group takes a cancelled task for a done one, but that participant may not know.
            raise UnknownFailureError(
                f"transaction {found.id}: telling a participant of its end was cancelled; the "
                "coordinator is loaded again, and tells all of them"
            )
        done = self._write(self.state.status(found.id, ENDED[found.status]))
        if commits:
            self.counters.committed += 1
        else:
            self.counters.aborted += 1
        await self._durable(done)

    # Timeouts

    def _watch(self, found: Transaction) -> None:
        # The deadline is in wall-clock time, since another broker may have begun it. From here on
        # the monotonic clock counts, and never more than one whole timeout, even if the clocks
        # disagree.
        left_ms = min(found.deadline_ms - self._clock.wall_ms(), found.timeout_ms)
        due_s = self._clock.monotonic_s() + max(0, left_ms) / 1000
        self._drop_ended()
        heapq.heappush(self._deadlines, (due_s, found.id.least))
        if self._timer is None or self._deadlines[0][1] == found.id.least:
            self._set_timer()

    def _drop_ended(self) -> None:
        """Drop the deadlines of transactions that have ended, if they are many: with long timeouts,
        they would be kept for hours."""
        known = self.state.transactions
        if len(self._deadlines) > 2 * len(known) + _ENDED_DEADLINES_MAX:
            self._deadlines = [item for item in self._deadlines if item[1] in known]
            heapq.heapify(self._deadlines)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._deadlines and not self._is_timing_out and not self._is_closed:
            delay_s = max(0.0, self._deadlines[0][0] - self._clock.monotonic_s())
            self._timer = self._loop.call_later(min(delay_s, 3600.0), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now_s = self._clock.monotonic_s()
        late: list[Transaction] = []
        while self._deadlines and self._deadlines[0][0] <= now_s and len(late) < _ENDS_AT_ONCE:
            _, least = heapq.heappop(self._deadlines)
            found = self.state.transactions.get(least)
            if found is not None and found.status is Status.OPEN:
                late.append(found)
        if late:
            self._is_timing_out = True
            self._run(self._time_out(late))
        else:
            self._set_timer()

    async def _time_out(self, late: Sequence[Transaction]) -> None:
        """Abort some overdue transactions; the next ones follow when these are decided."""
        try:
            for result in await asyncio.gather(*map(self._abort, late), return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result
        finally:
            self._is_timing_out = False
            self._set_timer()

    async def _abort(self, found: Transaction) -> None:
        """Abort an overdue transaction, unless a client has ended it since the timer fired."""
        if found.status is Status.OPEN:
            _log.info("transaction_timed_out", txn=str(found.id))
            self.counters.timed_out += 1
            await self._decide(found, commits=False)

    def _run(self, work: Coroutine[object, object, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ran)

    def _ran(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("coordinator_work_failed", number=self.number, error=str(error))

    # The log

    def _write(self, record: Stored) -> "asyncio.Future[Position]":
        """Apply and append a record; the caller acts on it when the result says it is durable."""
        self._check_here()
        self.state.apply(record)
        self._records += 1
        if self._records >= self._settings.transaction_log_records and self._compacting is None:
            self._compacting = self._loop.create_task(self._compact())
        return self._append(record)

    def _write_nothing(self) -> "asyncio.Future[Position]":
        """Append an empty record, which is durable once everything before it is."""
        self._check_here()
        return self._append({"kind": "nothing"})

    async def _prepare_snapshot(self) -> None:
        """Encode nearly all transactions before the snapshot, which is taken in one piece. Those
        that change in the meantime are encoded again then."""
        for at, found in enumerate(list(self.state.transactions.values()), 1):
            found.text()
            if at % _RECORDS_PER_TURN == 0:
                await asyncio.sleep(0)

    def _append_snapshot(self) -> "asyncio.Future[Position]":
        text = self.state.snapshot_text()
        settings = self._settings
        # An entry takes the largest message. Older releases know only snapshots of one entry.
        if len(text) <= settings.message_bytes_max:
            return self._append_all([text.encode()])
        return self._append_all(encode_parts(text, bytes_max=settings.transaction_part_bytes_max))

    def _append(self, record: Stored) -> "asyncio.Future[Position]":
        return self._append_all([json.dumps(record).encode()])

    def _append_all(self, payloads: Sequence[bytes]) -> "asyncio.Future[Position]":
        appended = Record(payloads)
        self.counters.appended += len(payloads)
        self._topic.append(appended)
        return appended.done

    async def _durable(self, done: "asyncio.Future[Position]") -> None:
        try:
            await asyncio.shield(done)
        except LedgerError as error:
            # The state in memory is ahead of the log now. Reload the topic to read the log again.
            if not self._topic.is_closed:
                self._topic.reload("a record of a transaction may be stored or not")
            raise BrokerPersistenceError(
                f"coordinator {self.number}: a record may be stored or not: {error}"
            ) from error
        self._check_here()

    def _check_here(self) -> None:
        if self._is_closed or self._topic.is_closed or not self._topic.tenure.holds():
            raise CoordinatorNotFoundError(f"coordinator {self.number} is served elsewhere")

    async def _compact(self) -> None:
        """Write a snapshot, and delete older ledgers."""
        log = self._topic.log
        try:
            await log.rotate()
            await self._prepare_snapshot()
            covered = self._records
            position = await asyncio.shield(self._append_snapshot())
            self._records -= covered
            await log.unlist(position)
            await log.delete_unlisted()
        except LedgerError as error:
            _log.warning("coordinator_log_not_compacted", number=self.number, error=str(error))
            await asyncio.sleep(_SNAPSHOT_RETRY_S)
        finally:
            self._compacting = None

    # The end

    def close(self) -> None:
        """Stop notifying and writing: this broker is no longer the coordinator."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in [*self._endings.values(), *self._tasks]:
            task.cancel()
        if self._compacting is not None:
            self._compacting.cancel()
