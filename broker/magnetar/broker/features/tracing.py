"""Traces of single messages: published, stored, dispatched, acknowledged.

Tracing is off unless the broker is given an object that keeps `Spans`. If it is, topics host a
`TopicTrace`, and dispatchers check once per turn whether there is one. The broker knows no tracing
library: `magnetar.deploy.otel` connects OpenTelemetry.

`publish` lasts from the arrival of a message to its receipt. It is a child of the client's span if
the message has the property `traceparent`. `store`, a child of `publish`, lasts from the hand-over
to the log until the message is durable. For each subscription, `dispatch`, a child of `publish`,
lasts from then until the message is written to a consumer; `ack`, a child of `dispatch`, lasts
until its acknowledgement. A long span thus shows where the time goes.

Only sampled messages cost anything here, and only while tracing is on. The properties of single
messages in a client's batch are not read: the batch is sampled like a message without a trace
context.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from magnetar.broker.topic import EntryNotes, Feature, PublishBatch, PublishRows
from magnetar.broker.topic.consumer import Consumer
from magnetar.broker.topic.dispatch.base import DispatchContext
from magnetar.broker.topic.subscription import Subscription
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.position import Position
from magnetar.sdk.wire import MessageMetadata, Send

Attributes = Mapping[str, str | int]


class Span(Protocol):
    """A stretch of time that is recorded when it ends."""

    def event(self, name: str) -> None:
        """Record an event at this moment."""
        ...

    def end(self, *, error: str = "") -> None:
        """End the span now, with an error if there is one."""
        ...


class Spans(Protocol):
    """Begins spans."""

    def begin(
        self,
        name: str,
        *,
        attributes: Attributes,
        parent: Span | None = None,
        carrier: Mapping[str, str] | None = None,
    ) -> Span | None:
        """Begin a span below `parent`, or else below the span that `carrier` names.

        `carrier` has `traceparent` and `tracestate` (W3C Trace Context). Return None if the span is
        not sampled.
        """
        ...


CARRIED = ("traceparent", "tracestate")
"""Properties of messages that name their trace."""

FORGOTTEN = "too many messages wait: not followed any more"
CLOSED = "the subscription was closed, or its topic moved"


class PublishTrace:
    """Trace of a message from its arrival until it is durable."""

    __slots__ = ("publish", "store")

    def __init__(self, publish: Span, store: Span | None) -> None:
        self.publish = publish
        self.store = store

    def stored(self) -> None:
        """End both spans: the message is durable."""
        if self.store is not None:
            self.store.end()
        self.publish.end()

    def failed(self, error: str) -> None:
        """End both spans with an error: the message is not stored, or its outcome is unknown."""
        if self.store is not None:
            self.store.end(error=error)
        self.publish.end(error=error)


_TRACED: Final = EntryNotes[PublishTrace]("the trace of the message")


class SubscriptionTrace:
    """The sampled messages of a topic as one subscription sends them."""

    def __init__(self, spans: Spans, attributes: Mapping[str, str], messages_max: int) -> None:
        self._spans = spans
        self._attributes = attributes
        self._messages_max = messages_max
        self._waiting: dict[Position, Span] = {}
        """`dispatch` spans of messages that are stored and not sent."""
        self._sent: dict[Position, tuple[Span, Span | None]] = {}
        """`dispatch` spans, ended, and `ack` spans of messages that are sent and not
        acknowledged."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._sent)

    def stored(self, position: Position, publish: Span) -> None:
        """Begin `dispatch` for a sampled message that is durable."""
        span = self._spans.begin("dispatch", attributes=self._attributes, parent=publish)
        if span is None:
            return
        self._waiting[position] = span
        if len(self) > self._messages_max:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        if self._sent:
            _, ack = self._sent.pop(next(iter(self._sent)))
            if ack is not None:
                ack.end(error=FORGOTTEN)
        else:
            self._waiting.pop(next(iter(self._waiting))).end(error=FORGOTTEN)

    # Called by dispatchers, once per turn

    def sent_through(self, after: Position, consumer: Consumer) -> None:
        """Note that all entries up to `after` were written to the active consumer, or skipped."""
        if self._waiting:
            for position in [each for each in self._waiting if each <= after]:
                self._was_sent(position, consumer)

    def sent_pending(self, consumer: Consumer) -> None:
        """Note that entries were written to a consumer that acknowledges each of them."""
        pending = consumer.pending
        if self._waiting:
            for position in [each for each in self._waiting if each in pending]:
                self._was_sent(position, consumer)

    def _was_sent(self, position: Position, consumer: Consumer) -> None:
        dispatch = self._waiting.pop(position)
        attributes = {**self._attributes, "messaging.pulsar.consumer": consumer.name}
        ack = self._spans.begin("ack", attributes=attributes, parent=dispatch)
        dispatch.end()
        self._sent[position] = (dispatch, ack)

    # Called by the subscription

    def acked_range(self, ledger_id: int, first: int, final: int) -> None:
        """End the spans of entries `first` through `final` of a ledger: they were acknowledged."""
        if self._sent:
            low, high = Position(ledger_id, first), Position(ledger_id, final)
            self._end([each for each in self._sent if low <= each <= high])

    def acked_each(self, positions: Iterable[Position]) -> None:
        """End the spans of single entries that were acknowledged as a whole."""
        if self._sent:
            self._end([each for each in positions if each in self._sent])

    def acked_through(self, position: Position) -> None:
        """End the spans of all entries at or before the position: they were acknowledged."""
        if self._sent:
            self._end([each for each in self._sent if each <= position])

    def redelivered(self) -> None:
        """Record a redelivery on the spans of all sent entries."""
        for _, ack in self._sent.values():
            if ack is not None:
                ack.event("redelivery")

    def close(self) -> None:
        """End all spans: the subscription is closed."""
        for span in self._waiting.values():
            span.end(error=CLOSED)
        for _, ack in self._sent.values():
            if ack is not None:
                ack.end(error=CLOSED)
        self._waiting.clear()
        self._sent.clear()

    def _end(self, positions: Sequence[Position]) -> None:
        for position in positions:
            _, ack = self._sent.pop(position)
            if ack is not None:
                ack.end()


