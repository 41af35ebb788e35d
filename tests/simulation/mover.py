"""A re-replicator: moves replicas of finished fragments to other bookies.

Not product code: a careful actor of the simulation that does what auto-recovery will do, so that
metadata changes under writers, recoverers and readers. It copies with recovery adds, one entry
after the other from any replica that passes its digest, and swaps the member by compare-and-set
only when the new one has acknowledged every entry. It never touches the last fragment of a ledger
that is not closed (defect D25).
"""

from dataclasses import replace
from random import Random

from magnetar.ledger.channel import ChannelPool
from magnetar.ledger.digest import OpenedEntry, codec_for, master_key, read_key
from magnetar.ledger.errors import (
    BadVersionError,
    BookieUnavailableError,
    DigestMismatchError,
    LedgerError,
    UnknownOutcomeError,
)
from magnetar.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.ledger.reading.bookie_requests import ask, read_reply_block
from magnetar.ledger.settings import LedgerSettings
from magnetar.ledger.wire import Flag, Op, Status, encode_block, encode_read_body
from tests.simulation.clients import SimClient
from tests.simulation.network import SimNetwork


class Mover:
    """Moves one replica per call."""

    def __init__(self, client: SimClient, settings: LedgerSettings) -> None:
        self._client = client
        self._channels = ChannelPool(
            client.ledgers.registry,
            SimNetwork(client.fabric, client.process),
            client.clock,
            settings,
        )

    async def move(self, ledger_id: int, random: Random) -> bool:
        """Move one member of one finished fragment; False if that was not possible now.

        Raises:
            LedgerError: the metadata could not be read.
        """
        ledger = await self._client.ledgers.manager.read(ledger_id)
        metadata = ledger.metadata
        finished = list(range(len(metadata.ensembles)))
        if metadata.state is not LedgerState.CLOSED:
            finished.pop()
        if not finished:
            return False
        at = random.choice(finished)
        fragment = metadata.ensembles[at]
        index = random.randrange(len(fragment.bookies))
        others = sorted(set(self._client.ledgers.registry.writable()) - set(fragment.bookies))
        if not others:
            return False
        target = random.choice(others)
        if not await self._copy(metadata, at, index, target):
            return False
        bookies = list(fragment.bookies)
        bookies[index] = target
        ensembles = list(metadata.ensembles)
        ensembles[at] = Fragment(fragment.first_entry_id, tuple(bookies))
        try:
            await self._client.ledgers.manager.write(
                replace(metadata, ensembles=tuple(ensembles)), version=ledger.version
            )
        except (BadVersionError, UnknownOutcomeError):
            return False  # done, perhaps; the copies do no harm
        return True

    async def _copy(self, metadata: LedgerMetadata, at: int, index: int, target: str) -> bool:
        first, bookies = metadata.ensembles[at]
        end = metadata.last_entry_id
        if at + 1 < len(metadata.ensembles):
            end = metadata.ensembles[at + 1].first_entry_id - 1
        size = metadata.ensemble_size
        for entry_id in range(first, end + 1):
            if (index - entry_id) % size >= metadata.write_quorum:
                continue
            entry = await self._read(metadata, bookies, entry_id)
            if entry is None or not await self._write(metadata, target, entry):
                return False
        return True

    async def _read(
        self, metadata: LedgerMetadata, bookies: tuple[str, ...], entry_id: int
    ) -> OpenedEntry | None:
        """The entry from any member of its write set."""
        for k in range(metadata.write_quorum):
            bookie_id = bookies[(entry_id + k) % len(bookies)]
            try:
                frame = await ask(
                    self._channels,
                    bookie_id,
                    Op.READ,
                    encode_read_body(
                        last_entry_id=entry_id,
                        bytes_max=1 << 20,
                        master_key=read_key(metadata.password),
                    ),
                    ledger_id=metadata.ledger_id,
                    entry_id=entry_id,
                )
                packet = read_reply_block(frame, bookie_id).packets()[0]
                return codec_for(metadata).open_packet(packet, entry_id)
            except (LedgerError, DigestMismatchError):
                continue
        return None

    async def _write(self, metadata: LedgerMetadata, target: str, entry: OpenedEntry) -> bool:
        packets = codec_for(metadata).reseal(entry.entry_id - 1, [entry])
        try:
            frame = await ask(
                self._channels,
                target,
                Op.ADD,
                master_key(metadata.password) + encode_block(packets).data,
                ledger_id=metadata.ledger_id,
                entry_id=entry.entry_id,
                flags=Flag.RECOVERY,
            )
        except BookieUnavailableError:
            return False
        return frame.status == Status.OK
