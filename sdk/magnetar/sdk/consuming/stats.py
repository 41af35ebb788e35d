"""What a consumer has done so far, and what its broker says of it."""

from dataclasses import dataclass

from magnetar.sdk.wire.pulsar_pb2 import CommandConsumerStatsResponse


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """Counted here, since the consumer was made."""

    received_messages: int
    """Those in entries that were opened."""
    received_bytes: int
    """Entries as they travelled, also those not opened yet."""
    acknowledged: int
    """Messages, or whole entries, that were acknowledged; a cumulative one counts once."""
    negatively_acknowledged: int
    timed_out: int
    """Entries that were not acknowledged in time."""
    given_up: int
    """Messages that went to the dead letter topic."""
    topics: int
    connected: int
    """Topics whose broker we are attached to."""


@dataclass(frozen=True, slots=True)
class BrokerStats:
    """What the broker says of a consumer (CONSUMER_STATS); rates are per second."""

    topic: str
    name: str
    type: str
    address: str
    connected_since: str
    message_rate: float
    byte_rate: float
    redelivery_rate: float
    acknowledge_rate: float
    permits: int
    unacknowledged_messages: int
    is_blocked: bool
    """By too many unacknowledged messages."""
    backlog_messages: int

    @classmethod
    def of(cls, topic: str, answer: CommandConsumerStatsResponse) -> "BrokerStats":
        return cls(
            topic=topic,
            name=answer.consumerName,
            type=answer.type,
            address=answer.address,
            connected_since=answer.connectedSince,
            message_rate=answer.msgRateOut,
            byte_rate=answer.msgThroughputOut,
            redelivery_rate=answer.msgRateRedeliver,
            acknowledge_rate=answer.messageAckRate,
            permits=answer.availablePermits,
            unacknowledged_messages=answer.unackedMessages,
            is_blocked=answer.blockedConsumerOnUnackedMsgs,
            backlog_messages=answer.msgBacklog,
        )
