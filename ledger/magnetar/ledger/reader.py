"""Reading ledgers: ranges of entries, bounded by what is confirmed, from any good replica.

`EntryFetcher` asks the members of an entry's write set one after another: the last to answer comes
first (its read-ahead is warm), those that failed lately come last. Every packet's digest and
identity is checked here, end to end. A bad replica is counted and the next one asked; its bytes are
never returned. An ordinary read fails with NoSuchEntryError only when every member said so; one
unknown among them and the unknown is what the caller sees (rule 9.1).
"""

import asyncio
from collections import Counter
from collections.abc import Sequence

from magnetar.ledger.channel import ChannelPool
from magnetar.ledger.digest import codec_for
from magnetar.ledger.errors import (
    BeyondLastConfirmedError,
    BookieError,
    BookieProtocolError,
    BookieUnavailableError,
    DigestMismatchError,
    LedgerError,
    NoSuchEntryError,
    NoSuchLedgerOnBookieError,
)
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.ports import Clock
from magnetar.ledger.quorum import write_set
from magnetar.ledger.settings import LedgerSettings
from magnetar.ledger.wire import EntryBlock, Frame, Op, Status, decode_block, encode_read_body

_LAC_BYTES = 8


class EntryFetcher:
    """Fetches entries from bookies; shared by all handles of a client."""

    def __init__(self, channels: ChannelPool, *, clock: Clock, settings: LedgerSettings) -> None:
        self._channels = channels
        self._clock = clock
        self._settings = settings
        self._failed_at_s: dict[str, float] = {}
        self._preferred: str | None = None
        self.digest_mismatches: Counter[str] = Counter()
        """Bad replicas seen, per bookie (`READ_ENTRY_DM`)."""

    async def fetch(
        self,
        metadata: LedgerMetadata,
        first: int,
        last: int,
        *,
        last_add_confirmed: int,
        bytes_max: int,
    ) -> list[bytes]:
        """Payloads of entries `first`.. in order, at least one, at most up to `last`.

        Raises:
            BeyondLastConfirmedError: `last` is above the bound; nothing was sent.
            NoSuchEntryError, BookieUnavailableError, DigestMismatchError: no replica could serve
                entry `first`.
        """
        if not 0 <= first <= last:
            raise ValueError(f"entries {first} to {last} are no range")
        if last > last_add_confirmed:
            raise BeyondLastConfirmedError(
                f"ledger {metadata.ledger_id}: entry {last} is above the last add confirmed "
                f"{last_add_confirmed}"
            )
        # A fragment's entries lie on its ensemble; the next call continues in the next fragment.
        last = min(last, metadata.fragment_end(first))
        errors: list[LedgerError] = []
        for bookie_id in self._replicas(metadata, first):
            try:
                payloads = await self._read_from(bookie_id, metadata, first, last, bytes_max)
            except (BookieError, DigestMismatchError, BookieProtocolError) as error:
                errors.append(error)
                if not isinstance(error, NoSuchEntryError | NoSuchLedgerOnBookieError):
                    self._failed_at_s[bookie_id] = self._clock.monotonic_s()
                continue
            self._failed_at_s.pop(bookie_id, None)
            self._preferred = bookie_id
            return payloads
        raise _worst(errors, metadata.ledger_id, first)

    async def length_at(self, metadata: LedgerMetadata, entry_id: int) -> int:
        """The ledger's payload bytes up to and including a confirmed entry, from its packet.

        Raises:
            As `fetch`.
        """
        errors: list[LedgerError] = []
        for bookie_id in self._replicas(metadata, entry_id):
            try:
                block = await self._ask(bookie_id, metadata, entry_id, entry_id, 1)
                entry = codec_for(metadata).open_packet(block.packets()[0], entry_id)
            except (BookieError, DigestMismatchError, BookieProtocolError) as error:
                errors.append(error)
            else:
                return entry.length
        raise _worst(errors, metadata.ledger_id, entry_id)

    def _replicas(self, metadata: LedgerMetadata, entry_id: int) -> list[str]:
        ensemble = metadata.ensemble_for(entry_id)
        members = write_set(
            entry_id, ensemble_size=len(ensemble), write_quorum=metadata.write_quorum
        )
        memory_s = self._settings.bookie_failure_memory_s
        now_s = self._clock.monotonic_s()

        def rank(bookie_id: str) -> int:
            failed_at_s = self._failed_at_s.get(bookie_id)
            if failed_at_s is not None and now_s - failed_at_s < memory_s:
                return 2
            return 0 if bookie_id == self._preferred else 1

        return sorted((ensemble[index] for index in members), key=rank)  # stable

    async def _read_from(
        self, bookie_id: str, metadata: LedgerMetadata, first: int, last: int, bytes_max: int
    ) -> list[bytes]:
        block = await self._ask(bookie_id, metadata, first, last, bytes_max)
        payloads, error = codec_for(metadata).open_payloads(block, first, last - first + 1)
        if error is not None:
            self.digest_mismatches[bookie_id] += 1
            if not payloads:
                raise DigestMismatchError(f"bookie {bookie_id}: {error}") from error
        return payloads

    async def _ask(
        self, bookie_id: str, metadata: LedgerMetadata, first: int, last: int, bytes_max: int
    ) -> EntryBlock:
        frame = await ask(
            self._channels,
            bookie_id,
            Op.READ,
            encode_read_body(
                last_entry_id=last,
                bytes_max=min(bytes_max, self._settings.read_frame_bytes_max),
            ),
            ledger_id=metadata.ledger_id,
            entry_id=first,
        )
        return read_reply_block(frame, bookie_id)


