"""Write, read and delete definitions in ledgers. Definitions never change, so reads are cached."""

from collections import OrderedDict
from dataclasses import dataclass

import structlog

from magnetar.broker.base.errors import BrokerPersistenceError, UnreadableRecordError
from magnetar.broker.policies.model import Policies, decode
from magnetar.broker.schemas.definitions import Definition, parse
from magnetar.broker.schemas.errors import InvalidSchemaError
from magnetar.broker.schemas.model import StoredSchema
from magnetar.broker.schemas.record import COMPONENT, IndexEntry, SchemaEntry, SchemaRecord
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError, NoSuchLedgerError, OwnerUnclearError
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.orphans import IsReferred, owner_value

_log = structlog.get_logger()


_SCHEMA_BYTES = 1024
"""Memory that is counted for a cached schema beside its contents."""

_PARSED_FACTOR = 8
"""Bytes of memory that are counted for a parsed definition, per byte as the client wrote it.
Records take about five, and the worst definitions, of many short names, 20."""

_PROPERTY_BYTES = 200
"""Memory of a property, beside the characters of its name and value."""


@dataclass(frozen=True, slots=True)
class KnownSchema:
    """A stored schema with its parsed definition."""

    stored: StoredSchema
    definition: Definition

    @property
    def memory_bytes(self) -> int:
        """About how many bytes of memory it takes."""
        schema = self.stored.schema
        copies = 1 if self.definition.body is None else 1 + _PARSED_FACTOR
        properties = sum(
            _PROPERTY_BYTES + _text_bytes(name) + _text_bytes(value)
            for name, value in schema.properties.items()
        )
        return _SCHEMA_BYTES + copies * len(schema.data) + properties


def _text_bytes(text: str) -> int:
    return len(text) if text.isascii() else 4 * len(text)


class SchemaLedgers:
    """Definitions of all topics, one ledger each."""

    def __init__(self, client: LedgerClient, *, cache_bytes_max: int) -> None:
        """`cache_bytes_max`: bytes of memory for cached schemas; see `KnownSchema.memory_bytes`."""
        self._client = client
        self._cache_bytes_max = cache_bytes_max
        self._cached_bytes = 0
        self._known: OrderedDict[int, KnownSchema] = OrderedDict()
        """Cached schemas by ledger id, least recently used first."""

    async def write(self, path: str, entry: SchemaEntry, policies: Policies) -> int:
        """Store a definition in a new ledger that no record names yet, and return the ledger's id.

        Raises:
            BrokerPersistenceError: the ledger cannot be created, written or closed.
        """
        try:
            writer = await self._client.create(
                ensemble_size=policies.persistence.ensemble,
                write_quorum=policies.persistence.write_quorum,
                ack_quorum=policies.persistence.ack_quorum,
                custom_metadata={"component": COMPONENT, "schema": path},
            )
            try:
                await writer.add(entry.encode())
                await writer.close()
            except BaseException:
                writer.abandon()
                await self.delete(writer.ledger_id)  # The client retries, with another ledger.
                raise
        except LedgerError as error:
            raise BrokerPersistenceError(f"a schema of {path} is not stored: {error}") from error
        return writer.ledger_id

    async def read(self, path: str, entry: IndexEntry) -> KnownSchema:
        """Return the definition of a version.

        Raises:
            BrokerPersistenceError: the ledger cannot be read.
            UnreadableRecordError: the ledger holds no valid schema.
        """
        known = self._known.get(entry.ledger_id)
        if known is not None:
            self._known.move_to_end(entry.ledger_id)
            return known
        try:
            found = await (await self._client.open(entry.ledger_id)).read(0, 0)
        except LedgerError as error:
            raise BrokerPersistenceError(
                f"version {entry.version} of {path} cannot be read: {error}"
            ) from error
        where = f"ledger {entry.ledger_id} of {path}"
        stored = decode(SchemaEntry, where, found[0]).stored(entry.version)
        try:
            known = KnownSchema(stored, parse(stored.schema))
        except InvalidSchemaError as error:
            raise UnreadableRecordError(f"{where} holds no schema: {error}") from error
        self._remember(entry.ledger_id, known)
        return known

    def _remember(self, ledger_id: int, known: KnownSchema) -> None:
        if ledger_id in self._known:
            return
        self._known[ledger_id] = known
        self._cached_bytes += known.memory_bytes
        while self._cached_bytes > self._cache_bytes_max:
            self._forget(next(iter(self._known)))

    def _forget(self, ledger_id: int) -> None:
        known = self._known.pop(ledger_id, None)
        if known is not None:
            self._cached_bytes -= known.memory_bytes

    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger that no record names. If that fails, the orphan sweep deletes it
        later."""
        self._forget(ledger_id)
        try:
            await self._client.delete(ledger_id)
        except NoSuchLedgerError:
            pass
        except LedgerError as error:
            _log.warning("schema_left_behind", ledger_id=ledger_id, error=str(error))


def schema_refers(store: MetadataStore) -> IsReferred:
    """Return the check for the orphan sweep whether a topic still names the ledger of a definition.
    It reads the record that the ledger was made for (component "schema")."""

    async def is_referred(metadata: LedgerMetadata) -> bool:
        path = metadata.custom_metadata.get("schema")
        if path is None:
            raise OwnerUnclearError(f"ledger {metadata.ledger_id} does not say which schema it is")
        value = await owner_value(store, path)
        if not value:
            return False  # the whole record was deleted
        try:
            record = decode(SchemaRecord, path, value)
        except UnreadableRecordError as error:
            raise OwnerUnclearError(str(error)) from error
        return any(each.ledger_id == metadata.ledger_id for each in record.versions)

    return is_referred
