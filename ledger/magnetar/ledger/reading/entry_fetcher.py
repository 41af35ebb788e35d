"""Fetches entries from bookies; all handles of a client share it.

Every packet's digest and identity is checked here, end to end. A bad replica is counted and
reported for repair, and the next one is asked; its bytes are never returned (rule 9.2). An ordinary
read fails with NoSuchEntryError only if every member of the write set said so (rule 9.1).

After a failure, the next replica is asked at once. If a replica does not answer within the
speculative time, the next one is asked too, and the slow one may still win. The first good answer
counts. Later ones are counted and dropped.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from magnetar.ledger.channel import ChannelPool
from magnetar.ledger.digest import codec_for, length_in, read_key
from magnetar.ledger.errors import (
    BeyondLastConfirmedError,
    BookieUnavailableError,
    DigestMismatchError,
    InvalidLedgerMetadataError,
    LedgerError,
)
from magnetar.ledger.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.ledger.ports import Clock
from magnetar.ledger.quorum import write_set
from magnetar.ledger.reading.bookie_requests import read_reply_block
from magnetar.ledger.reading.read_errors import READ_ERRORS, is_negative, worst_error
from magnetar.ledger.reading.replica_order import (
    FailureMemory,
    ReplicaFacts,
    distance_to,
    replica_order,
    sticky_first,
)
from magnetar.ledger.registration import BookieRegistry
from magnetar.ledger.settings import LedgerSettings
from magnetar.ledger.wire import EntryBlock, Frame, Op, encode_block, encode_read_body

T = TypeVar("T")

_ORDERS_MAX = 1024

OnBadReplica = Callable[[int, int, int, str, str], None]
"""Called for a copy with a bad digest: ledger id, first and last entry id, bookie id, reason."""

OnReply = Callable[[Frame | BookieUnavailableError], None]


@dataclass(slots=True)
class ReadCounts:
    """Counters of a client's reads. They only grow."""

    speculative_reads: int = 0
    """Requests to a further replica because one was slow."""
    late_replies: int = 0
    """Replies that arrived after the read was done."""


class ReplicaRead(Generic[T]):
    """One read that asks replicas one after another until one has a good answer.

    Use once: `await run()`. There is no task and no lock: replies arrive as callbacks.
    """

    def __init__(
        self,
        bookies: Sequence[str],
        *,
        ledger_id: int,
        entry_id: int,
        send: Callable[[str, OnReply], None],
        judge: Callable[[str, Frame], T],
        on_failed: Callable[[str, LedgerError | None], None],
        counts: ReadCounts,
        speculative_s: float,
    ) -> None:
        """Prepare a read.

        Args:
            bookies: the bookies to ask, in this order.
            send: sends the request to a bookie.
            judge: turns a reply into the result, or raises one of `READ_ERRORS`.
            on_failed: called when a bookie failed, or was slow (None).
            speculative_s: time before the next bookie is asked too; 0: never.
        """
        self._bookies = bookies
        self._ledger_id = ledger_id
        self._entry_id = entry_id
        self._send = send
        self._judge = judge
        self._on_failed = on_failed
        self._counts = counts
        self._speculative_s = speculative_s
        self._asked = 0
        self._outstanding = 0
        self._errors: list[LedgerError] = []
        self._future: asyncio.Future[tuple[str, T]] = asyncio.get_running_loop().create_future()
        self._timer: asyncio.TimerHandle | None = None

    async def run(self) -> tuple[str, T]:
        """Return the bookie with the first good answer, and the answer.

        Raises:
            NoSuchEntryError: every replica is certain not to have it.
            BookieUnavailableError, DigestMismatchError, BookieProtocolError: see `worst_error`.
        """
        self._ask_next()
        try:
            return await self._future
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _ask_next(self) -> None:
        bookie_id = self._bookies[self._asked]
        self._asked += 1
        self._outstanding += 1

        def on_reply(reply: Frame | BookieUnavailableError) -> None:
            self._on_reply(bookie_id, reply)

        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._speculative_s and self._asked < len(self._bookies):
            self._timer = asyncio.get_running_loop().call_later(
                self._speculative_s, self._on_slow, bookie_id
            )
        self._send(bookie_id, on_reply)

    def _on_slow(self, bookie_id: str) -> None:
        self._timer = None
        if self._future.done():
            return
        self._counts.speculative_reads += 1
        self._on_failed(bookie_id, None)
        self._ask_next()

    def _on_reply(self, bookie_id: str, reply: Frame | BookieUnavailableError) -> None:
        self._outstanding -= 1
        if self._future.done():
            self._counts.late_replies += 1
            return
        try:
            if isinstance(reply, BookieUnavailableError):
                raise reply
            result = self._judge(bookie_id, reply)
        except READ_ERRORS as error:
            self._errors.append(error)
            self._on_failed(bookie_id, error)
            if self._asked < len(self._bookies):
                self._ask_next()
            elif self._outstanding == 0:
                self._future.set_exception(
                    worst_error(self._errors, self._ledger_id, self._entry_id)
                )
        except Exception as error:  # noqa: BLE001  # a bug: for the caller, who would wait for ever
            self._future.set_exception(error)
        else:
            self._future.set_result((bookie_id, result))


