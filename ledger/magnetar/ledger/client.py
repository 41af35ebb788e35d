"""The ledger client: create, open, recover and delete ledgers.

Together with the managed log in `log.py`, this is the component's public interface. One client
holds one connection per bookie and shares it among all its ledgers.
"""

import asyncio
import random
from hmac import compare_digest
from weakref import WeakValueDictionary

from magnetar.ledger.channel import ChannelPool
from magnetar.ledger.client_parts import ClientParts
from magnetar.ledger.errors import UnauthorizedError
from magnetar.ledger.ledger_manager import LedgerManager, VersionedLedger
from magnetar.ledger.ledger_metadata import (
    DigestType,
    Fragment,
    LedgerMetadata,
    LedgerState,
)
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.placement import Placement
from magnetar.ledger.placing.placement_domains import placement_of
from magnetar.ledger.ports import Clock, Network, ObjectLedgers
from magnetar.ledger.reader import LedgerReader
from magnetar.ledger.reading.entry_fetcher import EntryFetcher
from magnetar.ledger.recovery import LedgerRecovery
from magnetar.ledger.registration import BookieRegistry
from magnetar.ledger.settings import LedgerSettings
from magnetar.ledger.under_replication import RepairQueue
from magnetar.ledger.writer import LedgerWriter
from magnetar.ledger.writing.add_turn import AddTurn
from magnetar.ledger.writing.follow_up import WriteQuorumFollowUp
from magnetar.ledger.writing.replacements import BookieHealth

PASSWORD_BYTES = 16
"""Length of a random password, too long to guess."""


