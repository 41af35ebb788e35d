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
class _Segment:
    """What is known of one segment."""

    highest: Place = _NOWHERE
    """That was given out."""
    done: Place = _NOWHERE
    """Up to here acknowledgements are stored."""
    confirmed: deque[tuple[int, Place]] = field(default_factory=deque)
    """Acknowledgements that may not be stored yet, and when they were confirmed."""
    asked: tuple[int, Place] = (-1, _NOWHERE)
    """The time of the last look at what counts as acknowledged, and its outcome."""
    open_from: Place | None = None
    """What was acknowledged from here on may come again."""


class Judge:
    """Takes records in the order of their times."""

    def __init__(self, losses_ns: Sequence[int] = ()) -> None:
        """`losses_ns`: when brokers were killed, or dropped what they served; ascending."""
        self._losses_ns = losses_ns
        self._verdict = Verdict()
        self._segments: defaultdict[int, _Segment] = defaultdict(_Segment)
        self._next: defaultdict[Stream, int] = defaultdict(int)
        self._runs: defaultdict[Stream, list[tuple[int, int]]] = defaultdict(list)
        """First number, and segment: where the messages of a stream came first."""

    def take(self, record: Record) -> None:
        segment = self._segments[record.segment]
        match record.kind:
            case Kind.RECEIVED:
                self._verdict.received += 1
                self._received(record, segment)
            case Kind.CONFIRMED:
                if segment.open_from is None or record.place < segment.open_from:
                    segment.confirmed.append((record.time_ns, record.place))
            case Kind.UNCONFIRMED:
                segment.open_from = min(segment.open_from or record.place, record.place)

    def end(self, sent: Mapping[Stream, int]) -> Verdict:
        """`sent`: how many messages of each stream the broker has confirmed."""
        for stream in sorted(sent.keys() | self._next.keys()):
            expected, found = sent.get(stream, 0), self._next[stream]
            if found < expected:
                self._verdict.problem(f"lost: {stream} ends with {found} of {expected}")
            if found > expected:
                self._verdict.problem(f"unknown: {stream} has {found}, {expected} were sent")
        return self._verdict

    def _received(self, record: Record, segment: _Segment) -> None:
        stream = record.producer, record.key
        expected, runs = self._next[stream], self._runs[stream]
        is_new_place = record.place > segment.highest
        segment.highest = max(segment.highest, record.place)
        if segment.open_from is not None and record.place <= segment.open_from:
            segment.open_from = None  # It has come again.
        if record.number >= expected:
            if record.number > expected:
                self._verdict.problem(f"order: {record}; {expected} is next")
            if not runs or runs[-1][1] != record.segment:
                runs.append((record.number, record.segment))
            self._next[stream] = record.number + 1
            self._verdict.distinct += 1
            return
        if is_new_place:
            self._stored_again(record, runs)
            return
        self._verdict.redelivered += 1
        done = self._acknowledged(segment, record.time_ns)
        if record.place <= done:
            self._verdict.problem(f"twice: {record}; acknowledged up to {done}")

    def _stored_again(self, record: Record, runs: list[tuple[int, int]]) -> None:
        at = bisect_right(runs, (record.number, 1 << 62)) - 1
        first = runs[max(0, at)][1]
        if first == record.segment:
            self._verdict.problem(f"stored twice in its segment: {record}")
        else:
            self._verdict.stored_again += 1

    def _acknowledged(self, segment: _Segment, now_ns: int) -> Place:
        """Up to where nothing may come again."""
        if segment.asked[0] == now_ns:
            return segment.asked[1]
        until_ns = now_ns - round(ACKNOWLEDGEMENT_S_MAX * 1e9)
        while segment.confirmed and segment.confirmed[0][0] <= until_ns:
            at_ns, place = segment.confirmed.popleft()
            if not self._was_lost(at_ns, now_ns):
                segment.done = max(segment.done, place)
        done = segment.done
        for at_ns, place in segment.confirmed:
            if not self._was_lost(at_ns, now_ns):
                done = max(done, place)
        segment.asked = now_ns, done
        return done

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
