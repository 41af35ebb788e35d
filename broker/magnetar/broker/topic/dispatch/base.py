"""What all dispatchers share: their environment, membership, and the single-active mechanics.

A dispatcher is a state machine driven from outside: consumers come and go, credit arrives, entries
are appended, acknowledgements are made. `wake` is called after each of these and sends what can be
sent now. Nothing here waits: a read behind the tail ends in another `wake`.
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
    """A feature that holds entries back until they are due."""

    def withholds(self, run: Run, index: int, /) -> bool:
        """Whether an entry of `run.delayed` is not due. It is remembered there, and given to
        `deliver` some day."""
        ...

    @property
    def next_due_ms(self) -> int | None:
        """When the next delayed entry of the topic is due, as far as the index knows; None: there
        is none."""
        ...

    @property
    def withheld(self) -> int:
        """Entries that are remembered."""
        ...

    @property
    def size_bytes(self) -> int:
        """Memory that the subscription alone takes for that."""
        ...


class DispatchTrace(Protocol):
    """A feature that traces single messages through a subscription."""

    def sent_through(self, after: Position, consumer: Consumer, /) -> None:
        """Everything up to `after` was written to the one active consumer, or needs not be."""
        ...

    def sent_pending(self, consumer: Consumer, /) -> None:
        """Entries were written to a consumer that has to acknowledge each."""
        ...

    def acked_range(self, ledger_id: int, first: int, final: int, /) -> None:
        """Whole entries of a ledger were acknowledged, both ends included."""
        ...

    def acked_each(self, positions: Sequence[Position], /) -> None:
        """Single whole entries were acknowledged."""
        ...

    def acked_through(self, position: Position, /) -> None:
        """Everything at or before the position was acknowledged."""
        ...

    def redelivered(self) -> None:
        """Entries that were sent are sent again."""
        ...


class MarkersPassed(Protocol):
    """A feature that looks at the broker's own entries which a subscription passes."""

    def passed(self, positions: Sequence[Position], /) -> None:
        """Entries that are not for consumers were passed; an entry may be passed again."""
        ...


@dataclass(frozen=True, slots=True)
class DispatchContext:
    """What a dispatcher works on: one subscription of one topic."""

    topic: str
    subscription: str
    partition: int
    """Index if the topic is a partition, else -1; it travels in message ids."""
    log: ReadableLog
    reads: RangeReads
    """Of all subscriptions of the topic."""
    cursor: SubscriptionCursor
    tenure: Tenure
    """The right to send anything."""
    wall_ms: Callable[[], int]
    """The time, for statistics."""
    settings: BrokerSettings
    policies: Callable[[], Policies]
    """What counts for the topic now: unacknowledged messages, rates."""
    on_progress: Callable[[], None]
    """The read position has moved: the tail cache may drop what everybody has passed."""
    limiters: Sequence[RateLimiter] = ()
    """Bounds on the rate, of the topic and of the subscription."""
    delays: Delays | None = None
    """Asked about new entries of Shared and Key_Shared that are delayed."""
    trace: DispatchTrace | None = None
    """Told what is sent and acknowledged, if messages are followed."""
    visibility: Visibility | None = None
    """What of the topic may be read; None: all of it."""
    early: EarlyPlace | None = None
    """How much is consumed of what is compacted and no more in the log."""
    markers: MarkersPassed | None = None
    """Told of the broker's own entries that are passed."""

    @property
    def cache(self) -> TailCache:
        return self.reads.cache

    @property
    def label(self) -> str:
        return f"{self.topic}:{self.subscription}"


SINGLE_ENTRIES_PER_TURN = 200
"""Entries that one wake sends one by one, as those that come again: each takes tens of us."""


