"""Settings of the client, its producers, consumers and readers, and the policies in them.

Values are frozen, and their names end in the unit. A value out of bounds raises ValueError at once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

from magnetar.sdk.errors import CredentialsError, IssuerUnavailableError, SdkError
from magnetar.sdk.interceptors import ConsumerInterceptor
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.ports import Clock
from magnetar.sdk.producing.routing import Hashing, Router, RoutingMode
from magnetar.sdk.wire.batches import BATCH_MESSAGES_MAX
from magnetar.sdk.wire.compression import Compression
from magnetar.sdk.wire.pulsar_pb2 import CommandSubscribe, ProducerAccessMode

if TYPE_CHECKING:
    from magnetar.sdk.authentication import Authentication
    from magnetar.sdk.encryption import (
        CryptoFailureAction,
        KeyReader,
        MessageDecryptor,
        MessageEncryptor,
    )
    from magnetar.sdk.interceptors import ProducerInterceptor


__all__ = [
    "AccessMode",
    "BatchReceivePolicy",
    "ClientSettings",
    "ConsumerSettings",
    "DeadLetterPolicy",
    "InitialPosition",
    "KeySharedPolicy",
    "ProducerSettings",
    "ReaderSettings",
    "SubscriptionType",
]

SettingsT = TypeVar("SettingsT")


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
        """Whether one consumer at a time gets all messages, in order."""
        return self in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)


_SUBSCRIPTION_TYPES = {
    SubscriptionType.EXCLUSIVE: CommandSubscribe.Exclusive,
    SubscriptionType.FAILOVER: CommandSubscribe.Failover,
    SubscriptionType.SHARED: CommandSubscribe.Shared,
    SubscriptionType.KEY_SHARED: CommandSubscribe.Key_Shared,
}


class InitialPosition(Enum):
    """Where a new subscription begins."""

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


def _check_kind(name: str, value: object, kind: type) -> None:
    """Refuse values such as the text that other clients take, before a later step fails on them."""
    if isinstance(value, kind):
        return
    if issubclass(kind, Enum):
        allowed = f"allowed are {', '.join(f'{kind.__name__}.{each}' for each in kind.__members__)}"
    else:
        allowed = f"it is a {kind.__name__}(…)"
    raise ValueError(f"{name} is {value!r}; {allowed}")


def check_settings(settings: object, kind: type[SettingsT]) -> SettingsT:
    """Check the class of settings, and return them.

    Raises:
        TypeError: the settings are of another class.
    """
    if not isinstance(settings, kind):
        raise TypeError(f"settings must be a {kind.__name__}(…), not {type(settings).__name__}")
    return settings


HASHES = 65_536
"""Number of key hashes, 0 to 65535 (Murmur3, modulo this)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySharedPolicy:
    """How the keys of a Key_Shared subscription are divided among its consumers."""

    hash_ranges: tuple[tuple[int, int], ...] = ()
    """Hash ranges of this consumer, ends included (STICKY); empty: the broker divides them."""
    allow_out_of_order: bool = False
    """Whether a new consumer gets a key before the old one has acknowledged its messages of it."""
    entry_buckets: bool = False
    """Whether the ranges are the entry buckets of a segment of a scalable topic. All consumers then
    name the same buckets, and the broker divides them. Set by stream consumers."""

    def __post_init__(self) -> None:
        last = -1
        for start, end in sorted(self.hash_ranges):
            if not 0 <= start <= end < HASHES:
                raise ValueError(f"hash range {start}-{end}: wanted 0 <= start <= end <= 65535")
            if start <= last:
                raise ValueError(f"hash range {start}-{end} overlaps another one")
            last = end


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterPolicy:
    """When and where messages go that were redelivered too often."""

    redeliveries_max: int
    """Redeliveries of a message before it goes to the dead letter topic; the first delivery does
    not count."""
    topic: str = ""
    """Dead letter topic; empty for `{topic}-{subscription}-DLQ`, as with the official clients."""
    retry_topic: str = ""
    """Retry topic; empty for `{topic}-{subscription}-RETRY`. See `ConsumerSettings.retry_topic`."""
    initial_subscription: str = ""
    """Subscription of the dead letter topic, made before its first message if it does not exist.
    Without a subscription, the dead letter topic keeps no messages. Empty: none is made."""

    def __post_init__(self) -> None:
        if self.redeliveries_max < 0:
            raise ValueError(f"redeliveries_max is {self.redeliveries_max}; allowed are 0 and more")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReceivePolicy:
    """Limits at which `receive_batch` returns, whichever is reached first."""

    messages_max: int = 1_000
    bytes_max: int = 10 * 1024 * 1024
    """Payload bytes of a batch; a single message may be larger."""
    timeout_ms: int = 100
    """Longest wait in ms; 0: wait until another limit is reached."""

    def __post_init__(self) -> None:
        if not (self.messages_max >= 1 and self.bytes_max >= 1 and self.timeout_ms >= 0):
            raise ValueError(
                "messages_max and bytes_max must be at least 1, and timeout_ms at least 0"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Settings of a client: connections, requests, authentication, TLS."""

    connect_timeout_ms: int = 10_000
    """Time limit for the TCP connect and the CONNECT handshake together."""
    operation_timeout_ms: int = 30_000
    """Time limit from a request to its answer, and for creating a producer or consumer with all
    retries."""
    close_timeout_ms: int = 3_000
    """How long a closing producer or consumer waits for the broker's answer."""
    keep_alive_ms: int = 30_000
    """Interval between PINGs; a connection that stays silent for one after a PING is closed."""
    reconnect_delay_min_ms: int = 100
    """First pause before a reconnect; doubles with every failure, with jitter."""
    reconnect_delay_max_ms: int = 10_000
    authentication: "Authentication | None" = field(default=None, repr=False)
    """Credentials, see `magnetar.sdk.authentication`. Used instead of the three fields below."""
    auth_method_name: str = "none"
    """`none`, `token`, `basic`, `tls`, …; `token` sends the token as it is."""
    auth_data: bytes = field(default=b"", repr=False)
    auth_supplier: Callable[[], bytes] | None = field(default=None, repr=False)
    """Returns the current `auth_data`, called at each connection and when the broker says that they
    have expired. Must not block."""
    tls_trust_file: str = ""
    """PEM file of the authorities that may sign brokers' certificates; empty for the system's."""
    tls_certificate_file: str = ""
    """PEM file of the client's own certificate, for mutual TLS."""
    tls_key_file: str = ""
    tls_checks_host: bool = True
    """Whether a broker's certificate must name the host that the client connects to."""
    memory_bytes_max: int = 0
    """Pending payload bytes of all producers of the client together. At the limit `send` waits, and
    `send_nowait` raises PendingLimitError. 0: only each producer's own limit."""
    is_replicator: bool = False
    """Whether the client is a broker that copies topics: messages carry their source positions, and
    receipts name these."""
    listener_name: str = ""
    """Name of the broker's advertised listener to ask for; empty for the default one."""

    @property
    def credentials(self) -> bytes:
        """The current `auth_data`, for clients without `authentication`."""
        return self.auth_data if self.auth_supplier is None else self.auth_supplier()

    async def current_credentials(self) -> tuple[str, bytes]:
        """Return the name of the method, and the current credentials.

        Raises:
            IssuerUnavailableError: an application's own code raised an OSError (a TimeoutError is
                one), for example for a file that is being replaced; it may pass.
            CredentialsError: there are none, or such code raised another exception. A connected
                producer tries again.
        """
        try:
            if self.authentication is not None:
                return self.authentication.method_name, await self.authentication.data()
            return self.auth_method_name, self.credentials
        except SdkError:
            raise
        except OSError as error:
            raise IssuerUnavailableError(
                f"the credentials are not available for now: {error!r}"
            ) from error
        except Exception as error:
            raise CredentialsError(f"the credentials are not available: {error!r}") from error

    def credentials_refused(self) -> None:
        """Notify `authentication` that a broker refused its credentials, so that it renews them."""
        if self.authentication is None:
            return
        # Clients without authentication do not load the module.
        from magnetar.sdk.authentication import RefusalListener

        if isinstance(self.authentication, RefusalListener):
            self.authentication.on_refused()

    def __post_init__(self) -> None:
        _check("connect_timeout_ms", self.connect_timeout_ms, 1, 3_600_000)
        _check("operation_timeout_ms", self.operation_timeout_ms, 1, 3_600_000)
        _check("close_timeout_ms", self.close_timeout_ms, 1, 3_600_000)
        _check("memory_bytes_max", self.memory_bytes_max, 0, 1 << 40)
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
    """Settings of one producer."""

    name: str = ""
    """Name, unique per topic; needed for deduplication. Empty: the broker chooses one."""
    initial_sequence_id: int | None = None
    """Sequence id of the first message; by default one more than the broker remembers, or 0."""
    batching: bool = True
    """Whether to put messages together into one entry. Large batches are many times faster."""
    batch_messages_max: int = 1_000
    """Most messages of a batch; at most 65,536, because consumers refuse larger batches."""
    batch_bytes_max: int = 128 * 1024
    """Most payload bytes of a batch, before compression."""
    batch_delay_ms: float = 0.0
    """How long a batch waits for more messages. 0: until the end of the event loop's turn, so that
    messages sent together are batched together and none waits."""
    pending_messages_max: int = 10_000
    """Most pending messages; beyond, `send` waits, and `send_nowait` raises PendingLimitError."""
    pending_bytes_max: int = 64 * 1024 * 1024
    send_timeout_ms: int = 30_000
    """Time limit from the call to the receipt, over all reconnects. 0: no limit."""
    compression: Compression = Compression.NONE
    access_mode: AccessMode = AccessMode.SHARED
    encrypted: bool = False
    """Whether all messages are sent by `send_encoded_nowait`, already encrypted. Topics may require
    encryption."""
    batch_by_key: bool = False
    """Whether each batch holds messages of one ordering key (or key). Key_Shared subscriptions need
    that, because they give a batch to one consumer."""
    chunking: bool = False
    """Whether to split messages above the broker's limit into chunks instead of refusing them."""
    chunk_bytes_max: int = 0
    """Size of a chunk; 0: as large as the broker accepts. Topics may have limits of their own."""
    encryption_keys: tuple[str, ...] = ()
    """Names of public keys. The owner of any of the private keys can read the messages."""
    key_reader: "KeyReader | None" = field(default=None, repr=False)
    """Source of the public keys; see `magnetar.sdk.encryption`."""
    data_key_lifetime_ms: int = 4 * 3_600_000
    """Age at which the data key is replaced, and the public keys are read again."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Properties shown in the topic's statistics."""
    initial_subscription: str = ""
    """Subscription that the broker makes with the topic, from its beginning, if there is none of
    this name. Messages sent before a consumer subscribes are then kept."""
    interceptors: "tuple[ProducerInterceptor, ...]" = ()
    """Interceptors, called in this order; see `magnetar.sdk.interceptors`."""
    routing: RoutingMode | Router = RoutingMode.ROUND_ROBIN
    """Partitioned topics: where messages without a key go. A function is called for each message,
    whatever its key, with the message and the number of partitions."""
    hashing: Hashing = Hashing.JAVA_STRING
    """Partitioned topics: hash that chooses the partition of a key."""
    lazy_partitions: bool = False
    """Partitioned topics: whether to connect to a partition only at its first message. At the start
    only one partition is connected."""
    partitions_refresh_ms: int = 60_000
    """Partitioned topics: how often the client checks whether partitions were added; 0: never."""
    follow_layout: bool = False
    """Plain and partitioned topics: whether to send by the topic's layout, as to a scalable topic,
    and to continue when the topic becomes one. Keys are then hashed by Murmur3, whatever `hashing`
    says."""

    def __post_init__(self) -> None:
        _check_kind("compression", self.compression, Compression)
        _check_kind("access_mode", self.access_mode, AccessMode)
        _check_kind("hashing", self.hashing, Hashing)
        if not callable(self.routing):
            _check_kind("routing", self.routing, RoutingMode)
        _check("batch_messages_max", self.batch_messages_max, 1, BATCH_MESSAGES_MAX)
        _check("batch_bytes_max", self.batch_bytes_max, 1, 64 * 1024 * 1024)
        _check("batch_delay_ms", self.batch_delay_ms, 0, 60_000)
        _check("pending_messages_max", self.pending_messages_max, 1, 100_000_000)
        _check("pending_bytes_max", self.pending_bytes_max, 1, 1 << 40)
        _check("partitions_refresh_ms", self.partitions_refresh_ms, 0, 86_400_000)
        if self.lazy_partitions and self.access_mode is not AccessMode.SHARED:
            raise ValueError(
                "lazy_partitions needs the access mode SHARED: other modes open all partitions"
            )
        _check("chunk_bytes_max", self.chunk_bytes_max, 0, 64 * 1024 * 1024)
        _check("data_key_lifetime_ms", self.data_key_lifetime_ms, 1, 30 * 86_400_000)
        if self.encryption_keys and self.key_reader is None:
            raise ValueError("encryption_keys needs a key_reader")
        _check("send_timeout_ms", self.send_timeout_ms, 0, 86_400_000)

    def encryptor(self, clock: Clock) -> "MessageEncryptor | None":
        """Make the encryptor of a producer; return None if it does not encrypt.

        Raises:
            CryptoKeyError: a public key is missing or cannot be used.
        """
        if self.key_reader is None or not self.encryption_keys:
            return None
        # Producers that do not encrypt load no cryptography.
        from magnetar.sdk.encryption import MessageEncryptor

        return MessageEncryptor(
            self.encryption_keys,
            self.key_reader,
            clock=clock,
            rotation_s=self.data_key_lifetime_ms / 1000,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Settings of one consumer."""

    name: str = ""
    """Name in statistics; decides which consumer is active in Failover. Empty: a random one."""
    subscription_type: SubscriptionType = SubscriptionType.EXCLUSIVE
    key_shared: KeySharedPolicy = field(default_factory=KeySharedPolicy)
    """Keys that a Key_Shared consumer gets; with ranges, also those that an Exclusive one sees."""
    initial_position: InitialPosition = InitialPosition.LATEST
    durable: bool = True
    """Whether the subscription outlives its consumer; a reader's does not."""
    start_message_id: MessageId | None = None
    """Where a non-durable subscription begins; None: by `initial_position`."""
    start_inclusive: bool = False
    """Whether to deliver the start message itself, too; with LATEST, the newest message."""
    receiver_queue_messages: int = 1_000
    """Messages that the broker may send ahead. An entry counts with all its messages, so set this
    to several times the batch size of the producers."""
    receiver_queue_messages_total: int = 50_000
    """Limit for several topics or partitions together; each has at least 1."""
    ack_group_ms: int = 100
    """How long acknowledgements are collected; 0: until the end of the event loop's turn."""
    ack_group_max: int = 1_000
    """Number of collected acknowledgements at which they are sent at once."""
    batch_index_ack: bool = False
    """Whether to acknowledge messages of a batch singly; otherwise the entry, when all are."""
    nack_delay_ms: int = 60_000
    """Delay before a negatively acknowledged message is requested again."""
    nack_delay_multiplier: float = 1.0
    """Factor by which the delay grows with each redelivery (Shared and Key_Shared)."""
    nack_delay_max_ms: int = 600_000
    """Longest delay, when `nack_delay_multiplier` makes it grow."""
    ack_timeout_ms: int = 0
    """Time from taking a message until it is requested again if not acknowledged; 0: never. On
    Exclusive and Failover subscriptions, and for batches, more than the one message is redelivered.
    """
    dead_letters: DeadLetterPolicy | None = None
    """Dead letter policy. Only Shared and Key_Shared subscriptions count deliveries."""
    retry_topic: bool = False
    """Whether to consume the retry topic, too, so that `reconsume_later` can be used."""
    batch_receive: BatchReceivePolicy = field(default_factory=BatchReceivePolicy)
    """Limits of `receive_batch`."""
    key_reader: "KeyReader | None" = field(default=None, repr=False)
    """Source of the private keys; None: encrypted messages are delivered as they are."""
    crypto_failure_action: "CryptoFailureAction | None" = None
    """How to handle a message that no key decrypts; None: FAIL, with an EncryptedMessageError."""
    chunked_messages_max: int = 100
    """Most incomplete chunked messages at a time; at the limit the oldest is given up."""
    chunked_message_bytes_max: int = 256 * 1024 * 1024
    """Most bytes of one chunked message, and of all incomplete ones together."""
    chunked_message_age_ms: int = 60_000
    """How long the consumer waits for the next chunk before it gives an incomplete message up. Time
    counts once the application has taken the messages received by then; while more are queued, no
    more of it than lies between their publish times."""
    acknowledge_incomplete_chunks: bool = False
    """Whether to acknowledge the chunks of a message that is given up. Otherwise Shared and
    Key_Shared subscriptions redeliver them; on the others they stay unacknowledged, and the next
    chunk raises a CorruptMessageError whose id leads to the message."""
    topics_update_ms: int = 60_000
    """How often the client checks for new partitions, and for topics that match a pattern."""
    handover_ms: int = 10_000
    """Stream consumers: how long a segment that moves to another consumer waits for
    acknowledgements of taken messages. The rest is redelivered there."""
    interceptors: tuple[ConsumerInterceptor, ...] = ()
    """Interceptors, called for each message in this order; see `interceptors.py`."""
    on_active_change: Callable[[str, bool], None] | None = None
    """Failover: called with a topic's name and whether this consumer is now its active one."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Metadata shown in the consumer's statistics."""
    subscription_properties: Mapping[str, str] = field(default_factory=dict)
    """Properties stored with the subscription, if this consumer creates it."""
    replicate_subscription_state: bool = False
    """Whether other clusters that the topic is copied to keep the subscription in step, so that
    consumers can continue there. Once enabled, it stays so."""
    create_topic: bool = True
    """Whether brokers may create a missing topic; otherwise TopicNotFoundError is raised."""
    priority_level: int = 0
    """Priority of the consumer; 0 is served first (Shared and Failover)."""
    read_compacted: bool = False
    """Whether to read only the newest message of each key (Exclusive and Failover)."""
    verify_checksum: bool = True
    decompressed_bytes_max: int = 64 * 1024 * 1024
    """Most bytes of a payload after decompression: a small message must not fill the memory. A
    batch of more than 65,536 messages needs 1 KiB of it for each message."""

    def __post_init__(self) -> None:
        _check_kind("subscription_type", self.subscription_type, SubscriptionType)
        _check_kind("initial_position", self.initial_position, InitialPosition)
        _check_kind("key_shared", self.key_shared, KeySharedPolicy)
        _check_kind("batch_receive", self.batch_receive, BatchReceivePolicy)
        if self.dead_letters is not None:
            _check_kind("dead_letters", self.dead_letters, DeadLetterPolicy)
        _check("receiver_queue_messages", self.receiver_queue_messages, 1, 10_000_000)
        _check("receiver_queue_messages_total", self.receiver_queue_messages_total, 1, 100_000_000)
        _check("ack_group_ms", self.ack_group_ms, 0, 60_000)
        _check("ack_group_max", self.ack_group_max, 1, 100_000)
        _check("nack_delay_ms", self.nack_delay_ms, 0, 86_400_000)
        _check("nack_delay_multiplier", self.nack_delay_multiplier, 1.0, 100.0)
        _check("nack_delay_max_ms", self.nack_delay_max_ms, 0, 604_800_000)
        _check("ack_timeout_ms", self.ack_timeout_ms, 0, 86_400_000)
        _check("chunked_messages_max", self.chunked_messages_max, 1, 1_000_000)
        _check("chunked_message_bytes_max", self.chunked_message_bytes_max, 1, 1 << 40)
        _check("chunked_message_age_ms", self.chunked_message_age_ms, 1, 86_400_000)
        _check("topics_update_ms", self.topics_update_ms, 10, 86_400_000)
        _check("handover_ms", self.handover_ms, 0, 3_600_000)
        _check("priority_level", self.priority_level, 0, 1_000)
        _check("decompressed_bytes_max", self.decompressed_bytes_max, 1, 1 << 40)
        shares = not self.subscription_type.keeps_order
        if self.durable and self.start_message_id is not None:
            raise ValueError("start_message_id needs durable=False")
        if self.replicate_subscription_state and not self.durable:
            raise ValueError("replicate_subscription_state needs durable=True")
        if shares and self.read_compacted:
            raise ValueError("read_compacted needs an Exclusive or Failover subscription")
        if self.retry_topic and not shares:
            raise ValueError("retry_topic needs a Shared or Key_Shared subscription")
        if self.dead_letters is not None and not shares:
            raise ValueError("dead_letters needs a Shared or Key_Shared subscription")

    def decryptor(self) -> "MessageDecryptor | None":
        """Make the decryptor of a consumer; return None if it does not decrypt."""
        if self.key_reader is None:
            return None
        # Consumers that do not decrypt load no cryptography.
        from magnetar.sdk.encryption import MessageDecryptor

        return MessageDecryptor(self.key_reader)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSettings:
    """Settings of one reader."""

    name: str = ""
    start_inclusive: bool = False
    """Whether to deliver the start message itself, too; with LATEST, the newest message."""
    receiver_queue_messages: int = 1_000
    receiver_queue_messages_total: int = 50_000
    """Limit for all partitions of a topic together; each has at least 1."""
    hash_ranges: tuple[tuple[int, int], ...] = ()
    """Hash ranges (0 to 65535, ends included) of the keys to read; empty: all messages."""
    topics_update_ms: int = 60_000
    """How often the client checks for new partitions."""
    key_reader: "KeyReader | None" = field(default=None, repr=False)
    """Source of the private keys; None: encrypted messages are delivered as they are."""
    crypto_failure_action: "CryptoFailureAction | None" = None
    """How to handle a message that no key decrypts; None: FAIL, with an EncryptedMessageError."""
    verify_checksum: bool = True
    decompressed_bytes_max: int = 64 * 1024 * 1024
    read_compacted: bool = False

    def __post_init__(self) -> None:
        _check("receiver_queue_messages", self.receiver_queue_messages, 1, 10_000_000)
        _check("receiver_queue_messages_total", self.receiver_queue_messages_total, 1, 100_000_000)
        _check("topics_update_ms", self.topics_update_ms, 10, 86_400_000)
        _check("decompressed_bytes_max", self.decompressed_bytes_max, 1, 1 << 40)
        KeySharedPolicy(hash_ranges=self.hash_ranges)

    def for_consumer(self) -> ConsumerSettings:
        """Return the settings of the consumer that the reader uses."""
        return ConsumerSettings(
            name=self.name,
            durable=False,
            initial_position=InitialPosition.LATEST,
            key_shared=KeySharedPolicy(hash_ranges=self.hash_ranges),
            receiver_queue_messages=self.receiver_queue_messages,
            receiver_queue_messages_total=self.receiver_queue_messages_total,
            topics_update_ms=self.topics_update_ms,
            key_reader=self.key_reader,
            crypto_failure_action=self.crypto_failure_action,
            verify_checksum=self.verify_checksum,
            decompressed_bytes_max=self.decompressed_bytes_max,
            read_compacted=self.read_compacted,
        )