class LedgerClient:
    """Access to the ledgers of one cluster.

    Call `await client.start()` before use and `await client.close()` at the end. Closing the client
    does not close ledgers: an open ledger is left to recovery, as after a crash.

    Passwords of ledgers come from `random`. Pass `random.SystemRandom()` unless guessed passwords
    do no harm.
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
        follows_root: bool = False,
    ) -> None:
        """`follows_root`: use the layout that the root names, whatever the settings say."""
        self.objects: ObjectLedgers | None = None
        """Reader of ledgers in object stores; None if this process knows no store."""
        self._settings = settings = settings or LedgerSettings()
        self._clock = clock
        self._random = random
        self._placement = placement or placement_of(self._settings, random)
        self.manager = LedgerManager(
            store,
            random=random,
            clock=clock,
            root=root,
            layout=settings.ledger_manager,
            follows_root=follows_root,
        )
        self.registry = BookieRegistry(
            store, root=root, frame_bytes_min=settings.frame_bytes_needed
        )
        self.channels = ChannelPool(self.registry, network, clock, settings)
        self.repairs = RepairQueue(
            store,
            clock=clock,
            root=root,
            publish_delay_s=settings.repair_publish_delay_s,
            ranges_max=settings.repair_ranges_max,
        )
        self.fetcher = EntryFetcher(
            self.channels,
            registry=self.registry,
            clock=clock,
            settings=settings,
            on_bad_replica=self.repairs.note,
        )
        self._health = BookieHealth(
            clock,
            errors_max=settings.quarantine_errors_max,
            interval_s=settings.quarantine_interval_s,
            quarantine_s=settings.quarantine_s,
        )
        self._follow_up = WriteQuorumFollowUp(
            self.channels,
            clock,
            time_s=settings.follow_up_time_s,
            retry_delay_s=settings.follow_up_retry_delay_s,
            bytes_max=settings.follow_up_bytes_max,
            on_hole=self.repairs.note,
        )
        self._parts = self._make_parts()
        self._creations_at_once = asyncio.Semaphore(settings.ledger_creations_at_once)
        self._writers: WeakValueDictionary[int, LedgerWriter] = WeakValueDictionary()
        self._readers: WeakValueDictionary[int, LedgerReader] = WeakValueDictionary()
        """Open readers by the number of their opening: `close` closes them in that order."""
        self._readers_opened = 0

    def _make_parts(self) -> ClientParts:
        return ClientParts(
            manager=self.manager,
            registry=self.registry,
            channels=self.channels,
            turn=AddTurn(self.channels, self._settings.add_frame_bytes_max),
            fetcher=self.fetcher,
            placement=self._placement,
            health=self._health,
            follow_up=self._follow_up,
            repairs=self.repairs,
            clock=self._clock,
            settings=self._settings,
        )

    @property
    def parts(self) -> ClientParts:
        """The services that all handles of this client share, for use within the component."""
        return self._parts

    async def start(self) -> None:
        """Learn which bookies are registered.

        Raises:
            MetadataError: the store cannot be reached.
        """
        await self.registry.start()

    async def close(self) -> None:
        """Abandon open handles, record missing copies, and close all connections."""
        for writer in list(self._writers.values()):
            writer.abandon()
        for reader in list(self._readers.values()):
            await reader.close()
        # Usually, the copies beyond the ack quorum are in flight.
        await self.channels.wait_idle(timeout_s=self._settings.close_idle_timeout_s)
        self._follow_up.close()
        await self.channels.close()
        await self.repairs.close(timeout_s=self._settings.repair_close_timeout_s)
        await self.registry.close()

    async def create(
        self,
        *,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes | None = None,
        custom_metadata: dict[str, str] | None = None,
    ) -> LedgerWriter:
        """Create a ledger on bookies that the placement chooses, and open it for writing.

        Without a `password`, the ledger gets a random one of its own if the cluster's ledgers have
        passwords. The password is in the metadata, so only clients that may read the metadata can
        open the ledger.

        Raises:
            ValueError: not ensemble_size >= write_quorum >= ack_quorum >= 1.
            NotEnoughBookiesError: too few bookies are writable, or they are not where the placement
                needs them.
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
            avoided=self._health.quarantined(),
        )

        own = self._random.randbytes(PASSWORD_BYTES) if password is None else password

        def make(ledger_id: int, creation_token: int) -> LedgerMetadata:
            has_own = password is not None or self.manager.has_ledger_passwords
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
                password=own if has_own else b"",
                created_ms=self._clock.wall_ms(),
                custom_metadata=custom_metadata or {},
                creation_token=creation_token,
            )

        async with self._creations_at_once:
            created = await self.manager.create(make)
        writer = LedgerWriter(created, self._parts)
        self._writers[writer.ledger_id] = writer
        return writer

    async def open(self, ledger_id: int, *, password: bytes | None = None) -> LedgerReader:
        """Open a ledger for reading, without disturbing its writer.

        A closed ledger is readable to its end. An open one, or one in recovery, can be followed
        (`LedgerReader.follow` and the calls that it uses). A handle that does not follow reads only
        what the metadata proves to be confirmed. A handle that followed must be closed.

        A password is compared with the ledger's before anything is sent. Administrative tools pass
        None: the password is in the metadata, which they may read.

        Raises:
            UnauthorizedError: the password is not the ledger's.
            NoSuchLedgerError, MetadataError
        """
        ledger = await self._read_metadata(ledger_id, password)
        return self._reader(ledger)

    async def open_and_recover(
        self, ledger_id: int, *, password: bytes | None = None
    ) -> LedgerReader:
        """Fence and close the ledger, if that is not done yet, and open it for reading.

        Raises:
            UnauthorizedError: the password is not the ledger's (see `open`); nothing was fenced.
            NoSuchLedgerError, MetadataError
            RecoveryUndecidedError: too few bookies answered; try again later.
        """
        ledger = await self._read_metadata(ledger_id, password)
        if ledger.metadata.state is not LedgerState.CLOSED:
            # The version is older than the value. It serves only to recognize newer values.
            closed = await LedgerRecovery(ledger, self._parts).run()
            ledger = VersionedLedger(closed, ledger.version)
        return self._reader(ledger)

    def _reader(self, ledger: VersionedLedger) -> LedgerReader:
        reader = LedgerReader(ledger, self._parts, rng=self._random)
        self._readers_opened += 1
        self._readers[self._readers_opened] = reader
        return reader

    async def delete(self, ledger_id: int) -> None:
        """Remove the ledger's metadata; bookies drop the entries later.

        Raises:
            NoSuchLedgerError, MetadataError
        """
        await self.manager.delete(ledger_id)

    async def _read_metadata(self, ledger_id: int, password: bytes | None) -> VersionedLedger:
        """Read the ledger's metadata, and check the password unless it is None.

        Raises:
            UnauthorizedError, NoSuchLedgerError, MetadataError
        """
        ledger = await self.manager.read(ledger_id)
        if password is not None and not compare_digest(password, ledger.metadata.password):
            raise UnauthorizedError(
                f"ledger {ledger_id}: wrong password. Pass the one that it was created with; or "
                "pass none, if you may act as an administrator of the cluster"
            )
        return ledger
