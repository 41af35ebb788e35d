"""Manifests: copies of logs' nodes, stored beside the logs' objects.

Objects alone do not tell which of them make up a log, in which order, and which were given up. The
node in the metadata store does. A manifest is a copy of the node at one of its versions. It allows
reading objects, and rebuilding a log, without the metadata store.

    <prefix>/<instance id>/manifests/<parent>/<log>/<through>-<version>-<written>.json

`<parent>` and `<log>` are the two parts of the log's path (`/managed-ledgers/t/n/persistent` and
the quoted name of the topic), quoted as in keys of objects. The manifests of a namespace lie in one
folder, which can be listed.

The three numbers order the manifests of a log: the newest has the greatest key.

- `through`, 20 digits: the last ledger that is in an object, or was removed from the log. It never
  falls while a log lives. Ids of ledgers are never reused, so it is greater in a log that has the
  name of a deleted one, whose node begins at version 0 again.
- `version`, 20 digits: of the node.
- `written`, 15 digits: wall clock, ms. Two manifests of one version may differ in transactions and
  schemas.

Layout: docs/formats/manifest.md. Source: tiered storage, section 21.
"""

import base64
import json
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import google_crc32c

from magnetar.ledger.errors import (
    FutureLogFormatError,
    FutureObjectVersionError,
    InvalidLedgerMetadataError,
    ObjectDamagedError,
)
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.ledger.offloading.object_keys import name_in_key, name_of_key
from magnetar.ledger.offloading.object_store import ObjectStore
from magnetar.ledger.position import Position

FORMAT_VERSION = 1

MANIFEST_BYTES_MAX = 64 << 20
"""Largest manifest that is read: 10,000 ledgers of a log, and its schemas, take three megabytes."""

_FIELDS = {"instance_id": str, "log": str, "version": int, "written_ms": int, "node": dict}
_SCHEMA_FIELDS = {"version": int, "timestamp_ms": int, "type": str, "data": str, "properties": dict}

_TRANSACTION_FIELDS = {"aborted": dict}

_BITMAP_BYTES_MAX = 16 << 20
"""Largest bitmap of one ledger: a bit for each of 128 million entries."""

_KEY = re.compile(
    r"(?P<directory>.*/manifests/(?P<parent>[^/]+)/(?P<name>[^/]+)/)"
    r"(?P<through>[0-9]{20})-(?P<version>[0-9]{20})-(?P<written>[0-9]{15})\.json"
)


class ManifestKey(NamedTuple):
    """The parts of a manifest's key."""

    directory: str
    """Common beginning of the keys of all manifests of one log."""
    log: str | None
    """Path of the log; None if it was cut: read the manifest for it."""
    through: int
    """The last ledger that was in an object, or removed."""
    version: int
    """Version of the node."""
    written_ms: int


@dataclass(frozen=True, slots=True)
class ManifestTransactions:
    """What readers of the objects must know of the log's transactions."""

    read_through: Position | None = None
    """Position where reading ends: a transaction after it had not ended yet. None if reading ends
    with the objects.
    """
    aborted: Mapping[int, bytes] = field(default_factory=dict)
    """Entries of aborted transactions, by ledger: bit `i % 8` of byte `i // 8` is entry `i`."""


NO_TRANSACTIONS = ManifestTransactions()
"""Value for a log from which readers need not leave out anything."""


