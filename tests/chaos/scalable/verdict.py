"""The verdict of the drill: what all consumers of one subscription were given, in order of time.

- Order: the messages of one producer with one key come first in the order in which they were sent,
  and none is left out.
- Nothing is lost: whatever the broker has confirmed comes.
- Nothing comes twice, except what was not acknowledged, or so shortly before a broker was lost that
  the acknowledgement may not have been stored. After an acknowledgement that was not confirmed,
  the messages that it was for may come again, and no others.
- Nothing is stored twice in a segment. The connection that is lost in the very moment in which the
  segment ends can have a message stored in the segment and in a child: this is counted. The copy
  must come after the first one, in a later segment, and not long after a broker was lost.
- Nearly all acknowledgements can be judged in this way, if no broker is killed.

Runs of messages that come as they must are judged as a whole, in arrays over all streams: millions
of messages are judged within a minute. Others are judged message by message.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.chaos.scalable.records import Items, Kind, Run

ACK_PERSIST_MS: Final = 500
ACK_PERSIST_MS_MAX: Final = 2_000
"""What the drill's brokers have as `ack_persist_interval_ms` and `ack_persist_interval_ms_max`."""
ACKNOWLEDGEMENT_S_MAX: Final = ACK_PERSIST_MS_MAX / 1000 + 1.0
"""Until an acknowledgement that is confirmed is stored: the setting, and a little."""
UNKNOWN_S_MAX: Final = 60.0
"""From the loss of a broker until consumers have read what was stored again because of it:
producers connect again, a change is carried on, and consumers work off their backlog."""
JUDGED_SHARE_MIN: Final = 0.95
"""Of all acknowledgements, after how many the messages may not come again; in a run without kills.
The rest is for servers that lose their lease on a busy machine."""
_BEFORE_S_MAX = 1.0
"""A broker may be lost before its last confirmation is noted."""
PROBLEMS_MAX = 20
_NONE = np.iinfo(np.int64).max
_ENTRY_BITS, _INDEX_BITS = 24, 16

Stream = tuple[int, int]
"""Producer and key."""
Numbers = NDArray[np.int64]
Range = tuple[int, int]
"""The first and the last of some numbers."""


@dataclass(slots=True)
class Verdict:
    """What was found."""

    received: int = 0
    distinct: int = 0
    redelivered: int = 0
    stored_again: int = 0
    """In a segment and in one that came of it."""
    acknowledged: int = 0
    """Acknowledgements after which a message may not come again: one for each stream of a batch."""
    excused: int = 0
    """Acknowledgements that a lost broker may not have stored."""
    unconfirmed: int = 0
    """Acknowledgements that no broker has confirmed: after them, the messages may come again."""
    problems: list[str] = field(default_factory=list)
    problems_found: int = 0

    @property
    def judged_share(self) -> float:
        """The share of acknowledgements after which a message may not come again; 0 of none."""
        count = self.acknowledged + self.excused + self.unconfirmed
        return self.acknowledged / count if count else 0.0

    def check_judged(self) -> None:
        """In a run without kills, note the problem that too few acknowledgements were judged."""
        if self.judged_share < JUDGED_SHARE_MIN:
            self.problem(
                f"too few acknowledgements are judged: {self.judged_share:.3f} of all, and not "
                f"{JUDGED_SHARE_MIN}; {self.excused} came shortly before the loss of a broker, "
                f"{self.unconfirmed} were not confirmed"
            )

    def problem(self, text: str) -> None:
        self.problems_found += 1
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(text)


class _Confirmed(NamedTuple):
    """An acknowledgement that was confirmed, and may not be stored yet."""

    time_ns: int
    streams: Numbers
    """In order."""
    numbers: Numbers
    """The last one of each stream."""
    again: list[tuple[int, Range]]
    """Streams and numbers of messages that were acknowledged before, without an answer."""


class _Segment:
    """What is known of one segment, by stream."""

    def __init__(self, streams: int) -> None:
        self.highest: Numbers = np.full(streams, -1, np.int64)
        """The last place that was given out."""
        self.done: Numbers = np.full(streams, -1, np.int64)
        """Up to this number acknowledgements are stored. Those in children may be stored when these
        are lost."""
        self.open: dict[int, list[Range]] = {}
        """By stream: what was acknowledged without an answer, and may come again until it is
        acknowledged with one."""
        self.confirmed: deque[_Confirmed] = deque()

    def opens(self, stream: int, numbers: Range) -> None:
        """Messages may come again."""
        self.closes(stream, numbers)
        self.open.setdefault(stream, []).append(numbers)

    def closes(self, stream: int, numbers: Range) -> None:
        """An acknowledgement of messages is stored, which may have come again before."""
        first, last = numbers
        left = [
            part
            for low, high in self.open.pop(stream, [])
            for part in ((low, min(high, first - 1)), (max(low, last + 1), high))
            if part[0] <= part[1]
        ]
        if left:
            self.open[stream] = left

    def is_open(self, stream: int, number: int) -> bool:
        return any(low <= number <= high for low, high in self.open.get(stream, ()))


