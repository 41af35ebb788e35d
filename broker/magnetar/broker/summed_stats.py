"""The statistics of a partitioned topic: those of its partitions, summed. Pure.

Numbers are added, lists joined, subscriptions summed by their names; of text the first one counts.
What is an age or a time is the largest; of when the oldest message in a backlog was published the
smallest that is there. Source: HTTP sheet, section 9.2.
"""

from collections.abc import Iterable, Mapping
from typing import Any

Stats = dict[str, Any]

_LARGEST = ("Timestamp", "TimeStamp", "AgeSeconds", "Epoch", "Limit", "LimitSize", "LimitTime")
_EARLIEST = ("earliestMsgPublishTime", "topicCreationTimeStamp")
"""0: there is none."""
_OLDEST = "oldestBacklogMessageAgeSeconds"
_WHOSE_OLDEST = "oldestBacklogMessageSubscriptionName"
_NOT_SUMMED = ("ownerBroker", "whyIdle", "whyIdleText", "producerId", "priority")
_AVERAGES = ("averageMsgSize", "avgMessagesPerEntry")


def summed(parts: Iterable[Mapping[str, Any]]) -> Stats:
    """One value for all of the partitions."""
    total: Stats = {}
    for part in parts:
        if total.get(_OLDEST, -1) < part.get(_OLDEST, -1):
            total[_WHOSE_OLDEST] = part.get(_WHOSE_OLDEST)
        for name, value in part.items():
            total[name] = _joined(name, total[name], value) if name in total else _copied(value)
    if "msgInCounter" in total:
        messages = total["msgInCounter"]
        total["averageMsgSize"] = total["bytesInCounter"] / messages if messages else 0.0
        total.pop("ownerBroker", None)
    return total


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _copied(each) for name, each in value.items()}
    return list(value) if isinstance(value, list) else value


def _joined(name: str, before: Any, value: Any) -> Any:
    if isinstance(before, bool) or isinstance(value, bool):
        return before or value
    if name in _NOT_SUMMED or name in _AVERAGES:
        return before
    if name.startswith(_EARLIEST):
        return min(before or value, value or before)
    if isinstance(before, int | float) and isinstance(value, int | float):
        return max(before, value) if name.endswith(_LARGEST) else before + value
    if isinstance(before, dict) and isinstance(value, Mapping):
        for key, each in value.items():
            before[key] = _joined(key, before[key], each) if key in before else _copied(each)
        return before
    if isinstance(before, list) and isinstance(value, list):
        return before + value
    return before
