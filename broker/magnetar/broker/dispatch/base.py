"""What all dispatchers share: their environment, membership, and the single-active mechanics.

A dispatcher is a state machine driven from outside: consumers come and go, credit arrives, entries
are appended, acknowledgements are made. `wake` is called after each of these and sends what can be
sent now. Nothing here waits: a read behind the tail ends in another `wake`.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from magnetar.broker.consumer import Consumer
from magnetar.broker.dispatch.encoding import encode_run
from magnetar.broker.dispatch.source import EntrySource, ReadableLog, ReadLimits
from magnetar.broker.ownership.protocol import Tenure
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.broker.tail_cache import TailCache
from magnetar.cursors import SubscriptionCursor
from magnetar.ledger.position import Position


@dataclass(frozen=True, slots=True)
class DispatchLimits:
    """Bounds of dispatch; see `BrokerSettings` for what they mean."""

    dispatch_bytes_max: int
    round_robin_messages_max: int
    unacked_per_consumer_max: int
    unacked_per_subscription_max: int
    failover_delay_ms: int
    reads: ReadLimits


@dataclass(frozen=True, slots=True)
class DispatchContext:
    """What a dispatcher works on: one subscription of one topic."""

    topic: str
    subscription: str
    partition: int
    """Index if the topic is a partition, else -1; it travels in message ids."""
    log: ReadableLog
    cache: TailCache
    cursor: SubscriptionCursor
    tenure: Tenure
    """The right to send anything."""
    limits: DispatchLimits
    policies: Callable[[], EffectivePolicies]
    """What counts for the topic now: unacknowledged messages, rates."""
    on_progress: Callable[[], None]
    """The read position has moved: the tail cache may drop what everybody has passed."""

    @property
    def label(self) -> str:
        return f"{self.topic}:{self.subscription}"


class Dispatcher(ABC):
    """Sends entries of one subscription to its consumers."""

    sub_type: int

    def __init__(self, context: DispatchContext) -> None:
        self.context = context
        self.consumers: list[Consumer] = []
        self._is_paused = False
        self._is_wake_scheduled = False
        self.source = EntrySource(
            context.log,
            context.cache,
            context.cursor,
            context.limits.reads,
            label=context.label,
            on_ready=self.wake,
        )

    @property
    def read_after(self) -> Position:
        """Everything at or before it has been sent or skipped."""
        return self.source.after

    # Membership

    @abstractmethod
    def add(self, consumer: Consumer) -> None:
        """A consumer joins; it has no credit yet."""

    @abstractmethod
    def remove(self, consumer: Consumer) -> None:
        """A consumer leaves; what it did not acknowledge goes to others."""

    # Driving

    @abstractmethod
    def wake(self) -> None:
        """Send what can be sent now."""

    @abstractmethod
    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None) -> None:
        """Send unacknowledged entries again; None means all of them."""

    @abstractmethod
    def rewind(self) -> None:
        """Start again at the first unacknowledged entry, as after a seek."""

    def acked(  # noqa: B027
        self, consumer: Consumer, ledger_id: int, first: int, final: int
    ) -> None:
        """Entries were acknowledged as a whole. Only Shared keeps book of that."""

    def partly_acked(self, position: Position) -> None:  # noqa: B027
        """More batch indexes of the entry were acknowledged."""

    def pause(self) -> None:
        """Send nothing: the cursor is being reset."""
        self._is_paused = True
        self.source.close()

    def resume(self) -> None:
        """Go on after `pause`, from the first unacknowledged entry."""
        self._is_paused = False
        self.rewind()
        self.wake()

    def close(self) -> None:
        """Stop for good."""
        self._is_paused = True
        self.source.close()

    # Helpers

    def _wake_soon(self) -> None:
        """Go on after everybody else had a turn."""
        if not self._is_wake_scheduled:
            self._is_wake_scheduled = True
            asyncio.get_running_loop().call_soon(self._wake_scheduled)

    def _wake_scheduled(self) -> None:
        self._is_wake_scheduled = False
        self.wake()

    def _ack_markers(self, markers: Sequence[Position]) -> None:
        """Internal entries count as acknowledged by every subscription."""
        self.context.cursor.ack_many(markers)


class SingleActiveDispatcher(Dispatcher):
    """All entries, in order, to one consumer at a time: what Exclusive and Failover share."""

    def __init__(self, context: DispatchContext) -> None:
        super().__init__(context)
        self.active: Consumer | None = None

    def wake(self) -> None:
        consumer = self.active
        if consumer is None or self._is_paused or consumer.permits <= 0:
            return
        if not self.context.tenure.holds():
            return  # the topic is about to be dropped
        context, source = self.context, self.source
        peer = consumer.peer
        parts: list[bytes] = []
        markers: list[Position] = []
        room = context.limits.dispatch_bytes_max
        messages = 0
        while consumer.permits > 0 and room > 0 and peer.is_writable:
            found = source.next_run()
            if found is None:
                break
            run, index = found
            encoded = encode_run(
                parts,
                consumer,
                run,
                index,
                messages_max=consumer.permits,
                bytes_max=room,
                partition=context.partition,
                acks=context.cursor,
                markers=markers,
            )
            source.advance(run, encoded.stop)
            consumer.permits -= encoded.messages
            messages += encoded.messages
            room -= encoded.size_bytes
        if markers:
            self._ack_markers(markers)
        if parts:
            consumer.messages_out += messages
            consumer.bytes_out += context.limits.dispatch_bytes_max - room
            peer.write(b"".join(parts))
            context.on_progress()
        if room <= 0 and consumer.permits > 0:
            self._wake_soon()

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None) -> None:
        """Ids are ignored: order demands that everything from the first open entry comes again."""
        if consumer is self.active:
            self.rewind()
            self.wake()

    def rewind(self) -> None:
        self.source.rewind()
