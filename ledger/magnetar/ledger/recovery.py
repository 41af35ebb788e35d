"""Ledger recovery: a reader fences a ledger against its writer, and closes it.

The steps of section 8 of the ledger protocol. `M` is the metadata from the moment that the ledger
went IN_RECOVERY; it does not change during the recovery.

1. CAS to IN_RECOVERY (several recoverers may run; the closing CAS decides between them).
2. Fence every write set of M's last fragment. Send LAC reads with the fence flag, until at least
   Qw - Qa + 1 members of each write set confirmed. From then on no ordinary add can reach its ack
   quorum.
3. From the highest LAC on, read entry after entry with the fence flag from M's ensemble
   (`recovery_reads.py`). One good copy makes an entry recoverable. Qw - Qa + 1 explicit negatives
   end the ledger. Anything else is unknown and aborts. An error is never taken for an absence
   (rules 8.1, 8.2).
4. Write each recoverable entry back to its whole write set, with the LAC of step 2 (rule 8.3), in
   order, and wait for the ack quorum. Bookies that fail are replaced in memory only. If a change
   were committed before the tail is copied, the next recovery would read from bookies that lack
   the tail (D3).
5. CAS to CLOSED, with the end of the ledger and the ensembles of its tail in one write. If another
   recoverer closed first, its result is the ledger's.

No acknowledged entry is lost: Qa members of its write set hold it, so fewer than Qw - Qa + 1 can
deny it. A negative is stable because the bookie that gave it is durably fenced (rule 8.5).
"""

from magnetar.ledger.arrivals import Arrivals
from magnetar.ledger.client_parts import ClientParts
from magnetar.ledger.digest import codec_for, master_key
from magnetar.ledger.errors import (
    BadVersionError,
    BookieUnavailableError,
    ContendedError,
    DigestMismatchError,
    InvariantError,
    LedgerError,
    RecoveryUndecidedError,
    UnauthorizedError,
    UnknownOutcomeError,
)
from magnetar.ledger.ledger_manager import VersionedLedger
from magnetar.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.ledger.quorum import Coverage
from magnetar.ledger.reading.bookie_requests import ask
from magnetar.ledger.recovering.recovery_reads import RecoveryReads
from magnetar.ledger.recovering.write_back import WriteBack
from magnetar.ledger.wire import Flag, Op, Status

_WRITE_BACK_SHARE = 8
"""Divisor of a channel's byte limit: before more is read, pending write-backs must fall below this
share. Otherwise a long tail would fill the channels, count as failed there, and never be recovered.
"""


