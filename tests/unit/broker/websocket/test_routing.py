"""Partition that a message of a WebSocket producer goes to."""

import pytest

from magnetar.broker.websocket.access import is_allowed
from magnetar.broker.websocket.endpoint import HashingScheme, RoutingMode
from magnetar.broker.websocket.producer_core import Router


def test_keys_choose_whatever_the_mode_and_others_go_in_turns_or_stay() -> None:
    single = Router(HashingScheme.JAVA_STRING, RoutingMode.SINGLE, first=7)
    assert {single.choose(None, 3) for _ in range(5)} == {1}
    turns = Router(HashingScheme.MURMUR3, RoutingMode.ROUND_ROBIN, first=7)
    assert [turns.choose(None, 3) for _ in range(4)] == [1, 2, 0, 1]
    assert single.choose("hello", 10) == 2
    assert len({turns.choose("hello", 10) for _ in range(5)}) == 1


def test_the_one_partition_stays_when_partitions_are_added() -> None:
    single = Router(HashingScheme.JAVA_STRING, RoutingMode.SINGLE, first=7)
    assert [single.choose(None, partitions) for partitions in (3, 4, 8)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("origin", "host", "allowed", "expected"),
    [
        (None, "h", "", True),
        ("http://h:8080", "h:8080", "", True),
        ("http://H:8080", "h:8080", "", True),
        ("http://h", "h:8080", "", False),
        ("null", "h", "", False),
        ("", "", "", False),
        ("http://h", None, "", False),
        ("http://[", "h", "", False),
        ("https://a.example", "h", "https://b.example, https://A.example/", True),
        ("https://a.example.evil", "h", "https://a.example", False),
        ("anything", "h", "x,*", True),
    ],
)
def test_pages_may_connect_to_their_own_host_or_when_listed(
    origin: str | None, host: str | None, allowed: str, expected: bool
) -> None:
    assert is_allowed(origin, host, allowed) is expected