@dataclass(frozen=True, slots=True)
class ManifestSchema:
    """One version of the schema that messages of a log name."""

    version: int
    timestamp_ms: int
    type: str
    """Type as in Pulsar's HTTP interface: `AVRO`, `JSON`, ..."""
    data: bytes
    """The definition, as the client wrote it."""
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogManifest:
    """The content of one manifest."""

    instance_id: str
    """Instance id of the cluster that wrote it."""
    log: str
    """Path of the log's node."""
    version: int
    """Version of the node."""
    written_ms: int
    """Wall clock, ms since 1970."""
    node: LogMetadata
    """The node with all ledgers, including those that are not in an object."""
    schemas: tuple[ManifestSchema, ...] = ()
    """Schema versions in order, without deleted ones."""
    transactions: ManifestTransactions = NO_TRANSACTIONS

    def to_json(self) -> bytes:
        """Return the bytes of the manifest."""
        content: dict[str, Any] = {
            "instance_id": self.instance_id,
            "log": self.log,
            "version": self.version,
            "written_ms": self.written_ms,
            "node": json.loads(self.node.to_json()),
            "schemas": [
                {
                    "version": each.version,
                    "timestamp_ms": each.timestamp_ms,
                    "type": each.type,
                    "data": base64.b64encode(each.data).decode(),
                    "properties": dict(each.properties),
                }
                for each in self.schemas
            ],
        }
        if self.transactions != NO_TRANSACTIONS:
            content["transactions"] = _fields_of_transactions(self.transactions)
        return encode_checked(content)

    @staticmethod
    def from_json(value: bytes, *, key: str) -> "LogManifest":
        """Decode and check a manifest.

        Args:
            key: of the object, for errors.

        Raises:
            FutureObjectVersionError: a newer release wrote it, or the node in it.
            ObjectDamagedError: it is no manifest, or not as it was written.
        """
        content = decode_checked(value, key=key)
        problem = _problem_with(content)
        if problem is not None:
            raise ObjectDamagedError(f"{key}: {problem}")
        try:
            node = LogMetadata.from_json(json.dumps(content["node"]).encode(), path=content["log"])
            schemas = tuple(_schema_of(each) for each in content["schemas"])
            transactions = _transactions_of(content.get("transactions"))
        except FutureLogFormatError as error:
            raise FutureObjectVersionError(f"{key}: {error}") from error
        except (InvalidLedgerMetadataError, ValueError, zlib.error) as error:
            raise ObjectDamagedError(f"{key}: {error}") from error
        return LogManifest(
            content["instance_id"],
            content["log"],
            content["version"],
            content["written_ms"],
            node,
            schemas,
            transactions,
        )


def encode_checked(content: Mapping[str, Any]) -> bytes:
    """Return a JSON document with its checksum: `{"format":1,"crc32c":...,"content":{...}}`. The
    checksum covers the content's bytes."""
    body = _canonical(content)
    head = f'{{"format":{FORMAT_VERSION},"crc32c":{google_crc32c.value(body)},"content":'
    return head.encode() + body + b"}\n"


def decode_checked(value: bytes, *, key: str) -> dict[str, Any]:
    """Return the content of a document that `encode_checked` made.

    Raises:
        FutureObjectVersionError: a newer release wrote it.
        ObjectDamagedError: it is no such document, or not as it was written.
    """
    try:
        fields = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ObjectDamagedError(f"{key}: no JSON: {error!r}") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("content"), dict):
        raise ObjectDamagedError(f"{key}: it does not have the fields format, crc32c and content")
    version = fields.get("format")
    content: dict[str, Any] = fields["content"]
    if type(version) is int and version > FORMAT_VERSION:
        raise FutureObjectVersionError(
            f"{key}: format {version}; this release reads format {FORMAT_VERSION}: use the release "
            "that wrote it, or a newer one"
        )
    found = google_crc32c.value(_canonical(content))
    if version != FORMAT_VERSION or fields.get("crc32c") != found:
        raise ObjectDamagedError(
            f"{key}: the checksum of its content is {found}, it says {fields.get('crc32c')!r} "
            f"(format {version!r})"
        )
    return content


def manifests_prefix(prefix: str, instance_id: str) -> str:
    """Return the common beginning of the keys of all manifests of a cluster.

    Args:
        prefix: of all keys of Magnetar in the store; empty, or with a slash at its end.
    """
    return f"{prefix}{instance_id}/manifests/"


def manifests_folder(prefix: str, instance_id: str, parent: str) -> str:
    """Return the common beginning of the keys of the manifests of all logs below a path."""
    return f"{manifests_prefix(prefix, instance_id)}{name_in_key(parent)}/"


def manifest_directory(prefix: str, instance_id: str, log: str) -> str:
    """Return the common beginning of the keys of all manifests of a log.

    Args:
        log: path of its node.
    """
    parent, _, name = log.rpartition("/")
    return f"{manifests_folder(prefix, instance_id, parent)}{name_in_key(name)}/"


def manifest_key(directory: str, *, through: int, version: int, written_ms: int) -> str:
    """Return the key of a manifest; the arguments are those of `ManifestKey`."""
    return f"{directory}{through:020d}-{version:020d}-{written_ms:015d}.json"


def parse_manifest_key(key: str) -> ManifestKey | None:
    """Return the parts of a manifest's key; None if it is no such key."""
    found = _KEY.fullmatch(key)
    if found is None:
        return None
    parent, name = name_of_key(found["parent"]), name_of_key(found["name"])
    return ManifestKey(
        found["directory"],
        None if parent is None or name is None else f"{parent}/{name}",
        int(found["through"]),
        int(found["version"]),
        int(found["written"]),
    )


