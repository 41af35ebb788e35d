"""What a consumer may ask: the last message of its topic, and statistics of itself."""

from datetime import UTC, datetime

from magnetar.broker.base import replies
from magnetar.broker.base.errors import ServiceNotReadyError
from magnetar.broker.features.compaction import Compaction
from magnetar.broker.protocol.consuming.attaching import Attached
from magnetar.broker.topic.consumer import TYPE_NAMES
from magnetar.sdk.wire.pulsar_pb2 import CommandConsumerStatsResponse


async def last_message_id(request_id: int, attached: Attached) -> bytes:
    """The frame that answers GET_LAST_MESSAGE_ID.

    Raises:
        ServiceNotReadyError: the topic has moved.
        BrokerPersistenceError: the last entry could not be read.
    """
    topic = attached.topic
    partition = topic.name.partition_index
    last = None
    compaction = topic.find(Compaction) if attached.consumer.reads_compacted else None
    if compaction is not None:
        last = await compaction.last_message()
    position, batch_index = last if last is not None else await topic.last_message.find()
    first_chunk = await topic.last_message.first_chunk(position)
    if not topic.tenure.holds():
        raise ServiceNotReadyError(f"{topic.name} has moved")  # and may have grown
    mark_delete = attached.subscription.cursor.mark_delete
    return replies.last_message_id(
        request_id,
        last=replies.message_id(
            position, partition=partition, batch_index=batch_index, first_chunk=first_chunk
        ),
        mark_delete=(
            replies.message_id(mark_delete, partition=partition)
            if mark_delete.ledger_id >= 0
            else None
        ),
    )


def stats_of(request_id: int, attached: Attached, *, now_ms: int) -> CommandConsumerStatsResponse:
    """The answer to CONSUMER_STATS."""
    consumer = attached.consumer
    rate_out, throughput_out, rate_again, rate_acked, _ = consumer.rates(now_ms)
    rate_expired, _ = attached.subscription.rates(now_ms)
    since = datetime.fromtimestamp(consumer.connected_at_ms / 1000, UTC)
    return CommandConsumerStatsResponse(
        request_id=request_id,
        msgRateOut=rate_out,
        msgThroughputOut=throughput_out,
        msgRateRedeliver=rate_again,
        consumerName=consumer.name,
        availablePermits=max(0, consumer.permits),
        unackedMessages=consumer.unacked_messages,
        blockedConsumerOnUnackedMsgs=consumer.is_blocked,
        address=consumer.peer.address,
        connectedSince=since.isoformat(timespec="milliseconds"),
        type=TYPE_NAMES[consumer.sub_type],
        msgRateExpired=rate_expired,
        msgBacklog=attached.subscription.cursor.backlog_entries,
        messageAckRate=rate_acked,
    )
