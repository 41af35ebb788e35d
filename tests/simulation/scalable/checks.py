"""The invariants of a scalable topic, judged from the history of a run.

Their numbers are those of the rules in the sheet of Pulsar 5, section 8.4, where it has one. A
message is known by its payload, which names its producer, its number and its key.

What "not twice" means: a message is stored again only if its producer had to send it again, which
it does when a connection of its own is lost, or a broker has to drop the topic. Where nothing goes
wrong, each message is stored once, and each subscription is given it once.
"""

from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Final

from magnetar.broker.features.scalable.layout import RING
from tests.simulation.cluster.events import (
    AckCalled,
    Closing,
    Detached,
    Dropped,
    Got,
    NodeWrote,
    Published,
    Spoke,
    Unreadable,
)
from tests.simulation.history import History
from tests.simulation.record import Violation
from tests.simulation.scalable.clients import key_of, number_of
from tests.simulation.scalable.events import (
    Assigned,
    CoordinatorEnded,
    Departed,
    Given,
    InOrder,
    LayoutTold,
    Left,
    Moved,
    NotSettled,
    Place,
    ReadingFrom,
    SeekBegan,
)
from tests.simulation.scalable.plan import QUEUE, STREAM, ScalablePlan
from tests.simulation.scalable.run_history import Decision, RunHistory
from tests.simulation.scalable.stored import StoredRecord, StoredSegment

INVARIANTS: Final = {
    "S1": "A stream consumer is given the first message of a segment when all messages of all its "
    "ancestors are acknowledged",
    "S3": "The ranges of the active segments cover the ring, each hash once, in every layout",
    "S4": "No key is open in two segments: a segment confirms nothing before its parents have "
    "ended, and nothing lies behind the end of one",
    "S5": "A layout changes by one compare-and-set: what was begun takes its parents' place as a "
    "whole, or sealed segments go",
    "S6": "Epochs grow: of the record with each layout, in each session with each that is told, "
    "and what is told is a layout that was stored; the epoch of assignments never falls",
    "S7": "A subscription that is in all active segments is given all that is published then",
    "S8": "Every confirmed message is kept where its receipt says, and acknowledged on every "
    "subscription",
    "S13": "An id is given to one segment, and the log of one that is gone does not come back",
    "S14": "A segment is pruned when it is sealed, has no parents, every subscription has "
    "acknowledged all of it, and retention is over",
    "S15": "While a subscription goes back on a segment, nobody is given what came of it",
    "S16": "In the end there are logs of segments that the record names, and no others",
    "S18": "A message is stored again only for a connection or a topic that was lost since",
    "E1": "A stream consumer is given a message when all before it in the segment with the same "
    "key are acknowledged, or were given to that consumer",
    "K1": "Messages of one producer with one key come first in their order to stream consumers",
    "K2": "Where nothing goes wrong, no message is stored twice, or comes twice",
    "Q1": "A checkpoint consumer reads each segment behind its checkpoint without a gap",
    "L1": "When nothing is wrong any more, everything is confirmed, and no change stands still",
}

_EXAMPLES = 3
_ANYBODY = "*"
_MS_PER_MIN = 60_000


def judge_scalable(history: History, plan: ScalablePlan) -> list[Violation]:
    """What does not hold; a few examples for each invariant."""
    run = RunHistory(history)
    found: list[Violation] = []
    for name, check in _CHECKS:
        found += [Violation(name, text) for text in islice(check(run, plan), _EXAMPLES)]
    found += [
        Violation(each.invariant, each.text)
        for _, _, each in islice(history.of(NotSettled), _EXAMPLES)
    ]
    return found


# Layouts


def _tiled(run: RunHistory, plan: ScalablePlan) -> Iterator[str]:
    for place, _, record in run.records:
        at = 0
        for each in record.active:
            if each.start != at or each.end < each.start:
                yield f"line {place}, epoch {record.epoch}: {[one.shape for one in record.active]}"
                break
            at = each.end + 1
        else:
            if at != RING:
                yield f"line {place}, epoch {record.epoch}: nothing has hash {at}"


def _one_step(run: RunHistory, plan: ScalablePlan) -> Iterator[str]:
    for (_, _, before), (place, _, after) in pairwise(run.records):
        if before.shape == after.shape:
            if before.change is not None and after.change != before.change:
                yield f"line {place}: what was begun of {before.change[0]} is gone, and not done"
            continue
        gone = [each for each in before.segments if each.id not in after.by_id]
        if gone:
            left = tuple(each for each in before.segments if each not in gone)
            if left != after.segments or not set(gone) <= set(after.pruned):
                yield f"line {place}: {[each.id for each in gone]} went, and more changed"
            continue
        if before.change is None or after.change is not None:
            yield f"line {place}: {before.shape} became {after.shape}, which nobody had begun"
            continue
        yield from _committed(place, before, after)