class _Messages:
    """Messages of a run, as columns."""

    def __init__(self, streams: Numbers, numbers: Numbers, places: Numbers) -> None:
        self.streams, self.numbers, self.places = streams, numbers, places
        self.order = np.argsort(self.streams, kind="stable")
        """By streams; those of one stream as they came."""
        ordered = self.streams[self.order]
        is_first = np.ones(len(ordered), np.bool_)
        is_first[1:] = ordered[1:] != ordered[:-1]
        self.firsts = np.flatnonzero(is_first)
        """In the order by streams, where each stream begins."""
        self.lasts = np.append(self.firsts[1:], len(ordered)) - 1

    def at(self, where: NDArray[Any]) -> tuple[Numbers, Numbers]:
        """Streams and numbers of the first or last messages of each stream."""
        found = self.order[where]
        return self.streams[found], self.numbers[found]

    def ranges(self, streams: Collection[int] | None = None) -> Iterator[tuple[int, Range]]:
        """Numbers without gaps, of some streams or of all."""
        for first, last in zip(self.firsts.tolist(), self.lasts.tolist(), strict=True):
            stream = int(self.streams[self.order[first]])
            if streams is not None and stream not in streams:
                continue
            numbers = self.numbers[self.order[first : last + 1]]
            for part in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1):
                yield stream, (int(part[0]), int(part[-1]))


