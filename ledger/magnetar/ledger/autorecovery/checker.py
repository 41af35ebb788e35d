"""Asks the bookies which copies of a ledger they have.

Each registered member of a span returns the list of its entries, which costs no read of data
(BP-34); the list is compared with the round-robin schedule. An entry that was reported missing
although the bookie lists it is read and its digest checked: a bad copy counts as none. An entry is
absent only if the bookie says so explicitly. After no answer, a ledger in limbo or a stuck disk
nothing is known, and `LedgerCheck.unclear` says so (rules 4.1, 5.5).
"""

import asyncio
from collections.abc import Iterable, Sequence

from magnetar.ledger.autorecovery.fragments import (
    HeldIds,
    LedgerCheck,
    MemberCheck,
    MemberState,
    Span,
    SpanCheck,
    intersect,
    missing_in,
    ranges_of_member,
    spans_of,
    subtract,
)
from magnetar.ledger.channel import ChannelPool
from magnetar.ledger.digest import PacketCodec, codec_for, read_key
from magnetar.ledger.errors import (
    BookieProtocolError,
    BookieUnavailableError,
    LedgerError,
    NoSuchEntryError,
    NoSuchLedgerOnBookieError,
)
from magnetar.ledger.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.ledger.reading.bookie_requests import ask, check_status, read_reply_block
from magnetar.ledger.reading.lac_reads import LacRead
from magnetar.ledger.reading.read_errors import READ_ERRORS
from magnetar.ledger.registration import BookieRegistry
from magnetar.ledger.under_replication import (
    ENTRY_ID_MAX,
    EVERYTHING,
    Missing,
    Range,
    merge_ranges,
)
from magnetar.ledger.wire import Op, encode_read_body
from magnetar.ledger.wire_bodies import decode_entry_list, encode_list_entries

_RANGES_MAX = 1 << 30
_IDS_AT_ONCE = 1 << 20
"""Most entry ids compared in one step; a gap in a bookie's list may be of any size."""

_SpanMember = tuple[int, int, Span]
"""(position of the span, index of the member in it, span)"""


