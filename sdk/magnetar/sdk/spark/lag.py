"""How far a streaming query is behind its topics: in its progress, and for a listener.

Spark asks a source after each micro-batch for the latest offset that there is, and shows what it
gets in the progress of the query (`sources[…].latestOffset`). Ours says for each topic, or
partition, where it ends and what the query has not read of it yet.
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
    """What a query has not read of a topic, or of a partition of one."""

    topic: str
    entries: int
    messages: int
    """About how many: an entry is a batch of its producer, and the topic's mean tells its size."""
    bytes: int
    """About how many."""


@dataclass(frozen=True, slots=True)
class QueryLag:
    """What a query has not read of all its topics, as of a micro-batch."""

    query_id: str
    """Identifies the query, over restarts."""
    query_name: str
    """Empty: it has none."""
    batch_id: int
    topics: tuple[TopicLag, ...]
    """In the order of their names; those with nothing to read among them."""


class LagListener(StreamingQueryListener):
    """Hands on the lag of every query in the session after each of its micro-batches.

        spark.streams.addListener(LagListener(show))

    Queries that read nothing by `format("magnetar")` are left out. The function is called in a
    thread of Spark's, one event after the other, and is not to take long.
    """

    def __init__(self, on_lag: Callable[[QueryLag], object]) -> None:
        self._on_lag = on_lag

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing is known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Hand on what the progress says."""
        lag = lag_of(event.progress)
        if lag is not None:
            self._on_lag(lag)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing has changed since the last micro-batch."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """The lag grows from here on unseen: watch the backlog of the query's subscription."""


def lag_of(progress: StreamingQueryProgress) -> QueryLag | None:
    """The lag that a progress tells, a listener's or `query.lastProgress`; None: none of the
    query's sources is ours, or none has told it yet."""
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
    """The latest offset, for the progress of a query that reads as far as `read_to`. Topics with
    nothing behind that are left out of `behind`."""
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
