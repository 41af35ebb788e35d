"""The other bookies and the metadata, as this bookie needs them to get its own entries back.

One ledger client, made at the first need: a bookie that never loses anything has none.
"""

import asyncio
import random
from collections.abc import Callable

from magnetar.bookie.integrity.replica_source import ReplicaSource
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import DigestMismatchError
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock, Network

_ROOT = "/ledgers"


class Peers:
    """Everybody but this bookie."""

    def __init__(
        self,
        bookie_id: str,
        store: MetadataStore,
        *,
        network: Network,
        clock: Clock,
        random: random.Random,
        fetch_bytes_max: int,
    ) -> None:
        self._bookie_id = bookie_id
        self._store = store
        self._network = network
        self._clock = clock
        self._random = random
        self._fetch_bytes_max = fetch_bytes_max
        self._client: LedgerClient | None = None
        self._source: ReplicaSource | None = None
        self._starting = asyncio.Lock()

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        """
        Raises:
            NoSuchLedgerError: the ledger was deleted.
            LedgerError: its metadata cannot be had now.
        """
        return (await (await self._started()).manager.read(ledger_id)).metadata

    async def recover(self, ledger_id: int) -> LedgerMetadata:
        """Close a ledger that nobody may write any more; returns its final metadata.

        Raises:
            LedgerError: as `LedgerClient.open_and_recover`.
        """
        return (await (await self._started()).open_and_recover(ledger_id)).metadata

    async def fetch(self, metadata: LedgerMetadata, first: int, last: int) -> list[bytes]:
        """See `ReplicaSource.fetch`."""
        await self._started()
        assert self._source is not None
        return await self._source.fetch(metadata, first, last)

    async def list_for_repair(self, ledger_id: int, first: int, last: int, reason: str) -> None:
        """Tell those who copy entries that this bookie has no good copy of these.

        Raises:
            LedgerError: the client cannot be started now.
        """
        client = await self._started()
        client.repairs.note(ledger_id, first, last, self._bookie_id, reason)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _started(self) -> LedgerClient:
        async with self._starting:
            if self._client is None:
                client = LedgerClient(
                    self._store,
                    network=self._network,
                    clock=self._clock,
                    random=self._random,
                    root=_ROOT,
                    follows_root=True,
                )
                await client.start()
                self._source = ReplicaSource(
                    self._bookie_id,
                    client.channels,
                    client.registry,
                    bytes_max=self._fetch_bytes_max,
                    on_bad_replica=_noting(client),
                )
                self._client = client
            return self._client


def _noting(client: LedgerClient) -> Callable[[int, int, str, DigestMismatchError], None]:
    return client.fetcher.note_bad
