"""Traces of single messages: published, stored, dispatched, acknowledged.

Off unless a broker is given something that keeps spans (`spans.py`); then topics host a
`TopicTrace`, and dispatchers ask once per turn whether there is one.
"""

from magnetar.broker.base.settings.tracing import TracingSettings
from magnetar.broker.features.tracing.spans import Span, Spans
from magnetar.broker.features.tracing.traces import PublishTrace, SubscriptionTrace, TopicTrace

__all__ = [
    "PublishTrace",
    "Span",
    "Spans",
    "SubscriptionTrace",
    "TopicTrace",
    "TracingSettings",
]
