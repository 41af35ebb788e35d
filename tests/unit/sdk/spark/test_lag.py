"""What a query has not read is in its progress, and a listener is told."""

import json
from types import SimpleNamespace
from typing import Any, cast

from magnetar.arrow.stored.topic_states import LedgerState, TopicState
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.spark import LagListener, QueryLag, TopicLag, lag_of
from magnetar.sdk.spark.lag import report_of

STATES = {
    name: TopicState(
        name, -1, (LedgerState(3, 100, 5_000),), MessageId(3, 99), messages_per_entry=mean
    )
    for name, mean in (("a", 10.0), ("b", None))
}


def progress(*latest: object, **more: Any) -> Any:
    told = {"id": "q", "name": None, "batchId": 7, "sources": [{"latestOffset": x} for x in latest]}
    return SimpleNamespace(json=json.dumps({**told, **more}))


def test_each_topic_tells_what_lies_behind_the_last_micro_batch() -> None:
    report = report_of(STATES, {"a": MessageId(3, 89), "b": MessageId(3, 99)})
    assert report == {
        "topics": {"a": "3:99", "b": "3:99"},
        "behind": {"a": {"entries": 10, "messages": 100, "bytes": 500}},
        "behindInAll": {"entries": 10, "messages": 100, "bytes": 500},
    }
    assert json.loads(json.dumps(report)) == report


def test_a_topic_that_the_query_does_not_know_yet_is_behind_with_all_of_it() -> None:
    report = cast(dict[str, Any], report_of(STATES, {"a": MessageId(3, 99)}))
    assert report["behind"] == {"b": {"entries": 100, "messages": 100, "bytes": 5_000}}


def test_a_listener_is_told_of_each_topic() -> None:
    report = report_of(STATES, {"a": MessageId(3, 89), "b": MessageId(3, 99)})
    seen: list[QueryLag] = []
    listener = LagListener(seen.append)
    listener.onQueryProgress(cast(Any, SimpleNamespace(progress=progress(report, name="lake"))))
    topics = (TopicLag("a", 10, 100, 500), TopicLag("b", 0, 0, 0))
    assert seen == [QueryLag("q", "lake", 7, topics)]
    assert lag_of(progress(json.dumps(report))) == QueryLag("q", "", 7, topics)


def test_other_sources_and_those_that_have_not_told_yet_are_passed_over() -> None:
    seen: list[QueryLag] = []
    for each in (progress(), progress(None, "null", "5", {"t": {"0": 5}}, '{"x"')):
        assert lag_of(each) is None
        LagListener(seen.append).onQueryProgress(cast(Any, SimpleNamespace(progress=each)))
    assert seen == []