def _committed(place: int, before: StoredRecord, after: StoredRecord) -> Iterator[str]:
    assert before.change is not None
    parents, children = before.change
    expected = {each.id: each.shape for each in before.segments}
    for each in parents:
        number, start, end, _ = expected[each]
        expected[each] = (number, start, end, True)
    expected |= {each.id: each.shape for each in children}
    if tuple(sorted(expected.values())) != after.shape:
        yield f"line {place}: a change of {parents} became {after.shape}"
    for each in parents:
        if after.by_id[each].children != tuple(child.id for child in children):
            yield f"line {place}: segment {each} does not name its children"


def _epochs(run: RunHistory, plan: ScalablePlan) -> Iterator[str]:
    for (_, _, before), (place, _, after) in pairwise(run.records):
        if after.epoch < before.epoch or (
            before.shape != after.shape and after.epoch == before.epoch
        ):
            yield f"line {place}: epoch {before.epoch}, then {after.epoch} with another layout"
    stored = {(record.epoch, record.shape) for _, _, record in run.records}
    sessions: dict[str, int] = {}
    for place, actor, told in run.history.of(LayoutTold):
        if told.epoch <= sessions.get(told.session, -1):
            yield f"line {place}: {actor} {told}, after epoch {sessions[told.session]}"
        sessions[told.session] = told.epoch
        if (told.epoch, told.segments) not in stored:
            yield f"line {place}: {actor} {told}, which was never stored"
    assigned: dict[tuple[str, int], int] = {}
    for place, actor, given in run.history.of(Assigned):
        key = actor, given.registration
        if given.epoch < assigned.get(key, -1):
            yield f"line {place}: {actor} {given}, after epoch {assigned[key]}"
        assigned[key] = given.epoch


def _ids_once(run: RunHistory, plan: ScalablePlan) -> Iterator[str]:
    names: dict[int, str] = {}
    gone: set[int] = set()
    for place, _, record in run.records:
        for each in record.segments:
            if names.setdefault(each.id, each.name) != each.name or each.id in gone:
                yield f"line {place}: id {each.id} is {each.name}, and was {names[each.id]}"
        gone |= {each.id for each in record.pruned}
    deleted: set[str] = set()
    for place, _, wrote in run.history.of(NodeWrote):
        segment = run.segment_of_path.get(wrote.path)
        if segment is None:
            continue
        if wrote.value is None:
            deleted.add(segment)
        elif segment in deleted:
            yield f"line {place}: the log of {segment} is back"


# Messages


def _open_once(run: RunHistory, plan: ScalablePlan) -> Iterator[str]:
    for segment, parents in run.parents.items():
        first = run.first_receipt.get(segment)
        for parent in parents if first is not None else ():
            ended = run.ended.get(parent)
            if ended is None or (first is not None and ended[0] > first):
                yield f"line {first}: {segment} confirms, and {parent} has not ended"
    for segment, (place, end) in run.ended.items():
        for payload, where in run.confirmed_in.get(segment, {}).items():
            if where > end:
                yield f"{payload!r} is confirmed at {where} of {segment}, ended at {end} ({place})"


def _kept(run: RunHistory, plan: ScalablePlan) -> Iterator[str]:
    for _, _, event in run.history.of(Unreadable):
        yield str(event)
    for segment, messages in run.confirmed_in.items():
        if segment in run.pruned:
            continue
        kept = run.kept.get(segment, {})
        for payload, where in messages.items():
            there = kept.get(where, ())
            if payload not in there:
                yield f"{payload!r} was confirmed at {where} of {segment}; there is {there}"


def _barrier(run: RunHistory, plan: ScalablePlan) -> Iterator[str]:
    """Up to the first time that a subscription goes back: behind that, S15 is judged."""
    until = min((place for place, _, _ in run.history.of(SeekBegan)), default=len(run.entries))
    acknowledged: dict[str, set[bytes]] = {}
    begun: set[str] = set()
    for place, _, event in run.taken:
        if place >= until:
            return
        if event.subscription != STREAM:
            continue
        if isinstance(event, AckCalled):
            acknowledged.setdefault(event.topic, set()).update(run.covered_by(event))
            continue
        if event.topic in begun:
            continue
        begun.add(event.topic)
        for ancestor in run.ancestors(event.topic):
            missing = run.messages_of(ancestor) - acknowledged.get(ancestor, set())
            if missing:
                yield f"line {place}: {event}; {len(missing)} of {ancestor} are not acknowledged"