class LedgerRecovery:
    """One recovery of one ledger. Use once."""

    def __init__(self, ledger: VersionedLedger, parts: ClientParts) -> None:
        self._ledger = ledger
        self._parts = parts
        self._ledger_id = ledger.metadata.ledger_id
        self._codec = codec_for(ledger.metadata)
        self._key = master_key(ledger.metadata.password)

    async def run(self) -> LedgerMetadata:
        """Recover and close the ledger; return its final metadata.

        Raises:
            RecoveryUndecidedError: too few bookies answered; try again later. The ledger stays
                IN_RECOVERY, and nothing was decided.
            UnauthorizedError: the password in the metadata is not the ledger's.
            NoSuchLedgerError: the ledger was deleted meanwhile.
            MetadataError: see `MetadataStore`.
        """
        self._ledger = await self._start()
        if self._ledger.metadata.state is LedgerState.CLOSED:
            return self._ledger.metadata
        snapshot = self._ledger.metadata  # M
        last_add_confirmed = max(
            await self._fence(snapshot), snapshot.last_fragment.first_entry_id - 1
        )
        length = await self._length_at(snapshot, last_add_confirmed)
        return await self._recover_tail(snapshot, last_add_confirmed, length)

    async def _start(self) -> VersionedLedger:
        async def begin(metadata: LedgerMetadata) -> LedgerMetadata | None:
            if metadata.state is not LedgerState.OPEN:
                return None
            return metadata.in_recovery()

        try:
            begun = await self._parts.manager.change(
                self._ledger_id,
                begin,
                tries_max=self._parts.settings.metadata_retries_max,
                known=self._ledger,
            )
        except (ContendedError, UnknownOutcomeError) as error:
            raise self._no_metadata() from error
        assert begun.after is not None, "a ledger without metadata raises"
        assert begun.version is not None, "it has a node"
        return VersionedLedger(begun.after, begun.version)

    def _no_metadata(self) -> RecoveryUndecidedError:
        return RecoveryUndecidedError(
            f"ledger {self._ledger_id}: its metadata could not be written in "
            f"{self._parts.settings.metadata_retries_max} tries; recover it again later"
        )

    # Fencing -------------------------------------------------------------------------------------

    async def _fence(self, snapshot: LedgerMetadata) -> int:
        """Fence the last fragment's ensemble; return the highest LAC among the answers."""
        ensemble = snapshot.last_fragment.bookies
        coverage = Coverage(
            ensemble_size=len(ensemble),
            write_quorum=snapshot.write_quorum,
            ack_quorum=snapshot.ack_quorum,
        )
        last_add_confirmed = -1
        failures: list[str] = []
        async with Arrivals([self._fence_one(bookie_id) for bookie_id in ensemble]) as arrivals:
            while not coverage.is_covered:
                arrival = await arrivals.next()
                if arrival is None:
                    raise RecoveryUndecidedError(
                        f"ledger {self._ledger_id}: only {len(coverage.confirmed)} of "
                        f"{len(ensemble)} bookies confirmed the fence; {'; '.join(failures)}"
                    )
                index, task = arrival
                try:
                    heard = task.result()
                except BookieUnavailableError as error:
                    failures.append(str(error))
                else:
                    coverage.confirm(index)
                    last_add_confirmed = max(last_add_confirmed, heard)
        return last_add_confirmed

    async def _fence_one(self, bookie_id: str) -> int:
        """Fence one bookie; return the LAC that it reports, -1 if none.

        Raises:
            BookieUnavailableError: the bookie did not confirm that the ledger is fenced.
            UnauthorizedError: the password does not match.
        """
        frame = await ask(
            self._parts.channels,
            bookie_id,
            Op.READ_LAC,
            self._key,
            ledger_id=self._ledger_id,
            flags=Flag.FENCE,
        )
        if frame.status == Status.UNAUTHORIZED:
            raise UnauthorizedError(
                f"ledger {self._ledger_id}, bookie {bookie_id}: the ledger's password does not fit"
            )
        if not frame.flags & Flag.FENCED:  # rule 7.2: never infer the fence from "a reply came"
            text = frame.body.decode("utf-8", "replace")
            raise BookieUnavailableError(
                f"bookie {bookie_id} did not fence: status {frame.status} {text}"
            )
        if frame.status != Status.OK:
            return -1
        return self._heard_lac(frame.body)

    def _heard_lac(self, body: bytes) -> int:
        """Return the LAC of a READ_LAC reply; a damaged packet still proves the fence (rule 7.3).

        It is the larger of the LAC in the last entry and the explicit LAC of the writer.
        """
        heard = -1
        packet, rest = _take(body)
        explicit, _ = _take(rest)
        try:
            if packet:
                heard = self._codec.open_some_packet(packet).last_add_confirmed
        except DigestMismatchError:
            pass  # proves nothing
        try:
            if explicit:
                heard = max(heard, self._codec.open_lac(explicit))
        except DigestMismatchError:
            pass  # proves nothing either
        return heard

    async def _length_at(self, snapshot: LedgerMetadata, entry_id: int) -> int:
        """Return the ledger's length up to a confirmed entry."""
        if entry_id < 0:
            return 0
        try:
            return await self._parts.fetcher.length_at(snapshot, entry_id)
        except LedgerError as error:
            raise RecoveryUndecidedError(
                f"ledger {self._ledger_id}: the last confirmed entry {entry_id} cannot be read "
                f"now: {error}"
            ) from error

    # The tail ------------------------------------------------------------------------------------

    async def _recover_tail(
        self, snapshot: LedgerMetadata, last_add_confirmed: int, length: int
    ) -> LedgerMetadata:
        """Read and write back the entries above the LAC, then close the ledger."""
        parts = self._parts
        write_back = WriteBack(
            snapshot, parts, codec=self._codec, key=self._key, last_add_confirmed=last_add_confirmed
        )
        reads = RecoveryReads(
            snapshot,
            parts.channels,
            codec=self._codec,
            key=self._key,
            bytes_max=parts.settings.recovery_read_bytes_max,
            window=parts.settings.recovery_window,
            first_entry_id=last_add_confirmed + 1,
            on_bad_replica=parts.fetcher.note_bad,
        )
        pending_bytes_max = parts.settings.channel_bytes_max // _WRITE_BACK_SHARE
        last_entry_id = last_add_confirmed
        try:
            while entries := await reads.next():
                if entries[0].entry_id != last_entry_id + 1:  # D28
                    raise InvariantError(
                        f"recovery of ledger {snapshot.ledger_id} read entry "
                        f"{entries[0].entry_id} where {last_entry_id + 1} is the next one"
                    )
                await write_back.wait_pending(pending_bytes_max)
                write_back.send(entries)
                last_entry_id, length = entries[-1].entry_id, entries[-1].length
            await write_back.wait_pending(0)
        finally:
            reads.stop()
            write_back.stop()
        return await self._close(snapshot, last_entry_id, length, write_back.fragments)

    async def _close(
        self, snapshot: LedgerMetadata, last_entry_id: int, length: int, tail: list[Fragment]
    ) -> LedgerMetadata:
        ledger = self._ledger
        for _ in range(self._parts.settings.metadata_retries_max):
            metadata = ledger.metadata
            if metadata.state is LedgerState.CLOSED:
                return metadata  # another recoverer was first, or our own reply was lost
            if metadata.last_fragment != snapshot.last_fragment:
                raise RecoveryUndecidedError(
                    f"ledger {self._ledger_id}: its last fragment changed during recovery"
                )
            try:
                closed = await self._parts.manager.write(
                    metadata.closed(last_entry_id=last_entry_id, length=length, tail=tail),
                    version=ledger.version,
                )
            except (BadVersionError, UnknownOutcomeError):
                ledger = await self._parts.manager.read(self._ledger_id)
            else:
                return closed.metadata
        raise self._no_metadata()


def _take(body: bytes) -> tuple[bytes, bytes]:
    """Split off a packet behind its length (u32); return it and the rest, empty if none."""
    if len(body) < 4:
        return b"", b""
    end = 4 + int.from_bytes(body[:4], "big")
    return body[4:end], body[end:]