class Checker:
    """Checks all replicas of ledgers, one ledger per call. Changes nothing."""

    def __init__(
        self,
        channels: ChannelPool,
        registry: BookieRegistry,
        *,
        list_bitmap_bytes: int = 16 << 10,
        read_bytes: int = 1 << 20,
    ) -> None:
        self._channels = channels
        self._registry = registry
        self._list_bitmap_bytes = list_bitmap_bytes
        self._read_bytes = read_bytes

    async def check(self, metadata: LedgerMetadata, reported: Missing) -> LedgerCheck:
        """Return what each member of each fragment has.

        Args:
            reported: entries that bookies are reported to lack. Bounded ranges are read. An
                unregistered bookie counts as lost if it is reported to lack `EVERYTHING`. If it is
                reported to lack only some entries, its state is unknown until it is back. Any other
                unregistered bookie is left to the auditor.

        Raises:
            LedgerError: only for bugs of the protocol; trouble with bookies is in the result.
        """
        unclear: list[str] = []
        confirmed, is_doubtful = await self._tail_end(metadata, reported, unclear)
        spans = spans_of(metadata, last_add_confirmed=confirmed)
        members_of: dict[str, list[_SpanMember]] = {}
        for at, span in enumerate(spans):
            for index, bookie_id in enumerate(span.bookies):
                members_of.setdefault(bookie_id, []).append((at, index, span))
        found: list[dict[int, MemberCheck]] = [{} for _ in spans]
        checks = await asyncio.gather(
            *(
                self._check_bookie(metadata, bookie_id, places, reported.get(bookie_id))
                for bookie_id, places in members_of.items()
            )
        )
        for places, members in zip(members_of.values(), checks, strict=True):
            for (at, index, _), member in zip(places, members, strict=True):
                found[at][index] = member
        span_checks = tuple(
            SpanCheck(span, tuple(found[at][index] for index in range(len(span.bookies))))
            for at, span in enumerate(spans)
        )
        unclear += dict.fromkeys(
            f"{member.bookie_id}: {member.reason}"
            for check in span_checks
            for member in check.members
            if member.state is MemberState.UNKNOWN
        )
        return LedgerCheck(metadata, span_checks, tuple(unclear), is_doubtful)

    async def _tail_end(
        self, metadata: LedgerMetadata, reported: Missing, unclear: list[str]
    ) -> tuple[int, bool]:
        """Return the last entry up to which the tail of a ledger that is not closed can be checked,
        -1 for none; and whether entries above it were reported."""
        if metadata.state is LedgerState.CLOSED:
            return -1, False
        first, bookies = metadata.last_fragment
        # An unregistered bookie needs no check, nor does one that was not reported.
        concerned = [
            bookie_id
            for bookie_id in bookies
            if bookie_id in reported
            and self._registry.resolve(bookie_id) is not None
            and any(last >= first for _, last in reported[bookie_id])
        ]
        if not concerned:
            return -1, False
        try:
            read = LacRead(self._channels, metadata, codec_for(metadata), enough_above=None)
            confirmed = await read.run()
        except BookieUnavailableError as error:
            unclear.append(f"the open fragment from entry {first} on: {error}")
            return -1, False
        is_doubtful = any(
            confirmed < last < ENTRY_ID_MAX
            for bookie_id in concerned
            for _, last in reported[bookie_id]
        )
        return confirmed, is_doubtful

    async def _check_bookie(
        self,
        metadata: LedgerMetadata,
        bookie_id: str,
        places: Sequence[_SpanMember],
        reported: Sequence[Range] | None,
    ) -> list[MemberCheck]:
        """Check one bookie in all the spans that name it."""
        own = [ranges_of_member(span, index, metadata.write_quorum) for _, index, span in places]
        if self._registry.resolve(bookie_id) is None:
            state, reason = _state_unregistered(reported)
            return [
                MemberCheck(index, bookie_id, state, tuple(ranges), reason)
                for (_, index, _), ranges in zip(places, own, strict=True)
            ]
        try:
            missing = await self._missing(metadata, bookie_id, places)
            if reported:
                await self._look_at_reported(metadata, bookie_id, own, missing, reported)
        except LedgerError as error:
            return [
                MemberCheck(index, bookie_id, MemberState.UNKNOWN, (), str(error))
                if ranges
                else MemberCheck(index, bookie_id, MemberState.WHOLE)
                for (_, index, _), ranges in zip(places, own, strict=True)
            ]
        return [
            MemberCheck(
                index,
                bookie_id,
                MemberState.LACKS if lacking else MemberState.WHOLE,
                tuple(merge_ranges(lacking, ranges_max=_RANGES_MAX)),
            )
            for (_, index, _), lacking in zip(places, missing, strict=True)
        ]

    # Lists

    async def _missing(
        self, metadata: LedgerMetadata, bookie_id: str, places: Sequence[_SpanMember]
    ) -> list[list[Range]]:
        """Return, per span, the entries that the bookie does not list.

        Raises:
            BookieUnavailableError, BookieProtocolError: the answer is unknown.
        """
        result: list[list[Range]] = []
        page: HeldIds | None = None
        for _, index, span in places:
            lacking: list[Range] = []
            at = span.first
            while at <= span.last:
                if page is None or not page.first <= at <= page.last:
                    page = await self._page(metadata, bookie_id, at)
                stop = min(span.last, page.last, at + _IDS_AT_ONCE - 1)
                part = span._replace(first=at, last=stop)
                lacking += missing_in(part, index, metadata.write_quorum, page)
                at = stop + 1
            result.append(lacking)
        return result

    async def _page(self, metadata: LedgerMetadata, bookie_id: str, first: int) -> HeldIds:
        """Return the ids that the bookie holds from `first` on, as far as one reply covers."""
        ledger_id, key = metadata.ledger_id, read_key(metadata.password)
        frame = await ask(
            self._channels,
            bookie_id,
            Op.LIST_ENTRIES,
            encode_list_entries(self._list_bitmap_bytes, master_key=key),
            ledger_id=ledger_id,
            entry_id=first,
        )
        try:
            check_status(frame, bookie_id)
        except (NoSuchLedgerOnBookieError, NoSuchEntryError):
            return HeldIds(first, ENTRY_ID_MAX)
        page = decode_entry_list(frame.body)
        last = ENTRY_ID_MAX if page.next_entry_id == -1 else page.next_entry_id - 1
        if last < first or (page.bitmap and page.first_entry_id < first):
            raise BookieProtocolError(
                f"bookie {bookie_id}, ledger {ledger_id}: asked for the ids from {first} on, got a "
                f"list from {page.first_entry_id} to {last}"
            )
        bits = int.from_bytes(page.bitmap, "little")
        return HeldIds(first, last, bits, max(0, page.first_entry_id))

    # Reads

    async def _look_at_reported(
        self,
        metadata: LedgerMetadata,
        bookie_id: str,
        own: Sequence[Sequence[Range]],
        missing: Sequence[list[Range]],
        reported: Sequence[Range],
    ) -> None:
        """Read entries that the bookie lists although they were reported; add bad copies to
        `missing`.

        Raises:
            BookieUnavailableError, BookieProtocolError: the answer is unknown.
        """
        bounded = [each for each in reported if each[1] < ENTRY_ID_MAX]
        codec = codec_for(metadata)
        for ranges, lacking in zip(own, missing, strict=True):
            for first, last in subtract(intersect(ranges, bounded), lacking[:]):
                lacking += await self._bad_in(metadata, codec, bookie_id, first, last)
            lacking.sort()

    async def _bad_in(
        self, metadata: LedgerMetadata, codec: PacketCodec, bookie_id: str, first: int, last: int
    ) -> list[Range]:
        body = encode_read_body(
            last_entry_id=last,
            bytes_max=self._read_bytes,
            master_key=read_key(metadata.password),
        )
        bad: list[Range] = []
        at = first
        while at <= last:
            frame = await ask(
                self._channels,
                bookie_id,
                Op.READ,
                body,
                ledger_id=metadata.ledger_id,
                entry_id=at,
            )
            try:
                block = read_reply_block(frame, bookie_id)
            except (NoSuchEntryError, NoSuchLedgerOnBookieError):
                bad.append((at, at))
                at += 1
                continue
            payloads, error = codec.open_payloads(block, at, last - at + 1)
            at += len(payloads)
            if error is not None:
                bad.append((at, at))
                at += 1
        return bad

    async def has_entry(
        self, metadata: LedgerMetadata, bookie_id: str, entry_id: int
    ) -> MemberState:
        """Return whether the bookie has a good copy of one entry: WHOLE, LACKS or UNKNOWN; AWAY if
        it is not registered. For checks by sample."""
        if self._registry.resolve(bookie_id) is None:
            return MemberState.AWAY
        try:
            bad = await self._bad_in(metadata, codec_for(metadata), bookie_id, entry_id, entry_id)
        except READ_ERRORS:
            return MemberState.UNKNOWN
        return MemberState.LACKS if bad else MemberState.WHOLE


def _state_unregistered(reported: Sequence[Range] | None) -> tuple[MemberState, str]:
    """Return the state of an unregistered member, and the reason. Only the auditor, or an operator
    who recovers it by hand, reports that a bookie lacks everything. A bookie that lacks some
    entries may be restarting.
    """
    if reported is None:
        return MemberState.AWAY, "it is not registered"
    if EVERYTHING in reported:
        return MemberState.GONE, "it is not registered"
    return MemberState.UNKNOWN, "it lacks entries, and is not registered; nobody said it is lost"


def names_any(metadata: LedgerMetadata, bookies: Iterable[str]) -> bool:
    """Return whether any fragment of the ledger names one of the bookies."""
    wanted = set(bookies)
    return any(not wanted.isdisjoint(fragment.bookies) for fragment in metadata.ensembles)