def newest_manifests(keys: Iterable[str]) -> dict[str, str]:
    """Return the key of the newest manifest of each log among some keys, by directory."""
    found: dict[str, str] = {}
    for key in keys:
        parsed = parse_manifest_key(key)
        if parsed is not None:
            found[parsed.directory] = max(key, found.get(parsed.directory, ""))
    return found


async def read_manifest(store: ObjectStore, key: str) -> LogManifest:
    """Read the manifest of a key.

    Raises:
        ObjectMissingError: there is none.
        ObjectDamagedError: it is no manifest, or not as it was written.
        FutureObjectVersionError: a newer release wrote it.
        ObjectStoreUnavailableError, ObjectStoreRefusedError
    """
    found = await store.tail(key, MANIFEST_BYTES_MAX)
    if found.size_bytes != len(found.data):
        raise ObjectDamagedError(
            f"{key}: {found.size_bytes} bytes, a manifest has at most {MANIFEST_BYTES_MAX}"
        )
    return LogManifest.from_json(found.data, key=key)


def manifest_through(node: LogMetadata) -> int:
    """Return the last ledger of a log that is in an object, or was removed; -1 if the log never had
    an object."""
    if not node.object_bases:
        return -1
    copied = (ledger.ledger_id for ledger in node.ledgers if ledger.is_in_object)
    return max(node.removed_through, max(copied, default=-1))


def manifest_store(node: LogMetadata) -> str:
    """Return the name of the store for a log's manifest: that of its newest object.

    The log must have, or have had, an object.
    """
    for ledger in reversed(node.ledgers):
        if ledger.object is not None and ledger.is_in_object:
            return node.object_bases[ledger.object.base].store
    return node.object_bases[-1].store


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":"), sort_keys=True).encode()


def _problem_with(content: Mapping[str, Any]) -> str | None:
    wrong = _problem_with_types(content, _FIELDS)
    if wrong is not None:
        return f"manifest: {wrong}"
    schemas = content.get("schemas")
    if not isinstance(schemas, list):
        return "manifest: schemas is no list"
    for each in schemas:
        wrong = _problem_with_types(each, _SCHEMA_FIELDS) if isinstance(each, dict) else "no object"
        if wrong is not None:
            return f"manifest, a schema: {wrong}"
    return _problem_with_transactions(content.get("transactions"))


def _problem_with_transactions(fields: Any) -> str | None:
    if fields is None:
        return None
    wrong = "no object"
    if isinstance(fields, dict):
        wrong = _problem_with_types(fields, _TRANSACTION_FIELDS) or ""
        through = fields.get("read_through")
        are_numbers = isinstance(through, list) and all(type(each) is int for each in through)
        if not wrong and through is not None and not (are_numbers and len(through) == 2):
            wrong = "read_through is no position"
        if not wrong and not all(isinstance(each, str) for each in fields["aborted"].values()):
            wrong = "a bitmap of aborted is no text"
    return f"manifest, transactions: {wrong}" if wrong else None


def _problem_with_types(fields: Mapping[str, Any], wanted: Mapping[str, type]) -> str | None:
    for name, kind in wanted.items():
        if type(fields.get(name)) is not kind:
            return f"{name} is missing, or no {kind.__name__}"
    return None


def _schema_of(fields: Mapping[str, Any]) -> ManifestSchema:
    return ManifestSchema(
        fields["version"],
        fields["timestamp_ms"],
        fields["type"],
        base64.b64decode(fields["data"], validate=True),
        {str(name): str(value) for name, value in fields["properties"].items()},
    )


def _fields_of_transactions(transactions: ManifestTransactions) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "aborted": {
            str(ledger_id): base64.b64encode(zlib.compress(bits)).decode()
            for ledger_id, bits in transactions.aborted.items()
        }
    }
    if transactions.read_through is not None:
        fields["read_through"] = list(transactions.read_through)
    return fields


def _transactions_of(fields: Mapping[str, Any] | None) -> ManifestTransactions:
    """Decode fields in which `_problem_with_transactions` found nothing wrong.

    Raises:
        ValueError, zlib.error: a bitmap, or its ledger, is not as it was written.
    """
    if fields is None:
        return NO_TRANSACTIONS
    through = fields.get("read_through")
    return ManifestTransactions(
        None if through is None else Position(*through),
        {int(ledger): _bitmap_of(packed) for ledger, packed in fields["aborted"].items()},
    )


def _bitmap_of(packed: str) -> bytes:
    inflating = zlib.decompressobj()
    bits = inflating.decompress(base64.b64decode(packed, validate=True), _BITMAP_BYTES_MAX)
    if not inflating.eof:
        raise ValueError(f"a bitmap has more than {_BITMAP_BYTES_MAX} bytes, or was cut off")
    return bits
