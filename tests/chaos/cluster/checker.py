"""Judges what producers, readers and consumers of one topic wrote down. Pure, and O(n).

What it promises to notice, each with a test that plants it (test_checker.py):

- MISSING: a message was acknowledged, and is not in the topic;
- MOVED: it is there, at another position than the producer was told;
- DISORDERED: messages of one producer changed places;
- INVENTED: something is in the topic that nobody sent, or twice at one position;
- REPEATED: a reader was given a position twice, or went back;
- SKIPPED: a reader passed over something, or stopped short of the end;
- VANISHED: a reader or a consumer was given what is not in the topic in the end;
- UNDELIVERED: a subscription never got a message of its topic;
- FORGOTTEN: an acknowledged message came again, and no fault excuses it.

A client that loses its connection sends again what was not acknowledged, so a message may be in a
topic more than once: counted, not judged. The order of a producer is that of its acknowledged
messages, and of the first copies of all.

One repetition is the official client's own, and is counted, not judged: a reader that was just
given the last message of a batch, with an unbatched entry next, may be given this one batch again,
from index 0, in order and whole. Each move of the topic may do it (README.md says why).
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Position(NamedTuple):
    """Where a message is; `batch_index` is -1 where an entry holds only one."""

    ledger_id: int
    entry_id: int
    batch_index: int


class Message(NamedTuple):
    """A message's producer, and its number: the producer counts from 0."""

    producer: str
    number: int


class Acknowledged(NamedTuple):
    """A producer was told that the message is there."""

    message: Message
    position: Position
    """Without a ledger (-1) if it was sent again and the topic knew it: then it is there once."""


class Delivery(NamedTuple):
    """Somebody was given the message."""

    position: Position
    message: Message
    at_s: float = 0.0


class AckedAt(NamedTuple):
    """A consumer acknowledged the position."""

    position: Position
    at_s: float


class Kind(StrEnum):
    """What can be wrong."""

    MISSING = "missing"
    MOVED = "moved"
    DISORDERED = "disordered"
    INVENTED = "invented"
    REPEATED = "repeated"
    SKIPPED = "skipped"
    VANISHED = "vanished"
    UNDELIVERED = "undelivered"
    FORGOTTEN = "forgotten"


class Problem(NamedTuple):
    """One broken promise."""

    kind: Kind
    text: str


@dataclass(slots=True)
class Subscription:
    """What the consumers of one subscription, which began with the topic, got and acknowledged."""

    deliveries: list[Delivery] = field(default_factory=list)
    """In the order of time."""
    acked: list[AckedAt] = field(default_factory=list)
    """Acknowledgements in the order of time."""
    is_ordered: bool = False
    """With one active consumer: first deliveries come in the order of the topic."""


@dataclass(slots=True)
class History:
    """One topic."""

    topic: str
    sent: dict[str, int] = field(default_factory=dict)
    """By producer, how many messages it began to send."""
    acknowledged: list[Acknowledged] = field(default_factory=list)
    """In the order in which each producer was told."""
    content: list[Delivery] = field(default_factory=list)
    """All that is in the topic in the end, read once more from its beginning."""
    readers: dict[str, list[Delivery]] = field(default_factory=dict)
    """Readers that began with the topic and read to its end."""
    subscriptions: dict[str, Subscription] = field(default_factory=dict)


@dataclass(slots=True)
class Counts:
    """What was looked at."""

    acknowledged: int = 0
    in_topics: int = 0
    known_already: int = 0
    """Receipts for messages that were sent again and not stored again: the topic deduplicates."""
    copies: int = 0
    """Messages that are there once more."""
    read: int = 0
    consumed: int = 0
    acked: int = 0
    repeated_and_excused: int = 0
    """Deliveries after the acknowledgement that a fault excuses."""
    batches_shown_again: int = 0
    """Times that a reader was given its last batch once more by the official client."""

    def __iadd__(self, other: "Counts") -> "Counts":
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self


class Windows:
    """Times in which acknowledgements may be lost, merged and sorted."""

    def __init__(self, windows: Iterable[tuple[float, float]]) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []
        for start_s, end_s in sorted(windows):
            if self._ends and start_s <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end_s)
            else:
                self._starts.append(start_s)
                self._ends.append(end_s)

    def __contains__(self, at_s: float) -> bool:
        at = bisect_right(self._starts, at_s) - 1
        return at >= 0 and at_s <= self._ends[at]


