"""A consumer: one client's place in a subscription, its permits and its unacknowledged entries."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from magnetar.broker.base.meter import Meter
from magnetar.broker.cluster.ownership.protocol import Destination
from magnetar.broker.topic.dispatch.pending import PendingEntries
from magnetar.broker.topic.peer import Peer
from magnetar.ledger.position import Position
from magnetar.sdk.wire.pulsar_pb2 import CommandSubscribe

EXCLUSIVE = int(CommandSubscribe.Exclusive)
SHARED = int(CommandSubscribe.Shared)
FAILOVER = int(CommandSubscribe.Failover)
KEY_SHARED = int(CommandSubscribe.Key_Shared)

TYPE_NAMES = {
    EXCLUSIVE: "Exclusive",
    SHARED: "Shared",
    FAILOVER: "Failover",
    KEY_SHARED: "Key_Shared",
}


class HashRange(NamedTuple):
    """Hashes of keys, both ends included."""

    start: int
    end: int


class KeySharedMode(NamedTuple):
    """Mode that all consumers of a Key_Shared subscription must share."""

    is_sticky: bool = False
    """STICKY: consumers name the hash ranges that they want. Otherwise the broker assigns them."""
    is_unordered: bool = False
    """Whether several consumers may have messages of one key at once."""
    by_buckets: bool = False
    """STICKY where all consumers name the same ranges, which are the entry buckets of a segment.
    The broker divides them among the consumers."""

    @property
    def name(self) -> str:
        if self.by_buckets:
            return "STICKY by entry buckets"
        return "STICKY" if self.is_sticky else "AUTO_SPLIT"

    def __str__(self) -> str:
        return f"{self.name}, {'out of order' if self.is_unordered else 'in order'}"


OnClosed = Callable[["Consumer", Destination | None], None]
"""Called when the broker closes a consumer: notify its client, with the destination; free its
id."""


def _nobody(_consumer: "Consumer", _destination: Destination | None) -> None:
    """Ignore a closed consumer."""


class Consumer:
    """State of one consumer on one connection. Dispatchers and the subscription change it.

    `permits` is the credit in messages. It falls below zero when a batch is larger than the
    remaining credit, and starts from zero with every SUBSCRIBE.
    """

    __slots__ = (
        "__weakref__",
        "acked_ms",
        "bytes_out",
        "chunks_out",
        "connected_at_ms",
        "consumer_id",
        "drained_hashes",
        "entries_out",
        "epoch",
        "first_flow_ms",
        "first_sent_ms",
        "flow_ms",
        "hash_ranges",
        "held",
        "held_since_ms",
        "is_auto_consume",
        "is_blocked",
        "is_closed",
        "is_told_end",
        "key_shared",
        "messages_acked",
        "messages_out",
        "messages_redelivered",
        "metadata",
        "meter",
        "name",
        "on_closed",
        "peer",
        "pending",
        "permits",
        "priority",
        "reads_compacted",
        "sent_ms",
        "start",
        "sub_type",
        "unacked_messages",
    )

    def __init__(
        self,
        peer: Peer,
        consumer_id: int,
        *,
        name: str,
        sub_type: int,
        priority: int = 0,
        epoch: int = -1,
        connected_at_ms: int = 0,
        key_shared: KeySharedMode = KeySharedMode(),  # noqa: B008
        hash_ranges: Sequence[HashRange] = (),
        reads_compacted: bool = False,
        is_auto_consume: bool = False,
        metadata: Mapping[str, str] | None = None,
        on_closed: OnClosed = _nobody,
    ) -> None:
        """`hash_ranges`: those of a STICKY consumer, or a filter of an Exclusive one; else
        empty."""
        self.peer = peer
        self.on_closed = on_closed
        self.consumer_id = consumer_id
        self.name = name
        self.sub_type = sub_type
        self.priority = priority
        self.epoch = epoch
        """The client's counter against stale messages; -1 if it never sent one."""
        self.connected_at_ms = connected_at_ms
        self.key_shared = key_shared
        self.hash_ranges = hash_ranges
        self.reads_compacted = reads_compacted
        """Whether the consumer reads only the newest message of each key, as far as the topic is
        compacted."""
        self.is_auto_consume = is_auto_consume
        """Whether the consumer accepts any schema."""
        self.metadata = metadata or {}
        """Properties that the client reports, for statistics."""
        self.start: Position | None = None
        """First entry to deliver, if the consumer creates the subscription."""
        self.permits = 0
        self.is_closed = False
        self.is_blocked = False
        """Whether it has too many unacknowledged messages; only for Shared and Key_Shared."""
        self.is_told_end = False
        """Whether the client was told that the topic is terminated and fully consumed."""
        self.pending = PendingEntries()
        """Entries sent and not acknowledged, for Shared and Key_Shared; see `PendingAccounts`."""
        self.held: Position | None = None
        """Entry of `pending` that was first in the log at `held_since_ms` and is still held."""
        self.held_since_ms = 0
        self.unacked_messages = 0
        self.messages_out = 0
        self.bytes_out = 0
        self.messages_redelivered = 0
        self.messages_acked = 0
        """Acknowledged messages; for Exclusive and Failover, entries."""
        self.chunks_out = 0
        """Entries sent that are chunks."""
        self.meter = Meter(0, 0, 0, 0, 0, since_ms=connected_at_ms)
        """Rates of messages, bytes, redeliveries, acknowledgements and chunks."""
        self.entries_out = 0
        self.drained_hashes = 0
        """Hashes of keys held while another consumer owned them, and given up since."""
        # Wall clock, ms since the epoch; 0: not yet.
        self.flow_ms = self.first_flow_ms = 0
        """The last and the first time that the client granted permits."""
        self.sent_ms = self.first_sent_ms = 0
        """The last and the first time that messages were sent to it."""
        self.acked_ms = 0
        """The last time that it acknowledged anything."""

    def sample(self, now_ms: int) -> None:
        """Sample the counters for the rates, and the oldest held entry; called once per interval.

        Tracking the age of held entries costs nothing at sending and acknowledging: one entry is
        followed from sample to sample. When it is acknowledged or taken back, the next sample
        chooses the first held entry in the log, which may have been sent later than others.
        """
        self.meter.sample(now_ms, *self._counters)
        if self.held is None or self.held not in self.pending:
            self.held, self.held_since_ms = self.pending.first(), now_ms

    def took_back(self) -> None:
        """Stop following the entry if it was taken back. Its age starts anew if the consumer gets
        it again."""
        if self.held is not None and self.held not in self.pending:
            self.held = None

    def first_held(self, now_ms: int) -> tuple[Position, int] | None:
        """Return the first entry in the log that the consumer held at a sample and still holds.

        Also return for how many ms at least. None: it holds no entry that it held at the last
        sample. Entries behind it may have been held for longer.
        """
        if self.held is None or self.held not in self.pending:
            return None
        return self.held, max(0, now_ms - self.held_since_ms)

    def rates(self, now_ms: int) -> tuple[float, ...]:
        """Return messages and bytes sent, messages redelivered, messages acknowledged, and chunks
        sent.

        All are per second of the last minute.
        """
        return self.meter.per_s(now_ms, *self._counters)

    @property
    def _counters(self) -> tuple[int, int, int, int, int]:
        return (
            self.messages_out,
            self.bytes_out,
            self.messages_redelivered,
            self.messages_acked,
            self.chunks_out,
        )

    def was_sent(self, now_ms: int) -> None:
        """Note that messages were sent to the client; called once per write."""
        self.sent_ms = now_ms
        if not self.first_sent_ms:
            self.first_sent_ms = now_ms

    @property
    def is_ready(self) -> bool:
        """Whether messages can be sent to it now."""
        return self.permits > 0 and not self.is_blocked and self.peer.is_writable
