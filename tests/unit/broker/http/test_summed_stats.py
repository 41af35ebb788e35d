"""The statistics of a partitioned topic: every field of two partitions becomes the right one."""

from collections.abc import Mapping
from typing import Any

import pytest

from magnetar.broker.http.summed_stats import (
    COMPACTION_RULES,
    CONSUMER_RULES,
    PUBLISHER_RULES,
    SUBSCRIPTION_RULES,
    SUMMED_ABSENT,
    TOPIC_RULES,
    summed,
)
from magnetar.broker.http.topic_stats import ABSENT
from tests.unit.broker.pulsar_stats import BEYOND, BEYOND_OF_CONSUMER, PULSAR

RULES = {
    "topic": TOPIC_RULES,
    "compaction": COMPACTION_RULES,
    "publisher": PUBLISHER_RULES,
    "subscription": SUBSCRIPTION_RULES,
    "consumer": CONSUMER_RULES,
}
NESTED = {"publishers", "subscriptions", "compaction", "consumers"}

EXPECTED: Mapping[str, Mapping[str, tuple[Any, Any, Any]]] = {
    "topic": {
        "averageMsgSize": (2.0, 10 / 3, 3.0),  # bytes by messages, see the next two
        "msgInCounter": (1, 3, 4),
        "bytesInCounter": (2, 10, 12),
        "msgChunkPublished": (False, True, True),
        "backlogQuotaLimitSize": (-1, 100, 100),
        "backlogQuotaLimitTime": (60, -1, 60),
        "oldestBacklogMessageAgeSeconds": (5, 9, 9),
        "oldestBacklogMessageSubscriptionName": ("a", "b", "b"),
        "earliestMsgPublishTimeInBacklogs": (0, 7, 7),
        "topicCreationTimeStamp": (9, 8, 8),
        "lastPublishTimeStamp": (9, 8, 9),
        "lastOffloadLedgerId": (0, 0, 0),
        "lastOffloadSuccessTimeStamp": (0, 0, 0),
        "lastOffloadFailureTimeStamp": (0, 0, 0),
        "replication": ({}, {}, {}),
        "deduplicationStatus": ("Enabled", "Enabled", "Enabled"),
        "topicEpoch": (None, 2, 2),
    },
    "compaction": {
        "lastCompactionSucceedTimestamp": (5, 6, 6),
        "lastCompactionFailedTimestamp": (6, 5, 6),
        "lastCompactionDurationTimeInMills": (10, 20, 20),
    },
    "publisher": {
        "accessMode": ("Shared", "Shared", "Shared"),
        "averageMsgSize": (2.0, 4.0, 3.0),
        "producerId": (0, 1, 0),
        "supportsPartialProducer": (True, True, True),
        "producerName": ("p", "p", "p"),
        "address": ("/1", "/1", "/1"),
        "connectedSince": ("2026-01-02", "2026-01-01", "2026-01-01"),
        "clientVersion": ("v", "v", "v"),
        "metadata": ({"a": "b"}, {"a": "b"}, {"a": "b"}),
    },
    "subscription": {
        "type": ("None", "Shared", "Shared"),
        "keySharedMode": (None, "AUTO_SPLIT", "AUTO_SPLIT"),
        "hoarders": (["b"], ["a", "b"], ["a", "b"]),
        "activeConsumerName": ("a", "b", None),
        "earliestMsgPublishTimeInBacklog": (7, 0, 7),
        "nextDelayedTime": (7, 0, 7),
        "blockedSubscriptionOnUnackedMsgs": (False, True, True),
        "lastExpireTimestamp": (1, 2, 2),
        "lastConsumedFlowTimestamp": (1, 2, 2),
        "lastConsumedTimestamp": (1, 2, 2),
        "lastAckedTimestamp": (1, 2, 2),
        "lastMarkDeleteAdvancedTimestamp": (2, 1, 2),
        "isDurable": (True, True, True),
        "durable": (True, True, True),
        "isReplicated": (False, True, True),
        "replicated": (False, True, True),
        "allowOutOfOrderDelivery": (False, True, True),
        "consumersAfterMarkDeletePosition": ({}, {}, {}),
        "subscriptionProperties": ({"a": "b"}, {"a": "b"}, {"a": "b"}),
        "whyIdle": ("caught_up", None, "caught_up"),
        "whyIdleText": ("nothing new", None, "nothing new"),
    },
    "consumer": {
        "appId": ("me", "me", "me"),
        "consumerName": ("c", "c", "c"),
        "avgMessagesPerEntry": (1, 4, 2),
        "blockedConsumerOnUnackedMsgs": (False, True, True),
        "drainingHashes": ([{"hash": 1}], [{"hash": 2}], [{"hash": 1}, {"hash": 2}]),
        "address": ("/1", "/1", "/1"),
        "connectedSince": ("2026-01-02", "2026-01-01", "2026-01-01"),
        "clientVersion": ("v", "v", "v"),
        "metadata": ({}, {}, {}),
        "keyHashRangeArrays": ([[0, 9]], [[0, 9]], [[0, 9]]),
        "keyHashRanges": (["[0, 9]"], ["[0, 9]"], ["[0, 9]"]),
        "lastAckedTimestamp": (1, 2, 2),
        "lastConsumedTimestamp": (2, 1, 2),
        "lastConsumedFlowTimestamp": (2, 1, 2),
        "firstMessagesSentTimestamp": (0, 5, 5),
        "firstConsumedFlowTimestamp": (3, 5, 3),
        "lastAckedTime": ("2026-01-02", "2026-01-01", "2026-01-02"),
        "lastConsumedTime": ("1970-01-01", "2026-01-01", "2026-01-01"),
        "firstHeld": (
            {"messageId": "1:2", "seconds": 9},
            {"messageId": "1:1", "seconds": 70},
            {"messageId": "1:1", "seconds": 70},
        ),
    },
}
"""What is not a plain sum: of one partition, of the other, of both."""


