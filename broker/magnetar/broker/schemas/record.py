"""What is stored of a topic's schemas: an index in the metadata, a definition per ledger. Pure.

    /schemas/<tenant>/<namespace>/<quoted name>   SchemaRecord
    entry 0 of the ledger of a version            SchemaEntry

All partitions of a topic have its schemas, and so has a non-persistent topic of the same name.
"""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from magnetar.broker.policies.model import Record
from magnetar.broker.schemas.model import SchemaData, SchemaType, StoredSchema
from magnetar.sdk.wire import TopicName

SCHEMAS_ROOT = "/schemas"

COMPONENT = "schema"
"""In the custom metadata of the ledgers; `schema` is the path of the record beside it."""

NO_LEDGER = -1


class IndexEntry(BaseModel):
    """One version."""

    model_config = ConfigDict(frozen=True, extra="allow")

    version: int = Field(ge=0)
    timestamp_ms: int
    ledger_id: int = NO_LEDGER
    """NO_LEDGER: the schemas before it are deleted; it stands for that, and for no definition."""
    fingerprint: str = ""
    """Of the definition, see `definitions.py`: whether it is there is known without a ledger."""

    @property
    def is_deletion(self) -> bool:
        return self.ledger_id == NO_LEDGER


class SchemaRecord(Record):
    """Versions of a topic's schema."""

    versions: tuple[IndexEntry, ...] = ()
    """In the order of their numbers. A deletion hides what is before it."""

    @property
    def current(self) -> tuple[IndexEntry, ...]:
        """Versions that new schemas are checked against: those behind the last deletion."""
        for index in range(len(self.versions) - 1, -1, -1):
            if self.versions[index].is_deletion:
                return self.versions[index + 1 :]
        return self.versions

    @property
    def next_version(self) -> int:
        return self.versions[-1].version + 1 if self.versions else 0

    def find(self, fingerprint: str) -> IndexEntry | None:
        """The version of a definition, if it counts."""
        return next((each for each in self.current if each.fingerprint == fingerprint), None)

    def numbered(self, version: int) -> IndexEntry | None:
        """A definition by its number, if it counts."""
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
        """`version`: by the index; the ledger may have been written for an earlier attempt."""
        schema = SchemaData(self.type, self.data, self.properties)
        return StoredSchema(version, self.timestamp_ms, schema)


def schema_id(topic: TopicName) -> str:
    """tenant/namespace/name, quoted as in paths: the same for all partitions of a topic."""
    node = topic.partitioned.storage_name.rpartition("/")[2]
    return f"{topic.namespace_name}/{node}"


def schemas_path(topic: TopicName) -> str:
    return f"{SCHEMAS_ROOT}/{schema_id(topic)}"


def schemas_root(namespace: str) -> str:
    """Path whose children are the topics of a namespace that have schemas."""
    return f"{SCHEMAS_ROOT}/{namespace}"