class LedgerReader:
    """A handle for reading one ledger."""

    def __init__(
        self, metadata: LedgerMetadata, last_add_confirmed: int, fetcher: EntryFetcher
    ) -> None:
        self._metadata = metadata
        self._last_add_confirmed = last_add_confirmed
        self._fetcher = fetcher

    @property
    def metadata(self) -> LedgerMetadata:
        return self._metadata

    @property
    def last_add_confirmed(self) -> int:
        """Highest readable entry id: the last entry of a closed ledger, -1 if there is none."""
        return self._last_add_confirmed

    async def read(self, first: int, last: int, *, bytes_max: int = 1 << 20) -> list[bytes]:
        """Payloads of entries `first`.. in order: at least one, at most up to `last`, about
        `bytes_max` bytes. Call again for the rest.

        Raises:
            BeyondLastConfirmedError: `last` is above `last_add_confirmed`.
            NoSuchEntryError: every replica is certain not to have entry `first`.
            BookieUnavailableError, DigestMismatchError: no replica could serve it just now.
        """
        return await self._fetcher.fetch(
            self._metadata,
            first,
            last,
            last_add_confirmed=self._last_add_confirmed,
            bytes_max=bytes_max,
        )


async def ask(
    channels: ChannelPool,
    bookie_id: str,
    op: int,
    body: bytes,
    *,
    ledger_id: int,
    entry_id: int = -1,
    flags: int = 0,
) -> Frame:
    """One request, awaited. For reads and control requests; adds never come this way.

    Raises:
        BookieUnavailableError: no reply.
    """
    future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()

    def on_reply(reply: Frame | BookieUnavailableError) -> None:
        if future.done():
            return
        if isinstance(reply, BookieUnavailableError):
            future.set_exception(reply)
        else:
            future.set_result(reply)

    channels.get(bookie_id).send(
        op, (body,), on_reply, ledger_id=ledger_id, entry_id=entry_id, flags=flags
    )
    return await future


def read_reply_block(frame: Frame, bookie_id: str) -> EntryBlock:
    """The entries of a READ reply.

    Raises:
        NoSuchEntryError, NoSuchLedgerOnBookieError: explicit negatives.
        BookieUnavailableError: anything else that is not OK (unknown).
        BookieProtocolError: the body is malformed.
    """
    if frame.status == Status.OK:
        return decode_block(frame.body[_LAC_BYTES:])
    where = f"bookie {bookie_id}: ledger {frame.ledger_id}, entry {frame.entry_id}"
    if frame.status == Status.NO_SUCH_ENTRY:
        raise NoSuchEntryError(f"{where}: no such entry")
    if frame.status == Status.NO_SUCH_LEDGER:
        raise NoSuchLedgerOnBookieError(f"{where}: no such ledger")
    text = frame.body.decode("utf-8", "replace")
    raise BookieUnavailableError(f"{where}: status {frame.status} {text}")


def _worst(errors: Sequence[LedgerError], ledger_id: int, entry_id: int) -> LedgerError:
    """Rule 9.1: real trouble before unavailability before absence."""
    for kind in (DigestMismatchError, BookieProtocolError, BookieUnavailableError):
        for error in errors:
            if isinstance(error, kind):
                return error
    return NoSuchEntryError(
        f"ledger {ledger_id}, entry {entry_id}: every replica says that it does not exist"
    )
