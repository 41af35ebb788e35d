"""The lag of a streaming query behind its topics: in its progress, and for a listener.

After each micro-batch Spark asks a source for its latest offset, and shows it in the progress of
the query (`sources[…].latestOffset`). This source reports, for each topic or partition, its end and
the amount that the query has not read yet.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from magnetar.arrow.stored.offsets import BEFORE_FIRST, shown_id
from magnetar.arrow.stored.planning import unread
from magnetar.arrow.stored.topic_states import TopicState
from magnetar.arrow.stored.trigger_limits import in_sum
from magnetar.sdk.message_id import MessageId

_TOPICS, _BEHIND, _TOTAL = "topics", "behind", "behindInAll"
_AMOUNTS = _ENTRIES, _MESSAGES, _BYTES = "entries", "messages", "bytes"


@dataclass(frozen=True, slots=True)
class TopicLag:
    """Unread data of a topic or partition."""

    topic: str
    entries: int
    messages: int
    """Approximate number: an entry is a batch of its producer, and the topic's mean gives its
    size."""
    bytes: int
    """Approximate size in bytes."""


@dataclass(frozen=True, slots=True)
class QueryLag:
    """Unread data of all topics of a query, as of a micro-batch."""

    query_id: str
    """Identifies the query across restarts."""
    query_name: str
    """Name of the query; empty if it has none."""
    batch_id: int
    topics: tuple[TopicLag, ...]
    """In the order of their names, including those with nothing to read."""


class LagListener(StreamingQueryListener):
    """Reports the lag of every query in the session after each of its micro-batches.

        spark.streams.addListener(LagListener(show))

    Queries without a source of `format("magnetar")` are left out. Spark calls the function in one
    of its threads, one event after the other, so it should return quickly.
    """

    def __init__(self, on_lag: Callable[[QueryLag], object]) -> None:
        self._on_lag = on_lag

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Ignore the start of a query: its lag is not known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Report the lag in the progress."""
        lag = lag_of(event.progress)
        if lag is not None:
            self._on_lag(lag)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Ignore an idle query: nothing has changed since the last micro-batch."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Ignore the end of a query. From here on, watch the backlog of the query's
        subscription."""


def lag_of(progress: StreamingQueryProgress) -> QueryLag | None:
    """Return the lag in a progress, from a listener or `query.lastProgress`.

    Returns None if none of the query's sources is of this package, or none has reported a lag yet.
    """
    told = json.loads(progress.json)
    topics = [lag for source in told["sources"] for lag in _lags_in(source)]
    if not topics:
        return None
    ordered = tuple(sorted(topics, key=lambda each: each.topic))
    return QueryLag(str(told["id"]), told.get("name") or "", int(told["batchId"]), ordered)


def _lags_in(source: Mapping[str, Any]) -> Sequence[TopicLag]:
    latest = source.get("latestOffset")
    if isinstance(latest, str):
        try:
            latest = json.loads(latest)
        except ValueError:
            return ()
    if not isinstance(latest, Mapping) or not isinstance(latest.get(_BEHIND), Mapping):
        return ()  # of another source
    behind = latest[_BEHIND]
    return [
        TopicLag(topic, *(int(behind.get(topic, {}).get(each, 0)) for each in _AMOUNTS))
        for topic in latest[_TOPICS]
    ]


def report_of(
    states: Mapping[str, TopicState], read_to: Mapping[str, MessageId]
) -> dict[str, object]:
    """Return the latest offset, for the progress of a query that reads up to `read_to`.

    Topics with nothing after that are left out of `behind`.
    """
    starts = {name: read_to.get(name, BEFORE_FIRST) for name in states}
    every = unread(states, starts, {name: state.end for name, state in states.items()})
    return {
        _TOPICS: {name: shown_id(state.end) for name, state in sorted(states.items())},
        _BEHIND: {name: _shown(each) for name, each in sorted(every.items()) if each.entries},
        _TOTAL: _shown(in_sum(every)),
    }


def _shown(amount: tuple[int, float, int]) -> dict[str, int]:
    entries, messages, size = amount
    return {_ENTRIES: entries, _MESSAGES: round(messages), _BYTES: size}