class Turn:
    """What one wake may send: a share of the loop's time, within the bounds on the rate."""

    __slots__ = ("_messages", "_room", "messages", "room", "single_entries")

    def __init__(self, messages: int, room: int) -> None:
        self._messages = messages
        self._room = room
        self.messages = messages
        """Messages left."""
        self.room = room
        """Bytes left."""
        self.single_entries = SINGLE_ENTRIES_PER_TURN
        """Entries left of those that go one by one, which costs more than their bytes."""

    def spend(self, messages: int, size_bytes: int) -> None:
        self.messages -= messages
        self.room -= size_bytes

    @property
    def is_over(self) -> bool:
        return self.messages <= 0 or self.room <= 0 or self.single_entries <= 0

    @property
    def spent(self) -> tuple[int, int]:
        """Messages and bytes."""
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
        """Entries that wait here, to be sent again or for somebody who can take them."""
        return 0

    @property
    def is_reading_again(self) -> bool:
        """Whether entries that were sent before, or left behind, are being read."""
        return False

    @property
    def unreadable(self) -> tuple[Position, str] | None:
        """The first entry that cannot be read now, of those that come next, and why."""
        return self.source.unreadable

    def forget(self, position: Position) -> None:  # noqa: B027
        """An entry that waits here to be sent again is not wanted any more: it was skipped."""

    @property
    def read_after(self) -> Position:
        """Everything at or before it has been sent or skipped."""
        return self.source.after

    # Membership

    @abstractmethod
    def add(self, consumer: Consumer) -> None:
        """A consumer joins; it has no credit yet."""

    @abstractmethod
    def remove_all(self, consumers: Collection[Consumer]) -> None:
        """Consumers leave; what they did not acknowledge goes to others.

        Costs what their entries and one look at all others cost, however many leave at once.
        """

    def remove(self, consumer: Consumer) -> None:
        """A consumer leaves; what it did not acknowledge goes to others."""
        self.remove_all((consumer,))

    def _without(self, consumers: Collection[Consumer]) -> list[Consumer]:
        """Take consumers out of the list; returns those of them that were there."""
        gone = set(consumers)
        found = [each for each in self.consumers if each in gone]
        if found:
            self.consumers[:] = [each for each in self.consumers if each not in gone]
        return found

    # Driving

    def begin(self, consumer: Consumer) -> None:  # noqa: B027
        """A consumer asks for messages for the first time."""

    @abstractmethod
    def wake(self) -> None:
        """Send what can be sent now."""

    @abstractmethod
    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None) -> None:
        """Send unacknowledged entries again; None means all of them."""

    @abstractmethod
    def rewind(self) -> None:
        """Start again at the first unacknowledged entry, as after a seek."""

    keeps_accounts = False
    """Whether it has to know what is acknowledged."""

    def acked(  # noqa: B027
        self, consumer: Consumer, positions: Sequence[Position]
    ) -> None:
        """Entries were acknowledged as a whole; only asked if it `keeps_accounts`."""

    def acked_through(self, position: Position) -> None:  # noqa: B027
        """Everything through the position was acknowledged by nobody: expired, or skipped."""

    def partly_acked(self, position: Position) -> None:  # noqa: B027
        """More batch indexes of the entry were acknowledged."""

    def deliver(self, positions: Sequence[Position]) -> None:  # noqa: B027
        """Entries that were withheld are due. Shared and Key_Shared withhold any."""

    def use_cursor(self, cursor: SubscriptionCursor) -> None:
        """Go by another view of the same cursor from now on."""
        self.context = replace(self.context, cursor=cursor)
        self.source.use_cursor(cursor)

    def pause(self) -> None:
        """Send nothing: the cursor is being reset."""
        self._is_paused = True
        self.source.close()
        self._stop_rate_timer()

    def resume(self) -> None:
        """Go on after `pause`, from the first unacknowledged entry."""
        self._is_paused = False
        self.rewind()
        self.wake()

    def limits_changed(self) -> None:
        """Other limits count from now on."""
        self._stop_rate_timer()
        self.wake()

    def close(self) -> None:
        """Stop for good."""
        self.pause()

    # Questions

    def why_idle(self) -> Reason | None:
        """Why nothing is sent just now; None: something is, or is about to be."""
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
        """What else may hold entries back."""

    def _why_not_reading(self) -> Reason | None:
        if self._rate_timer is not None:
            return Reason.RATE_LIMIT
        if self._is_wake_scheduled:
            return None  # what waits goes on in a moment
        if self.source.unreadable is not None:
            return Reason.UNREADABLE
        if self.source.is_reading:
            return Reason.READING
        if self.source.is_at_end:
            return Reason.NOTHING_NEW
        return None

    def check(self) -> None:  # noqa: B027
        """Compare the books with each other; for tests and for those who look for a defect.

        Raises:
            AccountsError: they contradict themselves.
        """

    # Helpers

    def _wake_soon(self) -> None:
        """Go on after everybody else had a turn."""
        if not self._is_wake_scheduled:
            self._is_wake_scheduled = True
            asyncio.get_running_loop().call_soon(self._wake_scheduled)

    def _wake_scheduled(self) -> None:
        self._is_wake_scheduled = False
        self.wake()

    def _begin(self) -> Turn | None:
        """What may be sent now; None: nothing. If time alone is missing, a wake follows."""
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
        """Pay for what was sent, and go on some time if the turn, and nothing else, is over."""
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
        """Internal entries count as acknowledged by every subscription."""
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
    """All entries, in order, to one consumer at a time: what Exclusive and Failover share."""

    source: CompactedSource
    _source_type = CompactedSource

    def __init__(self, context: DispatchContext) -> None:
        super().__init__(context)
        self.source.early = context.early
        self.active: Consumer | None = None
        self._wanted: Callable[[int], bool] | None = None
        """Whether the active consumer wants to see entries whose key has this hash."""

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
            consumer.entries_out += len(parts) // 2  # a frame is what precedes an entry, and that
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
        """Ids are ignored: order demands that everything from the first open entry comes again."""
        if consumer is self.active:
            self.rewind()
            self.wake()

    def rewind(self) -> None:
        if self.active is not None:
            self.source.read_for(reads_compacted=self.active.reads_compacted)
        self.source.rewind()
