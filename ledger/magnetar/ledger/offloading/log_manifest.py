"""Manifests: what a log's node said of its objects, kept beside them. Pure.

Objects alone do not tell which of them make up a log, in which order, and which were given up. The
node in the metadata store does. A manifest is a copy of the node at one of its versions, so that
objects can be read, and a log be made again, where that store is away.

    <prefix>/<instance id>/manifests/<parent>/<log>/<version of the node, 20 digits>.json

`<parent>` and `<log>` are the two parts of the log's path (`/managed-ledgers/t/n/persistent` and
the quoted name of the topic), quoted as in keys of objects. The manifests of a namespace lie in one
folder, which can be listed.

Layout: docs/formats/manifest.md. Source: tiered storage, section 21.
"""

import base64
import binascii
import json
import re
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
from magnetar.ledger.offloading.object_keys import name_in_key

FORMAT_VERSION = 1

MANIFEST_BYTES_MAX = 64 << 20
"""A larger one is not read: 10,000 ledgers of a log, and its schemas, take three megabytes."""

_FIELDS = {"instance_id": str, "log": str, "version": int, "written_ms": int, "node": dict}
_SCHEMA_FIELDS = {"version": int, "timestamp_ms": int, "type": str, "data": str, "properties": dict}

_KEY = re.compile(r"(?P<directory>.*/manifests/[^/]+/[^/]+/)(?P<version>[0-9]{20})\.json")


class ManifestKey(NamedTuple):
    """What the key of a manifest says."""

    directory: str
    """All manifests of one log begin so."""
    version: int
    """Of the node."""


@dataclass(frozen=True, slots=True)
class ManifestSchema:
    """One version of the schema that messages of a log name."""

    version: int
    timestamp_ms: int
    type: str
    """As in Pulsar's HTTP interface: `AVRO`, `JSON`, ..."""
    data: bytes
    """The definition, as the client wrote it."""
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogManifest:
    """What one manifest says."""

    instance_id: str
    """Of the cluster that wrote it."""
    log: str
    """Path of the log's node."""
    version: int
    """Of the node."""
    written_ms: int
    """Wall clock, ms since 1970."""
    node: LogMetadata
    """With all ledgers, those that are not in an object as well."""
    schemas: tuple[ManifestSchema, ...] = ()
    """In the order of their versions; those that were deleted are not among them."""

    def to_json(self) -> bytes:
        """The bytes of the manifest."""
        content = {
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
        except FutureLogFormatError as error:
            raise FutureObjectVersionError(f"{key}: {error}") from error
        except (InvalidLedgerMetadataError, binascii.Error) as error:
            raise ObjectDamagedError(f"{key}: {error}") from error
        return LogManifest(
            content["instance_id"],
            content["log"],
            content["version"],
            content["written_ms"],
            node,
            schemas,
        )


def encode_checked(content: Mapping[str, Any]) -> bytes:
    """Return a document of one of our JSON formats with its checksum:
    `{"format":1,"crc32c":...,"content":{...}}`, the sum over the content's bytes."""
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
    """What the keys of all manifests of a cluster begin with.

    Args:
        prefix: of all that is ours in the store; empty, or with a slash at its end.
    """
    return f"{prefix}{instance_id}/manifests/"


def manifests_folder(prefix: str, instance_id: str, parent: str) -> str:
    """What the keys of the manifests of all logs below a path begin with."""
    return f"{manifests_prefix(prefix, instance_id)}{name_in_key(parent)}/"


def manifest_directory(prefix: str, instance_id: str, log: str) -> str:
    """What the keys of all manifests of a log begin with.

    Args:
        log: path of its node.
    """
    parent, _, name = log.rpartition("/")
    return f"{manifests_folder(prefix, instance_id, parent)}{name_in_key(name)}/"


def manifest_key(directory: str, version: int) -> str:
    """The key of the manifest of one version of a log's node."""
    return f"{directory}{version:020d}.json"


def parse_manifest_key(key: str) -> ManifestKey | None:
    """What a key says; None: it is no key of a manifest."""
    found = _KEY.fullmatch(key)
    return None if found is None else ManifestKey(found["directory"], int(found["version"]))


def newest_manifests(keys: Iterable[str]) -> dict[str, str]:
    """The key of the newest manifest of each log among some keys, by directory."""
    newest: dict[str, ManifestKey] = {}
    found: dict[str, str] = {}
    for key in keys:
        parsed = parse_manifest_key(key)
        if parsed is None:
            continue
        known = newest.get(parsed.directory)
        if known is None or parsed.version > known.version:
            newest[parsed.directory] = parsed
            found[parsed.directory] = key
    return found


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
    return None


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
