"""The ledger reader: reads ranges of confirmed entries, and follows a ledger that is being written.

A closed ledger is readable to its end. A ledger that is open or in recovery is readable up to the
last add confirmed (LAC) that was proven to this handle (`read_bound.py`). There are three proofs:
answers from all members of the last ensemble (`lac_reads.py`), long polls (`lac_poller.py`), and
the metadata, which shows closes and new fragments (`metadata_follower.py`). The LAC in a READ reply
proves nothing: no digest protects it (`bookie_requests.py`).
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random
from typing import TypeVar

from magnetar.ledger.client_parts import ClientParts
from magnetar.ledger.digest import codec_for
from magnetar.ledger.errors import (
    InvalidLedgerMetadataError,
    LedgerClosedError,
    LedgerError,
    NoSuchLedgerError,
)
from magnetar.ledger.ledger_manager import VersionedLedger
from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.reading.entry_fetcher import Packets
from magnetar.ledger.reading.lac_poller import LacPoller
from magnetar.ledger.reading.lac_reads import LacRead
from magnetar.ledger.reading.metadata_follower import MetadataFollower
from magnetar.ledger.reading.read_bound import ReadBound
from magnetar.ledger.reading.read_errors import READ_ERRORS
from magnetar.ledger.reading.replica_order import replica_order

T = TypeVar("T")

READ_BYTES = 1 << 20
"""Approximate bytes of one read, unless the caller sets another limit."""


class LedgerReader:
    """A handle for reading one ledger.

    A handle that followed its ledger (`read_last_add_confirmed`, `wait_beyond`, `follow`, `watch`)
    watches its metadata and must be closed. A handle that only reads need not be closed.
    """

    def __init__(self, ledger: VersionedLedger, parts: ClientParts, *, rng: Random) -> None:
        metadata = ledger.metadata
        self._parts = parts
        self._codec = codec_for(metadata)
        self._bound = ReadBound(metadata)
        self._follower = MetadataFollower(
            ledger,
            parts.manager,
            retry_delay_s=parts.settings.metadata_retry_delay_s,
            on_change=self._on_metadata,
            on_deleted=self._on_deleted,
            on_invalid=self._fail,
        )
        self._sticky = parts.fetcher.sticky_member(metadata, rng.randrange(metadata.ensemble_size))
        self._poller: LacPoller | None = None
        self._tail_first = 0
        self._tail: list[bytes] = []
        """Entries that arrived with a long poll, from `_tail_first` on; served once."""
        self._end: LedgerError | None = None
        """The error that ended following; None while the handle can follow."""

    @property
    def metadata(self) -> LedgerMetadata:
        """The latest metadata that this handle knows."""
        return self._follower.current

    @property
    def ledger_id(self) -> int:
        return self.metadata.ledger_id

    @property
    def last_add_confirmed(self) -> int:
        """Highest readable entry id; -1 if there is none. For a closed ledger, its last entry. The
        value never decreases."""
        return self._bound.last_entry_id

    @property
    def is_ledger_closed(self) -> bool:
        """Whether this handle knows that the ledger has ended: `last_add_confirmed` is its end."""
        return self._bound.is_final

    # Reading

    async def read(self, first: int, last: int, *, bytes_max: int = READ_BYTES) -> list[bytes]:
        """Read payloads from entry `first` on, in order: at least one, at most up to `last`, and
        about `bytes_max` bytes. Call again for the rest.

        Raises:
            BeyondLastConfirmedError: `last` is above `last_add_confirmed`; nothing was sent.
            NoSuchEntryError: every replica is certain not to have entry `first`.
            BookieUnavailableError, DigestMismatchError: no replica could serve it just now.
            NoSuchLedgerError: no replica could serve it, and the ledger was deleted.
        """
        self._bound.check(last)
        if self._tail and self._tail_first == first:
            tail = self._take_tail(last, bytes_max)
            if tail:
                return tail
        return await self._where_they_lie(
            lambda metadata: self._parts.fetcher.fetch(
                metadata,
                first,
                last,
                last_add_confirmed=self._bound.last_entry_id,
                bytes_max=bytes_max,
                sticky=self._sticky,
            )
        )

    async def read_unconfirmed(self, entry_id: int) -> bytes:
        """Read the payload of one entry that a bookie has, confirmed or not. A recovery of the
        ledger may drop an unconfirmed entry.

        Raises:
            NoSuchEntryError: every replica is certain not to have it.
            BookieUnavailableError, DigestMismatchError, NoSuchLedgerError: see `read`.
        """
        payloads = await self._where_they_lie(
            lambda metadata: self._parts.fetcher.fetch(
                metadata, entry_id, entry_id, last_add_confirmed=entry_id, bytes_max=READ_BYTES
            )
        )
        return payloads[0]

    async def length_at(self, entry_id: int) -> int:
        """Return the payload bytes of the ledger up to and including an entry.

        Raises:
            LedgerError: see `read`.
        """
        return await self._where_they_lie(
            lambda metadata: self._parts.fetcher.length_at(metadata, entry_id)
        )

    async def read_packets(self, first: int, last: int, *, bytes_max: int = READ_BYTES) -> Packets:
        """Read packets of a closed ledger from entry `first` on, as the bookies store them, with
        verified digests: at least one, at most up to `last`, and about `bytes_max` bytes.

        Raises:
            LedgerError: see `read`.
        """
        return await self._where_they_lie(
            lambda metadata: self._parts.fetcher.fetch_packets(
                metadata, first, last, bytes_max=bytes_max
            )
        )

    async def _where_they_lie(self, fetch: Callable[[LedgerMetadata], Awaitable[T]]) -> T:
        while True:
            metadata = self.metadata
            try:
                return await fetch(metadata)
            except READ_ERRORS as error:
                if not await self._has_moved(metadata, error):
                    raise

    async def _has_moved(self, metadata: LedgerMetadata, error: LedgerError) -> bool:
        """Return whether other bookies hold the entries now, after a failed read (rule 2.6, D23).

        Raises:
            NoSuchLedgerError: the ledger was deleted.
        """
        try:
            await self._follower.look()
        except NoSuchLedgerError as deleted:
            raise deleted from error
        except LedgerError:
            return False  # not known: report the failed read to the caller
        return self.metadata.ensembles != metadata.ensembles

    def _take_tail(self, last: int, bytes_max: int) -> list[bytes]:
        tail, self._tail = self._tail, []
        taken: list[bytes] = []
        left = bytes_max
        for payload in tail[: last - self._tail_first + 1]:
            if taken and len(payload) > left:
                break
            taken.append(payload)
            left -= len(payload)
        return taken

    # Following

    def watch(self) -> None:
        """Watch the metadata from now on: the end of the ledger, new fragments and moved replicas
        are noticed without a failed read. The handle must then be closed."""
        self._check_follows()
        self._follower.watch()

    async def read_last_add_confirmed(self) -> int:
        """Ask all members of the last ensemble, and return the highest readable entry id.

        Raises:
            BookieUnavailableError: too few members answered to tell (rule 9.5).
            NoSuchLedgerError: the ledger was deleted.
            LedgerClosedError: this handle is closed.
        """
        return await self._read_lac(None)

    async def try_read_last_add_confirmed(self) -> int:
        """Ask for the last add confirmed; return at the first higher one. A later one may exist.

        Raises:
            LedgerError: see `read_last_add_confirmed`; only if no answer brings a higher one.
        """
        return await self._read_lac(self._bound.last_entry_id)

    async def _read_lac(self, enough_above: int | None) -> int:
        self.watch()
        if not self._bound.is_final:
            read = LacRead(
                self._parts.channels, self.metadata, self._codec, enough_above=enough_above
            )
            self._learn(await read.run())
        return self._bound.last_entry_id

    async def wait_beyond(self, entry_id: int, *, timeout_s: float) -> int:
        """Wait until an entry above `entry_id` is confirmed, the ledger is closed, or the time is
        up; return `last_add_confirmed`.

        Raises:
            BookieUnavailableError: the time is up, and fewer than E - Qa + 1 members of the last
                ensemble say that there is nothing new.
            NoSuchLedgerError: the ledger was deleted.
            LedgerClosedError: this handle is closed.
        """
        self.watch()
        if self._poller is None:
            self._poller = LacPoller(
                self.metadata,
                self._codec,
                self._bound,
                channels=self._parts.channels,
                clock=self._parts.clock,
                settings=self._parts.settings,
                order=lambda bookies: replica_order(bookies, self._parts.fetcher.facts_of),
                on_entries=self._on_entries,
            )
        await self._poller.wait_beyond(entry_id, timeout_s)
        return self._bound.last_entry_id

    async def follow(
        self, from_entry_id: int = 0, *, bytes_max: int = READ_BYTES
    ) -> AsyncIterator[list[bytes]]:
        """Yield batches of payloads from an entry on, in order, each as soon as it is readable. The
        iteration ends when the ledger is closed and all its entries were yielded.

        Raises:
            BookieUnavailableError, DigestMismatchError, MetadataError: a temporary failure; follow
                again from the entry behind the last one that was yielded.
            NoSuchLedgerError, NoSuchEntryError, LedgerClosedError
        """
        next_id = from_entry_id
        while True:
            if next_id <= self._bound.last_entry_id:
                payloads = await self.read(next_id, self._bound.last_entry_id, bytes_max=bytes_max)
                next_id += len(payloads)
                yield payloads
            elif self._bound.is_final:
                return
            else:
                await self.wait_beyond(next_id - 1, timeout_s=self._parts.settings.follow_wait_s)

    async def close(self) -> None:
        """Stop following; waiting calls fail with `LedgerClosedError`. Closing twice is fine."""
        self._follower.close()
        self._fail(LedgerClosedError(f"the reader of ledger {self.ledger_id} is closed"))

    # Incoming replies and events

    def _check_follows(self) -> None:
        if self._end is not None:
            raise self._end

    def _learn(self, last_add_confirmed: int) -> None:
        if self._bound.learn(last_add_confirmed) and self._poller is not None:
            self._poller.on_bound_moved()

    def _on_metadata(self, metadata: LedgerMetadata) -> None:
        try:
            self._bound.adopt(metadata)
        except InvalidLedgerMetadataError as error:
            self._fail(error)
            raise
        if self._poller is not None:
            self._poller.use_ensemble(metadata.last_fragment.bookies)
            self._poller.on_bound_moved()

    def _on_deleted(self, error: NoSuchLedgerError) -> None:
        self._fail(error)

    def _fail(self, error: LedgerError) -> None:
        if self._end is None:
            self._end = error
        if self._poller is not None:
            self._poller.fail(self._end)

    def _on_entries(self, first: int, payloads: list[bytes]) -> None:
        self._tail_first, self._tail = first, payloads
