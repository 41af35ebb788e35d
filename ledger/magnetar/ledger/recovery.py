"""Ledger recovery: a reader closes a ledger whose writer is gone, or makes sure that it is.

The steps of section 8 of the ledger protocol. `M` is the metadata as it stood when the ledger went
IN_RECOVERY; it does not change for the whole recovery.

1. CAS to IN_RECOVERY (several recoverers may run; the closing CAS decides between them).
2. Fence every write set of M's last fragment: LAC reads with the fence flag, until in each of them
   at least Qw - Qa + 1 members confirmed. From then on no ordinary add can reach its ack quorum.
3. From the highest LAC on, read entry after entry with the fence flag from M's ensemble. One good
   copy makes an entry recoverable; Qw - Qa + 1 explicit negatives end the ledger; anything else is
   unknown and aborts. An error is never taken for an absence (rules 8.1, 8.2).
4. Write each recoverable entry back to its whole write set, with the LAC of step 2 (rule 8.3), in
   order, and wait for the ack quorum.
5. CAS to CLOSED. If another recoverer closed first, its result is the ledger's.

Why no acknowledged entry is lost: it lies on Qa members of its write set, so fewer than Qw - Qa + 1
can deny it, and a negative is stable because the bookie that gave it is durably fenced (rule 8.5).
"""

import asyncio
from collections.abc import Iterable
from typing import TypeVar

from magnetar.ledger.add_pipeline import AddPipeline
from magnetar.ledger.channel import ChannelPool
from magnetar.ledger.digest import OpenedEntry, PacketCodec, codec_for, master_key
from magnetar.ledger.errors import (
    BadVersionError,
    BookieProtocolError,
    BookieUnavailableError,
    DigestMismatchError,
    LedgerError,
    NoSuchEntryError,
    NoSuchLedgerOnBookieError,
    RecoveryUndecidedError,
    UnauthorizedError,
    UnknownOutcomeError,
)
from magnetar.ledger.ledger_manager import LedgerManager, VersionedLedger
from magnetar.ledger.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.ledger.pending_adds import PendingAdd
from magnetar.ledger.quorum import Coverage, write_set
from magnetar.ledger.reader import EntryFetcher, ask, read_reply_block
from magnetar.ledger.settings import LedgerSettings
from magnetar.ledger.wire import Flag, Frame, Op, Status, encode_read_body

T = TypeVar("T")

_ENTRY_ID_MAX = (1 << 63) - 1

_WRITE_BACK_SHARE = 8
"""Of what a channel may hold, this part is written back before more is read. A long tail would
otherwise fill the channels, count as failed there, and never be recovered."""