def check(
    history: History, excused: Windows, *, problems_max: int = 20
) -> tuple[list[Problem], Counts]:
    """Judge one topic.

    Args:
        history: what was written down.
        excused: acknowledgements of these times may be lost.
        problems_max: of each kind; more are counted in one line.
    """
    checking = _Checking(history, excused)
    checking.run()
    return _shortened(checking.problems, problems_max), checking.counts


class _Checking:
    def __init__(self, history: History, excused: Windows) -> None:
        self._history = history
        self._excused = excused
        self.problems: list[Problem] = []
        self.counts = Counts()
        self._at: dict[Position, Message] = {}
        """The topic, by position; filled in its order."""
        self._seen: set[Message] = set()

    def run(self) -> None:
        self._check_content()
        self._check_acknowledged()
        for name, deliveries in self._history.readers.items():
            self._check_reader(name, deliveries)
        for name, subscription in self._history.subscriptions.items():
            self._check_subscription(name, subscription)

    def _problem(self, kind: Kind, text: str) -> None:
        self.problems.append(Problem(kind, f"{self._history.topic}: {text}"))

    def _check_content(self) -> None:
        """The topic itself: ascending positions, sent messages, first copies in order."""
        at, sent = self._at, self._history.sent
        first_copies: dict[str, int] = {}
        seen = self._seen
        last: Position | None = None
        for position, message, _ in self._history.content:
            self.counts.in_topics += 1
            if last is not None and position <= last:
                self._problem(Kind.INVENTED, f"{_at(position)} comes after {_at(last)}")
            last = position
            at[position] = message
            if message.number >= sent.get(message.producer, 0):
                self._problem(Kind.INVENTED, f"{_name(message)} at {_at(position)} was never sent")
            if message in seen:
                self.counts.copies += 1
                continue
            seen.add(message)
            before = first_copies.get(message.producer, -1)
            if message.number < before:
                self._problem(
                    Kind.DISORDERED,
                    f"{_name(message)} is at {_at(position)}, behind number {before}",
                )
            first_copies[message.producer] = max(before, message.number)

    def _check_acknowledged(self) -> None:
        told: dict[str, Acknowledged] = {}
        for acknowledged in self._history.acknowledged:
            self.counts.acknowledged += 1
            message, position = acknowledged
            if position.ledger_id < 0:
                self.counts.known_already += 1
                if message not in self._seen:
                    self._problem(
                        Kind.MISSING, f"{_name(message)}, which was known, is not in the topic"
                    )
                continue
            there = self._at.get(position)
            if there != message:
                if message in self._seen:
                    instead = f"there is {_name(there)}" if there else "nothing is there"
                    self._problem(
                        Kind.MOVED,
                        f"{_name(message)} was acknowledged at {_at(position)}, {instead}",
                    )
                else:
                    self._problem(
                        Kind.MISSING,
                        f"{_name(message)}, acknowledged at {_at(position)}, is not in the topic",
                    )
            before = told.get(message.producer)
            if before is not None and (
                (before.message.number < message.number) != (before.position < position)
                or before.message.number == message.number
            ):
                self._problem(
                    Kind.DISORDERED,
                    f"{_name(message)} was acknowledged at {_at(position)}, and "
                    f"{_name(before.message)} at {_at(before.position)}",
                )
            told[message.producer] = acknowledged

    def _check_reader(self, name: str, deliveries: Sequence[Delivery]) -> None:
        """Exactly the topic, from its beginning to its end."""
        expected = iter(self._at)
        last: Position | None = None
        again: Position | None = None
        """What a batch that is shown again has come to."""
        for position, message, _ in deliveries:
            self.counts.read += 1
            self._check_exists(f"reader {name}", position, message)
            if again is not None and last is not None:
                if position == _next_in_batch(again):
                    again = self._shown_again(position, last)
                    continue
                self._shown_in_part(name, again, last)
                again = None
            if last is not None and position <= last:
                if self._may_begin_again(position, last):
                    again = self._shown_again(position, last)
                    continue
                self._problem(
                    Kind.REPEATED, f"reader {name} was given {_at(position)} after {_at(last)}"
                )
                continue
            last = position
            if position not in self._at:
                continue
            passed = 0
            first: Position | None = None
            for each in expected:
                if each == position:
                    break
                first = first or each
                passed += 1
            if passed:
                self._skipped(name, passed, first)
        if again is not None and last is not None:
            self._shown_in_part(name, again, last)
        rest = list(expected)
        if rest:
            self._skipped(name, len(rest), rest[0])

    def _may_begin_again(self, position: Position, last: Position) -> bool:
        """Whether the client's defect explains that the position is given after the last one."""
        ledger_id, entry_id, batch_index = last
        return (
            batch_index >= 0
            and position == last._replace(batch_index=0)
            and _next_in_batch(last) not in self._at
            and Position(ledger_id, entry_id + 1, -1) in self._at
        )

    def _shown_again(self, position: Position, last: Position) -> Position | None:
        """What a batch shown again has come to; None, and counted, when that is its end."""
        if position != last:
            return position
        self.counts.batches_shown_again += 1
        return None

    def _shown_in_part(self, name: str, again: Position, last: Position) -> None:
        self._problem(
            Kind.REPEATED,
            f"reader {name} was given the batch that ends at {_at(last)} again, but only until "
            f"{_at(again)}",
        )

    def _skipped(self, name: str, count: int, first: Position | None) -> None:
        assert first is not None
        self._problem(
            Kind.SKIPPED, f"reader {name} was not given {count} messages from {_at(first)} on"
        )

    def _check_subscription(self, name: str, subscription: Subscription) -> None:
        who = f"subscription {name}"
        acked_s: dict[Position, float] = {}
        """The latest acknowledgement of each position before the delivery that is looked at."""
        acked = iter(subscription.acked)
        next_acked = next(acked, None)
        delivered: set[Position] = set()
        furthest: Position | None = None
        for position, message, at_s in subscription.deliveries:
            self.counts.consumed += 1
            while next_acked is not None and next_acked.at_s < at_s:
                acked_s[next_acked.position] = next_acked.at_s
                next_acked = next(acked, None)
            self._check_exists(who, position, message)
            if position in delivered:
                self._check_excused(who, position, acked_s.get(position), at_s)
                continue
            delivered.add(position)
            if subscription.is_ordered and furthest is not None and position < furthest:
                self._problem(
                    Kind.DISORDERED,
                    f"{who} was given {_at(position)} for the first time after {_at(furthest)}",
                )
            furthest = position if furthest is None else max(furthest, position)
        self.counts.acked += len(subscription.acked)
        missed = [position for position in self._at if position not in delivered]
        if missed:
            self._problem(
                Kind.UNDELIVERED,
                f"{who} was never given {len(missed)} messages, the first at {_at(missed[0])}",
            )

    def _check_excused(
        self, who: str, position: Position, acked_s: float | None, at_s: float
    ) -> None:
        if acked_s is None:
            return
        if acked_s in self._excused:
            self.counts.repeated_and_excused += 1
            return
        self._problem(
            Kind.FORGOTTEN,
            f"{who} was given {_at(position)} again {at_s - acked_s:.2f} s after it had been "
            f"acknowledged at {acked_s:.2f} s",
        )

    def _check_exists(self, who: str, position: Position, message: Message) -> None:
        there = self._at.get(position)
        if there != message:
            instead = f"there is {_name(there)}" if there else "nothing is there"
            self._problem(
                Kind.VANISHED, f"{who} was given {_name(message)} at {_at(position)}, {instead}"
            )


def _shortened(problems: Sequence[Problem], problems_max: int) -> list[Problem]:
    kept: list[Problem] = []
    numbers: dict[Kind, int] = {}
    for problem in problems:
        numbers[problem.kind] = numbers.get(problem.kind, 0) + 1
        if numbers[problem.kind] <= problems_max:
            kept.append(problem)
    for kind, number in numbers.items():
        if number > problems_max:
            kept.append(Problem(kind, f"{number - problems_max} more of the kind: {kind}"))
    return kept


def _next_in_batch(position: Position) -> Position:
    return position._replace(batch_index=position.batch_index + 1)


def _at(position: Position) -> str:
    ledger_id, entry_id, batch_index = position
    return f"{ledger_id}:{entry_id}" + (f":{batch_index}" if batch_index >= 0 else "")


def _name(message: Message) -> str:
    return f"{message.producer}#{message.number}"
