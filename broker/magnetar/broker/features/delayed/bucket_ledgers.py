"""Buckets of the index of delayed messages, in ledgers: write, name, read, delete.

Which ledgers hold the index is a property of the topic's log. A bucket's ledger is closed before it
is named there, and deleted after it is not.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

from magnetar.broker.base.errors import BrokerPersistenceError
from magnetar.broker.policies.model import Policies
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError, NoNodeError, NoSuchLedgerError, OwnerUnclearError
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.orphans import IsReferred
from magnetar.ledger.reader import LedgerReader

_log = structlog.get_logger()

PROPERTY = "magnetar.delayed.buckets"

COMPONENT = "delayed-index"
"""In the custom metadata of those ledgers; the orphan sweep knows them by it."""

FORMAT = 1


class StoredBucket(BaseModel):
    """One ledger of the index. Its entries are segments."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ledger_id: int
    records: int
    starts_ms: list[int]
    """When the first record of each segment is due, ms since the epoch."""
    last: tuple[int, int]
    """The highest position in it: ledger, entry."""


class BucketList(BaseModel):
    """The value of the property."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    buckets: list[StoredBucket] = []


def buckets_in(properties: Mapping[str, str], *, of: str) -> Sequence[StoredBucket]:
    """The buckets that the properties of a log name; `of`: whose they are, for the error.

    Raises:
        BrokerPersistenceError: the value is not one for this release.
    """
    value = properties.get(PROPERTY)
    if value is None:
        return ()
    try:
        stored = BucketList.model_validate_json(value)
    except ValidationError as error:
        raise BrokerPersistenceError(
            f"{of}: the list of its delayed messages cannot be understood: {error}"
        ) from error
    if stored.format != FORMAT:
        raise BrokerPersistenceError(
            f"{of}: the list of its delayed messages has format {stored.format}; this release "
            f"knows {FORMAT}"
        )
    return stored.buckets


def property_of(buckets: Sequence[StoredBucket]) -> dict[str, str | None]:
    """The change of the log's properties that names these."""
    if not buckets:
        return {PROPERTY: None}
    return {PROPERTY: BucketList(buckets=list(buckets)).model_dump_json()}


class BucketLog(Protocol):
    """The log whose properties name the buckets; `ManagedLog` is one."""

    @property
    def path(self) -> str: ...

    @property
    def properties(self) -> Mapping[str, str]: ...

    async def update_properties(self, changes: Mapping[str, str | None], /) -> None: ...


class BucketLedgers:
    """The stored buckets of one topic. Errors are those of the ledger component."""

    def __init__(self, client: LedgerClient, log: BucketLog) -> None:
        self._client = client
        self._log = log
        self._readers: dict[int, LedgerReader] = {}

    def stored(self) -> Sequence[StoredBucket]:
        """What the log names.

        Raises:
            BrokerPersistenceError: not for this release.
        """
        return buckets_in(self._log.properties, of=self._log.path)

    async def write(self, segments: Sequence[bytes], policies: Policies) -> int:
        """Store segments in a new ledger, which nothing names yet; returns its id."""
        writer = await self._client.create(
            ensemble_size=policies.persistence.ensemble,
            write_quorum=policies.persistence.write_quorum,
            ack_quorum=policies.persistence.ack_quorum,
            custom_metadata={"component": COMPONENT, "log": self._log.path},
        )
        try:
            for segment in segments:
                await writer.add(segment)
            await writer.close()
        except BaseException:
            writer.abandon()
            await self.delete(writer.ledger_id)  # it is tried again with another
            raise
        return writer.ledger_id

    async def name(self, buckets: Sequence[StoredBucket]) -> None:
        """Replace the list of stored buckets in the metadata."""
        await self._log.update_properties(property_of(buckets))

    async def read(self, ledger_id: int, first: int, last: int) -> list[bytes]:
        """Segments of a bucket, both ends included."""
        reader = self._readers.get(ledger_id)
        if reader is None:
            reader = self._readers[ledger_id] = await self._client.open(ledger_id)
        found: list[bytes] = []
        while first + len(found) <= last:
            found += await reader.read(first + len(found), last)
        return found

    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger that is not named any more; what fails is left to the orphan sweep."""
        self._readers.pop(ledger_id, None)
        try:
            await self._client.delete(ledger_id)
        except NoSuchLedgerError:
            pass
        except LedgerError as error:
            _log.warning("bucket_left_behind", ledger_id=ledger_id, error=str(error))


async def delete_index(client: LedgerClient, store: MetadataStore, path: str) -> None:
    """Delete the ledgers of an index that nobody will open again: its topic is being deleted.

    Raises:
        BrokerPersistenceError: the list is not for this release.
        LedgerError: what is left goes with the next attempt, or the orphan sweep.
    """
    try:
        node = await store.get(path)
    except NoNodeError:
        return
    for bucket in buckets_in(LogMetadata.from_json(node.value, path=path).properties, of=path):
        try:
            await client.delete(bucket.ledger_id)
        except NoSuchLedgerError:
            pass


def delayed_index_refers(store: MetadataStore) -> IsReferred:
    """Asks the log that the ledger was made for (component "delayed-index")."""

    async def is_referred(metadata: LedgerMetadata) -> bool:
        path = metadata.custom_metadata.get("log")
        if path is None:
            raise OwnerUnclearError(f"ledger {metadata.ledger_id} does not say which log it is of")
        try:
            node = await store.get(path)
        except NoNodeError:
            return False  # The topic was deleted.
        try:
            buckets = buckets_in(LogMetadata.from_json(node.value, path=path).properties, of=path)
        except BrokerPersistenceError as error:
            raise OwnerUnclearError(str(error)) from error
        return any(each.ledger_id == metadata.ledger_id for each in buckets)

    return is_referred