class LedgerRecovery:
    """One recovery of one ledger. Use once."""

    def __init__(
        self,
        ledger: VersionedLedger,
        *,
        manager: LedgerManager,
        channels: ChannelPool,
        fetcher: EntryFetcher,
        settings: LedgerSettings,
    ) -> None:
        self._ledger = ledger
        self._manager = manager
        self._channels = channels
        self._fetcher = fetcher
        self._settings = settings
        self._ledger_id = ledger.metadata.ledger_id
        self._key = master_key(ledger.metadata.password)
        self._codec = codec_for(ledger.metadata)

    async def run(self) -> LedgerMetadata:
        """Recover and close the ledger; returns its final metadata.

        Raises:
            RecoveryUndecidedError: too few bookies answered; try again later. The ledger stays
                IN_RECOVERY, and nothing was decided.
            UnauthorizedError: the password in the metadata is not the ledger's.
            MetadataError: as the store.
        """
        self._ledger = await self._start()
        if self._ledger.metadata.state is LedgerState.CLOSED:
            return self._ledger.metadata
        snapshot = self._ledger.metadata  # M
        last_add_confirmed = max(
            await self._fence(snapshot), snapshot.last_fragment.first_entry_id - 1
        )
        length = await self._length_at(snapshot, last_add_confirmed)
        last_entry_id, length = await self._recover_tail(snapshot, last_add_confirmed, length)
        return await self._close(snapshot, last_entry_id, length)

    async def _start(self) -> VersionedLedger:
        ledger = self._ledger
        while ledger.metadata.state is LedgerState.OPEN:
            try:
                return await self._manager.write(
                    ledger.metadata.in_recovery(), version=ledger.version
                )
            except (BadVersionError, UnknownOutcomeError):
                ledger = await self._manager.read(self._ledger_id)
        return ledger

    async def _fence(self, snapshot: LedgerMetadata) -> int:
        """Fence the last fragment's ensemble; returns the highest LAC that was heard."""
        ensemble = snapshot.last_fragment.bookies
        coverage = Coverage(
            ensemble_size=len(ensemble),
            write_quorum=snapshot.write_quorum,
            ack_quorum=snapshot.ack_quorum,
        )
        last_add_confirmed = -1
        failures: list[str] = []
        tasks = {
            asyncio.ensure_future(self._fence_one(bookie_id)): index
            for index, bookie_id in enumerate(ensemble)
        }
        waiting = set(tasks)
        try:
            while waiting and not coverage.is_covered:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    try:
                        heard = task.result()
                    except BookieUnavailableError as error:
                        failures.append(str(error))
                    else:
                        coverage.confirm(tasks[task])
                        last_add_confirmed = max(last_add_confirmed, heard)
        finally:
            _forget(tasks)
        if not coverage.is_covered:
            raise RecoveryUndecidedError(
                f"ledger {self._ledger_id}: only {len(coverage.confirmed)} of {len(ensemble)} "
                f"bookies confirmed the fence; {'; '.join(failures)}"
            )
        return last_add_confirmed

    async def _fence_one(self, bookie_id: str) -> int:
        """Fence one bookie; returns the LAC that it vouches for, -1 if none.

        Raises:
            BookieUnavailableError: it did not confirm that the ledger is fenced.
            UnauthorizedError: the password does not fit.
        """
        frame = await ask(
            self._channels,
            bookie_id,
            Op.READ_LAC,
            self._key,
            ledger_id=self._ledger_id,
            flags=Flag.FENCE,
        )
        self._refuse_unauthorized(frame, bookie_id)
        if not frame.flags & Flag.FENCED:  # rule 7.2: never infer the fence from "a reply came"
            text = frame.body.decode("utf-8", "replace")
            raise BookieUnavailableError(
                f"bookie {bookie_id} did not fence: status {frame.status} {text}"
            )
        if frame.status != Status.OK:
            return -1
        return self._heard_lac(frame.body)

    def _heard_lac(self, body: bytes) -> int:
        """LAC of a READ_LAC reply; a damaged packet still proves the fence (rule 7.3)."""
        size = int.from_bytes(body[:4], "big")
        packet = body[4 : 4 + size]
        if not packet:
            return -1
        try:
            return self._codec.open_some_packet(packet).last_add_confirmed
        except DigestMismatchError:
            return -1

    def _refuse_unauthorized(self, frame: Frame, bookie_id: str) -> None:
        if frame.status == Status.UNAUTHORIZED:
            raise UnauthorizedError(
                f"ledger {self._ledger_id}, bookie {bookie_id}: the ledger's password does not fit"
            )

    async def _length_at(self, snapshot: LedgerMetadata, entry_id: int) -> int:
        """The ledger's length up to an entry that is confirmed."""
        if entry_id < 0:
            return 0
        try:
            return await self._fetcher.length_at(snapshot, entry_id)
        except LedgerError as error:
            raise RecoveryUndecidedError(
                f"ledger {self._ledger_id}: the last confirmed entry {entry_id} cannot be read "
                f"now: {error}"
            ) from error

    async def _recover_tail(
        self, snapshot: LedgerMetadata, last_add_confirmed: int, length: int
    ) -> tuple[int, int]:
        """Read and write back what lies above the LAC; returns the last entry and the length."""
        write_back = _WriteBack(
            snapshot,
            self._channels,
            codec=self._codec,
            key=self._key,
            last_add_confirmed=last_add_confirmed,
        )
        pending_bytes_max = self._settings.channel_bytes_max // _WRITE_BACK_SHARE
        last_entry_id = last_add_confirmed
        try:
            while entries := await self._read_tail(snapshot, last_entry_id + 1):
                assert entries[0].entry_id == last_entry_id + 1  # D28
                await write_back.wait_pending(pending_bytes_max)
                write_back.send(entries)
                last_entry_id, length = entries[-1].entry_id, entries[-1].length
            await write_back.wait_pending(0)
        finally:
            write_back.stop()
        return last_entry_id, length

    async def _read_tail(self, snapshot: LedgerMetadata, entry_id: int) -> list[OpenedEntry]:
        """Recoverable entries from `entry_id` on; empty when the ledger ends before it.

        Raises:
            RecoveryUndecidedError: neither a good copy nor enough negatives.
        """
        ensemble = snapshot.last_fragment.bookies
        members = write_set(
            entry_id, ensemble_size=len(ensemble), write_quorum=snapshot.write_quorum
        )
        negatives_needed = snapshot.write_quorum - snapshot.ack_quorum + 1
        negatives = 0
        unknowns: list[str] = []
        tasks = [
            asyncio.ensure_future(self._read_one(snapshot, index, entry_id)) for index in members
        ]
        waiting = set(tasks)
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                recovered: list[OpenedEntry] = []
                for task in done:
                    try:
                        entries = task.result()
                    except (NoSuchEntryError, NoSuchLedgerOnBookieError):
                        negatives += 1
                    except (
                        BookieUnavailableError,
                        BookieProtocolError,
                        DigestMismatchError,
                    ) as error:
                        unknowns.append(str(error))
                    else:
                        recovered = max(recovered, entries, key=len)
                if recovered:
                    return recovered
                if negatives >= negatives_needed:
                    return []
        finally:
            _forget(tasks)
        raise RecoveryUndecidedError(
            f"ledger {self._ledger_id}: entry {entry_id} is undecided: {negatives} of "
            f"{len(members)} bookies do not have it, {negatives_needed} are needed; "
            f"{'; '.join(unknowns)}"
        )

    async def _read_one(
        self, snapshot: LedgerMetadata, index: int, entry_id: int
    ) -> list[OpenedEntry]:
        """Entries from `entry_id` on that the member holds, read with the fence flag (D1)."""
        ensemble = snapshot.last_fragment.bookies
        bookie_id = ensemble[index]
        frame = await ask(
            self._channels,
            bookie_id,
            Op.READ,
            encode_read_body(
                last_entry_id=_ENTRY_ID_MAX,
                bytes_max=self._settings.recovery_read_bytes_max,
                master_key=self._key,
            ),
            ledger_id=self._ledger_id,
            entry_id=entry_id,
            flags=Flag.FENCE,
        )
        self._refuse_unauthorized(frame, bookie_id)
        if not frame.flags & Flag.FENCED:
            # A negative that is not backed by a durable fence is not stable (rule 8.5).
            raise BookieUnavailableError(
                f"bookie {bookie_id} answered entry {entry_id} without being fenced"
            )
        block = read_reply_block(frame, bookie_id)
        entries: list[OpenedEntry] = []
        for packet in block.packets():
            expected = entry_id + len(entries)
            members = write_set(
                expected, ensemble_size=len(ensemble), write_quorum=snapshot.write_quorum
            )
            if index not in members:
                break
            try:
                entries.append(self._codec.open_packet(packet, expected))
            except DigestMismatchError:
                if not entries:
                    raise
                break
        return entries

    async def _close(
        self, snapshot: LedgerMetadata, last_entry_id: int, length: int
    ) -> LedgerMetadata:
        ledger = self._ledger
        while True:
            metadata = ledger.metadata
            if metadata.state is LedgerState.CLOSED:
                return metadata  # another recoverer was first, or our own reply was lost
            if metadata.last_fragment != snapshot.last_fragment:
                raise RecoveryUndecidedError(
                    f"ledger {self._ledger_id}: its last fragment changed during recovery"
                )
            try:
                closed = await self._manager.write(
                    metadata.closed(last_entry_id=last_entry_id, length=length),
                    version=ledger.version,
                )
            except (BadVersionError, UnknownOutcomeError):
                ledger = await self._manager.read(self._ledger_id)
            else:
                return closed.metadata


