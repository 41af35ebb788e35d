"""Prepares topics for writing: they exist, deduplicate, and have the schema of the rows.

Deduplication is checked and set through the brokers' HTTP interface.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote

from magnetar.arrow.stored.admin_client import AdminClient
from magnetar.arrow.stored.errors import RefusedError
from magnetar.arrow.stored.options import ConnectionOptions
from magnetar.sdk import Client, ProducerSettings
from magnetar.sdk.errors import SdkError
from magnetar.sdk.spark.errors import (
    MagnetarSparkError,
    SchemaMismatchError,
    TopicNotFoundError,
    UnreachableError,
)
from magnetar.sdk.spark.sink.options import Deduplication, SinkOptions
from magnetar.sdk.spark.sink.rows import RowPlan, make_producer
from magnetar.sdk.wire.errors import IncompatibleSchemaError
from magnetar.sdk.wire.errors import TopicNotFoundError as NoTopicError
from magnetar.sdk.wire.topic_name import TopicName

SWITCH_LOOKS_MAX = 600
"""Most checks whether a topic deduplicates: the topic is loaded again for that."""

_LOOK_S = 0.05
_NOT_FOUND = 404
_Sleep = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class ReadyTopic:
    """A topic that is ready for tasks."""

    name: str
    partitions: int
    """Number of partitions; 0 if the topic is not partitioned."""


async def prepare_topic(
    client: Client, topic: str, options: SinkOptions, plan: RowPlan
) -> ReadyTopic:
    """Prepare a topic, and find all its errors before a row is written.

    Raises:
        MagnetarSparkError: one line.
    """
    try:
        partitions = await client.partitions(topic)
        first = str(TopicName.parse(topic).partition(0)) if partitions else topic
        # A producer shows that the topic exists, or is created, and that the sink may write to it.
        probe = await make_producer(client, first, ProducerSettings(), plan.schema)
        await probe.close()
    except NoTopicError as error:
        raise TopicNotFoundError(f"topic {topic} does not exist: {error}") from error
    except IncompatibleSchemaError as error:
        raise SchemaMismatchError(
            f"topic {topic}: the columns do not fit its schema: {error}"
        ) from error
    except SdkError as error:
        kind = UnreachableError if error.retryable else MagnetarSparkError
        raise kind(f"topic {topic} cannot be written to: {error}") from error
    if options.deduplication in (Deduplication.ENABLE, Deduplication.REQUIRE):
        admin = SinkAdmin(options.connection)
        try:
            await asyncio.to_thread(admin.deduplicate, topic, partitions, options.deduplication)
        finally:
            admin.close()
    return ReadyTopic(topic, partitions)


class SinkAdmin:
    """Client of the brokers of `admin.url`. Blocking."""

    def __init__(self, connection: ConnectionOptions, *, sleep: _Sleep = time.sleep) -> None:
        self._client = AdminClient(connection)
        self._sleep = sleep

    def close(self) -> None:
        self._client.close()

    def deduplicate(self, topic: str, partitions: int, mode: Deduplication) -> None:
        """Ensure that the topic (with all its partitions) deduplicates, and wait until it does.

        Raises:
            MagnetarSparkError: the topic does not deduplicate, and the sink may not or cannot
                change it.
            UnreachableError
        """
        name = TopicName.parse(topic)
        path = f"/admin/v2/{_path(name)}/deduplicationEnabled"
        if self._client.get(f"{path}?applied=true") is not True:
            if mode is not Deduplication.ENABLE:
                raise MagnetarSparkError(
                    f"{topic}: deduplication is off, and the sink may not switch it on "
                    "(deduplication=require): without it a retry writes rows twice"
                )
            self._client.post(path, True)
        for part in [name.partition(at) for at in range(partitions)] or [name]:
            self._wait_deduplicating(part)

    def _wait_deduplicating(self, topic: TopicName) -> None:
        status: object = None
        for _ in range(SWITCH_LOOKS_MAX):
            try:
                status = self._client.get(f"/admin/v2/{_path(topic)}/stats")["deduplicationStatus"]
            except RefusedError as error:
                if error.status != _NOT_FOUND:
                    raise
                return  # not loaded: the broker that loads it will deduplicate
            if status == "Enabled":
                return
            self._sleep(_LOOK_S)
        raise UnreachableError(
            f"{topic}: deduplication was switched on, and after {SWITCH_LOOKS_MAX} looks "
            f"the topic still says {status}"
        )


def _path(topic: TopicName) -> str:
    name = quote(topic.local_name, safe="")
    return f"{topic.domain}/{topic.tenant}/{topic.namespace}/{name}"