class TopicTrace(Feature):
    """The sampled messages of one topic."""

    def __init__(self, topic: str, spans: Spans, *, messages_max: int) -> None:
        self._topic = topic
        self._spans = spans
        self._messages_max = messages_max
        self._attributes = {
            "messaging.system": "pulsar",
            "messaging.destination.name": topic,
        }
        self._subscriptions: dict[str, SubscriptionTrace] = {}

    def rows(self) -> PublishRows:
        return PublishRows(checks=(self.check,), listeners=(self,))

    def check(
        self, batch: PublishBatch, send: Send, metadata: MessageMetadata, payload: bytes
    ) -> None:
        """Begin the trace of the next message of a batch, if it is sampled.

        This check comes after all checks that may refuse the message.
        """
        trace = self._begin(metadata, len(payload))
        if trace is not None:
            _TRACED.add(batch, trace)

    def _begin(self, metadata: MessageMetadata, size_bytes: int) -> PublishTrace | None:
        """Begin the spans of a message that has arrived; return None if it is not sampled."""
        carrier = {each.key: each.value for each in metadata.properties if each.key in CARRIED}
        attributes: dict[str, str | int] = {
            **self._attributes,
            "messaging.client.id": metadata.producer_name,
            "messaging.message.id": str(metadata.sequence_id),
            "messaging.message.envelope.size": size_bytes,
        }
        publish = self._spans.begin("publish", attributes=attributes, carrier=carrier)
        if publish is None:
            return None
        store = self._spans.begin("store", attributes=self._attributes, parent=publish)
        return PublishTrace(publish, store)

    def stored(self, batch: PublishBatch, ledger_id: int, first_entry_id: int) -> None:
        """End the spans of durable entries, and begin theirs in each subscription."""
        for index, trace in _TRACED.of(batch):
            trace.stored()
            position = Position(ledger_id, first_entry_id + index)
            for subscription in self._subscriptions.values():
                subscription.stored(position, trace.publish)

    def failed(self, batch: PublishBatch, error: LedgerError) -> None:
        """End the spans of entries that are not stored, or whose outcome is unknown."""
        for _, trace in _TRACED.of(batch):
            trace.failed(str(error))

    def attach(self, subscription: Subscription, context: DispatchContext) -> DispatchContext:
        """Trace the messages of a subscription that is being opened."""
        return replace(context, trace=self._of_subscription(subscription.name))

    def _of_subscription(self, name: str) -> SubscriptionTrace:
        self.forgotten(name)
        attributes = {**self._attributes, "messaging.destination.subscription.name": name}
        made = SubscriptionTrace(self._spans, attributes, self._messages_max)
        self._subscriptions[name] = made
        return made

    def forgotten(self, subscription: str) -> None:
        """Close the trace of a subscription that was closed."""
        found = self._subscriptions.pop(subscription, None)
        if found is not None:
            found.close()

    def close(self) -> None:
        """Close the traces of all subscriptions: the topic is closed."""
        for name in list(self._subscriptions):
            self.forgotten(name)
