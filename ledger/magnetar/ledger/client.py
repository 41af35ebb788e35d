"""The ledger client: create, open, recover and delete ledgers.

The public face of the component, together with the managed log in `log.py`. One client holds one
connection per bookie and shares it among all its ledgers.
"""

import random

from magnetar.ledger.channel import ChannelPool
from magnetar.ledger.ledger_manager import LedgerManager
from magnetar.ledger.ledger_metadata import (
    DigestType,
    Fragment,
    LedgerMetadata,
    LedgerState,
)
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.placement import Placement, RandomPlacement
from magnetar.ledger.ports import Clock, Network
from magnetar.ledger.reader import EntryFetcher, LedgerReader
from magnetar.ledger.recovery import LedgerRecovery
from magnetar.ledger.registration import BookieRegistry
from magnetar.ledger.settings import LedgerSettings
from magnetar.ledger.writer import LedgerWriter


class LedgerClient:
    """Access to the ledgers of one cluster.

    `await client.start()` before use, `await client.close()` at the end. Closing the client closes
    no ledger: an open ledger is left to be recovered, as after a crash.
    """

    def __init__(
        self,
        store: MetadataStore,
        *,
        network: Network,
        clock: Clock,
        random: random.Random,
        settings: LedgerSettings | None = None,
        placement: Placement | None = None,
        root: str = "/ledgers",
    ) -> None:
        self._settings = settings or LedgerSettings()
        self._clock = clock
        self._placement = placement or RandomPlacement(random)
        self.manager = LedgerManager(store, random=random, clock=clock, root=root)
        self.registry = BookieRegistry(store, root=root)
        self._channels = ChannelPool(self.registry, network, clock, self._settings)
        self.fetcher = EntryFetcher(self._channels, clock=clock, settings=self._settings)

    async def start(self) -> None:
        """Learn which bookies there are.

        Raises:
            MetadataError: the store cannot be reached.
        """
        await self.registry.start()

    async def close(self) -> None:
        """Close all connections."""
        await self._channels.close()
        await self.registry.close()

    async def create(
        self,
        *,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes = b"",
        custom_metadata: dict[str, str] | None = None,
    ) -> LedgerWriter:
        """Create a ledger on `ensemble_size` bookies that the placement chooses, and open it for
        writing.

        Raises:
            ValueError: not ensemble_size >= write_quorum >= ack_quorum >= 1.
            NotEnoughBookiesError: fewer bookies are writable, or not where the placement wants
                them.
            MetadataError: the metadata could not be written.
        """
        if not ensemble_size >= write_quorum >= ack_quorum >= 1:
            raise ValueError(
                f"ensemble_size >= write_quorum >= ack_quorum >= 1 is required, got "
                f"{ensemble_size}, {write_quorum}, {ack_quorum}"
            )
        bookies = self._placement.choose_ensemble(
            self.registry.writable(),
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
        )

        def make(ledger_id: int, creation_token: int) -> LedgerMetadata:
            return LedgerMetadata(
                ledger_id=ledger_id,
                ensemble_size=len(bookies),
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                state=LedgerState.OPEN,
                last_entry_id=-1,
                length=0,
                ensembles=(Fragment(0, bookies),),
                digest_type=digest_type,
                password=password,
                created_ms=self._clock.wall_ms(),
                custom_metadata=custom_metadata or {},
                creation_token=creation_token,
            )

        ledger = await self.manager.create(make)
        return LedgerWriter(
            ledger,
            manager=self.manager,
            channels=self._channels,
            fetcher=self.fetcher,
            settings=self._settings,
        )

    async def open(self, ledger_id: int) -> LedgerReader:
        """Open a ledger for reading, without disturbing its writer.

        A closed ledger is readable to its end. Of an open one nothing is readable through this
        handle yet: following a writer's progress from outside is not built, and guessing a bound
        would break the promise that what was read never vanishes.

        Raises:
            NoSuchLedgerError, MetadataError
        """
        ledger = await self.manager.read(ledger_id)
        metadata = ledger.metadata
        is_closed = metadata.state is LedgerState.CLOSED
        return LedgerReader(metadata, metadata.last_entry_id if is_closed else -1, self.fetcher)

    async def open_and_recover(self, ledger_id: int) -> LedgerReader:
        """Fence and close the ledger, if that is not done yet, and open it for reading.

        Raises:
            NoSuchLedgerError, MetadataError
            RecoveryUndecidedError: too few bookies answered; try again later.
        """
        ledger = await self.manager.read(ledger_id)
        metadata = ledger.metadata
        if metadata.state is not LedgerState.CLOSED:
            recovery = LedgerRecovery(
                ledger,
                manager=self.manager,
                channels=self._channels,
                fetcher=self.fetcher,
                settings=self._settings,
            )
            metadata = await recovery.run()
        return LedgerReader(metadata, metadata.last_entry_id, self.fetcher)

    async def delete(self, ledger_id: int) -> None:
        """Remove the ledger's metadata; bookies drop the entries later.

        Raises:
            NoSuchLedgerError, MetadataError
        """
        await self.manager.delete(ledger_id)
