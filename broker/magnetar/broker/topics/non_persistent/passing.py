"""Dispatch without a store: an entry goes to a consumer that has credit now, or to nobody.

Who gets it is chosen as for stored topics: the one consumer of Exclusive, the active one of
Failover, the next one in turn of Shared, the one that has the key's hash of Key_Shared. Nothing is
pending, nothing is redelivered, and every message has the id 0:0.
"""

import asyncio
from collections.abc import Collection, Sequence

from magnetar.broker.base.entry import MARKER
from magnetar.broker.topic.consumer import EXCLUSIVE, FAILOVER, KEY_SHARED, Consumer
from magnetar.broker.topic.dispatch.base import DispatchContext, Dispatcher
from magnetar.broker.topic.dispatch.encoding import CHECKSUM_VERSION_MIN, strip_checksum
from magnetar.broker.topic.dispatch.failover import ActiveChoice, Notices
from magnetar.broker.topic.dispatch.reasons import Reason
from magnetar.broker.topic.dispatch.selectors import HashRanges, selector_of
from magnetar.broker.topic.run import Run
from magnetar.ledger.position import Position
from magnetar.sdk.wire import encode_message_prefix


class PassingDispatcher(Dispatcher):
    """Of one subscription, of any type."""

    def __init__(self, context: DispatchContext, consumer: Consumer) -> None:
        """`consumer`: the first one; its type and mode are the subscription's."""
        super().__init__(context)
        self.sub_type = consumer.sub_type
        self.mode = consumer.key_shared
        self.selector = selector_of(
            self.mode, splits_ranges=not context.settings.key_shared_consistent_hashing
        )
        self.dropped_messages = 0
        """Messages that nobody could take; see `Subscription.messages_dropped`."""
        self._turn = 0
        self._choice = ActiveChoice(topic=context.topic, partition=context.partition)
        self._active: Consumer | None = None
        self._notices = Notices(
            lambda consumer: consumer is self._active, delay_ms=context.settings.failover_delay_ms
        )

    # Membership

    def add(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)
        if self.sub_type == KEY_SHARED:
            self.selector.add(consumer)
        elif self.sub_type in (EXCLUSIVE, FAILOVER):
            self._choice.add(consumer)
            if self.sub_type == FAILOVER:
                self._notices.welcome(consumer)
            self._activate()

    def remove_all(self, consumers: Collection[Consumer]) -> None:
        gone = self._without(consumers)
        if not gone:
            return
        if self.sub_type == KEY_SHARED:
            for consumer in gone:
                self.selector.remove(consumer)
        elif self.sub_type in (EXCLUSIVE, FAILOVER):
            self._choice.remove_all(gone)
            self._notices.forget(gone)
            self._activate()

    def begin(self, consumer: Consumer) -> None:
        self._notices.begin(consumer)

    def _activate(self) -> None:
        """Choose the active consumer, and tell all of Failover if it is another one."""
        former, self._active = self._active, self._choice.chosen()
        if self.sub_type == FAILOVER and self._active is not former:
            asyncio.get_running_loop().call_soon(self._notices.tell_all, list(self.consumers))

    @property
    def active(self) -> Consumer | None:
        """The one consumer that gets everything, of Exclusive and Failover."""
        return self._active

    def conflict_of(self, consumer: Consumer) -> Consumer | None:
        """A consumer that has some of the hashes that this one wants."""
        if isinstance(self.selector, HashRanges):
            return self.selector.conflict_of(consumer.hash_ranges)
        return None

    # Sending

    def offer(self, run: Run) -> None:
        """Send what somebody has credit for; the rest is dropped."""
        if self._is_paused or not self.consumers:
            self.dropped_messages += sum(each for each in run.messages if each != MARKER)
            return
        hashes = None
        if self.sub_type == KEY_SHARED:
            hashes = self.selector.hashes_of(run.key_hashes)
        outgoing: dict[Consumer, list[bytes]] = {}
        chunks = run.chunks
        for index, entry in enumerate(run.entries):
            messages = run.messages[index]
            if messages == MARKER:
                continue
            consumer = self._choose(hashes[index] if hashes is not None else 0)
            if consumer is None or consumer.permits <= 0 or not consumer.peer.is_writable:
                self.dropped_messages += messages
                continue
            if consumer.peer.protocol_version < CHECKSUM_VERSION_MIN:
                entry = strip_checksum(entry)
            prefix = encode_message_prefix(
                consumer.consumer_id,
                ledger_id=0,
                entry_id=0,
                payload_bytes=len(entry),
                partition=self.context.partition,
                consumer_epoch=consumer.epoch,
            )
            outgoing.setdefault(consumer, []).extend((prefix, entry))
            consumer.permits -= messages
            consumer.messages_out += messages
            consumer.bytes_out += len(entry)
            consumer.entries_out += 1
            if chunks and index in chunks:
                consumer.chunks_out += 1
        now_ms = self.context.wall_ms() if outgoing else 0
        for consumer, parts in outgoing.items():
            consumer.was_sent(now_ms)
            consumer.peer.write(b"".join(parts))

    def _choose(self, key_hash: int) -> Consumer | None:
        if self.sub_type == KEY_SHARED:
            return self.selector.select(key_hash)
        if self.sub_type in (EXCLUSIVE, FAILOVER):
            return self._active
        ready = [each for each in self.consumers if each.is_ready]
        if not ready:
            return None
        top = min(each.priority for each in ready)
        group = [each for each in ready if each.priority == top]
        self._turn += 1
        return group[self._turn % len(group)]

    def wake(self) -> None:
        """Nothing waits for credit."""

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None) -> None:
        """Nothing is kept that could be sent again."""

    def rewind(self) -> None:
        """There is nowhere to go back to."""

    def _why_not_sending(self) -> Reason | None:
        return None
