"""Invariants of subscriptions: C5 to C7, C9, C11 and C13 of the managed ledger's section 14."""

from collections import deque
from collections.abc import Iterator
from itertools import pairwise

from magnetar.broker.features import deduplication
from magnetar.cursors.node import NO_LEDGER, CursorNode
from magnetar.ledger.managed_log.log_metadata import LogLedger
from tests.simulation.cluster.events import (
    Backlog,
    Calm,
    Closed,
    Closing,
    Confirmed,
    CursorSaved,
    Detached,
    Dropped,
    Got,
    NodeWrote,
    Place,
    Spoke,
)
from tests.simulation.cluster.topics import Subscription, Topics, covers, log_path
from tests.simulation.record import Record, Seen, invariant

State = tuple[Place, tuple[tuple[int, int, int], ...]]
"""Mark-delete position and ranges."""


def _states(run: Record, key: Subscription) -> list[tuple[int, str, State]]:
    """Durable states of a cursor that count, in order: place, actor, state.

    A ledger counts from the moment when the node names it. From then on it is newer than the
    snapshot in the node, also when the node is written again.
    """
    topics = Topics.of(run)
    events: list[tuple[int, str, Seen[CursorSaved] | CursorNode]] = [
        (seen.place, seen.actor, node)
        for seen, node in topics.nodes.get(key, [])
        if node is not None
    ]
    events += [(saved.place, saved.actor, saved) for saved in topics.saved.get(key, [])]
    found: list[tuple[int, str, State]] = []
    named = NO_LEDGER
    for place, actor, what in sorted(events, key=lambda each: each[0]):
        if isinstance(what, CursorNode):
            if what.cursor_ledger_id == NO_LEDGER or what.cursor_ledger_id != named:
                found.append((place, actor, (what.mark_delete, what.ranges)))
            named = what.cursor_ledger_id
        elif what.event.ledger_id == named:
            found.append((place, actor, (what.event.mark_delete, what.event.ranges)))
    return found


def _keys(run: Record) -> list[Subscription]:
    topics = Topics.of(run)
    return list(dict.fromkeys([*topics.nodes, *topics.saved]))


@invariant("C5", "A cursor stores nothing that was not acknowledged, and does not go back")
def stored_is_acked(run: Record) -> Iterator[str]:
    topics = Topics.of(run)
    known_of = _known_entries(run)
    for key in _keys(run):
        path, name = key
        acked = topics.acked.get(key, {})
        begin = topics.initial(key)
        entries = [each for each in topics.kept.get(path, {}) if each > begin]
        known = known_of.get(path, set()).union(entries)
        reached: Place = (-1, -1)
        for place, actor, (mark_delete, ranges) in _states(run, key):
            for entry in entries if name != deduplication.CURSOR else ():
                if covers(mark_delete, ranges, entry) and acked.get(entry, 1 << 60) > place:
                    yield f"{actor} stored {entry} of {name} as acknowledged (line {place})"
                    break
            if any(mark_delete < entry <= reached for entry in known):
                yield f"{actor} stored {mark_delete} of {name} after {reached} (line {place})"
            reached = max(reached, mark_delete)


def _known_entries(run: Record) -> dict[str, set[Place]]:
    """The confirmed entries of each log. Between two positions of a log there may be none: its
    first ledger was begun ahead, and one of them is before, the other one in it."""
    known: dict[str, set[Place]] = {}
    for seen in run.of(Confirmed):
        entry = seen.event.ledger_id, seen.event.entry_id
        known.setdefault(log_path(seen.event.topic), set()).add(entry)
    return known


