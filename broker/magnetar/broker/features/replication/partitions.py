"""Equal numbers of partitions in two clusters, before copies flow (rule 8.1).

Messages of partition i go to partition i, so both sides need the same number: the order of a key
depends on it. A partitioned topic that is missing at the other side is created there, and one with
fewer partitions gets more. One with more partitions than here is never made smaller: that would
lose messages. Its number is told, and nothing is copied until this side has as many.

Several partitions begin at a time, on several brokers: a creation that another one was faster with
is no failure. What counts is the number afterwards.

Source: geo-replication sheet, section 8.
"""

from typing import Final, Protocol
from urllib.parse import quote

from magnetar.broker.base.errors import NotAllowedError
from magnetar.broker.base.http_client import Answer
from magnetar.broker.features.replication.remote_http import reason_in
from magnetar.sdk.wire import TopicName

_CONFLICT: Final = 409
"""Status of a creation of what exists."""


class PartitionsThere(Protocol):
    """Another cluster, as far as its partitions go; `RemoteCluster` is one."""

    @property
    def name(self) -> str: ...

    async def partitions_of(self, topic: TopicName, /) -> int:
        """How many partitions a topic has there; 0: none, or there is no such topic."""
        ...

    async def ask(self, method: str, path: str, body: bytes = b"", /) -> Answer:
        """One request to its REST interface."""
        ...


async def have_partitions(
    topic: TopicName, here: int, remote: PartitionsThere, *, may_create: bool
) -> bool:
    """Return when a partitioned topic has as many partitions there as here; whether it was changed.

    Args:
        topic: the partitioned topic, not a partition of it.
        here: its number of partitions in this cluster.
        may_create: whether partitions may be created there.

    Raises:
        NotAllowedError: it has another number there, and that stays so.
        SdkError, RequestError: it cannot be told, or created, now.
    """
    there = await remote.partitions_of(topic)
    if here == there:
        return False
    if may_create and there < here:
        await _create(topic, remote, here=here, there=there)
        there = await remote.partitions_of(topic)
    if here != there:
        raise NotAllowedError(_unequal(topic, remote.name, here=here, there=there))
    return True


async def _create(topic: TopicName, remote: PartitionsThere, *, here: int, there: int) -> None:
    # Each cluster asks those that it copies to: the other side need not ask further ones.
    method, alone = ("POST", "updateLocalTopicOnly") if there else ("PUT", "createLocalTopicOnly")
    name = quote(topic.local_name, safe="")
    path = f"/admin/v2/{topic.domain}/{topic.namespace_name}/{name}/partitions?{alone}=true"
    answer = await remote.ask(method, path, b"%d" % here)
    if not answer.is_success and answer.status != _CONFLICT:
        raise NotAllowedError(
            f"{topic} cannot get {here} partitions in {remote.name}: {reason_in(answer)}"
        )


def _unequal(topic: TopicName, cluster: str, *, here: int, there: int) -> str:
    told = f"{topic} has {here} partitions here and {there} in {cluster}"
    if there > here:
        side = "here; they are never removed" if here else "here, or delete it there"
        return f"{told}: give it {there} {side} (`topics update-partitioned-topic`)"
    return (
        f"{told}: give it {here} there (`topics create-partitioned-topic`, or "
        "`update-partitioned-topic`)"
    )
