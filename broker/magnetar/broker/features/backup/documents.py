"""The two kinds of files that make up a backup. Pure.

The file of a log has the content of the log's node, and everything that belongs to its topic. The
cluster file has the records above topics, and names every file of a log with its checksum. Both are
written once.

Layout: docs/formats/backup.md. Source: tiered storage, section 21.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from magnetar.broker.cluster.partitions.record import PartitionedTopicRecord
from magnetar.broker.policies.model import NamespaceRecord, Record, TenantRecord, TopicPolicyRecord
from magnetar.cursors.node import CursorNode
from magnetar.ledger.errors import ObjectDamagedError
from magnetar.ledger.offloading.backup_pins import manifest_in
from magnetar.ledger.offloading.log_manifest import LogManifest, decode_checked, encode_checked
from magnetar.ledger.validation import first_problem

M = TypeVar("M", bound=BaseModel)

CLUSTER_FILE_BYTES_MAX = 512 << 20
"""Largest cluster file that is read, in bytes: a million topics take 300 MB."""


class _Part(BaseModel):
    """A part of a file. Fields that a newer release added are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Uncovered(_Part):
    """Losses of a restore: entries that are in no object or of a topic that is left out, and the
    last acknowledgements of some cursors."""

    ledgers: int = Field(default=0, ge=0)
    entries: int = Field(default=0, ge=0)
    bytes: int = Field(default=0, ge=0)
    """Bytes of their payloads."""
    since_ms: int = Field(default=0, ge=0)
    """When the oldest of the ledgers was begun, ms since 1970; 0 if there are no such entries."""
    is_compacted: bool = False
    """Whether the topic has a compacted ledger, which no backup contains."""
    cursors_rolled_back: int = Field(default=0, ge=0)
    """Cursors that are in the backup with an older state, because their ledger is gone or damaged:
    messages that were acknowledged later are delivered again."""

    @property
    def is_nothing(self) -> bool:
        """Whether a restore brings everything back."""
        return not (self.entries or self.is_compacted or self.cursors_rolled_back)

    def plus(self, other: "Uncovered") -> "Uncovered":
        """Return the sum of both."""
        times = [each.since_ms for each in (self, other) if each.since_ms]
        return Uncovered(
            ledgers=self.ledgers + other.ledgers,
            entries=self.entries + other.entries,
            bytes=self.bytes + other.bytes,
            since_ms=min(times, default=0),
            is_compacted=self.is_compacted or other.is_compacted,
            cursors_rolled_back=self.cursors_rolled_back + other.cursors_rolled_back,
        )


def sum_of(parts: Iterable[Uncovered]) -> Uncovered:
    """Return the sum of what several logs leave uncovered."""
    total = Uncovered()
    for each in parts:
        total = total.plus(each)
    return total


@dataclass(frozen=True, slots=True)
class LogBackup:
    """The file of one log."""

    manifest: LogManifest
    cursors: Mapping[str, CursorNode] = field(default_factory=dict)
    """Cursors by name, each with all of its state and without a cursor ledger."""
    topic_policies: TopicPolicyRecord | None = None
    schemas_next: int = 0
    """Number that the next version of the topic's schema gets."""
    uncovered: Uncovered = field(default_factory=Uncovered)

    def to_bytes(self) -> bytes:
        """Return the bytes of the file."""
        policies = self.topic_policies
        return encode_checked(
            {
                "manifest": json.loads(self.manifest.to_json()),
                "cursors": {
                    name: node.model_dump(mode="json") for name, node in self.cursors.items()
                },
                "topic_policies": None if policies is None else json.loads(policies.encode()),
                "schemas_next": self.schemas_next,
                "uncovered": self.uncovered.model_dump(),
            }
        )

    @staticmethod
    def from_bytes(value: bytes, *, key: str) -> "LogBackup":
        """Decode and check a file.

        Args:
            key: key of the file, for errors.

        Raises:
            FutureObjectVersionError: a newer release wrote it.
            ObjectDamagedError: it is no such file, or not as it was written.
        """
        content = decode_checked(value, key=key)
        rest = _decode(_LogFile, content, key)
        return LogBackup(
            manifest_in(content, key),
            rest.cursors,
            rest.topic_policies,
            rest.schemas_next,
            rest.uncovered,
        )


class _LogFile(_Part):
    cursors: dict[str, CursorNode]
    topic_policies: TopicPolicyRecord | None
    schemas_next: int = Field(ge=0)
    uncovered: Uncovered


class LogFile(_Part):
    """Name and checksum of a log's file, in the cluster file."""

    log: str
    """Path of the log's node."""
    key: str
    bytes: int = Field(ge=0)
    crc32c: int = Field(ge=0)
    """Checksum of all bytes of the file."""


class LeftOut(_Part):
    """A scalable topic, which no backup contains yet, in the cluster file."""

    topic: str
    """Name as `topic://tenant/namespace/name`."""
    uncovered: Uncovered
    """All entries of its segments, also of those that are in objects."""


class ClusterBackup(_Part):
    """The cluster file, which is written last."""

    name: str
    instance_id: str
    """Id of the cluster that made the backup."""
    begun_ms: int = Field(ge=0)
    finished_ms: int = Field(ge=0)
    """When the backup was finished, ms since 1970 by the wall clock."""
    scope: str
    """The scope of the backup: empty for the cluster, else a tenant, a namespace or a topic."""
    tenants: dict[str, TenantRecord]
    namespaces: dict[str, NamespaceRecord]
    """Namespaces by tenant/namespace."""
    partitioned: dict[str, PartitionedTopicRecord]
    """Partitioned topics, by the path of the record below its root."""
    logs: tuple[LogFile, ...]
    left_out: tuple[LeftOut, ...] = ()
    """Topics in the scope that the backup does not contain; older releases did not note them."""
    uncovered: Uncovered
    """Sum over all logs and all topics that are left out."""

    def to_bytes(self) -> bytes:
        """Return the bytes of the file."""
        content = self.model_dump(
            mode="json", exclude={"tenants", "namespaces", "partitioned"}, exclude_none=True
        )
        records: tuple[tuple[str, Mapping[str, Record]], ...] = (
            ("tenants", self.tenants),
            ("namespaces", self.namespaces),
            ("partitioned", self.partitioned),
        )
        for name, found in records:
            content[name] = {each: json.loads(record.encode()) for each, record in found.items()}
        return encode_checked(content)

    @staticmethod
    def from_bytes(value: bytes, *, key: str) -> "ClusterBackup":
        """Decode and check a file.

        Args:
            key: key of the file, for errors.

        Raises:
            FutureObjectVersionError: a newer release wrote it.
            ObjectDamagedError: it is no such file, or not as it was written.
        """
        return _decode(ClusterBackup, decode_checked(value, key=key), key)


def _decode(kind: type[M], content: Mapping[str, Any], key: str) -> M:
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise ObjectDamagedError(f"{key}: {first_problem(error, whole='the whole')}") from error
