"""A non-persistent topic: receipts at once, messages to whoever has credit, no place kept.

Producers and consumers join by the rules of stored topics; see the protocol sheet, section 7.
"""

from collections.abc import Awaitable, Callable, Sequence

from magnetar.broker.base.errors import ConsumerBusyError, NotAllowedError
from magnetar.broker.topic import OpenCursor, PublishBatch, PublishLine, Topic, TopicSubscriptions
from magnetar.broker.topic.consumer import EXCLUSIVE, Consumer
from magnetar.broker.topic.dispatch.base import DispatchContext, Dispatcher
from magnetar.broker.topic.run import Run
from magnetar.broker.topic.subscription import Subscription
from magnetar.broker.topics.non_persistent.passing import PassingDispatcher
from magnetar.cursors import NonDurableCursor
from magnetar.ledger.position import LATEST, Position
from magnetar.sdk.wire import encode_send_receipts

IN_FLIGHT_MAX = 1000
"""Messages of one producer that are taken at a time; more are dropped, and receipted with -1:-1."""


class PassingSubscription(Subscription):
    """A subscription of a non-persistent topic: membership alone."""

    def _new_dispatcher(self, context: DispatchContext, consumer: Consumer) -> Dispatcher:
        return PassingDispatcher(context, consumer)

    @property
    def messages_dropped(self) -> int:
        dispatcher = self.dispatcher
        return dispatcher.dropped_messages if isinstance(dispatcher, PassingDispatcher) else 0

    async def seek(
        self,
        consumer: Consumer | None,
        find: Callable[[], Awaitable[tuple[Position, Sequence[int]]]],
    ) -> None:
        """Every position is where it is: what comes next. The consumer is closed as after any
        seek, so that it comes back with all of its credit.

        Raises:
            NotAllowedError: an operator asks, to whom it would mean nothing.
        """
        if consumer is None:
            raise NotAllowedError(
                f"{self.topic} is not persistent: there is no position to reset to"
            )
        await super().seek(consumer, find)

    def _in_the_way(self, consumer: Consumer) -> Consumer | None:
        if consumer.sub_type == EXCLUSIVE:
            return self.consumers[0]
        dispatcher = self.dispatcher
        assert isinstance(dispatcher, PassingDispatcher)
        if dispatcher.mode != consumer.key_shared:
            raise ConsumerBusyError(
                f"subscription {self.name} is in use with {dispatcher.mode}, but the consumer "
                f"requested {consumer.key_shared}"
            )
        return dispatcher.conflict_of(consumer)

    def _needs_dispatcher(self, consumer: Consumer) -> bool:
        dispatcher = self.dispatcher
        return (
            not isinstance(dispatcher, PassingDispatcher)
            or dispatcher.sub_type != consumer.sub_type
            or dispatcher.mode != consumer.key_shared
        )


class PassingSubscriptions(TopicSubscriptions):
    """The subscriptions of a non-persistent topic."""

    _subscription_class = PassingSubscription

    async def _open(self, subscription: Subscription, open_cursor: OpenCursor) -> None:
        """Without a place of its own, and without asking for one."""
        if not subscription.is_open:
            cursor = NonDurableCursor(self._topic.log, subscription.name, initial=LATEST)
            subscription.context = self._context_of(subscription, cursor, lambda: None)


class PassingLine(PublishLine):
    """The publish line of a non-persistent topic: it ends here, and not in a log."""

    def append(self, batch: PublishBatch) -> None:
        """Answer at once, and pass on what is taken."""
        taken = batch.payloads[:IN_FLIGHT_MAX]
        highest = batch.highest_ids if batch.has_highest_ids else None
        cut = len(taken)
        frames = encode_send_receipts(
            batch.producer_id,
            batch.sequence_ids[:cut],
            ledger_id=0,
            entry_ids=[0] * cut,
            highest_sequence_ids=highest[:cut] if highest is not None else None,
        )
        left = len(batch.payloads) - cut
        if left:
            frames += encode_send_receipts(
                batch.producer_id,
                batch.sequence_ids[cut:],
                ledger_id=-1,
                entry_ids=[-1] * left,
                highest_sequence_ids=highest[cut:] if highest is not None else None,
            )
        self.entries_in += cut
        dropped = sum(batch.counts[cut:]) if left else 0
        self.messages_dropped += dropped
        self.messages_in += batch.messages
        self.bytes_in += batch.size_bytes
        self.chunks_in += len(batch.chunks)
        self.last_publish_s = batch.arrived_s
        batch.answered(frames, dropped=dropped)
        if self.tenure.holds():
            run = Run(
                0,
                0,
                taken,
                messages=batch.counts[:cut],
                is_plain=batch.is_plain,
                chunk_indexes=[each for each in batch.chunks if each < cut],
            )
            for subscription in self._subscriptions.values():
                if isinstance(subscription.dispatcher, PassingDispatcher):
                    subscription.dispatcher.offer(run)


class NonPersistentTopic(Topic):
    """Publishing and subscribing without a store; the rest is `Topic`'s."""

    _subscriptions_class = PassingSubscriptions
    _line_class = PassingLine
