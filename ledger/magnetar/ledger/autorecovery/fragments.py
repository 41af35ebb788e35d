"""Find the missing copies of a ledger's entries, and plan what to copy where. Pure.

A *span* is a fragment with both its ends. It is *complete* when no writer can add to it any more:
any span of a CLOSED ledger, and all but the last of any other ledger. Every entry of a complete
span is certain to exist: a new fragment begins after the last confirmed entry. So a reader's last
add confirmed, which may lag, plays no part here (defect A4). The last span of a ledger that is not
closed is the *tail*. Its entries are checked up to a proven last add confirmed, and no part of it
is ever copied or swapped (rule 6.1, defect A3).

A `MemberState` says what each member of a span has. An entry counts as absent only if the bookie
says so explicitly; anything else is unknown, and no conclusion is drawn from it (rule 5.5).

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
"""No real bound: the entries of a ledger bound the number of its ranges."""


class Span(NamedTuple):
    """Entries `first` to `last`, none if `last` is below `first`, and the bookies that store
    them."""

    first: int
    last: int
    bookies: tuple[str, ...]
    is_complete: bool

    @property
    def is_empty(self) -> bool:
        return self.last < self.first


def spans_of(metadata: LedgerMetadata, *, last_add_confirmed: int = -1) -> list[Span]:
    """Return the fragments of a ledger as spans. The tail of a ledger that is not closed ends at
    the given last add confirmed."""
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
    """Return the entries of the span that belong on the member at `index`; empty if no entry of a
    short span falls on it (rule 5.3)."""
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
    """What is known about a member's copies."""

    WHOLE = "whole"
    """The bookie has every entry that belongs on it."""
    LACKS = "lacks"
    """The bookie is registered, and reports that it lacks some entries or has bad copies of
    them."""
    GONE = "gone"
    """The bookie is not registered; the auditor or an operator declared it lost."""
    AWAY = "away"
    """The bookie is not registered. The auditor decides, after its delay, whether it is lost."""
    UNKNOWN = "unknown"
    """The bookie gave no conclusive answer; or it is not registered, and was reported to lack some
    entries but not to be lost."""


@dataclass(frozen=True, slots=True)
class MemberCheck:
    """One member of one span."""

    index: int
    bookie_id: str
    state: MemberState
    missing: tuple[Range, ...] = ()
    """Entries that it lacks (LACKS), or all that belong on it (GONE)."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SpanCheck:
    """One span and all its members."""

    span: Span
    members: tuple[MemberCheck, ...]

    @property
    def is_whole(self) -> bool:
        """Whether nothing is known to be missing, and no member is lost."""
        return all(
            member.state in (MemberState.WHOLE, MemberState.AWAY, MemberState.UNKNOWN)
            for member in self.members
        )


@dataclass(frozen=True, slots=True)
class LedgerCheck:
    """Result of checking all replicas of a ledger."""

    metadata: LedgerMetadata
    spans: tuple[SpanCheck, ...]
    unclear: tuple[str, ...] = ()
    """Why parts of the question stayed unanswered; empty if everything is known."""
    is_tail_doubtful: bool = False
    """Whether reported entries of the tail lie above its last add confirmed: they cannot be judged
    before the ledger is closed."""

    @property
    def is_whole(self) -> bool:
        """Whether all answers are known, and nothing is missing."""
        return (
            not self.unclear
            and not self.is_tail_doubtful
            and all(check.is_whole for check in self.spans)
        )

    @property
    def is_tail_in_trouble(self) -> bool:
        """Whether a member of the tail is lost, or lacks confirmed entries, or may lack them."""
        return self.is_tail_doubtful or (self.tail is not None and not self.tail.is_whole)

    @property
    def complete_spans(self) -> list[SpanCheck]:
        return [check for check in self.spans if check.span.is_complete]

    @property
    def tail(self) -> SpanCheck | None:
        """The last span of a ledger that is not closed; None for a closed ledger."""
        last = self.spans[-1]
        return None if last.span.is_complete else last

    def missing(self) -> Missing:
        """Return the entries that each bookie lacks, for a work item: `EVERYTHING` for a lost
        bookie."""
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
        """Return the entries of complete spans that are lost for good: every bookie of their write
        set is certain not to have a good copy (rule 5.6)."""
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
    """A run of entries that goes to one set of bookies."""

    first: int
    last: int
    targets: tuple[str, ...]


def pieces_of(wanted: Mapping[str, Iterable[Range]]) -> list[Piece]:
    """Turn ranges per bookie into pieces in ascending order, so that each entry is read once and
    written to all bookies that lack it. The ranges of one bookie must not overlap."""
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
    """Return the entries that belong on the member at `index`, within the page of ids, and are not
    held there.

    Bit arithmetic on whole pages: a set bit costs nothing, only gaps do.
    """
    first, last = max(span.first, held.first), min(span.last, held.last)
    if first > last:
        return []
    count = last - first + 1
    expected = _schedule(first, count, index, len(span.bookies), write_quorum)
    return _runs_of_bits(expected & ~_bits_at(held, first, count), first)


class HeldIds(NamedTuple):
    """Ids held within `first` to `last`: those whose bit is set. Bit `i` is id `bits_from + i`."""

    first: int
    last: int
    bits: int = 0
    bits_from: int = 0


def _schedule(first: int, count: int, index: int, ensemble_size: int, write_quorum: int) -> int:
    """Return `count` bits; bit `i` says whether entry `first + i` belongs on the member at
    `index`."""
    if write_quorum == ensemble_size:
        return (1 << count) - 1
    turn = sum(
        1 << k
        for k in range(ensemble_size)
        if is_in_write_set(index, first + k, ensemble_size=ensemble_size, write_quorum=write_quorum)
    )
    turns = -(-count // ensemble_size)
    # One bit at the start of each turn, times the pattern of one turn.
    begins = ((1 << ensemble_size * turns) - 1) // ((1 << ensemble_size) - 1)
    return turn * begins & ((1 << count) - 1)


def _bits_at(held: HeldIds, first: int, count: int) -> int:
    """Return the bits of `held`, shifted so that bit 0 is `first`."""
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
    """Return the parts that lie in both; each ascending, without overlaps."""
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
    """Return the parts of the first that do not lie in the others; each ascending, without
    overlaps."""
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
    """Return the metadata with members of one complete fragment replaced, old to new, at their
    places. The keys, the other members and the end of the ledger stay (rule 5.2).

    None if that is no longer allowed: the fragment is gone or not complete, an old member has left
    it, or a new one is in it already.
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
