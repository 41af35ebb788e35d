"""Equal numbers of partitions: what is created at the other cluster, and what is refused."""

from collections.abc import Sequence

import pytest

from magnetar.broker.base.errors import NotAllowedError
from magnetar.broker.base.http_client import Answer
from magnetar.broker.features.replication.partitions import have_partitions
from magnetar.sdk.wire import TopicName

TOPIC = TopicName.parse("persistent://public/default/a b")
PATH = "/admin/v2/persistent/public/default/a%20b/partitions"


class There:
    """Another cluster. `counts`: what it says of the topic, one question after the other."""

    name = "west"

    def __init__(self, *counts: int, status: int = 204, body: bytes = b"") -> None:
        self._counts = list(counts)
        self._answer = Answer(status, body)
        self.asked: list[Sequence[object]] = []

    async def partitions_of(self, topic: TopicName, /) -> int:
        assert topic == TOPIC
        return self._counts.pop(0)

    async def ask(self, method: str, path: str, body: bytes = b"", /) -> Answer:
        self.asked.append((method, path, body))
        return self._answer


async def test_a_topic_with_as_many_partitions_is_left_alone() -> None:
    there = There(3)
    assert not await have_partitions(TOPIC, 3, there, may_create=True)
    assert there.asked == []


async def test_a_topic_that_is_missing_there_is_created_with_as_many_partitions() -> None:
    there = There(0, 3)
    assert await have_partitions(TOPIC, 3, there, may_create=True)
    assert there.asked == [("PUT", f"{PATH}?createLocalTopicOnly=true", b"3")]


async def test_a_topic_with_fewer_partitions_there_gets_more() -> None:
    there = There(2, 4)
    assert await have_partitions(TOPIC, 4, there, may_create=True)
    assert there.asked == [("POST", f"{PATH}?updateLocalTopicOnly=true", b"4")]


async def test_a_creation_that_another_partition_was_faster_with_is_no_failure() -> None:
    there = There(0, 3, status=409)
    assert await have_partitions(TOPIC, 3, there, may_create=True)


async def test_a_number_that_is_another_one_after_all_is_refused() -> None:
    there = There(0, 5, status=409)
    with pytest.raises(NotAllowedError, match="3 partitions here and 5 in west"):
        await have_partitions(TOPIC, 3, there, may_create=True)


@pytest.mark.parametrize("here", [0, 2])
async def test_a_topic_with_more_partitions_there_is_never_shrunk(here: int) -> None:
    there = There(4)
    with pytest.raises(NotAllowedError, match=f"{here} partitions here and 4 in west: give it 4"):
        await have_partitions(TOPIC, here, there, may_create=True)
    assert there.asked == []


async def test_without_leave_to_create_the_reason_says_what_to_do_there() -> None:
    there = There(0)
    with pytest.raises(NotAllowedError, match="give it 3 there"):
        await have_partitions(TOPIC, 3, there, may_create=False)
    assert there.asked == []


async def test_a_refusal_tells_the_other_sides_reason() -> None:
    there = There(0, status=403, body=b'{"reason": "role east may not"}')
    with pytest.raises(NotAllowedError, match=r"in west: HTTP status 403, role east may not"):
        await have_partitions(TOPIC, 3, there, may_create=True)