@invariant("C15", "A stored position of deduplication has the sequence ids of what is before it")
def snapshots_are_complete(run: Record) -> Iterator[str]:
    topics = Topics.of(run)
    confirmed: dict[str, list[Confirmed]] = {}
    for seen in run.of(Confirmed):
        confirmed.setdefault(log_path(seen.event.topic), []).append(seen.event)
    for key in _keys(run):
        if key[1] != deduplication.CURSOR:
            continue
        stored = [
            (seen.actor, node.mark_delete, node.position_properties)
            for seen, node in topics.nodes.get(key, [])
            if node is not None
        ]
        stored += [
            (seen.actor, seen.event.mark_delete, dict(seen.event.properties))
            for seen in topics.saved.get(key, [])
        ]
        for actor, mark_delete, ids in stored:
            for event in confirmed.get(key[0], ()):
                place = event.ledger_id, event.entry_id
                number = int(event.payload.rpartition(b":")[2])
                if (0, 0) <= place <= mark_delete and ids.get(event.producer, -1) < number:
                    yield f"{actor} stored {mark_delete} with {ids}; {event}"


@invariant("C16", "What an owner has as acknowledged when it closes a topic in order is stored")
def acknowledgements_survive_moves(run: Record) -> Iterator[str]:
    if not run.of(Calm):
        return
    open_ends: dict[tuple[str, str], Closing] = {}
    events: list[Seen[Closing] | Seen[Closed] | Seen[Dropped]] = sorted(
        [*run.of(Closing), *run.of(Closed), *run.of(Dropped)], key=lambda seen: seen.place
    )
    states = {key: _states(run, key) for key in _keys(run)}
    known_of = _known_entries(run)
    dropped: set[tuple[str, str]] = set()
    for seen in events:
        event, who = seen.event, (seen.actor, seen.event.topic)
        if isinstance(event, Dropped):
            dropped.add(who)
        elif isinstance(event, Closing):
            open_ends[who] = event
        elif who in dropped:
            dropped.discard(who)
        else:
            for name, mark_delete, singly in open_ends[who].cursors:
                path = log_path(event.topic)
                stored = states.get((path, name), [])
                before = [state for place, _, state in stored if place <= seen.place]
                passed = [each for each in known_of.get(path, ()) if each <= mark_delete]
                for entry in (max(passed, default=(-1, -1)), *singly):
                    if entry > (-1, -1) and not (before and _has(before[-1], entry)):
                        yield f"{seen.actor} {event}; that {entry} is acknowledged is not stored"


def _has(state: State, entry: Place) -> bool:
    """Whether it is acknowledged, or before the first entry of a ledger that is behind it."""
    mark_delete, ranges = state
    return entry <= mark_delete or covers(mark_delete, ranges, entry)


@invariant("C6", "No ledger leaves the list that a durable subscription still needs")
def trimmed_is_consumed(run: Record) -> Iterator[str]:
    for seen, ledger, name, states in _trimmed(run):
        last = ledger.ledger_id, ledger.entries - 1
        if max(each[0] for each in states) < last:
            yield f"{seen.actor} removed L{ledger.ledger_id}; {name} is before {last}"


@invariant("C13", "When a ledger leaves the list, no durable position is in it any more")
def positions_left_before(run: Record) -> Iterator[str]:
    for seen, ledger, name, states in _trimmed(run):
        mark_delete = states[-1][0]
        if mark_delete[0] == ledger.ledger_id:
            yield f"{seen.actor} removed L{ledger.ledger_id}; {name} is stored at {mark_delete}"


def _trimmed(run: Record) -> Iterator[tuple[Seen[NodeWrote], LogLedger, str, list[State]]]:
    """Each ledger that left a list, with the states until then of each durable subscription."""
    topics = Topics.of(run)
    for path, values in topics.lists.items():
        for (_, before), (seen, after) in pairwise(values):
            left = {ledger.ledger_id for ledger in after.ledgers}
            for ledger in before.ledgers:
                if ledger.ledger_id in left or not ledger.entries:
                    continue
                for key in _keys(run):
                    if key[0] != path or not _exists(topics, key, seen.place):
                        continue
                    states = [state for at, _, state in _states(run, key) if at < seen.place]
                    if states:
                        yield seen, ledger, key[1], states


