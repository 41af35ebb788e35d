"""The other bookies and the metadata, as sources from which this bookie restores its own entries.

There is one ledger client, started on first use: a bookie that never loses anything has none.

Copies of entries are packets as they are stored there, checked end to end. A packet is accepted
only if its digest is right (type and password are in the ledger's metadata) and it is the requested
entry. Its facts about the ledger must be possible, too: its LAC is below its entry id, and its
length fits its payload and the end of a closed ledger. Copies of one entry need not be equal byte
for byte, since recovery seals entries again: any good one will do.
"""

import asyncio
import random
from collections.abc import Callable, Sequence

from magnetar.bookie.errors import BeyondEndError, NoOtherCopyError, ReplicasUnavailableError
from magnetar.bookie.integrity.own_entries import end_of, peers_of
from magnetar.ledger.channel import ChannelPool
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.digest import PacketCodec, codec_for, read_key
from magnetar.ledger.errors import DigestMismatchError, LedgerError
from magnetar.ledger.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock, Network
from magnetar.ledger.reading.bookie_requests import ask, read_reply_block
from magnetar.ledger.reading.read_errors import READ_ERRORS, is_negative
from magnetar.ledger.registration import BookieRegistry
from magnetar.ledger.wire import Op, encode_read_body

_ROOT = "/ledgers"
OnBadReplica = Callable[[int, int, str, DigestMismatchError], None]
"""Called with ledger id, entry id, bookie id, and the error of a bad copy."""


class Peers:
    """Access to the other bookies and to the metadata."""

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
        """Read the metadata of a ledger.

        Raises:
            NoSuchLedgerError: the ledger was deleted.
            LedgerError: its metadata cannot be read now.
        """
        return (await (await self._started()).manager.read(ledger_id)).metadata

    async def recover(self, ledger_id: int) -> LedgerMetadata:
        """Close a ledger that no writer may continue; return its final metadata.

        Raises:
            LedgerError: as `LedgerClient.open_and_recover`.
        """
        return (await (await self._started()).open_and_recover(ledger_id)).metadata

    async def fetch(self, metadata: LedgerMetadata, first: int, last: int) -> list[bytes]:
        """Fetch good packets; `ReplicaSource.fetch` has the details."""
        await self._started()
        assert self._source is not None
        return await self._source.fetch(metadata, first, last)

    async def list_for_repair(self, ledger_id: int, first: int, last: int, reason: str) -> None:
        """List these entries for repair: this bookie has no good copy of them.

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


class ReplicaSource:
    """Reads from all bookies but this one. A read is one request at a time, of bounded size."""

    def __init__(
        self,
        bookie_id: str,
        channels: ChannelPool,
        registry: BookieRegistry,
        *,
        bytes_max: int,
        on_bad_replica: OnBadReplica,
    ) -> None:
        """Set up the source.

        Args:
            bytes_max: bytes of packets in one read. A larger single packet is accepted, too.
        """
        self._bookie_id = bookie_id
        self._channels = channels
        self._registry = registry
        self._bytes_max = bytes_max
        self._on_bad_replica = on_bad_replica

    async def fetch(self, metadata: LedgerMetadata, first: int, last: int) -> list[bytes]:
        """Fetch good packets of the entries `first`, `first + 1`, ...: at least one.

        Ends at `last`, at the end of the fragment, or at the size limit.

        Raises:
            BeyondEndError: the ledger is closed, and ends before `first`.
            NoOtherCopyError: every other replica is certain not to have entry `first`, or there is
                no other.
            ReplicasUnavailableError: no bookie that should have a copy sent it; a retry may help.
        """
        end = end_of(metadata)
        if first > end:
            raise BeyondEndError(
                f"ledger {metadata.ledger_id} ends with entry {end}: there is no entry {first}"
            )
        last = min(last, end, metadata.fragment_end(first))
        codec = codec_for(metadata)
        failures: list[LedgerError] = []
        for bookie_id in self._in_order(peers_of(metadata, first, self._bookie_id)):
            try:
                return await self._fetch_from(bookie_id, metadata, codec, first, last)
            except READ_ERRORS as error:
                failures.append(error)
        text = (
            f"ledger {metadata.ledger_id}, entry {first}: "
            f"{'; '.join(map(str, failures)) or 'no other bookie stores it'}"
        )
        if all(map(is_negative, failures)):
            raise NoOtherCopyError(text)
        raise ReplicasUnavailableError(text)

    def _in_order(self, bookies: Sequence[str]) -> Sequence[str]:
        """Sort the bookies, unregistered ones last: they may be back by then, and trying them costs
        nothing."""
        return sorted(bookies, key=lambda each: self._registry.resolve(each) is None)

    async def _fetch_from(
        self, bookie_id: str, metadata: LedgerMetadata, codec: PacketCodec, first: int, last: int
    ) -> list[bytes]:
        """Fetch packets from one bookie.

        Raises:
            LedgerError: one of `READ_ERRORS`.
        """
        ledger_id = metadata.ledger_id
        frame = await ask(
            self._channels,
            bookie_id,
            Op.READ,
            encode_read_body(
                last_entry_id=last,
                bytes_max=self._bytes_max,
                master_key=read_key(metadata.password),
            ),
            ledger_id=ledger_id,
            entry_id=first,
        )
        packets = read_reply_block(frame, bookie_id).packets()[: last - first + 1]
        for number, packet in enumerate(packets):
            try:
                check_packet(packet, first + number, metadata, codec)
            except DigestMismatchError as error:
                self._on_bad_replica(ledger_id, first + number, bookie_id, error)
                if number == 0:
                    raise
                return packets[:number]
        return packets


def check_packet(
    packet: bytes, entry_id: int, metadata: LedgerMetadata, codec: PacketCodec
) -> None:
    """Check that a packet is a possible copy of an entry.

    Raises:
        DigestMismatchError: it is not.
    """
    entry = codec.open_packet(packet, entry_id)
    is_closed = metadata.state is LedgerState.CLOSED
    is_last = is_closed and entry_id == metadata.last_entry_id
    lengths_fit = len(entry.payload) <= entry.length and (
        not is_closed
        or (entry.length == metadata.length if is_last else entry.length <= metadata.length)
    )
    if not (-1 <= entry.last_add_confirmed < entry_id and lengths_fit):
        raise DigestMismatchError(
            f"entry {entry_id} of ledger {metadata.ledger_id}: a packet with LAC "
            f"{entry.last_add_confirmed}, length {entry.length} and a payload of "
            f"{len(entry.payload)} bytes cannot be a copy of it"
        )
