"""Settings of the client, its producers, consumers and readers, and the policies in them.

Frozen values with the unit last in each name; a value out of bounds raises ValueError at once.
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


def _check_kind(name: str, value: object, kind: type) -> None:
    """Refuse the text that other clients take in its place, before somebody else trips over it."""
    if isinstance(value, kind):
        return
    if issubclass(kind, Enum):
        allowed = f"allowed are {', '.join(f'{kind.__name__}.{each}' for each in kind.__members__)}"
    else:
        allowed = f"it is a {kind.__name__}(…)"
    raise ValueError(f"{name} is {value!r}; {allowed}")


def check_settings(settings: object, kind: type[SettingsT]) -> SettingsT:
    """
    Raises:
        TypeError: these are no settings of this kind.
    """
    if not isinstance(settings, kind):
        raise TypeError(f"settings must be a {kind.__name__}(…), not {type(settings).__name__}")
    return settings


HASHES = 65_536
"""Key hashes are 0 to 65535 (Murmur3, modulo this)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySharedPolicy:
    """How the keys of a Key_Shared subscription are divided among its consumers."""

    hash_ranges: tuple[tuple[int, int], ...] = ()
    """Hashes of this consumer, ends included (STICKY); empty: the broker divides them."""
    allow_out_of_order: bool = False
    """Give a key to a new consumer before the old one has acknowledged what it has of it."""
    entry_buckets: bool = False
    """The ranges are the entry buckets of a segment of a scalable topic: all consumers name the
    same ones, and the broker divides them. Stream consumers set it."""

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
    """What becomes of a message that was delivered again and again."""

    redeliveries_max: int
    """Redeliveries of a message before it goes to the dead letter topic; the first delivery is not
    counted."""
    topic: str = ""
    """Empty: `{topic}-{subscription}-DLQ`, as with the official clients."""
    retry_topic: str = ""
    """Empty: `{topic}-{subscription}-RETRY`; see `ConsumerSettings.retry_topic`."""
    initial_subscription: str = ""
    """A subscription of the dead letter topic, made before its first message if it is not there:
    without one, nothing holds the letters. Empty: none is made."""

    def __post_init__(self) -> None:
        if self.redeliveries_max < 0:
            raise ValueError(f"redeliveries_max is {self.redeliveries_max}; allowed are 0 and more")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReceivePolicy:
    """`receive_batch` returns as soon as one of these is reached."""

    messages_max: int = 1_000
    bytes_max: int = 10 * 1024 * 1024
    """Of payloads; a single message may be larger."""
    timeout_ms: int = 100
    """0: wait until one of the others is reached."""

    def __post_init__(self) -> None:
        if not (self.messages_max >= 1 and self.bytes_max >= 1 and self.timeout_ms >= 0):
            raise ValueError(
                "messages_max and bytes_max must be at least 1, and timeout_ms at least 0"
            )


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
    authentication: "Authentication | None" = field(default=None, repr=False)
    """See `magnetar.sdk.authentication`; goes before the three below."""
    auth_method_name: str = "none"
    """`none`, `token`, `basic`, `tls`, …; `token` sends the token as it is."""
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
    memory_bytes_max: int = 0
    """Payload bytes that all producers of the client may have under way together: `send` waits,
    `send_nowait` raises PendingLimitError. 0: no limit beyond that of each producer."""
    is_replicator: bool = False
    """Of a broker that copies topics: messages say their places, and receipts are to name these."""
    listener_name: str = ""
    """Name of the broker's advertised listener to ask for; empty for the default one."""

    @property
    def credentials(self) -> bytes:
        """The `auth_data` of the moment, for who uses no `authentication`."""
        return self.auth_data if self.auth_supplier is None else self.auth_supplier()

    async def current_credentials(self) -> tuple[str, bytes]:
        """The method's name, and the credentials of the moment.

        Raises:
            IssuerUnavailableError: an application's own code raised an OSError (a TimeoutError is
                one): a file that is being replaced, an issuer that is away; it may pass.
            CredentialsError: there are none. Whatever else such code raises is one too: a producer
                that is connected tries again.
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
        """A broker refused them: the next ones may be others."""
        if self.authentication is None:
            return
        # Who has none does not load it.
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
    batch_by_key: bool = False
    """Each batch holds messages of one ordering key (or key): what Key_Shared subscriptions need,
    because they give a batch to one consumer."""
    chunking: bool = False
    """Send messages in parts that are larger than the broker accepts; otherwise they are refused.
    """
    chunk_bytes_max: int = 0
    """Size of the parts; 0: as large as the broker accepts. Topics may have limits of their own."""
    encryption_keys: tuple[str, ...] = ()
    """Names of public keys: who has the private key of one of them can read."""
    key_reader: "KeyReader | None" = field(default=None, repr=False)
    """Where these keys are; see `magnetar.sdk.encryption`."""
    data_key_lifetime_ms: int = 4 * 3_600_000
    """After this time messages are encrypted with a new data key, and public keys read again."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Shown in the topic's statistics."""
    initial_subscription: str = ""
    """A subscription that the broker makes with the topic, from its beginning, if it has none of
    this name: nothing that is sent is lost before somebody subscribes."""
    interceptors: "tuple[ProducerInterceptor, ...]" = ()
    """See `magnetar.sdk.interceptors`."""
    routing: RoutingMode | Router = RoutingMode.ROUND_ROBIN
    """Partitioned topics: where messages without a key go; or a function that is asked for each
    message, whatever its key: it gets the message and the number of partitions."""
    hashing: Hashing = Hashing.JAVA_STRING
    """Partitioned topics: how a key chooses its partition."""
    lazy_partitions: bool = False
    """Partitioned topics: connect to a partition when the first message for it comes. At the start
    only one of them is tried."""
    partitions_refresh_ms: int = 60_000
    """Partitioned topics: how often to look whether partitions were added; 0: never."""
    follow_layout: bool = False
    """Plain and partitioned topics: send by the topic's layout, as to a scalable topic, and go on
    when the topic becomes one. Keys are hashed by Murmur3 then, whatever `hashing` says."""

    def __post_init__(self) -> None:
        _check_kind("compression", self.compression, Compression)
        _check_kind("access_mode", self.access_mode, AccessMode)
        _check_kind("hashing", self.hashing, Hashing)
        if not callable(self.routing):
            _check_kind("routing", self.routing, RoutingMode)
        _check("batch_messages_max", self.batch_messages_max, 1, 1_000_000)
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
        """What encrypts the messages; None: nothing does.

        Raises:
            CryptoKeyError: a public key is missing or cannot be used.
        """
        if self.key_reader is None or not self.encryption_keys:
            return None
        # Who encrypts nothing loads no cryptography.
        from magnetar.sdk.encryption import MessageEncryptor

        return MessageEncryptor(
            self.encryption_keys,
            self.key_reader,
            clock=clock,
            rotation_s=self.data_key_lifetime_ms / 1000,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """One consumer."""

    name: str = ""
    """Shown in statistics, decides who is active in Failover; empty: a random one."""
    subscription_type: SubscriptionType = SubscriptionType.EXCLUSIVE
    key_shared: KeySharedPolicy = field(default_factory=KeySharedPolicy)
    """Keys that a Key_Shared consumer gets; with ranges, also those that an Exclusive one sees."""
    initial_position: InitialPosition = InitialPosition.LATEST
    durable: bool = True
    """False: the subscription lives as long as its consumer, as a reader's does."""
    start_message_id: MessageId | None = None
    """Where a subscription begins that is not durable; None: by `initial_position`."""
    start_inclusive: bool = False
    """Deliver the start message itself too; with LATEST, the newest one."""
    receiver_queue_messages: int = 1_000
    """Messages that the broker may send ahead. An entry counts with all its messages, so let this
    be several times the size of the batches that producers make."""
    receiver_queue_messages_total: int = 50_000
    """With several topics or partitions, bound for all of them together; each has at least 1."""
    ack_group_ms: int = 100
    """Acknowledgements are collected this long (0: until the end of the event loop's turn)."""
    ack_group_max: int = 1_000
    """… or until there are this many."""
    batch_index_ack: bool = False
    """Acknowledge single messages of a batch at once; otherwise the entry, when all are."""
    nack_delay_ms: int = 60_000
    """Pause before a negatively acknowledged message is asked for again."""
    nack_delay_multiplier: float = 1.0
    """The pause grows by this factor with each redelivery (Shared and Key_Shared) …"""
    nack_delay_max_ms: int = 600_000
    """… up to this one."""
    ack_timeout_ms: int = 0
    """A message that is not acknowledged so long after it was taken is asked for again; 0: never.
    Of a batch, and on Exclusive and Failover, more than the one comes again."""
    dead_letters: DeadLetterPolicy | None = None
    """Where messages go that came too often; only Shared and Key_Shared count deliveries."""
    retry_topic: bool = False
    """Consume the retry topic too, so that `reconsume_later` can be used."""
    batch_receive: BatchReceivePolicy = field(default_factory=BatchReceivePolicy)
    """What `receive_batch` collects."""
    key_reader: "KeyReader | None" = field(default=None, repr=False)
    """Where the private keys are that open encrypted messages; None: those come as they are."""
    crypto_failure_action: "CryptoFailureAction | None" = None
    """What to do with a message that no key opens; None: FAIL, an EncryptedMessageError."""
    chunked_messages_max: int = 100
    """Messages in chunks that may be incomplete at a time; at the limit the oldest is given up."""
    chunked_message_bytes_max: int = 256 * 1024 * 1024
    """Bound on one message in chunks, and on all incomplete ones together."""
    chunked_message_age_ms: int = 60_000
    """An incomplete message is given up after this time."""
    acknowledge_incomplete_chunks: bool = False
    """Acknowledge the chunks of a message that is given up; otherwise they come again."""
    topics_update_ms: int = 60_000
    """How often to ask for new partitions, and for topics that fit a pattern."""
    handover_ms: int = 10_000
    """Stream consumers: how long a segment that goes to another consumer waits until what was taken
    of it is acknowledged; what is not then comes again there."""
    interceptors: tuple[ConsumerInterceptor, ...] = ()
    """Called for each message, in this order; see `interceptors.py`."""
    on_active_change: Callable[[str, bool], None] | None = None
    """Failover: called with a topic's name when this consumer becomes its active one, or ceases."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Shown in the statistics of the consumer."""
    subscription_properties: Mapping[str, str] = field(default_factory=dict)
    """Kept with the subscription, if this consumer creates it."""
    replicate_subscription_state: bool = False
    """Whether other clusters that the topic is copied to keep the subscription in step, so that
    consumers can go on there. Once asked for, it stays so."""
    create_topic: bool = True
    """False: TopicNotFoundError if there is none; otherwise brokers make it, if they may."""
    priority_level: int = 0
    """0 is served first (Shared and Failover)."""
    read_compacted: bool = False
    """The newest message of each key instead of all (Exclusive and Failover)."""
    verify_checksum: bool = True
    decompressed_bytes_max: int = 64 * 1024 * 1024
    """Bound on a payload after decompression: a small message must not fill the memory."""

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
        """What decrypts messages; None: nothing does."""
        if self.key_reader is None:
            return None
        # Who decrypts nothing loads no cryptography.
        from magnetar.sdk.encryption import MessageDecryptor

        return MessageDecryptor(self.key_reader)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSettings:
    """One reader."""

    name: str = ""
    start_inclusive: bool = False
    """Deliver the start message itself too; with LATEST, the newest one."""
    receiver_queue_messages: int = 1_000
    receiver_queue_messages_total: int = 50_000
    """Of a partitioned topic, bound for all partitions together; each has at least 1."""
    hash_ranges: tuple[tuple[int, int], ...] = ()
    """Read only messages whose key's hash (0 to 65535) is in one of these ranges, ends included."""
    topics_update_ms: int = 60_000
    """How often to ask for new partitions."""
    key_reader: "KeyReader | None" = field(default=None, repr=False)
    """Where the private keys are that open encrypted messages; None: those come as they are."""
    crypto_failure_action: "CryptoFailureAction | None" = None
    """What to do with a message that no key opens; None: FAIL, an EncryptedMessageError."""
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
        """The settings of the consumer that a reader is underneath."""
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