def _key_order(run: RunHistory, plan: ScalablePlan) -> Iterator[str]:
    if run.history_has(SeekBegan):
        return
    last: dict[tuple[str, str], int] = {}
    seen: set[bytes] = set()
    for place, _, event in run.taken:
        if event.subscription != STREAM or isinstance(event, AckCalled):
            continue
        if event.payload in seen:
            continue
        seen.add(event.payload)
        key = event.payload.decode().partition(":")[0], key_of(event.payload)
        number = number_of(event.payload)
        if number < last.get(key, -1):
            yield f"line {place}: {event}; {last[key]} of this producer and key came before"
        last[key] = max(number, last.get(key, -1))


def _one_holder(run: RunHistory, plan: ScalablePlan) -> Iterator[str]:
    """Consumers that share a segment are judged as well: a bucket that moves waits."""
    if run.history_has(SeekBegan):
        return
    acknowledged: set[tuple[str, bytes]] = set()
    given: set[tuple[str, str, bytes]] = set()
    for place, _, event in run.taken:
        if event.subscription != STREAM:
            continue
        if isinstance(event, AckCalled):
            acknowledged.update((event.topic, each) for each in run.covered_by(event))
            continue
        for before in run.before(event):
            is_done = (event.topic, before) in acknowledged
            if not is_done and (event.consumer, event.topic, before) not in given:
                yield f"line {place}: {event}; {before!r} is not acknowledged"
        given.add((event.consumer, event.topic, event.payload))


def _twice(run: RunHistory, plan: ScalablePlan) -> Iterator[str]:
    if not run.history_has(InOrder):
        return
    for payload, copies in run.copies().items():
        if len(copies) > 1:
            yield f"{payload!r} is stored at {copies}"
    if run.history_has(SeekBegan) or "unload" in plan.kinds:
        return  # An acknowledgement on its way to a topic that moves is lost.
    came: set[tuple[str, bytes]] = set()
    for place, _, event in run.taken:
        if isinstance(event, Got) and event.subscription:
            if (event.subscription, event.payload) in came:
                yield f"line {place}: {event}, once more"
            came.add((event.subscription, event.payload))


def _stored_again(run: RunHistory, plan: ScalablePlan) -> Iterator[str]:
    losses = _losses(run)
    first = {event.payload: line for line, _, event in reversed(list(run.history.of(Published)))}
    for payload, copies in run.copies().items():
        producer = payload.decode().partition(":")[0]
        since = sum(
            first[payload] < line < run.settled and who in (producer, _ANYBODY)
            for line, who in losses
        )
        if len(copies) > 1 + since:
            yield f"{payload!r} is stored at {copies}; {since} losses since it was published"


def _losses(run: RunHistory) -> list[tuple[int, str]]:
    """Where what a producer has under way may be stored without its receipt: the line, and whose.

    A producer that is closed because its segment ends is no loss: all that is stored was answered.
    One that goes on over another connection has lost the one before, though its broker may never
    hear of it: it was paused, and then killed.
    """
    senders: dict[int, str] = {}
    ways: dict[tuple[str, str], int] = {}
    """The connection of a producer to a segment."""
    losses: list[tuple[int, str]] = [(line, _ANYBODY) for line, _, _ in run.history.of(Dropped)]
    losses += [(line, _ANYBODY) for line, _, _ in run.history.of(Closing)]
    for line, _, spoke in run.history.of(Spoke):
        if spoke.command == "SEND":
            senders[spoke.connection] = spoke.source
            way = spoke.source, spoke.topic
            if ways.setdefault(way, spoke.connection) != spoke.connection:
                losses.append((line, spoke.source))
            ways[way] = spoke.connection
        elif spoke.command == "SEND_ERROR":
            losses.append((line, spoke.target))
    for line, _, detached in run.history.of(Detached):
        losses.append((line, senders.get(detached.connection, "")))
    return losses


# Coordinators


def _held_back(run: RunHistory, plan: ScalablePlan) -> Iterator[str]:
    """What coordinators give out; what a client has not heard yet is not theirs to decide."""
    judge = _Seeks(run)
    for line, actor, event in run.decisions:
        yield from judge.look(line, actor, event)


