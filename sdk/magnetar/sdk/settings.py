"""Settings of the client, its producers, consumers and readers.

Frozen values with the unit last in each name; a value out of bounds raises ValueError at once.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from magnetar.sdk.wire.compression import Compression
from magnetar.sdk.wire.pulsar_pb2 import CommandSubscribe, ProducerAccessMode

__all__ = [
    "AccessMode",
    "ClientSettings",
    "ConsumerSettings",
    "InitialPosition",
    "ProducerSettings",
    "ReaderSettings",
    "SubscriptionType",
]


class SubscriptionType(Enum):
    """How the consumers of a subscription share its messages."""

    EXCLUSIVE = "exclusive"
    FAILOVER = "failover"
    SHARED = "shared"
    KEY_SHARED = "key_shared"

    @property
    def wire(self) -> CommandSubscribe.SubType:
        return _SUBSCRIPTION_TYPES[self]

    @property
    def keeps_order(self) -> bool:
        """One consumer at a time gets everything, in order."""
        return self in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)


_SUBSCRIPTION_TYPES = {
    SubscriptionType.EXCLUSIVE: CommandSubscribe.Exclusive,
    SubscriptionType.FAILOVER: CommandSubscribe.Failover,
    SubscriptionType.SHARED: CommandSubscribe.Shared,
    SubscriptionType.KEY_SHARED: CommandSubscribe.Key_Shared,
}


class InitialPosition(Enum):
    """Where a subscription begins that does not exist yet."""

    LATEST = "latest"
    EARLIEST = "earliest"

    @property
    def wire(self) -> CommandSubscribe.InitialPosition:
        earliest = self is InitialPosition.EARLIEST
        return CommandSubscribe.Earliest if earliest else CommandSubscribe.Latest


class AccessMode(Enum):
    """Whether a producer shares its topic with other producers."""

    SHARED = "shared"
    EXCLUSIVE = "exclusive"
    WAIT_FOR_EXCLUSIVE = "wait_for_exclusive"
    EXCLUSIVE_WITH_FENCING = "exclusive_with_fencing"

    @property
    def wire(self) -> ProducerAccessMode:
        return _ACCESS_MODES[self]


_ACCESS_MODES = {
    AccessMode.SHARED: ProducerAccessMode.Shared,
    AccessMode.EXCLUSIVE: ProducerAccessMode.Exclusive,
    AccessMode.WAIT_FOR_EXCLUSIVE: ProducerAccessMode.WaitForExclusive,
    AccessMode.EXCLUSIVE_WITH_FENCING: ProducerAccessMode.ExclusiveWithFencing,
}


def _check(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}; allowed are {low} to {high}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Connections and requests."""

    connect_timeout_ms: int = 10_000
    """TCP connect and CONNECT handshake together."""
    operation_timeout_ms: int = 30_000
    """A request to its answer; the creation of a producer or consumer with all its retries."""
    close_timeout_ms: int = 3_000
    """How long something that closes waits for the broker's word before it goes without."""
    keep_alive_ms: int = 30_000
    """A silent connection is probed after this time, and closed after as much again."""
    reconnect_delay_min_ms: int = 100
    """First pause before a reconnect; doubles with every failure, with jitter."""
    reconnect_delay_max_ms: int = 10_000
    auth_method_name: str = "none"
    """`none`, `token`, `basic`, …; `token` sends the token as it is."""
    auth_data: bytes = field(default=b"", repr=False)
    auth_supplier: Callable[[], bytes] | None = field(default=None, repr=False)
    """Gives the `auth_data` of the moment: asked at each connection, and when the broker says that
    they have expired. It must not block."""
    tls_trust_file: str = ""
    """PEM: who may vouch for brokers, with pulsar+ssl://; empty: the system's authorities."""
    tls_certificate_file: str = ""
    """PEM: the client's own certificate, for mutual TLS."""
    tls_key_file: str = ""
    tls_checks_host: bool = True
    """Whether a broker's certificate must be for the host that was connected to."""
    listener_name: str = ""
    """Which of the broker's advertised listeners to ask for; empty for the default one."""

    @property
    def credentials(self) -> bytes:
        """The `auth_data` of the moment."""
        return self.auth_data if self.auth_supplier is None else self.auth_supplier()

    def __post_init__(self) -> None:
        _check("connect_timeout_ms", self.connect_timeout_ms, 1, 3_600_000)
        _check("operation_timeout_ms", self.operation_timeout_ms, 1, 3_600_000)
        _check("close_timeout_ms", self.close_timeout_ms, 1, 3_600_000)
        _check("keep_alive_ms", self.keep_alive_ms, 10, 3_600_000)
        _check("reconnect_delay_min_ms", self.reconnect_delay_min_ms, 1, 60_000)
        _check(
            "reconnect_delay_max_ms",
            self.reconnect_delay_max_ms,
            self.reconnect_delay_min_ms,
            3_600_000,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """One producer."""

    name: str = ""
    """Empty: the broker makes one up. Give one, unique per topic, for deduplication."""
    initial_sequence_id: int | None = None
    """Sequence id of the first message; by default one more than the broker remembers, or 0."""
    batching: bool = True
    """Put messages together into one entry. Large batches are many times faster than singles."""
    batch_messages_max: int = 1_000
    batch_bytes_max: int = 128 * 1024
    """Sum of the payloads of a batch, before compression."""
    batch_delay_ms: float = 0.0
    """How long a batch waits for more. 0: until the end of the event loop's turn, so that whatever
    is sent together travels together and nothing waits."""
    pending_messages_max: int = 10_000
    """Messages without receipt; `send` waits for room, `send_nowait` raises PendingLimitError."""
    pending_bytes_max: int = 64 * 1024 * 1024
    send_timeout_ms: int = 30_000
    """Time from the call to the receipt, over all reconnects. 0: no limit."""
    compression: Compression = Compression.NONE
    access_mode: AccessMode = AccessMode.SHARED
    encrypted: bool = False
    """Everything is sent by `send_encoded_nowait`, encrypted; topics may require that."""

    def __post_init__(self) -> None:
        _check("batch_messages_max", self.batch_messages_max, 1, 1_000_000)
        _check("batch_bytes_max", self.batch_bytes_max, 1, 64 * 1024 * 1024)
        _check("batch_delay_ms", self.batch_delay_ms, 0, 60_000)
        _check("pending_messages_max", self.pending_messages_max, 1, 100_000_000)
        _check("pending_bytes_max", self.pending_bytes_max, 1, 1 << 40)
        _check("send_timeout_ms", self.send_timeout_ms, 0, 86_400_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """One consumer."""

    name: str = ""
    """Shown in statistics, decides who is active in Failover; empty: a random one."""
    subscription_type: SubscriptionType = SubscriptionType.EXCLUSIVE
    initial_position: InitialPosition = InitialPosition.LATEST
    durable: bool = True
    """False: the subscription lives as long as its consumer, as a reader's does."""
    receiver_queue_messages: int = 1_000
    """Messages that the broker may send ahead. An entry counts with all its messages, so let this
    be several times the size of the batches that producers make."""
    ack_group_ms: int = 100
    """Acknowledgements are collected this long (0: until the end of the event loop's turn)."""
    ack_group_max: int = 1_000
    """… or until there are this many."""
    batch_index_ack: bool = False
    """Acknowledge single messages of a batch at once; otherwise the entry, when all are."""
    nack_delay_ms: int = 60_000
    """Pause before a negatively acknowledged message is asked for again."""
    priority_level: int = 0
    """0 is served first (Shared and Failover)."""
    read_compacted: bool = False
    verify_checksum: bool = True
    decompressed_bytes_max: int = 64 * 1024 * 1024
    """Bound on a payload after decompression: a small message must not fill the memory."""

    def __post_init__(self) -> None:
        _check("receiver_queue_messages", self.receiver_queue_messages, 1, 10_000_000)
        _check("ack_group_ms", self.ack_group_ms, 0, 60_000)
        _check("ack_group_max", self.ack_group_max, 1, 100_000)
        _check("nack_delay_ms", self.nack_delay_ms, 0, 86_400_000)
        _check("priority_level", self.priority_level, 0, 1_000)
        _check("decompressed_bytes_max", self.decompressed_bytes_max, 1, 1 << 40)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSettings:
    """One reader."""

    name: str = ""
    start_inclusive: bool = False
    """Deliver the start message itself too."""
    receiver_queue_messages: int = 1_000
    verify_checksum: bool = True
    decompressed_bytes_max: int = 64 * 1024 * 1024
    read_compacted: bool = False

    def __post_init__(self) -> None:
        _check("receiver_queue_messages", self.receiver_queue_messages, 1, 10_000_000)
        _check("decompressed_bytes_max", self.decompressed_bytes_max, 1, 1 << 40)