class Judge:
    """Takes runs in the order of their times."""

    def __init__(
        self, losses_ns: Sequence[int] = (), *, producers: int = 2, keys: int = 1_000
    ) -> None:
        """`losses_ns`: when brokers were killed, or dropped what they served; ascending."""
        self._losses_ns = losses_ns
        self._producers, self._keys = producers, keys
        self._verdict = Verdict()
        size = producers * keys
        self._next: Numbers = np.zeros(size, np.int64)
        """The number of the first message of each stream that nobody was given."""
        self._in_segment: Numbers = np.full(size, -1, np.int64)
        """Where the last new message of each stream came from."""
        self._came: list[list[tuple[int, int]]] = [[] for _ in range(size)]
        """First number, and segment: where messages of each stream came first."""
        self._copies: set[tuple[int, int, int]] = set()
        """Stream, number and segment of messages that were stored again."""
        self._segments: dict[int, _Segment] = {}

    def take(self, run: Run) -> None:
        if not len(run.items):
            return
        segment = self._segments.get(run.segment)
        if segment is None:
            segment = self._segments[run.segment] = _Segment(len(self._next))
        messages = self._columns(run.items)
        match run.kind:
            case Kind.RECEIVED:
                self._received(run, messages, segment)
            case Kind.CONFIRMED:
                again = list(messages.ranges(segment.open)) if segment.open else []
                segment.confirmed.append(
                    _Confirmed(run.time_ns, *messages.at(messages.lasts), again)
                )
                self._settle(segment, run.time_ns - round(ACKNOWLEDGEMENT_S_MAX * 1e9))
            case Kind.UNCONFIRMED:
                self._settle(segment, run.time_ns - round(ACKNOWLEDGEMENT_S_MAX * 1e9))
                self._verdict.unconfirmed += len(messages.firsts)
                for stream, numbers in messages.ranges():
                    segment.opens(stream, numbers)

    def end(self, sent: Mapping[Stream, int]) -> Verdict:
        """`sent`: how many messages of each stream the broker has confirmed."""
        for segment in self._segments.values():
            self._settle(segment, _NONE)
        expected = np.zeros(len(self._next), np.int64)
        for (producer, key), count in sent.items():
            expected[producer * self._keys + key] = count
        for at in np.flatnonzero(expected != self._next):
            stream, wanted, found = divmod(int(at), self._keys), expected[at], self._next[at]
            if found < wanted:
                self._verdict.problem(f"lost: {stream} ends with {found} of {wanted}")
            else:
                self._verdict.problem(f"unknown: {stream} has {found}, {wanted} were sent")
        return self._verdict

    def _columns(self, items: Items) -> _Messages:
        assert int(items["producer"].max()) < self._producers
        assert int(items["key"].max()) < self._keys
        assert int(items["entry"].max()) < 1 << _ENTRY_BITS
        assert int(items["index"].max()) + 1 < 1 << _INDEX_BITS
        places = items["ledger"] << _ENTRY_BITS | items["entry"]
        return _Messages(
            items["producer"].astype(np.int64) * self._keys + items["key"],
            items["number"].astype(np.int64),
            places << _INDEX_BITS | items["index"] + 1,
        )

    def _received(self, run: Run, messages: _Messages, segment: _Segment) -> None:
        self._verdict.received += len(run.items)
        ordered = messages.streams[messages.order]
        numbers = messages.numbers[messages.order]
        lengths = messages.lasts - messages.firsts + 1
        ranks = np.arange(len(ordered)) - np.repeat(messages.firsts, lengths)
        if not np.array_equal(numbers, self._next[ordered] + ranks):
            columns = messages.streams, messages.numbers, messages.places
            for stream, number, place in zip(*(each.tolist() for each in columns), strict=True):
                self._received_one(run, segment, stream, number, place)
            return
        # Nothing of it was given out before, so nothing of it can be open, or come again.
        streams = ordered[messages.firsts]
        self._verdict.distinct += len(ordered)
        moved = streams[self._in_segment[streams] != run.segment]
        for stream in moved.tolist():
            self._came[stream].append((int(self._next[stream]), run.segment))
        self._in_segment[streams] = run.segment
        self._next[streams] += lengths
        np.maximum.at(segment.highest, messages.streams, messages.places)

    def _received_one(
        self, run: Run, segment: _Segment, stream: int, number: int, place: int
    ) -> None:
        highest = int(segment.highest[stream])
        segment.highest[stream] = max(highest, place)
        following = int(self._next[stream])
        if number >= following:
            if number > following:
                self._verdict.problem(
                    f"order: {self._named(run, stream, number)}; {following} is next"
                )
            if self._in_segment[stream] != run.segment:
                self._in_segment[stream] = run.segment
                self._came[stream].append((number, run.segment))
            self._next[stream] = number + 1
            self._verdict.distinct += 1
            return
        if place > highest:
            self._stored_again(run, stream, number)
            return
        self._verdict.redelivered += 1
        done = self._acknowledged(segment, stream, run.time_ns)
        if number <= done and not self._is_open(segment, stream, number, run.time_ns):
            named = self._named(run, stream, number)
            self._verdict.problem(f"twice: {named}; acknowledged up to {done}")

    def _stored_again(self, run: Run, stream: int, number: int) -> None:
        """A message that was given out lies at a second place."""
        came = self._came[stream]
        at = bisect_right(came, (number, 1 << 62)) - 1
        first = came[max(0, at)][1]
        copy = stream, number, run.segment
        named = self._named(run, stream, number)
        if first == run.segment or copy in self._copies:
            self._verdict.problem(f"stored twice in its segment: {named}")
        elif run.segment < first:  # Ids grow: the first one is no ancestor of the second one.
            self._verdict.problem(f"stored again in an older segment: {named}; first in {first}")
        elif not self._may_be_unknown(run.time_ns):
            self._verdict.problem(
                f"stored again, and no broker was lost within {UNKNOWN_S_MAX:.0f} s: {named}; "
                f"first in {first}"
            )
        else:
            self._verdict.stored_again += 1
        self._copies.add(copy)

    def _may_be_unknown(self, now_ns: int) -> bool:
        """Whether a broker was lost so shortly before that the producer may not have known whether
        it had stored a message."""
        last = bisect_right(self._losses_ns, now_ns) - 1
        return last >= 0 and now_ns - self._losses_ns[last] <= round(UNKNOWN_S_MAX * 1e9)

    def _settle(self, segment: _Segment, until_ns: int) -> None:
        """What was confirmed until then is stored, unless a broker was lost since."""
        confirmed = segment.confirmed
        while confirmed and confirmed[0].time_ns <= until_ns:
            at_ns, streams, numbers, again = confirmed.popleft()
            if self._was_lost(at_ns, _NONE):
                self._verdict.excused += len(streams)
                continue
            self._verdict.acknowledged += len(streams)
            segment.done[streams] = np.maximum(segment.done[streams], numbers)
            for stream, closed in again:
                segment.closes(stream, closed)

    def _acknowledged(self, segment: _Segment, stream: int, now_ns: int) -> int:
        """Up to which number nothing may come again."""
        self._settle(segment, now_ns - round(ACKNOWLEDGEMENT_S_MAX * 1e9))
        done = int(segment.done[stream])
        for at_ns, streams, numbers, _ in segment.confirmed:
            at = int(np.searchsorted(streams, stream))
            if at < len(streams) and streams[at] == stream and not self._was_lost(at_ns, now_ns):
                done = max(done, int(numbers[at]))
        return done

    def _is_open(self, segment: _Segment, stream: int, number: int, now_ns: int) -> bool:
        """Whether a message was acknowledged without an answer, and not with one since."""
        return segment.is_open(stream, number) and not any(
            stream == other and low <= number <= high
            for each in segment.confirmed
            if not self._was_lost(each.time_ns, now_ns)
            for other, (low, high) in each.again
        )

    def _was_lost(self, at_ns: int, now_ns: int) -> bool:
        """Whether a broker was lost before an acknowledgement was stored for sure."""
        first = bisect_left(self._losses_ns, at_ns - round(_BEFORE_S_MAX * 1e9))
        until_ns = min(now_ns, at_ns + round(ACKNOWLEDGEMENT_S_MAX * 1e9))
        return first < len(self._losses_ns) and self._losses_ns[first] <= until_ns

    def _named(self, run: Run, stream: int, number: int) -> str:
        producer, key = divmod(stream, self._keys)
        return f"message {number} of producer {producer}, key {key}, in segment {run.segment}"


def judge(
    runs: Iterable[Run],
    sent: Mapping[Stream, int],
    losses_ns: Sequence[int] = (),
    *,
    producers: int = 2,
    keys: int = 1_000,
) -> Verdict:
    """`runs`: in the order of their times; `losses_ns`: of brokers, ascending."""
    found = Judge(losses_ns, producers=producers, keys=keys)
    for each in runs:
        found.take(each)
    return found.end(sent)
