"""Find the missing copies of a ledger's entries, and plan what to copy where. Pure.

A *span* is a fragment with both its ends. It is *complete* when no writer can add to it any more:
any span of a CLOSED ledger, any but the last of another. Of one that is complete, every entry is
certain to exist: a new fragment begins behind the last entry that was confirmed. So a reader's
last add confirmed, which may lag, plays no part here (defect A4). The last span of a ledger that is
not closed is the *tail*; its entries are looked at up to a proven last add confirmed, and nothing
of it is ever copied or swapped (rule 6.1, defect A3).

What each member of a span has is a `MemberState`. Only an explicit word of the bookie makes an
entry absent; anything else is unknown, and no conclusion is drawn from it (rule 5.5).
Source: auto-recovery, sections 4 to 6.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from magnetar.ledger.ledger_metadata import (
    Fragment,
    LedgerEvent,
    LedgerMetadata,
    LedgerState,
    next_state,
)
from magnetar.ledger.quorum import is_in_write_set, stored_ranges
from magnetar.ledger.under_replication import EVERYTHING, Missing, Range, merge_ranges

_RANGES_MAX = 1 << 30
"""No bound: ranges of one ledger are bounded by its entries."""


class Span(NamedTuple):
    """Entries `first` to `last`, none if `last` is below `first`, and who stores them."""

    first: int
    last: int
    bookies: tuple[str, ...]
    is_complete: bool

    @property
    def is_empty(self) -> bool:
        return self.last < self.first


def spans_of(metadata: LedgerMetadata, *, last_add_confirmed: int = -1) -> list[Span]:
    """The fragments of a ledger. The tail of one that is not closed ends at the last add confirmed
    that is given."""
    is_closed = metadata.state is LedgerState.CLOSED
    fragments = metadata.ensembles
    spans = [
        Span(fragment.first_entry_id, following.first_entry_id - 1, fragment.bookies, True)
        for fragment, following in pairwise(fragments)
    ]
    first, bookies = metadata.last_fragment
    end = metadata.last_entry_id if is_closed else max(last_add_confirmed, first - 1)
    return [*spans, Span(first, end, bookies, is_closed)]


def ranges_of_member(span: Span, index: int, write_quorum: int) -> list[Range]:
    """The entries of the span that belong on the member at `index`; none at all for one on which
    no entry of a short span falls (rule 5.3)."""
    if span.is_empty:
        return []
    return list(
        stored_ranges(
            index,
            span.first,
            span.last,
            ensemble_size=len(span.bookies),
            write_quorum=write_quorum,
        )
    )


class MemberState(Enum):
    """What is known of a member's copies."""

    WHOLE = "whole"
    """The bookie has every entry that belongs on it."""
    LACKS = "lacks"
    """The bookie is registered, and says that it lacks some entries or has bad copies of them."""
    GONE = "gone"
    """The bookie is not registered; the auditor or an operator declared it lost."""
    AWAY = "away"
    """The bookie is not registered. The auditor decides, after its delay, whether it is lost."""
    UNKNOWN = "unknown"
    """The bookie gave no conclusive answer; or it is not registered, and a report says that it
    lacks some entries but not that it is lost."""


