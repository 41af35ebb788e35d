"""What an executor is told to read: all of it, since it asks nobody but bookies. Pure values.

A slice is a run of entries of one topic (or partition of one), over one or several ledgers. It
holds where each ledger's entries lie, so that executors need neither brokers nor the metadata
store. It is pickled: Spark's partitions are made of it (`partitions.py`).
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from magnetar.sdk.settings import ClientSettings

NO_TIME_MS = 1 << 62
"""Stands for a publish time that is not known."""

NO_VERSION = -1
"""Of the schema that a message was written with: it does not say."""

LEDGERS_BEFORE_MAX = 3
"""In so many ledgers before its slice the beginning of a message in chunks is looked for."""


FAILFAST, PERMISSIVE, DROPMALFORMED = MODES = ("FAILFAST", "PERMISSIVE", "DROPMALFORMED")
"""Of a message that cannot be read, or whose value is not of its schema: the query fails; or it is
a row with null where it cannot be read and a column that says why; or it is left out. Named as
those of Spark's own sources."""


class Address(NamedTuple):
    """Where a bookie listens."""

    host: str
    port: int
    instance_id: str = ""
    """Of the bookie's cluster; see `BookieIdentity`."""


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
    """Name of a `DigestType`; the type itself would load all of the ledger metadata everywhere."""
    password: bytes = field(default=b"", repr=False)
    """Of the ledger: what bookies are shown, and what HMAC digests are made with."""
    aborted: bytes = b""
    """Bitmap of the entries of aborted transactions, which are left out: bit `i % 8` of byte
    `i // 8`. Brokers leave them out themselves."""
    length: int = -1
    """Payload bytes of the whole ledger, as its metadata says, where `last` is the end of a closed
    one; -1: it is not, or the entries are read through a broker."""
    object: ObjectPart | None = None
    """Where the ledger is in an object store; it may leave the bookies, or has left them."""


@dataclass(frozen=True)
class BookieSecurity:
    """Paths of files on the executors; empty: plain connections, or no secret."""

    tls_trust_file: str = ""
    """Certificate authorities of the bookies. The certificate and the key must be given with it."""
    tls_certificate_file: str = ""
    tls_key_file: str = ""
    tls_checks_host: bool = True
    secret_file: str = ""
    """File of the cluster's shared secret; servers name it in `shared_secret_file`."""


@dataclass(frozen=True)
class ReadSettings:
    """How executors read; the same for all slices of a query."""

    fail_on_data_loss: bool = True
    mode: str = "FAILFAST"
    """What becomes of a message that cannot be read: see `MODES`."""
    request_bytes: int = 1 << 20
    """What one request asks a bookie for."""
    bookie_timeout_ms: int = 5_000
    bookie_security: BookieSecurity = BookieSecurity()
    decompressed_bytes_max: int = 64 << 20
    chunked_bytes_max: int = 256 << 20
    """Chunks that wait for the rest of their message."""
    worker_niceness: int = 0
    """Added to the niceness of the executor's Python process; 20: idle priority."""
    object_key_file: str = ""
    """Path, on the executors, of the keys of encrypted objects; empty: brokers read these."""
    private_key_file: str = ""
    """Path, on the executors, of the private key of messages that producers have encrypted, where
    `{name}` stands for the key's name. Empty: such messages cannot be read."""
    service_url: str = ""
    """Of brokers, for slices that are read through them."""
    client: ClientSettings | None = None


@dataclass(frozen=True)
class ValueSchema:
    """The schema of a topic's values: what makes columns of them."""

    kind: str = "BYTES"
    """As Pulsar names it; BYTES also of schemas that no columns are made of."""
    definition: str = ""
    """Of JSON, AVRO and PROTOBUF_NATIVE, the newest version: its fields are the columns."""
    versions: tuple[tuple[int, str], ...] = ()
    """Of AVRO, in a slice: all versions of its topic. Each message says its own."""
    key: "ValueSchema | None" = None
    """Of KEY_VALUE, as the next two."""
    value: "ValueSchema | None" = None
    has_separate_key: bool = False
    """The key is the message's, and not in the payload."""
    is_signed: bool = False
    """Unsigned numbers are of the next wider signed type, for a reader that has no others."""


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
            partition: index of the partition that the topic is; -1 if it is none.
            parts: in the order of the log.
            before: what lies before them, nearest last: where chunks of a message begin whose end
                is in `parts`.
            is_cut_off: ledgers are gone in which such a message may have begun.
            skip_through_batch_index: of the first entry, messages up to this index are left out.
            stop_at_batch_index: of the last entry, messages behind this index are left out.
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
