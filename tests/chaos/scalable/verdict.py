"""The verdict of the drill: what all consumers of one subscription were given, in order of time.

- Order: the messages of one producer with one key come first in the order in which they were sent,
  and none is left out.
- Nothing is lost: whatever the broker has confirmed comes.
- Nothing comes twice, except what was not acknowledged, or so shortly before a broker was lost that
  the acknowledgement may not have been stored.
- Nothing is stored twice in a segment. The connection that is lost in the very moment in which the
  segment ends can have a message stored in the segment and in a child: this is counted.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.chaos.scalable.records import Kind, Place, Record

ACKNOWLEDGEMENT_S_MAX = 12.0
"""Until one that is confirmed is stored: `ack_persist_interval_ms_max`, and a little."""
_BEFORE_S_MAX = 1.0
"""A broker may be lost before its last confirmation is noted."""
PROBLEMS_MAX = 20
_NOWHERE = Place(-1, -1, -1)

Stream = tuple[int, int]
"""Producer and key."""


@dataclass(slots=True)
class Verdict:
    """What was found."""

    received: int = 0
    distinct: int = 0
    redelivered: int = 0
    stored_again: int = 0
    """In a segment and in one that came of it."""
    problems: list[str] = field(default_factory=list)
    problems_found: int = 0

    def problem(self, text: str) -> None:
        self.problems_found += 1
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(text)


@dataclass(slots=True)
class _Received:
    """What is known of the messages of one producer with one key."""

    next: int = 0
    """The number of the first one that nobody was given."""
    runs: list[tuple[int, int]] = field(default_factory=list)
    """First number, and segment: where they came first."""
    highest: dict[int, Place] = field(default_factory=dict)
    """The last place that was given out, by segment."""


@dataclass(slots=True)
class _Acknowledged:
    """What is known of the acknowledgements of one producer and key in one segment: those in its
    children may be stored when these are lost."""

    done: int = -1
    """Up to this number acknowledgements are stored."""
    confirmed: deque[tuple[int, int]] = field(default_factory=deque)
    """Acknowledgements that may not be stored yet, and when they were confirmed."""
    open_from: int | None = None
    """What was acknowledged from this number on may come again."""


class Judge:
    """Takes records in the order of their times."""

    def __init__(self, losses_ns: Sequence[int] = ()) -> None:
        """`losses_ns`: when brokers were killed, or dropped what they served; ascending."""
        self._losses_ns = losses_ns
        self._verdict = Verdict()
        self._streams: defaultdict[Stream, _Received] = defaultdict(_Received)
        self._acks: defaultdict[tuple[Stream, int], _Acknowledged] = defaultdict(_Acknowledged)
        """By segments, too."""

    def take(self, record: Record) -> None:
        stream = record.producer, record.key
        acks = self._acks[stream, record.segment]
        match record.kind:
            case Kind.RECEIVED:
                self._verdict.received += 1
                self._received(record, self._streams[stream], acks)
            case Kind.CONFIRMED:
                if acks.open_from is None or record.number < acks.open_from:
                    acks.confirmed.append((record.time_ns, record.number))
            case Kind.UNCONFIRMED:
                before = record.number if acks.open_from is None else acks.open_from
                acks.open_from = min(before, record.number)

    def end(self, sent: Mapping[Stream, int]) -> Verdict:
        """`sent`: how many messages of each stream the broker has confirmed."""
        for each in sorted(sent.keys() | self._streams.keys()):
            expected, found = sent.get(each, 0), self._streams[each].next
            if found < expected:
                self._verdict.problem(f"lost: {each} ends with {found} of {expected}")
            if found > expected:
                self._verdict.problem(f"unknown: {each} has {found}, {expected} were sent")
        return self._verdict

    def _received(self, record: Record, stream: _Received, acks: _Acknowledged) -> None:
        highest = stream.highest.get(record.segment, _NOWHERE)
        stream.highest[record.segment] = max(highest, record.place)
        if acks.open_from is not None and record.number <= acks.open_from:
            acks.open_from = None  # It has come again.
        if record.number >= stream.next:
            if record.number > stream.next:
                self._verdict.problem(f"order: {record}; {stream.next} is next")
            if not stream.runs or stream.runs[-1][1] != record.segment:
                stream.runs.append((record.number, record.segment))
            stream.next = record.number + 1
            self._verdict.distinct += 1
            return
        if record.place > highest:
            self._stored_again(record, stream.runs)
            return
        self._verdict.redelivered += 1
        done = self._acknowledged(acks, record.time_ns)
        if record.number <= done:
            self._verdict.problem(f"twice: {record}; acknowledged up to {done}")

    def _stored_again(self, record: Record, runs: list[tuple[int, int]]) -> None:
        at = bisect_right(runs, (record.number, 1 << 62)) - 1
        first = runs[max(0, at)][1]
        if first == record.segment:
            self._verdict.problem(f"stored twice in its segment: {record}")
        else:
            self._verdict.stored_again += 1

    def _acknowledged(self, acks: _Acknowledged, now_ns: int) -> int:
        """Up to which number nothing may come again."""
        until_ns = now_ns - round(ACKNOWLEDGEMENT_S_MAX * 1e9)
        while acks.confirmed and acks.confirmed[0][0] <= until_ns:
            at_ns, number = acks.confirmed.popleft()
            if not self._was_lost(at_ns, now_ns):
                acks.done = max(acks.done, number)
        fresh = (n for at_ns, n in acks.confirmed if not self._was_lost(at_ns, now_ns))
        return max(acks.done, *fresh, -1)

    def _was_lost(self, at_ns: int, now_ns: int) -> bool:
        """Whether a broker was lost before an acknowledgement was stored for sure."""
        first = bisect_left(self._losses_ns, at_ns - round(_BEFORE_S_MAX * 1e9))
        until_ns = min(now_ns, at_ns + round(ACKNOWLEDGEMENT_S_MAX * 1e9))
        return first < len(self._losses_ns) and self._losses_ns[first] <= until_ns


def judge(
    records: Iterable[Record], sent: Mapping[Stream, int], losses_ns: Sequence[int] = ()
) -> Verdict:
    """`records`: in the order of their times; `losses_ns`: of brokers, ascending."""
    found = Judge(losses_ns)
    for each in records:
        found.take(each)
    return found.end(sent)
