"""Base of all dispatchers: their environment, membership, and the logic of a single active
consumer.

A dispatcher is a state machine driven from outside: consumers join and leave, permits arrive,
entries are appended, acknowledgements are made. `wake` is called after each of these and sends what
can be sent now. Nothing here waits: a read behind the tail ends in another `wake`.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.base.weakly import weakly
from magnetar.broker.cluster.ownership.protocol import Tenure
from magnetar.broker.policies.model import Policies
from magnetar.broker.topic.consumer import Consumer
from magnetar.broker.topic.dispatch.compacted import CompactedSource, EarlyPlace
from magnetar.broker.topic.dispatch.encoding import encode_run
from magnetar.broker.topic.dispatch.range_reads import RangeReads, ReadableLog
from magnetar.broker.topic.dispatch.reasons import Reason
from magnetar.broker.topic.dispatch.source import EntrySource, Skipped
from magnetar.broker.topic.dispatch.throttle import RateLimiter
from magnetar.broker.topic.dispatch.visibility import Visibility
from magnetar.broker.topic.run import Run
from magnetar.broker.topic.tail_cache import TailCache
from magnetar.cursors import SubscriptionCursor
from magnetar.ledger.position import Position


class Delays(Skipped, Protocol):
    """A feature that withholds entries until they are due."""

    def withholds(self, run: Run, index: int, /) -> bool:
        """Whether to withhold an entry of `run.delayed`, because it is not due.

        The feature remembers a withheld entry, and passes it to `deliver` when it is due.
        """
        ...

    @property
    def next_due_ms(self) -> int | None:
        """When the next delayed entry of the topic is due, ms since the epoch, as far as the index
        knows; None if there is none."""
        ...

    @property
    def withheld(self) -> int:
        """Number of withheld entries."""
        ...

    @property
    def size_bytes(self) -> int:
        """Memory used for withheld entries of this subscription alone."""
        ...


class DispatchTrace(Protocol):
    """A feature that traces single messages through a subscription."""

    def sent_through(self, after: Position, consumer: Consumer, /) -> None:
        """Note that everything up to `after` was written to the active consumer, or need not be."""
        ...

    def sent_pending(self, consumer: Consumer, /) -> None:
        """Note that entries were written to a consumer that must acknowledge each."""
        ...

    def acked_range(self, ledger_id: int, first: int, final: int, /) -> None:
        """Note that whole entries of a ledger were acknowledged, both ends included."""
        ...

    def acked_each(self, positions: Sequence[Position], /) -> None:
        """Note that single whole entries were acknowledged."""
        ...

    def acked_through(self, position: Position, /) -> None:
        """Note that everything at or before the position was acknowledged."""
        ...

    def redelivered(self) -> None:
        """Note that entries are sent again."""
        ...


class MarkersPassed(Protocol):
    """A feature that watches which of the broker's own entries a subscription passes."""

    def passed(self, positions: Sequence[Position], /) -> None:
        """Note that entries that are not for consumers were passed; an entry may be passed
        again."""
        ...


@dataclass(frozen=True, slots=True)
class DispatchContext:
    """The environment of a dispatcher: one subscription of one topic."""

    topic: str
    subscription: str
    partition: int
    """Index if the topic is a partition, else -1; part of message ids."""
    log: ReadableLog
    reads: RangeReads
    """Range reads, shared by all subscriptions of the topic."""
    cursor: SubscriptionCursor
    tenure: Tenure
    """The right to send anything."""
    wall_ms: Callable[[], int]
    """Wall clock, ms since the epoch, for statistics."""
    settings: BrokerSettings
    policies: Callable[[], Policies]
    """Returns the effective policies of the topic: unacknowledged messages, rates."""
    on_progress: Callable[[], None]
    """Called when the read position has moved: the tail cache may drop what all subscriptions
    passed."""
    limiters: Sequence[RateLimiter] = ()
    """Rate limits of the topic and of the subscription."""
    delays: Delays | None = None
    """Decides about delayed entries of Shared and Key_Shared; None if delays are ignored."""
    trace: DispatchTrace | None = None
    """Informed of what is sent and acknowledged, if messages are traced."""
    visibility: Visibility | None = None
    """Visible part of the topic; None: all of it."""
    early: EarlyPlace | None = None
    """How far the subscription has consumed compacted entries that are trimmed from the log."""
    markers: MarkersPassed | None = None
    """Informed of the broker's own entries that are passed."""

    @property
    def cache(self) -> TailCache:
        return self.reads.cache

    @property
    def label(self) -> str:
        return f"{self.topic}:{self.subscription}"


