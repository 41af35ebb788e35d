"""Work for executors: complete, since executors connect only to bookies. Pure values.

A slice is a run of entries of one topic or partition, over one or several ledgers. It holds the
locations of each ledger's entries, so that executors need neither brokers nor the metadata store.
It is pickled: Spark's partitions contain it (`partitions.py`).
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from magnetar.sdk.settings import ClientSettings

NO_TIME_MS = 1 << 62
"""Placeholder for an unknown publish time."""

NO_VERSION = -1
"""Placeholder for the schema version of a message that has none."""

LEDGERS_BEFORE_MAX = 3
"""Most ledgers before a slice that are searched for the beginning of a chunked message."""


FAILFAST, PERMISSIVE, DROPMALFORMED = MODES = ("FAILFAST", "PERMISSIVE", "DROPMALFORMED")
"""How to treat a message that cannot be read, or whose value does not fit its schema. FAILFAST
fails the query. PERMISSIVE gives a row with nulls and a column with the reason. DROPMALFORMED
leaves the message out. The names are those of Spark's own sources."""


class Address(NamedTuple):
    """Address of a bookie."""

    host: str
    port: int
    instance_id: str = ""
    """Instance id of the bookie's cluster; see `BookieIdentity`."""


class Ensemble(NamedTuple):
    """Entries from `first_entry_id` up to the next ensemble, and the bookies that hold them."""

    first_entry_id: int
    bookies: tuple[str, ...]


class ObjectPart(NamedTuple):
    """The object of a ledger. Executors have credentials of their own."""

    store: str
    """`ObjectStoreSettings` as JSON."""
    key: str


@dataclass(frozen=True)
class LedgerPart:
    """Entries `first` to `last` of one ledger, both included."""

    ledger_id: int
    first: int
    last: int
    ensembles: tuple[Ensemble, ...] = ()
    """Empty when the entries are read through a broker."""
    write_quorum: int = 0
    digest_type: str = "CRC32C"
    """Name of a `DigestType`; importing the type would load all of the ledger metadata
    everywhere."""
    password: bytes = field(default=b"", repr=False)
    """Password of the ledger, for bookies and for HMAC digests."""
    aborted: bytes = b""
    """Bitmap of the entries of aborted transactions, which are left out: bit `i % 8` of byte `i //
    8`. Brokers leave them out themselves."""
    length: int = -1
    """Payload bytes of the whole ledger by its metadata, if `last` is the end of a closed ledger;
    otherwise, or when the entries are read through a broker, -1."""
    object: ObjectPart | None = None
    """Object of the ledger in an object store. The ledger may leave the bookies, or has left
    them."""


@dataclass(frozen=True)
class BookieSecurity:
    """Paths of files on the executors; empty for plain connections, or no secret."""

    tls_trust_file: str = ""
    """File of the bookies' certificate authorities. The certificate and the key must be given as
    well."""
    tls_certificate_file: str = ""
    tls_key_file: str = ""
    tls_checks_host: bool = True
    secret_file: str = ""
    """File of the cluster's shared secret; the servers' setting is `shared_secret_file`."""


@dataclass(frozen=True)
class ReadSettings:
    """How executors read; shared by all slices of a query."""

    fail_on_data_loss: bool = True
    mode: str = "FAILFAST"
    """How to treat messages that cannot be read: see `MODES`."""
    request_bytes: int = 1 << 20
    """Bytes that one request asks a bookie for."""
    bookie_timeout_ms: int = 5_000
    bookie_security: BookieSecurity = BookieSecurity()
    decompressed_bytes_max: int = 64 << 20
    chunked_bytes_max: int = 256 << 20
    """Most bytes of chunks that wait for the rest of their message."""
    worker_niceness: int = 0
    """Added to the niceness of the executor's Python process; 20: idle priority."""
    object_key_file: str = ""
    """Path, on the executors, of the keys of encrypted objects; if empty, brokers read these."""
    private_key_file: str = ""
    """Path, on the executors, of the private key for messages that producers have encrypted;
    `{name}` is replaced by the key's name. If empty, such messages cannot be read."""
    service_url: str = ""
    """URL of the brokers, for slices that are read through them."""
    client: ClientSettings | None = None


@dataclass(frozen=True)
class ValueSchema:
    """The schema of a topic's values, which determines their columns."""

    kind: str = "BYTES"
    """Pulsar's name; BYTES also for schemas that are not decoded into columns."""
    definition: str = ""
    """Newest version of a JSON, AVRO or PROTOBUF_NATIVE schema: its fields are the columns."""
    versions: tuple[tuple[int, str], ...] = ()
    """All versions of an AVRO schema of the topic, in a slice. Each message names its own."""
    key: "ValueSchema | None" = None
    """Schema of the key, for KEY_VALUE; otherwise None, as `value` is."""
    value: "ValueSchema | None" = None
    has_separate_key: bool = False
    """Whether the key is the message's key, and not in the payload."""
    is_signed: bool = False
    """Whether unsigned numbers get the next wider signed type, for a reader without unsigned
    ones."""


class Slice:
    """One task's share of a topic."""

    def __init__(
        self,
        topic: str,
        partition: int,
        parts: tuple[LedgerPart, ...],
        *,
        before: tuple[LedgerPart, ...] = (),
        is_cut_off: bool = False,
        addresses: dict[str, Address] | None = None,
        skip_through_batch_index: int = -1,
        stop_at_batch_index: int = -1,
        settings: ReadSettings | None = None,
        value_schema: ValueSchema | None = None,
    ) -> None:
        """
        Args:
            partition: index of the topic's partition; -1 if the topic is not a partition.
            parts: in the order of the log.
            before: earlier parts, nearest last: chunked messages in `parts` may begin there.
            is_cut_off: whether ledgers are gone in which such a message may have begun.
            skip_through_batch_index: in the first entry, messages up to this index are left out.
            stop_at_batch_index: in the last entry, messages after this index are left out.
        """
        self.topic = topic
        self.partition = partition
        self.parts = parts
        self.before = before
        self.is_cut_off = is_cut_off
        self.addresses = addresses or {}
        self.skip_through_batch_index = skip_through_batch_index
        self.stop_at_batch_index = stop_at_batch_index
        self.settings = settings or ReadSettings()
        self.value_schema = value_schema or ValueSchema()
