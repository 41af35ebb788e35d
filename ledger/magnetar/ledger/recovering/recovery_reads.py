"""Recovery reads: the entries above the LAC, one after the other, with a verdict for each.

Each entry is requested from its whole write set in the ensemble of the snapshot M, never from
bookies that the recovery itself added (D4). Every request has the fence flag (D1), so a negative is
final.

    one good copy                        recoverable, even if others deny it
    Qw - Qa + 1 explicit negatives       the ledger ends before it; hanging bookies do not count
    neither, and all have answered       undecided: the recovery aborts, and nothing is guessed

A reply holds consecutive entries as far as the bookie has them, so a verdict usually covers many.
In a striped ledger a bookie's run is at most Qw long, so several reads are in progress at once.
Verdicts are consumed strictly in id order. The first end discards all later entries, present or not
(rule 8.1). Source: ledger protocol, section 8.1, step 5.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from magnetar.ledger.arrivals import Arrivals
from magnetar.ledger.channel import ChannelPool
from magnetar.ledger.digest import OpenedEntry, PacketCodec
from magnetar.ledger.errors import (
    BookieProtocolError,
    BookieUnavailableError,
    DigestMismatchError,
    NoSuchEntryError,
    NoSuchLedgerOnBookieError,
    RecoveryUndecidedError,
    UnauthorizedError,
)
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.quorum import is_in_write_set, write_set
from magnetar.ledger.reading.bookie_requests import ask, read_reply_block
from magnetar.ledger.wire import Flag, Op, Status, encode_read_body

_ENTRY_ID_MAX = (1 << 63) - 1


class RecoveryReads:
    """The tail of one ledger, from `first_entry_id` on."""

    def __init__(
        self,
        snapshot: LedgerMetadata,
        channels: ChannelPool,
        *,
        codec: PacketCodec,
        key: bytes,
        bytes_max: int,
        window: int,
        first_entry_id: int,
        on_bad_replica: Callable[[int, int, str, DigestMismatchError], None],
    ) -> None:
        self._ledger_id = snapshot.ledger_id
        self._ensemble = snapshot.last_fragment.bookies
        self._write_quorum = snapshot.write_quorum
        self._negatives_needed = snapshot.write_quorum - snapshot.ack_quorum + 1
        self._channels = channels
        self._codec = codec
        self._key = key
        self._on_bad_replica = on_bad_replica
        self._bytes_max = bytes_max
        is_striped = self._write_quorum < len(self._ensemble)
        self._window = window if is_striped else 1
        self._stride = self._write_quorum
        self._next_entry_id = first_entry_id
        self._ahead: deque[tuple[int, asyncio.Task[list[OpenedEntry]]]] = deque()
        """Reads in progress, by their first entry id, in order."""

    async def next(self) -> list[OpenedEntry]:
        """Return the next recoverable entries, at least one; none if the ledger ends there.

        Raises:
            RecoveryUndecidedError: neither a good copy nor enough negatives.
            UnauthorizedError: the ledger's password does not match.
        """
        entries = await self._take()
        if entries:
            self._next_entry_id = entries[-1].entry_id + 1
        return entries

    async def _take(self) -> list[OpenedEntry]:
        wanted = self._next_entry_id
        while self._ahead and self._ahead[0][0] < wanted:
            _drop(self._ahead.popleft()[1])
        if not self._ahead or self._ahead[0][0] > wanted:
            # At the start, or behind a run that was shorter than usual.
            self._ahead.appendleft((wanted, self._start(wanted)))
        while len(self._ahead) < self._window:
            first = self._ahead[-1][0] + self._stride
            self._ahead.append((first, self._start(first)))
        _, task = self._ahead.popleft()
        return await task

    def _start(self, entry_id: int) -> asyncio.Task[list[OpenedEntry]]:
        return asyncio.ensure_future(self._read(entry_id))

    def stop(self) -> None:
        """Cancel the reads in progress: the end of the ledger is decided."""
        for _, task in self._ahead:
            _drop(task)
        self._ahead.clear()

    async def _read(self, entry_id: int) -> list[OpenedEntry]:
        """Return the verdict on one entry, with the entries that follow it in the reply."""
        members = write_set(
            entry_id, ensemble_size=len(self._ensemble), write_quorum=self._write_quorum
        )
        negatives = 0
        unknowns: list[str] = []
        async with Arrivals([self._read_one(index, entry_id) for index in members]) as arrivals:
            while negatives < self._negatives_needed:
                arrival = await arrivals.next()
                if arrival is None:
                    raise RecoveryUndecidedError(
                        f"ledger {self._ledger_id}: entry {entry_id} is undecided: {negatives} of "
                        f"{len(members)} bookies do not have it, {self._negatives_needed} are "
                        f"needed; {'; '.join(unknowns)}"
                    )
                try:
                    return arrival[1].result()
                except (NoSuchEntryError, NoSuchLedgerOnBookieError):
                    negatives += 1
                except (BookieUnavailableError, BookieProtocolError, DigestMismatchError) as error:
                    unknowns.append(str(error))
        return []

    async def _read_one(self, index: int, entry_id: int) -> list[OpenedEntry]:
        """Return the entries from `entry_id` on that the member holds, at least that one."""
        bookie_id = self._ensemble[index]
        frame = await ask(
            self._channels,
            bookie_id,
            Op.READ,
            encode_read_body(
                last_entry_id=_ENTRY_ID_MAX, bytes_max=self._bytes_max, master_key=self._key
            ),
            ledger_id=self._ledger_id,
            entry_id=entry_id,
            flags=Flag.FENCE,
        )
        if frame.status == Status.UNAUTHORIZED:
            raise UnauthorizedError(
                f"ledger {self._ledger_id}, bookie {bookie_id}: the ledger's password does not fit"
            )
        if not frame.flags & Flag.FENCED:
            # A negative without a durable fence is not stable (rule 8.5).
            raise BookieUnavailableError(
                f"bookie {bookie_id} answered entry {entry_id} without being fenced"
            )
        block = read_reply_block(frame, bookie_id)
        entries: list[OpenedEntry] = []
        for packet in block.packets():
            expected = entry_id + len(entries)
            if not is_in_write_set(
                index,
                expected,
                ensemble_size=len(self._ensemble),
                write_quorum=self._write_quorum,
            ):
                break
            try:
                entries.append(self._codec.open_packet(packet, expected))
            except DigestMismatchError as error:
                self._on_bad_replica(self._ledger_id, expected, bookie_id, error)
                if not entries:
                    raise
                break
        return entries


def _drop(task: asyncio.Task[list[OpenedEntry]]) -> None:
    if not task.cancel() and not task.cancelled():
        task.exception()  # mark it as retrieved: the result is not needed