def _forget(tasks: Iterable[asyncio.Task[T]]) -> None:
    """The outcome is decided: end those that still run, and take note of errors nobody wants."""
    for task in tasks:
        if not task.cancel() and not task.cancelled():
            task.exception()


class _WriteBack:
    """Recovery adds to M's ensemble: same ids, payloads and lengths, the LAC found by the fence."""

    def __init__(
        self,
        snapshot: LedgerMetadata,
        channels: ChannelPool,
        *,
        codec: PacketCodec,
        key: bytes,
        last_add_confirmed: int,
    ) -> None:
        self._ledger_id = snapshot.ledger_id
        self._codec = codec
        self._last_add_confirmed = last_add_confirmed
        self._error: LedgerError | None = None
        self._changed = asyncio.Event()
        self._pipeline = AddPipeline(
            channels,
            ledger_id=snapshot.ledger_id,
            ensemble=snapshot.last_fragment.bookies,
            write_quorum=snapshot.write_quorum,
            ack_quorum=snapshot.ack_quorum,
            key=key,
            flags=Flag.RECOVERY,
            on_released=self._on_released,
            on_lost=self._on_lost,
        )

    def send(self, entries: list[OpenedEntry]) -> None:
        packets = self._codec.reseal(self._last_add_confirmed, entries)
        self._pipeline.send(entries[0].entry_id, packets, [entry.length for entry in entries], [])

    async def wait_pending(self, bytes_max: int) -> None:
        """Wait until at most so much of what was sent has not reached its ack quorum.

        Raises:
            RecoveryUndecidedError: it cannot; recovery must be run again later.
        """
        while self._error is None and self._pipeline.pending_bytes > bytes_max:
            self._changed.clear()
            await self._changed.wait()
        if isinstance(self._error, UnauthorizedError):
            raise self._error
        if self._error is not None:
            raise RecoveryUndecidedError(
                f"ledger {self._ledger_id}: writing the tail back failed: {self._error}"
            ) from self._error

    def _on_released(self, released: list[PendingAdd]) -> None:
        self._changed.set()

    def _on_lost(self, error: LedgerError) -> None:
        self._error = error
        self._changed.set()

    def stop(self) -> None:
        self._pipeline.stop()