SINGLE_ENTRIES_PER_TURN = 200
"""Entries that one wake sends one by one, such as redeliveries: each takes tens of microseconds."""


class Turn:
    """Limits of one wake: a share of the loop's time, within the rate limits."""

    __slots__ = ("_messages", "_room", "messages", "room", "single_entries")

    def __init__(self, messages: int, room: int) -> None:
        self._messages = messages
        self._room = room
        self.messages = messages
        """Messages left."""
        self.room = room
        """Bytes left."""
        self.single_entries = SINGLE_ENTRIES_PER_TURN
        """Entries left to send one by one, which costs more than their bytes suggest."""

    def spend(self, messages: int, size_bytes: int) -> None:
        self.messages -= messages
        self.room -= size_bytes

    @property
    def is_over(self) -> bool:
        return self.messages <= 0 or self.room <= 0 or self.single_entries <= 0

    @property
    def spent(self) -> tuple[int, int]:
        """Messages and bytes spent."""
        return self._messages - self.messages, self._room - self.room


class Dispatcher(ABC):
    """Sends entries of one subscription to its consumers."""

    sub_type: int
    heeds_delays = False
    """Whether delayed entries are withheld."""
    _source_type: type[EntrySource] = EntrySource

    def __init__(self, context: DispatchContext) -> None:
        self.context = context
        self.consumers: list[Consumer] = []
        self._is_paused = False
        self._is_wake_scheduled = False
        self._rate_timer: asyncio.TimerHandle | None = None
        self.source = self._source_type(
            context.log,
            context.reads,
            context.cursor,
            label=context.label,
            on_ready=weakly(self.wake),
            skipped=context.delays if self.heeds_delays else None,
            visibility=context.visibility,
        )

    @property
    def waiting_entries(self) -> int:
        """Entries that wait here, for redelivery or for a consumer that can take them."""
        return 0

    @property
    def is_reading_again(self) -> bool:
        """Whether entries that were sent before, or left behind, are being read."""
        return False

    @property
    def unreadable(self) -> tuple[Position, str] | None:
        """First entry among the next ones that cannot be read now, and why."""
        return self.source.unreadable

    def forget(self, position: Position) -> None:  # noqa: B027
        """Drop an entry that waits for redelivery: an operator skipped it."""

    @property
    def read_after(self) -> Position:
        """Last position up to which everything has been sent or skipped."""
        return self.source.after

    # Membership

    @abstractmethod
    def add(self, consumer: Consumer) -> None:
        """Add a consumer, which has no permits yet."""

    @abstractmethod
    def remove_all(self, consumers: Collection[Consumer]) -> None:
        """Remove consumers; entries that they did not acknowledge go to others.

        The cost is that of their entries and one pass over all others, however many leave at once.
        """

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer; entries that it did not acknowledge go to others."""
        self.remove_all((consumer,))

    def _without(self, consumers: Collection[Consumer]) -> list[Consumer]:
        """Remove consumers from the list; return those that were in it."""
        gone = set(consumers)
        found = [each for each in self.consumers if each in gone]
        if found:
            self.consumers[:] = [each for each in self.consumers if each not in gone]
        return found

    # Driving

    def begin(self, consumer: Consumer) -> None:  # noqa: B027
        """Handle the first permits of a consumer."""

    @abstractmethod
    def wake(self) -> None:
        """Send what can be sent now."""

    @abstractmethod
    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None) -> None:
        """Send unacknowledged entries again; None: all of them."""

    @abstractmethod
    def rewind(self) -> None:
        """Start again at the first unacknowledged entry, as after a seek."""

    keeps_accounts = False
    """Whether the dispatcher must know which entries are acknowledged."""

    def acked(  # noqa: B027
        self, consumer: Consumer, positions: Sequence[Position]
    ) -> None:
        """Handle entries acknowledged as a whole; only called if it `keeps_accounts`."""

    def acked_through(self, position: Position) -> None:  # noqa: B027
        """Handle everything through the position as acknowledged without a consumer: expired or
        skipped."""

    def partly_acked(self, position: Position) -> None:  # noqa: B027
        """Handle an entry of which more batch indexes were acknowledged."""

    def deliver(self, positions: Sequence[Position]) -> None:  # noqa: B027
        """Send withheld entries that are due. Only Shared and Key_Shared withhold entries."""

    def use_cursor(self, cursor: SubscriptionCursor) -> None:
        """Use another view of the same cursor from now on."""
        self.context = replace(self.context, cursor=cursor)
        self.source.use_cursor(cursor)

    def pause(self) -> None:
        """Stop sending: the cursor is being reset."""
        self._is_paused = True
        self.source.close()
        self._stop_rate_timer()

    def resume(self) -> None:
        """Continue after `pause`, from the first unacknowledged entry."""
        self._is_paused = False
        self.rewind()
        self.wake()

    def limits_changed(self) -> None:
        """Apply changed limits."""
        self._stop_rate_timer()
        self.wake()

    def close(self) -> None:
        """Stop for good."""
        self.pause()

    # Queries

    def why_idle(self) -> Reason | None:
        """Return why nothing is sent now; None if something is, or is about to be."""
        context = self.context
        if self._is_paused or not context.tenure.holds():
            return Reason.PAUSED
        if not self.consumers:
            return Reason.NO_CONSUMER
        if context.cursor.is_caught_up:
            return Reason.NOTHING_LEFT
        return self._why_not_sending() or self._why_not_reading()

    @abstractmethod
    def _why_not_sending(self) -> Reason | None:
        """Return a reason of the dispatcher's own why entries are held back."""

    def _why_not_reading(self) -> Reason | None:
        if self._rate_timer is not None:
            return Reason.RATE_LIMIT
        if self._is_wake_scheduled:
            return None  # waiting entries are sent in the next turn
        if self.source.unreadable is not None:
            return Reason.UNREADABLE
        if self.source.is_reading:
            return Reason.READING
        if self.source.is_at_end:
            return Reason.NOTHING_NEW
        return None

    def check(self) -> None:  # noqa: B027
        """Check the accounts for contradictions; for tests and for debugging.

        Raises:
            AccountsError: they contradict each other.
        """

    # Helpers

    def _wake_soon(self) -> None:
        """Wake in a later turn of the loop, after other work."""
        if not self._is_wake_scheduled:
            self._is_wake_scheduled = True
            asyncio.get_running_loop().call_soon(self._wake_scheduled)

    def _wake_scheduled(self) -> None:
        self._is_wake_scheduled = False
        self.wake()

    def _begin(self) -> Turn | None:
        """Return what may be sent now; None: nothing. If only the rate limits it, a wake
        follows."""
        context = self.context
        if self._is_paused or not context.tenure.holds():
            return None  # without tenure the topic is about to be dropped
        messages, room = 1 << 62, context.settings.dispatch_bytes_max
        for limiter in context.limiters:
            if limiter.is_active:
                of_limiter = limiter.room()
                messages, room = min(messages, of_limiter[0]), min(room, of_limiter[1])
        if messages <= 0 or room <= 0:
            self._wait_for_rate()
            return None
        return Turn(messages, room)

    def _end(self, turn: Turn, *, wants_more: bool) -> None:
        """Charge the rate limits for what was sent; wake again soon if only the turn is over."""
        for limiter in self.context.limiters:
            if limiter.is_active:
                limiter.spend(*turn.spent)
        if wants_more and turn.is_over:
            self._wake_soon()

    def _wait_for_rate(self) -> None:
        if self._rate_timer is None:
            wait_s = max(each.wait_s() for each in self.context.limiters if each.is_active)
            self._rate_timer = asyncio.get_running_loop().call_later(wait_s, self._on_rate_timer)

    def _on_rate_timer(self) -> None:
        self._rate_timer = None
        self.wake()

    def _stop_rate_timer(self) -> None:
        if self._rate_timer is not None:
            self._rate_timer.cancel()
            self._rate_timer = None

    def _ack_markers(self, markers: Sequence[Position]) -> None:
        """Acknowledge internal entries on behalf of the subscription."""
        self.context.cursor.ack_many(markers)
        if self.context.markers is not None:
            self.context.markers.passed(markers)


