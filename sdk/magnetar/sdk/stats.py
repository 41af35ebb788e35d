"""Statistics of producers and consumers: their own counts, and a broker's. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from magnetar.sdk.pending_sends import PendingSend
from magnetar.sdk.wire.pulsar_pb2 import CommandConsumerStatsResponse


@dataclass(frozen=True, slots=True)
class ProducerStats:
    """Totals since the producer was made, or over several producers."""

    messages_stored: int = 0
    bytes_stored: int = 0
    """Payload bytes, before compression."""
    entries_stored: int = 0
    """Number of batches, chunks, and messages that were sent alone."""
    messages_failed: int = 0
    messages_pending: int = 0
    bytes_pending: int = 0
    latency_ms_mean: float = 0.0
    """Mean time from the call to the receipt, over entries."""
    latency_ms_max: float = 0.0

    @classmethod
    def total(cls, several: Iterable["ProducerStats"]) -> "ProducerStats":
        """Return the sums; the mean latency is weighted by entries."""
        found = list(several)
        entries = sum(each.entries_stored for each in found)
        weighted = sum(each.latency_ms_mean * each.entries_stored for each in found)
        return cls(
            messages_stored=sum(each.messages_stored for each in found),
            bytes_stored=sum(each.bytes_stored for each in found),
            entries_stored=entries,
            messages_failed=sum(each.messages_failed for each in found),
            messages_pending=sum(each.messages_pending for each in found),
            bytes_pending=sum(each.bytes_pending for each in found),
            latency_ms_mean=weighted / entries if entries else 0.0,
            latency_ms_max=max((each.latency_ms_max for each in found), default=0.0),
        )


class ProducerCounters:
    """Counters of one producer, updated once for each run of receipts."""

    __slots__ = ("_bytes", "_entries", "_failed", "_latency_max_s", "_latency_sum_s", "_messages")

    def __init__(self) -> None:
        self._messages = self._bytes = self._entries = self._failed = 0
        self._latency_sum_s = self._latency_max_s = 0.0

    def on_stored(self, sends: Sequence[PendingSend], now_s: float) -> None:
        """Count sends that got their receipts, oldest first."""
        self._entries += len(sends)
        self._messages += sum([send.messages for send in sends])
        self._bytes += sum([send.payload_bytes for send in sends])
        self._latency_sum_s += len(sends) * now_s - sum([send.sent_at_s for send in sends])
        self._latency_max_s = max(self._latency_max_s, now_s - sends[0].sent_at_s)

    def on_failed(self, messages: int) -> None:
        self._failed += messages

    def snapshot(self, *, messages_pending: int, bytes_pending: int) -> ProducerStats:
        mean_s = self._latency_sum_s / self._entries if self._entries else 0.0
        return ProducerStats(
            self._messages,
            self._bytes,
            self._entries,
            self._failed,
            messages_pending,
            bytes_pending,
            1000 * mean_s,
            1000 * self._latency_max_s,
        )


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """Counts of a consumer since it was made."""

    received_messages: int
    """Messages of the entries that were opened."""
    received_bytes: int
    """Bytes of entries as received, including those not opened yet."""
    acknowledged: int
    """Acknowledged messages or whole entries; a cumulative acknowledgement counts once."""
    negatively_acknowledged: int
    timed_out: int
    """Entries that were not acknowledged in time."""
    given_up: int
    """Messages sent to the dead letter topic."""
    topics: int
    connected: int
    """Topics whose broker the consumer is attached to."""


@dataclass(frozen=True, slots=True)
class BrokerStats:
    """A broker's statistics of a consumer (CONSUMER_STATS); rates are per second."""

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
    """Whether too many unacknowledged messages block the consumer."""
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
