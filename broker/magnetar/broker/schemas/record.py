"""Stored form of a topic's schemas: an index in the metadata, a ledger per definition. Pure.

    /schemas/<tenant>/<namespace>/<quoted name>   SchemaRecord
    entry 0 of the ledger of a version            SchemaEntry

All partitions of a topic share its schemas, and so does a non-persistent topic of the same name.
"""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from magnetar.broker.policies.model import Record
from magnetar.broker.schemas.model import SchemaData, SchemaType, StoredSchema
from magnetar.sdk.wire import TopicName

SCHEMAS_ROOT = "/schemas"

COMPONENT = "schema"
"""Component in the custom metadata of the ledgers; `schema` beside it is the path of the record."""

NO_LEDGER = -1


class IndexEntry(BaseModel):
    """One version in the index."""

    model_config = ConfigDict(frozen=True, extra="allow")

    version: int = Field(ge=0)
    timestamp_ms: int
    ledger_id: int = NO_LEDGER
    """Ledger of the definition. NO_LEDGER marks a deletion: the versions before it are deleted."""
    fingerprint: str = ""
    """Fingerprint of the definition (`definitions.py`): it tells known schemas without a ledger
    read."""

    @property
    def is_deletion(self) -> bool:
        return self.ledger_id == NO_LEDGER


class SchemaRecord(Record):
    """Versions of a topic's schema."""

    versions: tuple[IndexEntry, ...] = ()
    """Versions in ascending order. A deletion hides those before it."""

    @property
    def current(self) -> tuple[IndexEntry, ...]:
        """Versions that new schemas are checked against: those after the last deletion."""
        for index in range(len(self.versions) - 1, -1, -1):
            if self.versions[index].is_deletion:
                return self.versions[index + 1 :]
        return self.versions

    @property
    def next_version(self) -> int:
        return self.versions[-1].version + 1 if self.versions else 0

    def find(self, fingerprint: str) -> IndexEntry | None:
        """Return the version of a definition, unless it was deleted."""
        return next((each for each in self.current if each.fingerprint == fingerprint), None)

    def numbered(self, version: int) -> IndexEntry | None:
        """Return the version with a number, unless it was deleted."""
        return next((each for each in self.current if each.version == version), None)

    def with_version(self, entry: IndexEntry) -> Self:
        return self.model_copy(update={"versions": (*self.versions, entry)})


class SchemaEntry(Record):
    """One definition, as it is in its ledger."""

    version: int
    timestamp_ms: int
    type: SchemaType
    data: bytes
    properties: dict[str, str] = Field(default_factory=dict)

    model_config = ConfigDict(
        frozen=True, extra="allow", ser_json_bytes="base64", val_json_bytes="base64"
    )

    def stored(self, version: int) -> StoredSchema:
        """Return the schema. `version` comes from the index: the ledger may be from an earlier
        attempt."""
        schema = SchemaData(self.type, self.data, self.properties)
        return StoredSchema(version, self.timestamp_ms, schema)


def schema_id(topic: TopicName) -> str:
    """Return tenant/namespace/name, quoted as in paths; equal for all partitions of a topic."""
    node = topic.partitioned.storage_name.rpartition("/")[2]
    return f"{topic.namespace_name}/{node}"


def schemas_path(topic: TopicName) -> str:
    return f"{SCHEMAS_ROOT}/{schema_id(topic)}"


def schemas_root(namespace: str) -> str:
    """Return the path whose children are the topics of a namespace that have schemas."""
    return f"{SCHEMAS_ROOT}/{namespace}"