def _exists(topics: Topics, key: Subscription, place: int) -> bool:
    """Whether a cursor was there at that line of the history."""
    nodes = [node for seen, node in topics.nodes.get(key, []) if seen.place < place]
    return bool(nodes) and nodes[-1] is not None


@invariant("C7", "Every message is delivered until it is acknowledged, and not again after that")
def at_least_once(run: Record) -> Iterator[str]:
    yield from _delivered_again(run)
    if not run.is_complete:
        return
    topics = Topics.of(run)
    got: dict[Subscription, set[Place]] = {}
    for seen in run.of(Got):
        key = log_path(seen.event.topic), seen.event.subscription
        got.setdefault(key, set()).add((seen.event.ledger_id, seen.event.entry_id))
    for key, values in topics.nodes.items():
        if values[-1][1] is None or key[1] == deduplication.CURSOR:
            continue  # it was deleted, or is nobody's subscription
        begin = topics.initial(key)
        for entry in topics.kept.get(key[0], {}):
            if entry > begin and entry not in got.get(key, ()):
                yield f"{key[1]} of {key[0]} was never given {entry}"


def _delivered_again(run: Record) -> Iterator[str]:
    """Messages that are sent although a durable state has them as acknowledged."""
    states = {key: deque(_states(run, key)) for key in _keys(run)}
    current: dict[Subscription, State] = {}
    for seen in run.of(Spoke):
        event = seen.event
        if event.command != "MESSAGE" or not event.places:
            continue
        key = log_path(event.topic), event.subscription
        later = states.get(key)
        while later and later[0][0] < seen.place:
            current[key] = later.popleft()[2]
        state = current.get(key)
        if state is not None and covers(*state, event.places[0]):
            yield f"{event}, though it is stored as acknowledged"


@invariant("C9", "Backlogs are those of the acknowledged positions")
def backlogs(run: Record) -> Iterator[str]:
    for seen in run.of(Backlog):
        event = seen.event
        if event.entries < 0:
            yield f"{seen.actor} {event}"
        entries = Topics.of(run).kept.get(log_path(event.topic))
        if entries is None:
            continue
        begin = Topics.of(run).initial((log_path(event.topic), event.subscription))
        acked = set(event.acked)
        wanted = sum(entry not in acked and entry > begin for entry in entries)
        if wanted != event.entries:
            yield f"{seen.actor} {event}, but {wanted} entries are not acknowledged"


_STANDBY = "Failover", "standby"


@invariant("C11", "Exclusive and failover subscriptions have one active consumer at a time")
def one_active_consumer(run: Record) -> Iterator[str]:
    active: dict[tuple[str, str, str], tuple[int, int]] = {}
    """Per broker, topic and subscription: connection and id of the consumer that is served."""
    told: dict[tuple[int, int], str] = {}
    kinds: dict[tuple[int, int], str] = {}
    events: list[Seen[Spoke] | Seen[Detached]] = sorted(
        [*run.of(Spoke), *run.of(Detached)], key=lambda seen: seen.place
    )
    for seen in events:
        event = seen.event
        if isinstance(event, Detached):
            active = {key: who for key, who in active.items() if who[0] != event.connection}
            continue
        who = event.connection, event.handle
        key = seen.actor, event.topic, event.subscription
        if event.command == "SUBSCRIBED":
            kinds[who] = event.note
            if event.note == "Exclusive":
                if active.get(key, who) != who:
                    yield f"{event}, while {active[key]} is there"
                active[key] = who
        elif event.command in ("CLOSE_CONSUMER", "UNSUBSCRIBE"):
            # Asked for by the client, or said by the broker: the place is free.
            active = {each: holder for each, holder in active.items() if holder != who}
        elif event.command == "ACTIVE_CONSUMER_CHANGE":
            told[who] = event.note
        elif event.command == "MESSAGE" and (kinds.get(who), told.get(who)) == _STANDBY:
            yield f"{event}, which is told to stand by"
