"""Buckets of the index of delayed messages, stored in ledgers: write, name, read, delete.

A property of the topic's log lists the ledgers of the index. A bucket's ledger is closed before the
property lists it, and deleted after the property no longer does.
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
from magnetar.ledger.managed_log.log_deletion import is_marked
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.orphans import IsReferred, owner_value
from magnetar.ledger.reader import LedgerReader

_log = structlog.get_logger()

PROPERTY = "magnetar.delayed.buckets"

COMPONENT = "delayed-index"
"""Component in the custom metadata of these ledgers, by which the orphan sweep finds their
owner."""

FORMAT = 1


class StoredBucket(BaseModel):
    """One ledger of the index, whose entries are segments."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ledger_id: int
    records: int
    starts_ms: list[int]
    """Due time of the first record of each segment, ms since the epoch."""
    last: tuple[int, int]
    """Highest position in the bucket: ledger, entry."""


class BucketList(BaseModel):
    """Value of the property that lists the buckets."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    buckets: list[StoredBucket] = []


def buckets_in(properties: Mapping[str, str], *, of: str) -> Sequence[StoredBucket]:
    """Return the buckets that the properties of a log list. `of` names the log in errors.

    Raises:
        BrokerPersistenceError: this release cannot read the value.
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
    """Return the change of the log's properties that lists these buckets."""
    if not buckets:
        return {PROPERTY: None}
    return {PROPERTY: BucketList(buckets=list(buckets)).model_dump_json()}


class BucketLog(Protocol):
    """The log whose properties list the buckets; `ManagedLog` is one."""

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
        """Return the buckets that the log's properties list.

        Raises:
            BrokerPersistenceError: this release cannot read the list.
        """
        return buckets_in(self._log.properties, of=self._log.path)

    async def write(self, segments: Sequence[bytes], policies: Policies) -> int:
        """Store segments in a new ledger, which no property lists yet; return its id."""
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
            await self.delete(writer.ledger_id)  # the retry uses another ledger
            raise
        return writer.ledger_id

    async def name(self, buckets: Sequence[StoredBucket]) -> None:
        """Replace the list of stored buckets in the log's properties."""
        await self._log.update_properties(property_of(buckets))

    async def read(self, ledger_id: int, first: int, last: int) -> list[bytes]:
        """Read segments `first` through `last` of a bucket."""
        reader = self._readers.get(ledger_id)
        if reader is None:
            reader = self._readers[ledger_id] = await self._client.open(ledger_id)
        found: list[bytes] = []
        while first + len(found) <= last:
            found += await reader.read(first + len(found), last)
        return found

    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger that is no longer listed; on a failure, leave it to the orphan sweep."""
        self._readers.pop(ledger_id, None)
        try:
            await self._client.delete(ledger_id)
        except NoSuchLedgerError:
            pass
        except LedgerError as error:
            _log.warning("bucket_left_behind", ledger_id=ledger_id, error=str(error))


async def delete_index(client: LedgerClient, store: MetadataStore, path: str) -> None:
    """Delete the ledgers of the index of a topic that is being deleted.

    A log that is not marked is that of a later topic of the name: its index stays.

    Raises:
        BrokerPersistenceError: this release cannot read the list of ledgers.
        LedgerError: a deletion failed; the next attempt or the orphan sweep deletes the rest.
    """
    try:
        node = await store.get(path)
    except NoNodeError:
        return
    properties = LogMetadata.from_json(node.value, path=path).properties
    if not is_marked(properties):
        return
    for bucket in buckets_in(properties, of=path):
        try:
            await client.delete(bucket.ledger_id)
        except NoSuchLedgerError:
            pass


def delayed_index_refers(store: MetadataStore) -> IsReferred:
    """Return the check of the orphan sweep for the component "delayed-index".

    It looks for the ledger in the properties of the log that the ledger was made for.
    """

    async def is_referred(metadata: LedgerMetadata) -> bool:
        path = metadata.custom_metadata.get("log")
        if path is None:
            raise OwnerUnclearError(f"ledger {metadata.ledger_id} does not say which log it is of")
        value = await owner_value(store, path)
        if value is None:
            return False  # the topic was deleted
        try:
            buckets = buckets_in(LogMetadata.from_json(value, path=path).properties, of=path)
        except BrokerPersistenceError as error:
            raise OwnerUnclearError(str(error)) from error
        return any(each.ledger_id == metadata.ledger_id for each in buckets)

    return is_referred