@dataclass(frozen=True, slots=True)
class MemberCheck:
    """One member of one span."""

    index: int
    bookie_id: str
    state: MemberState
    missing: tuple[Range, ...] = ()
    """What it lacks (LACKS), or all that belongs on it (GONE)."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SpanCheck:
    """One span and all its members."""

    span: Span
    members: tuple[MemberCheck, ...]

    @property
    def is_whole(self) -> bool:
        """Nothing is known to be missing, and nobody is lost."""
        return all(
            member.state in (MemberState.WHOLE, MemberState.AWAY, MemberState.UNKNOWN)
            for member in self.members
        )


@dataclass(frozen=True, slots=True)
class LedgerCheck:
    """What a look at all replicas of a ledger found."""

    metadata: LedgerMetadata
    spans: tuple[SpanCheck, ...]
    unclear: tuple[str, ...] = ()
    """Why nobody knows for some of what was asked; empty if everything is known."""
    is_tail_doubtful: bool = False
    """Somebody reported entries of the tail above its last add confirmed: they cannot be judged
    before the ledger is closed."""

    @property
    def is_whole(self) -> bool:
        """Everything that was asked is known, and nothing is missing."""
        return (
            not self.unclear
            and not self.is_tail_doubtful
            and all(check.is_whole for check in self.spans)
        )

    @property
    def is_tail_in_trouble(self) -> bool:
        """A member of the tail is lost, or lacks entries that are confirmed, or may."""
        return self.is_tail_doubtful or (self.tail is not None and not self.tail.is_whole)

    @property
    def complete_spans(self) -> list[SpanCheck]:
        return [check for check in self.spans if check.span.is_complete]

    @property
    def tail(self) -> SpanCheck | None:
        """The last span of a ledger that is not closed."""
        last = self.spans[-1]
        return None if last.span.is_complete else last

    def missing(self) -> Missing:
        """What each bookie lacks, for a work item: all of a bookie that is lost."""
        found: dict[str, list[Range]] = defaultdict(list)
        for check in self.spans:
            for member in check.members:
                if member.state is MemberState.GONE:
                    found[member.bookie_id].append(EVERYTHING)
                elif member.state is MemberState.LACKS:
                    found[member.bookie_id] += member.missing
        return {
            bookie_id: merge_ranges(ranges, ranges_max=_RANGES_MAX)
            for bookie_id, ranges in found.items()
        }

    def lost(self, write_quorum: int) -> list[Range]:
        """Entries of complete spans that every bookie of their write set is certain not to have in
        a good copy: lost for good (rule 5.6)."""
        ranges: list[Range] = []
        for check in self.complete_spans:
            lacking = {
                member.bookie_id: member.missing
                for member in check.members
                if member.state is MemberState.LACKS
            }
            ranges += [
                (piece.first, piece.last)
                for piece in pieces_of(lacking)
                if len(piece.targets) == write_quorum
            ]
        return ranges


class Piece(NamedTuple):
    """Entries that go to the same bookies."""

    first: int
    last: int
    targets: tuple[str, ...]


def pieces_of(wanted: Mapping[str, Iterable[Range]]) -> list[Piece]:
    """Ranges per bookie as pieces in ascending order, so that each entry is read once and written
    to all who want it. The ranges of one bookie do not overlap."""
    starts: dict[int, list[str]] = defaultdict(list)
    ends: dict[int, list[str]] = defaultdict(list)
    for bookie_id, ranges in wanted.items():
        for first, last in ranges:
            starts[first].append(bookie_id)
            ends[last + 1].append(bookie_id)
    pieces: list[Piece] = []
    targets: dict[str, None] = {}
    previous = 0
    for at in sorted({*starts, *ends}):
        if targets and previous < at:
            pieces.append(Piece(previous, at - 1, tuple(targets)))
        for bookie_id in ends.get(at, ()):
            del targets[bookie_id]
        for bookie_id in starts.get(at, ()):
            targets[bookie_id] = None
        previous = at
    return pieces


def missing_in(span: Span, index: int, write_quorum: int, held: "HeldIds") -> list[Range]:
    """What belongs on the member at `index`, within the page of ids, and is not held there.

    Bit arithmetic on whole pages: a set bit costs nothing, only gaps do.
    """
    first, last = max(span.first, held.first), min(span.last, held.last)
    if first > last:
        return []
    count = last - first + 1
    expected = _schedule(first, count, index, len(span.bookies), write_quorum)
    return _runs_of_bits(expected & ~_bits_at(held, first, count), first)


class HeldIds(NamedTuple):
    """Of the ids `first` to `last`, those of the set bits are held: bit `i` is `bits_from + i`."""

    first: int
    last: int
    bits: int = 0
    bits_from: int = 0


def _schedule(first: int, count: int, index: int, ensemble_size: int, write_quorum: int) -> int:
    """Bit `i` says whether entry `first + i` belongs on the member at `index`; `count` bits."""
    if write_quorum == ensemble_size:
        return (1 << count) - 1
    turn = sum(
        1 << k
        for k in range(ensemble_size)
        if is_in_write_set(index, first + k, ensemble_size=ensemble_size, write_quorum=write_quorum)
    )
    turns = -(-count // ensemble_size)
    # One bit at the begin of each turn, times what a turn looks like.
    begins = ((1 << ensemble_size * turns) - 1) // ((1 << ensemble_size) - 1)
    return turn * begins & ((1 << count) - 1)


def _bits_at(held: HeldIds, first: int, count: int) -> int:
    """The bits of `held`, of which bit 0 is `first`."""
    ahead = held.bits_from - first
    if ahead <= 0:
        return held.bits >> -ahead
    return held.bits << ahead if ahead < count else 0


def _runs_of_bits(bits: int, first: int) -> list[Range]:
    if not bits:
        return []
    text = bin(bits)[:1:-1]  # the lowest bit first
    runs: list[Range] = []
    at = text.find("1")
    while at != -1:
        end = text.find("0", at)
        if end == -1:
            end = len(text)
        runs.append((first + at, first + end - 1))
        at = text.find("1", end)
    return runs


def intersect(ranges: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """What lies in both; each ascending and apart from each other."""
    found: list[Range] = []
    at = 0
    for first, last in ranges:
        while at < len(others) and others[at][1] < first:
            at += 1
        look = at
        while look < len(others) and others[look][0] <= last:
            found.append((max(first, others[look][0]), min(last, others[look][1])))
            look += 1
    return found


def subtract(ranges: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """What lies in the first and not in the others; each ascending and apart from each other."""
    found: list[Range] = []
    for first, last in ranges:
        for cut_first, cut_last in intersect([(first, last)], others):
            if first < cut_first:
                found.append((first, cut_first - 1))
            first = cut_last + 1
        if first <= last:
            found.append((first, last))
    return found


def with_replaced(
    metadata: LedgerMetadata, first_entry_id: int, replaced: Mapping[str, str]
) -> LedgerMetadata | None:
    """The value with members of one complete fragment replaced, old to new, at their places: keys,
    the other members and the end of the ledger stay (rule 5.2).

    None if that may not be done any more: the fragment is gone or is not complete, an old member is
    no longer there, or a new one is there already.
    """
    at = next(
        (i for i, each in enumerate(metadata.ensembles) if each.first_entry_id == first_entry_id),
        None,
    )
    if at is None:
        return None
    is_last = at == len(metadata.ensembles) - 1
    bookies = metadata.ensembles[at].bookies
    if is_last and metadata.state is not LedgerState.CLOSED:
        return None
    if not set(replaced) <= set(bookies) or set(replaced.values()) & set(bookies):
        return None
    ensembles = list(metadata.ensembles)
    ensembles[at] = Fragment(
        first_entry_id, tuple(replaced.get(bookie_id, bookie_id) for bookie_id in bookies)
    )
    return replace(
        metadata,
        state=next_state(metadata.state, LedgerEvent.REPLICA_MOVED),
        ensembles=tuple(ensembles),
    )
