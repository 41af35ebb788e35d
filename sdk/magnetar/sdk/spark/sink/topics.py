"""Topics made ready to be written to: there, deduplicating, with the schema of the rows."""

import asyncio
from dataclasses import dataclass

from magnetar.sdk import Client, ProducerSettings
from magnetar.sdk.errors import SdkError
from magnetar.sdk.spark.errors import (
    MagnetarSparkError,
    SchemaMismatchError,
    TopicNotFoundError,
    UnreachableError,
)
from magnetar.sdk.spark.sink.admin import SinkAdmin
from magnetar.sdk.spark.sink.options import Deduplication, SinkOptions
from magnetar.sdk.spark.sink.row_schema import make_producer
from magnetar.sdk.spark.sink.rows import RowPlan
from magnetar.sdk.wire.errors import IncompatibleSchemaError
from magnetar.sdk.wire.errors import TopicNotFoundError as NoTopicError
from magnetar.sdk.wire.topic_name import TopicName


@dataclass(frozen=True, slots=True)
class ReadyTopic:
    """What tasks need to know."""

    name: str
    partitions: int
    """0: it is not partitioned."""


async def prepare_topic(
    client: Client, topic: str, options: SinkOptions, plan: RowPlan
) -> ReadyTopic:
    """Whatever can be wrong with a topic is found here, before a row is written.

    Raises:
        MagnetarSparkError: one line.
    """
    try:
        partitions = await client.partitions(topic)
        first = str(TopicName.parse(topic).partition(0)) if partitions else topic
        # A producer shows that the topic is there, or is made, and that we may write to it.
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
