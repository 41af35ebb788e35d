"""Equal numbers of partitions in two clusters, before messages are copied (rule 8.1).

Messages of partition i go to partition i, so both sides need the same number: the order of a key
depends on it. A partitioned topic that is missing at the other side is created there. If it has
fewer partitions there, it gets more. If it has more there than here, it is never made smaller,
because that would lose messages. The error then names both numbers, and nothing is copied until
this side has as many.

Replicators of several partitions start at a time, on several brokers. It is therefore no error if
another broker has created the partitions first: only the resulting number counts.

Source: geo-replication sheet, section 8.
"""

from typing import Final, Protocol
from urllib.parse import quote

from magnetar.broker.base.errors import NotAllowedError
from magnetar.broker.base.http_client import Answer
from magnetar.broker.features.replication.remote_http import reason_in
from magnetar.sdk.wire import TopicName

_CONFLICT: Final = 409
"""HTTP status if the partitions exist already."""


class PartitionsThere(Protocol):
    """Access to the partitions in another cluster; `RemoteCluster` has it."""

    @property
    def name(self) -> str: ...

    async def partitions_of(self, topic: TopicName, /) -> int:
        """Return the number of partitions of a topic there; 0 if it has none, or does not exist."""
        ...

    async def ask(self, method: str, path: str, body: bytes = b"", /) -> Answer:
        """Send one request to the cluster's REST interface."""
        ...


async def have_partitions(
    topic: TopicName, here: int, remote: PartitionsThere, *, may_create: bool
) -> bool:
    """Give a partitioned topic as many partitions there as here; return whether it was changed.

    Args:
        topic: the partitioned topic, not one of its partitions.
        here: number of its partitions in this cluster.
        may_create: whether partitions may be created there.

    Raises:
        NotAllowedError: the number there differs, and cannot be changed.
        SdkError, RequestError: the number cannot be read or changed now.
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
    # Each cluster creates the topic at those that it copies to: the other side need not pass it on.
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
