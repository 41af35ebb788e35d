"""Shared: entries go round robin to whichever consumer has credit; order is not kept.

Every entry that was sent is pending at one consumer until it is acknowledged. It goes back for
redelivery when the consumer asks (its count goes up) or leaves (it does not). Redelivery goes
before new entries. Consumers with a lower priority number are served first; others get messages
only when none of those can take any.

A consumer or a subscription with too many unacknowledged messages is sent nothing until half of
them are acknowledged or given back; its credit is kept meanwhile. When the last consumer leaves,
everything starts again at the first unacknowledged entry, and the counts are forgotten.

Source: protocol sheet sections 9 to 11.
"""

from collections import deque
from collections.abc import Sequence

from magnetar.broker.consumer import SHARED, Consumer
from magnetar.broker.dispatch.base import DispatchContext, Dispatcher
from magnetar.broker.dispatch.encoding import append_message, open_messages
from magnetar.broker.dispatch.replay import ReplayLoader
from magnetar.broker.entry import MARKER
from magnetar.ledger.position import Position


class SharedDispatcher(Dispatcher):
    """Spreads entries over consumers and keeps book of who has what."""

    sub_type = SHARED

    def __init__(self, context: DispatchContext) -> None:
        super().__init__(context)
        self._levels: dict[int, deque[Consumer]] = {}
        self._replay = ReplayLoader(
            context.log,
            context.cache,
            context.limits.reads,
            label=context.label,
            on_ready=self.wake,
        )
        self._redelivery_counts: dict[Position, int] = {}
        self._unacked_messages = 0
        self._is_blocked = False

    # Membership

    def add(self, consumer: Consumer) -> None:
        if not self.consumers:
            self.rewind()
        self.consumers.append(consumer)
        self._levels.setdefault(consumer.priority, deque()).append(consumer)
        self._levels = dict(sorted(self._levels.items()))

    def remove(self, consumer: Consumer) -> None:
        if consumer not in self.consumers:
            return
        self.consumers.remove(consumer)
        level = self._levels[consumer.priority]
        level.remove(consumer)
        if not level:
            del self._levels[consumer.priority]
        for position in consumer.pending:
            self._replay.waiting.add(position)
        self._forget_pending(consumer)
        if not self.consumers:
            self._reset()
        else:
            self.wake()

    # Sending

    def wake(self) -> None:
        if self._is_paused or not self.consumers or not self.context.tenure.holds():
            return
        limit = self.context.limits.round_robin_messages_max
        room = self.context.limits.dispatch_bytes_max
        outgoing: dict[Consumer, list[bytes]] = {}
        markers: list[Position] = []
        while room > 0 and not self._is_blocked:
            consumer = self._next_ready()
            if consumer is None:
                break
            parts = outgoing.setdefault(consumer, [])
            credit = min(consumer.permits, limit)
            size = self._send_again(consumer, parts, credit, room)
            if size is None:
                break  # what is to be sent again is being read, and goes first
            if size == 0:
                size = self._send_new(consumer, parts, credit, room, markers)
                if size == 0:
                    break
            self._levels[consumer.priority].rotate(-1)
            room -= size
        if markers:
            self._ack_markers(markers)
        for consumer, parts in outgoing.items():
            if parts:
                consumer.peer.write(b"".join(parts))
        self.context.on_progress()
        if room <= 0:
            self._wake_soon()

    def _next_ready(self) -> Consumer | None:
        """Whose turn it is: the first one of its level that can take something."""
        for level in self._levels.values():
            for _ in range(len(level)):
                if level[0].is_ready:
                    return level[0]
                level.rotate(-1)
        return None

    def _send_again(
        self, consumer: Consumer, parts: list[bytes], credit: int, room: int
    ) -> int | None:
        """Redeliver up to the credit; bytes sent, 0 if nothing waits, None if a read is awaited."""
        waiting = self._replay.waiting
        cursor = self.context.cursor
        sent = 0
        while credit > 0 and sent < room and len(waiting):
            loaded = self._replay.next_entry()
            if loaded is None:
                if sent:
                    return sent
                return None if len(waiting) else 0
            position, entry, messages = loaded
            waiting.discard(position)
            if cursor.is_acked(position) or messages == MARKER:
                self._redelivery_counts.pop(position, None)
                continue
            words = cursor.remaining_words(position)
            sent += append_message(
                parts,
                consumer,
                position,
                entry,
                partition=self.context.partition,
                words=words,
                redelivery_count=self._redelivery_counts.get(position, 0),
            )
            credit -= self._hand_over(consumer, position, open_messages(messages, words))
            if consumer.is_blocked or self._is_blocked:
                break
        return sent

    def _send_new(
        self,
        consumer: Consumer,
        parts: list[bytes],
        credit: int,
        room: int,
        markers: list[Position],
    ) -> int:
        """Send entries that nobody had yet; bytes sent, 0 if there is nothing now."""
        cursor = self.context.cursor
        partition = self.context.partition
        sent = 0
        while credit > 0 and sent < room:
            found = self.source.next_run()
            if found is None:
                break
            run, index = found
            has_holes = cursor.has_holes
            entries, counts = run.entries, run.messages
            stop = index
            for stop in range(index, len(entries)):
                if credit <= 0 or sent >= room or consumer.is_blocked or self._is_blocked:
                    break
                position = Position(run.ledger_id, run.first_entry_id + stop)
                messages = counts[stop]
                words: tuple[int, ...] = ()
                if has_holes:
                    if cursor.is_acked(position):
                        continue
                    words = cursor.remaining_words(position)
                if messages == MARKER:
                    markers.append(position)
                    continue
                sent += append_message(
                    parts, consumer, position, entries[stop], partition=partition, words=words
                )
                credit -= self._hand_over(consumer, position, open_messages(messages, words))
            else:
                stop = len(entries)
            self.source.advance(run, stop)
            if consumer.is_blocked or self._is_blocked:
                break
        return sent

    def _hand_over(self, consumer: Consumer, position: Position, messages: int) -> int:
        """Note that the consumer has the entry; returns its cost in credit."""
        consumer.pending[position] = messages
        consumer.permits -= messages
        consumer.messages_out += messages
        consumer.unacked_messages += messages
        self._unacked_messages += messages
        limits = self.context.limits
        if 0 < limits.unacked_per_consumer_max <= consumer.unacked_messages:
            consumer.is_blocked = True
        if 0 < limits.unacked_per_subscription_max <= self._unacked_messages:
            self._is_blocked = True
        return messages

    # Acknowledgements and redelivery

    def acked(self, consumer: Consumer, ledger_id: int, first: int, final: int) -> None:
        counts = self._redelivery_counts
        for entry_id in range(first, final + 1):
            position = Position(ledger_id, entry_id)
            if counts:
                counts.pop(position, None)
            owner = self._owner(consumer, position)
            if owner is None:
                self._replay.waiting.discard(position)
            else:
                self._release(owner, owner.pending.pop(position))

    def partly_acked(self, position: Position) -> None:
        owner = self._owner(None, position)
        if owner is None:
            return
        words = self.context.cursor.remaining_words(position)
        before = owner.pending[position]
        remaining = min(before, open_messages(before, words))
        owner.pending[position] = remaining
        self._release(owner, before - remaining)

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None) -> None:
        pending = consumer.pending
        for position in list(pending) if positions is None else positions:
            messages = pending.pop(position, None)
            if messages is None:
                continue
            self._replay.waiting.add(position)
            counts = self._redelivery_counts
            counts[position] = counts.get(position, 0) + 1
            consumer.messages_redelivered += messages
            self._release(consumer, messages)
        self.wake()

    def rewind(self) -> None:
        for consumer in self.consumers:
            self._forget_pending(consumer)
        self._reset()
        self.source.rewind()

    def close(self) -> None:
        super().close()
        self._replay.clear()

    def pause(self) -> None:
        super().pause()
        self._replay.clear()

    def _reset(self) -> None:
        self._replay.clear()
        self._redelivery_counts.clear()
        self.source.close()

    def _owner(self, likely: Consumer | None, position: Position) -> Consumer | None:
        """The consumer that the entry is pending at; any may acknowledge it."""
        if likely is not None and position in likely.pending:
            return likely
        for consumer in self.consumers:
            if position in consumer.pending:
                return consumer
        return None

    def _release(self, consumer: Consumer, messages: int) -> None:
        """Messages of the consumer are no longer unacknowledged; wake up if that unblocks."""
        consumer.unacked_messages -= messages
        self._unacked_messages -= messages
        limits = self.context.limits
        if consumer.is_blocked and (
            consumer.unacked_messages * 2 <= limits.unacked_per_consumer_max
        ):
            consumer.is_blocked = False
            self._wake_soon()
        if self._is_blocked and (self._unacked_messages * 2 <= limits.unacked_per_subscription_max):
            self._is_blocked = False
            self._wake_soon()

    def _forget_pending(self, consumer: Consumer) -> None:
        messages = consumer.unacked_messages
        consumer.pending.clear()
        self._release(consumer, messages)