def _open_chunks(run: Run, start: int, stop: int, acks: SubscriptionCursor) -> int:
    """Count the chunks from index `start` to before `stop` that are not acknowledged."""
    first = run.first_entry_id
    return sum(
        start <= at < stop and not acks.is_acked(Position(run.ledger_id, first + at))
        for at in run.chunks
    )


class SingleActiveDispatcher(Dispatcher):
    """Sends all entries in order to one consumer at a time: the base of Exclusive and Failover."""

    source: CompactedSource
    _source_type = CompactedSource

    def __init__(self, context: DispatchContext) -> None:
        super().__init__(context)
        self.source.early = context.early
        self.active: Consumer | None = None
        self._wanted: Callable[[int], bool] | None = None
        """Returns whether the active consumer wants entries whose key has this hash."""

    def wake(self) -> None:
        consumer = self.active
        if consumer is None or consumer.permits <= 0:
            return
        turn = self._begin()
        if turn is None:
            return
        context, source = self.context, self.source
        peer = consumer.peer
        parts: list[bytes] = []
        markers: list[Position] = []
        while consumer.permits > 0 and not turn.is_over and peer.is_writable:
            found = source.next_run()
            if found is None:
                break
            run, index = found
            encoded = encode_run(
                parts,
                consumer,
                run,
                index,
                messages_max=min(consumer.permits, turn.messages),
                bytes_max=turn.room,
                partition=context.partition,
                acks=context.cursor,
                markers=markers,
                wanted=self._wanted,
            )
            if run.chunks:
                consumer.chunks_out += _open_chunks(run, index, encoded.stop, context.cursor)
            source.advance(run, encoded.stop)
            consumer.permits -= encoded.messages
            turn.spend(encoded.messages, encoded.size_bytes)
        if markers:
            self._ack_markers(markers)
        if parts:
            messages, size_bytes = turn.spent
            consumer.messages_out += messages
            consumer.bytes_out += size_bytes
            consumer.entries_out += len(parts) // 2  # two parts per frame: prefix and entry
            consumer.was_sent(context.wall_ms())
            peer.write(b"".join(parts))
            if context.trace is not None:
                context.trace.sent_through(source.after, consumer)
            context.on_progress()
        self._end(turn, wants_more=consumer.permits > 0)

    def _why_not_sending(self) -> Reason | None:
        if self.active is None:
            return Reason.CHOOSING
        if self.active.permits <= 0:
            return Reason.NO_PERMITS
        if not self.active.peer.is_writable:
            return Reason.NOT_WRITABLE
        return None

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None) -> None:
        """Rewind, ignoring the ids: order demands that everything from the first unacknowledged
        entry is sent again."""
        if consumer is self.active:
            self.rewind()
            self.wake()

    def rewind(self) -> None:
        if self.active is not None:
            self.source.read_for(reads_compacted=self.active.reads_compacted)
        self.source.rewind()
