"""Buckets in ledgers: write, name, read, delete. A bucket's ledger is closed before it is named."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import structlog

from magnetar.broker.features.delayed.bucket_list import (
    COMPONENT,
    StoredBucket,
    buckets_in,
    property_of,
)
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError, NoNodeError, NoSuchLedgerError
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.reader import LedgerReader

_log = structlog.get_logger()


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

    async def write(self, segments: Sequence[bytes], policies: EffectivePolicies) -> int:
        """Store segments in a new ledger, which nothing names yet; returns its id."""
        writer = await self._client.create(
            ensemble_size=policies.ensemble_size,
            write_quorum=policies.write_quorum,
            ack_quorum=policies.ack_quorum,
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
        """These are the buckets from now on."""
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