class StickyMember:
    """The member of the ensemble that a handle reads from while it can (only if E = Qw)."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class Packets(NamedTuple):
    """Entries with verified digests, as a bookie sent them."""

    block: EntryBlock
    payloads: list[bytes]


class EntryFetcher:
    """Reads entries from any good replica."""

    def __init__(
        self,
        channels: ChannelPool,
        *,
        registry: BookieRegistry,
        clock: Clock,
        settings: LedgerSettings,
        on_bad_replica: OnBadReplica,
    ) -> None:
        self._channels = channels
        self._registry = registry
        self._clock = clock
        self._settings = settings
        self._on_bad_replica = on_bad_replica
        self._failures = FailureMemory(settings.bookie_failure_memory_s)
        self._orders: dict[tuple[str, ...], list[str]] = {}
        """Orders computed while no bookie had failed; cleared when the registrations change."""
        registry.on_change(self._orders.clear)
        self.counts = ReadCounts()
        self.digest_mismatches: Counter[str] = Counter()
        """Number of bad replicas seen, per bookie (`READ_ENTRY_DM`)."""

    async def fetch(
        self,
        metadata: LedgerMetadata,
        first: int,
        last: int,
        *,
        last_add_confirmed: int,
        bytes_max: int,
        sticky: StickyMember | None = None,
    ) -> list[bytes]:
        """Fetch payloads from entry `first` on, in order: at least one, at most up to `last`.

        Args:
            sticky: the member to ask first; set to another member if that one serves the read.

        Raises:
            BeyondLastConfirmedError: `last` is above `last_add_confirmed`; nothing was sent.
            NoSuchEntryError, BookieUnavailableError, DigestMismatchError: no replica could serve
                entry `first`.
            InvalidLedgerMetadataError: the last entry of the closed ledger was read, and its packet
                has another length of the ledger than the metadata. One of the two is not what was
                written, so the end may be wrong. None of the entries is returned.
        """
        fetched = await self._fetch(
            metadata, first, last, last_add_confirmed, bytes_max=bytes_max, sticky=sticky
        )
        return fetched.payloads

    async def fetch_packets(
        self, metadata: LedgerMetadata, first: int, last: int, *, bytes_max: int
    ) -> Packets:
        """Fetch packets of a closed ledger from entry `first` on, as a bookie stores them, in
        order: at least one, at most up to `last`.

        Raises:
            LedgerError: see `fetch`.
        """
        return await self._fetch(
            metadata, first, last, metadata.last_entry_id, bytes_max=bytes_max, sticky=None
        )

    async def _fetch(
        self,
        metadata: LedgerMetadata,
        first: int,
        last: int,
        last_add_confirmed: int,
        *,
        bytes_max: int,
        sticky: StickyMember | None,
    ) -> Packets:
        if not 0 <= first <= last:
            raise ValueError(f"entries {first} to {last} are no range")
        if last > last_add_confirmed:
            raise BeyondLastConfirmedError(
                f"ledger {metadata.ledger_id}: entry {last} is above the last add confirmed "
                f"{last_add_confirmed}; it can be read when it is confirmed"
            )
        # The entries of a fragment are on its ensemble; the next call continues in the next
        # fragment.
        last = min(last, metadata.fragment_end(first))
        codec = codec_for(metadata)
        body = encode_read_body(
            last_entry_id=last,
            bytes_max=min(bytes_max, self._settings.read_frame_bytes_max),
            master_key=read_key(metadata.password),
        )

        end = metadata.last_entry_id if metadata.state is LedgerState.CLOSED else None
        length_at_end: int | None = None

        def judge(bookie_id: str, frame: Frame) -> Packets:
            nonlocal length_at_end
            block = read_reply_block(frame, bookie_id)
            payloads, error = codec.open_payloads(block, first, last - first + 1)
            if error is None and first + len(payloads) - 1 == end:
                length_at_end = length_in(block, len(payloads) - 1)
            if error is None:
                self._failures.note_success(bookie_id)
            else:
                self.note_bad(metadata.ledger_id, first + len(payloads), bookie_id, error)
                if not payloads:
                    raise DigestMismatchError(f"bookie {bookie_id}: {error}") from error
            if len(payloads) < len(block.lengths):
                block = encode_block(block.packets()[: len(payloads)])
            return Packets(block, payloads)

        bookies = self._replicas(metadata, first, sticky)
        read = self._read(metadata.ledger_id, first, bookies, body, judge)
        bookie_id, fetched = await read.run()
        if length_at_end is not None and length_at_end != metadata.length:
            raise InvalidLedgerMetadataError(
                f"ledger {metadata.ledger_id} is closed at entry {end} with {metadata.length} "
                f"bytes, and that entry says {length_at_end} bytes: the metadata is not what was "
                f"written. Bring it back from a backup of the metadata store"
            )
        if sticky is not None and bookie_id != bookies[0]:
            sticky.index = metadata.ensemble_for(first).index(bookie_id)
        return fetched

    async def length_at(self, metadata: LedgerMetadata, entry_id: int) -> int:
        """Return the ledger's payload bytes up to and including a confirmed entry, from its packet.

        Raises:
            LedgerError: see `fetch`.
        """
        codec = codec_for(metadata)
        body = encode_read_body(
            last_entry_id=entry_id, bytes_max=1, master_key=read_key(metadata.password)
        )

        def judge(bookie_id: str, frame: Frame) -> int:
            packet = read_reply_block(frame, bookie_id).packets()[0]
            try:
                return codec.open_packet(packet, entry_id).length
            except DigestMismatchError as error:
                self.note_bad(metadata.ledger_id, entry_id, bookie_id, error)
                raise

        bookies = self._replicas(metadata, entry_id, None)
        return (await self._read(metadata.ledger_id, entry_id, bookies, body, judge).run())[1]

    def sticky_member(self, metadata: LedgerMetadata, index: int) -> StickyMember | None:
        """Return the sticky member of a new handle; None if entries have different write sets."""
        is_possible = metadata.ensemble_size == metadata.write_quorum
        return StickyMember(index) if is_possible and self._settings.sticky_reads else None

    def facts_of(self, bookie_id: str) -> ReplicaFacts:
        """Return the facts that decide a bookie's place in the order of replicas."""
        info = self._registry.resolve(bookie_id)
        has_failed = self._failures.has_failed(bookie_id, self._clock.monotonic_s())
        if info is None:
            return ReplicaFacts(is_registered=False, has_failed=has_failed)
        settings = self._settings
        distance = distance_to(info, rack=settings.client_rack, zone=settings.client_zone)
        return ReplicaFacts(True, info.readonly, has_failed, distance)

    def _replicas(
        self, metadata: LedgerMetadata, entry_id: int, sticky: StickyMember | None
    ) -> Sequence[str]:
        ensemble = metadata.ensemble_for(entry_id)
        members = write_set(
            entry_id, ensemble_size=len(ensemble), write_quorum=metadata.write_quorum
        )
        if metadata.ensemble_size == metadata.write_quorum and self._settings.sticky_reads:
            # Reads without a handle also use a sticky member: one per ledger.
            index = metadata.ledger_id % len(ensemble) if sticky is None else sticky.index
            members = tuple(sticky_first(members, index))
        bookies = tuple(ensemble[index] for index in members)
        if not self._settings.reorder_reads:
            return bookies
        if not self._failures.is_empty:
            return replica_order(bookies, self.facts_of)
        order = self._orders.get(bookies)
        if order is None:
            if len(self._orders) >= _ORDERS_MAX:
                self._orders.clear()
            order = self._orders[bookies] = replica_order(bookies, self.facts_of)
        return order

    def _read(
        self,
        ledger_id: int,
        entry_id: int,
        bookies: Sequence[str],
        body: bytes,
        judge: Callable[[str, Frame], T],
    ) -> ReplicaRead[T]:
        def send(bookie_id: str, on_reply: OnReply) -> None:
            self._channels.get(bookie_id).send(
                Op.READ, (body,), on_reply, ledger_id=ledger_id, entry_id=entry_id
            )

        return ReplicaRead(
            bookies,
            ledger_id=ledger_id,
            entry_id=entry_id,
            send=send,
            judge=judge,
            on_failed=self._on_failed,
            counts=self.counts,
            speculative_s=self._settings.speculative_read_ms / 1000,
        )

    def _on_failed(self, bookie_id: str, error: LedgerError | None) -> None:
        # A bookie that lacks an entry that it never got works as it should.
        if error is None or not is_negative(error):
            self._failures.note_failure(bookie_id, self._clock.monotonic_s())

    def note_bad(
        self, ledger_id: int, entry_id: int, bookie_id: str, error: DigestMismatchError
    ) -> None:
        """Count a replica that failed its digest, and report it for repair (rule 9.2)."""
        self.digest_mismatches[bookie_id] += 1
        self._failures.note_failure(bookie_id, self._clock.monotonic_s())
        self._on_bad_replica(ledger_id, entry_id, entry_id, bookie_id, str(error))
