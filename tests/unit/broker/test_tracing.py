"""The traces of the messages of one subscription (`tracing.py`)."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import cast

from magnetar.broker.features.tracing import Attributes, Span, SubscriptionTrace
from magnetar.broker.topic.consumer import Consumer
from magnetar.ledger.position import Position


class _Span:
    def __init__(self, name: str) -> None:
        self.name = name
        self.ends = 0

    def event(self, name: str) -> None:
        """Nothing that is looked at."""

    def end(self, *, error: str = "") -> None:
        self.ends += 1


class _Spans:
    """Samples every message."""

    def __init__(self) -> None:
        self.begun: list[_Span] = []

    def begin(
        self,
        name: str,
        *,
        attributes: Attributes,
        parent: Span | None = None,
        carrier: Mapping[str, str] | None = None,
    ) -> Span | None:
        span = _Span(name)
        self.begun.append(span)
        return span


def test_an_acknowledgement_that_names_a_message_twice_ends_its_span_once() -> None:
    spans = _Spans()
    trace = SubscriptionTrace(spans, {}, messages_max=10)
    for entry_id in (5, 6, 7):
        trace.stored(Position(1, entry_id), _Span("publish"))
    trace.sent_through(Position(1, 7), cast(Consumer, SimpleNamespace(name="c")))
    trace.acked_each([Position(1, 5), Position(1, 7), Position(1, 5)])
    assert [each.ends for each in spans.begun if each.name == "ack"] == [1, 0, 1]
    assert len(trace) == 1