class _Seeks:
    """Follows one subscription: what its coordinator has given, and where it goes back."""

    def __init__(self, run: RunHistory) -> None:
        self._run = run
        self._waiting: dict[str, set[bytes]] = {}
        """Segments on which it has gone back, and what of them is not acknowledged since."""
        self._given: dict[str, Given] = {}
        """The last word to each consumer that is there."""
        self._coordinator = ""

    def look(self, line: int, actor: str, event: Decision) -> Iterator[str]:
        match event:
            case Spoke():
                if event.topic in self._waiting and event.subscription == STREAM:
                    covered = self._run.covered_up_to(event.topic, event.places)
                    self._waiting[event.topic] -= covered
            case Moved():
                left = self._waiting[event.segment] = self._run.messages_of(event.segment)
                for each in self._given.values():
                    yield from self._early(line, each, {event.segment: left})
            case Departed():
                self._given.pop(event.consumer, None)
            case CoordinatorEnded():
                if actor == self._coordinator:
                    self._given.clear()
                    self._coordinator = ""
            case Given():
                if actor != self._coordinator:
                    self._given.clear()
                    self._coordinator = actor
                self._given[event.consumer] = event
                yield from self._early(line, event, self._waiting)

    def _early(self, line: int, given: Given, waiting: dict[str, set[bytes]]) -> Iterator[str]:
        for number in given.segments:
            for ancestor in self._run.ancestors(self._run.names[number]):
                if waiting.get(ancestor):
                    yield f"line {line}: {given}; {len(waiting[ancestor])} of {ancestor} are left"


# Pruning


def _pruned(run: RunHistory, plan: ScalablePlan) -> Iterator[str]:
    subscriptions = [STREAM] + ([QUEUE] if plan.queues else [])
    acknowledged = {each: run.acknowledged_at(each) for each in subscriptions}
    for (_, _, before), (place, time_s, after) in pairwise(run.records):
        for each in before.segments:
            if each.id in after.by_id:
                continue
            yield from _pruned_early(place, before, each)
            for name in subscriptions:
                for payload in run.confirmed_in.get(each.name, {}):
                    if acknowledged[name].get((each.name, payload), place) >= place:
                        yield f"line {place}: {each.name} goes; {name} has not had {payload!r}"
            yield from _pruned_young(run, plan, place, time_s, each)


def _pruned_early(place: int, before: StoredRecord, gone: StoredSegment) -> Iterator[str]:
    parents = [each for each in gone.parents if each in before.by_id]
    if not gone.is_sealed or parents:
        yield f"line {place}: {gone.name} goes; its parents {parents} are there"


def _pruned_young(
    run: RunHistory, plan: ScalablePlan, place: int, time_s: float, gone: StoredSegment
) -> Iterator[str]:
    """By the time of the run: clocks of brokers may be wrong, so this is judged where they are
    right."""
    sealed = run.ended.get(gone.name)
    if not plan.keeps_min or sealed is None or "jump_clock" in plan.kinds:
        return
    age_ms = (time_s - run.time_of(sealed[0])) * 1000
    if run.confirmed_in.get(gone.name) and age_ms < plan.keeps_min * _MS_PER_MIN - 1000:
        yield f"line {place}: {gone.name} goes {age_ms:.0f} ms after its end"


def _logs_left(run: RunHistory, plan: ScalablePlan) -> Iterator[str]:
    if not run.records:
        return
    record = run.records[-1][2]
    known = {each.name for each in (*record.segments, *record.pruned)}
    if record.change is not None:
        known |= {each.name for each in record.change[1]}
    for _, _, left in run.history.of(Left):
        if left.segment not in known:
            yield f"{left.segment} has a log; the record has {sorted(known)}"


# Checkpoint consumers


def _read_all(run: RunHistory, plan: ScalablePlan) -> Iterator[str]:
    positions: dict[tuple[str, str], Place] = {}
    readings: list[tuple[int, ReadingFrom | Got]] = [
        *((place, event) for place, _, event in run.history.of(ReadingFrom)),
        *((place, event) for place, _, event in run.history.of(Got) if not event.subscription),
    ]
    for line, event in sorted(readings, key=lambda each: each[0]):
        if isinstance(event, ReadingFrom):
            positions[event.reader, event.segment] = event.place or (-1, -1)
            continue
        key, where = (event.consumer, event.topic), (event.ledger_id, event.entry_id)
        before = positions.get(key)
        kept = run.kept.get(event.topic)
        if before is None or kept is None:
            continue
        positions[key] = where
        if where <= before or any(before < each < where for each in kept):
            yield f"line {line}: {event}, after {before}"


_CHECKS = (
    ("S1", _barrier),
    ("S3", _tiled),
    ("S4", _open_once),
    ("S5", _one_step),
    ("S6", _epochs),
    ("S8", _kept),
    ("S13", _ids_once),
    ("S14", _pruned),
    ("S15", _held_back),
    ("S16", _logs_left),
    ("S18", _stored_again),
    ("E1", _one_holder),
    ("K1", _key_order),
    ("K2", _twice),
    ("Q1", _read_all),
)