def _fields(level: str) -> set[str]:
    beyond = {"subscription": BEYOND, "consumer": BEYOND_OF_CONSUMER}.get(level, frozenset())
    return set((PULSAR[level] | beyond) - ABSENT.keys() - SUMMED_ABSENT.keys() - NESTED)


def _cases(level: str) -> dict[str, tuple[Any, Any, Any]]:
    plain = {field: (2 + at, 30 + at, 32 + 2 * at) for at, field in enumerate(_fields(level))}
    return {**plain, **EXPECTED[level]}


def _part(which: int) -> dict[str, Any]:
    def level(name: str) -> dict[str, Any]:
        return {field: case[which] for field, case in _cases(name).items()}

    subscription = {**level("subscription"), "consumers": [level("consumer")]}
    return {
        **level("topic"),
        "ownerBroker": f"broker-{which}",
        "publishers": [level("publisher")],
        "subscriptions": {"s": subscription},
        "compaction": level("compaction"),
    }


@pytest.mark.parametrize("level", RULES)
def test_every_field_has_a_rule(level: str) -> None:
    assert set(RULES[level]) - NESTED == _fields(level)
    assert EXPECTED[level].keys() <= _fields(level)


def test_every_field_of_two_partitions_becomes_the_right_one() -> None:
    expected = _part(2)
    for field in SUMMED_ABSENT:
        del expected[field]
    assert summed([_part(0), _part(1)]) == expected


def test_the_parts_stay_as_they_are() -> None:
    parts = [_part(0), _part(1)]
    summed(parts)
    assert parts == [_part(0), _part(1)]


def test_a_size_that_nobody_has_asked_for_stays_unknown() -> None:
    parts = [{"subscriptions": {"s": {"backlogSize": -1}}} for _ in range(3)]
    assert summed(parts) == {"subscriptions": {"s": {"backlogSize": -1}}}


def test_what_a_client_has_in_several_partitions_is_one_and_others_stay_apart() -> None:
    def part(*names: str) -> dict[str, Any]:
        consumers = [{"consumerName": name, "address": "/1", "msgOutCounter": 1} for name in names]
        publishers = [{"producerName": name, "msgRateIn": 1.0} for name in names]
        return {"publishers": publishers, "subscriptions": {"s": {"consumers": consumers}}}

    found = summed([part("a", "b", "b"), part("b", "a"), part("c")])
    shown = [
        (each["consumerName"], each["msgOutCounter"])
        for each in found["subscriptions"]["s"]["consumers"]
    ]
    assert shown == [("a", 2), ("b", 2), ("b", 1), ("c", 1)]
    assert [(each["producerName"], each["msgRateIn"]) for each in found["publishers"]] == shown


def test_copies_of_partitions_are_added_by_cluster_and_connected_only_if_all_are() -> None:
    def part(number: int, problem: str = "") -> dict[str, Any]:
        since = f"2026-01-0{number}" if not problem else None
        west = {
            "msgRateOut": 1.5 * number,
            "replicationBacklog": number,
            "connected": not problem,
            "replicationDelayInSeconds": 10 * number,
            "outboundConnection": f"west-{number}:6650" if not problem else None,
            "outboundConnectedSince": since,
            "problem": problem,
        }
        return {"replication": {"west": west}}

    (found,) = summed([part(1, "away"), part(3), part(2)])["replication"].values()
    assert found == {
        "msgRateOut": 9.0,
        "replicationBacklog": 6,
        "connected": False,
        "replicationDelayInSeconds": 30,
        "outboundConnection": "west-3:6650",
        "outboundConnectedSince": "2026-01-02",
        "problem": "away",
    }


def test_what_a_consumer_holds_longest_is_that_of_the_partitions_where_it_holds_something() -> None:
    def part(held: Any) -> dict[str, Any]:
        consumer = {"consumerName": "c", "address": "/1", "firstHeld": held}
        return {"subscriptions": {"s": {"consumers": [consumer]}}}

    held = {"messageId": "3:4", "seconds": 60}
    for parts, expected in (([None, None], None), ([None, held], held)):
        found = summed([part(each) for each in parts])
        assert found["subscriptions"]["s"]["consumers"][0]["firstHeld"] == expected


def test_an_epoch_that_no_partition_has_is_none() -> None:
    assert summed([{"topicEpoch": None}] * 2) == {"topicEpoch": None}


def test_numbers_that_a_newer_broker_tells_are_added() -> None:
    assert summed([{"new": 1, "word": "x"}, {"new": 2, "word": "y"}]) == {"new": 3, "word": "x"}


def test_of_nothing_there_is_nothing() -> None:
    assert summed([]) == {}
    assert summed([{}, {}]) == {}
