"""Invariants of topics: C1 to C4, C8, C10, C12, C14, C17 and C18; managed ledger, section 14."""

from collections.abc import Iterator
from itertools import pairwise

from magnetar.broker.features import deduplication
from magnetar.ledger.ledger_metadata import LedgerState
from magnetar.ledger.managed_log.log_metadata import OPEN_LEDGERS_MAX
from magnetar.ledger.wire import Op
from tests.simulation.checks_log import INSPECTOR
from tests.simulation.cluster.events import (
    Calm,
    Closed,
    Confirmed,
    Dropped,
    Got,
    Kept,
    NodeWrote,
    Place,
    Published,
    Spoke,
    Unreadable,
)
from tests.simulation.cluster.topics import Topics, log_path
from tests.simulation.history import Delivered, Fault, LogAppended, LogRead, Proposed, Sent
from tests.simulation.record import Record, Seen, invariant

DUPLICATE = -1
"""Ledger id in the receipt of a message that a topic with deduplication has already."""


def _was_inspected(run: Record) -> bool:
    return run.is_complete or bool(run.of(Kept)) or bool(run.of(Unreadable))


@invariant("C1", "Every confirmed message is in the end readable at its id, if it is not trimmed")
def confirmed_is_kept(run: Record) -> Iterator[str]:
    for failed in run.of(Unreadable):
        yield f"{failed.event}"
    if not _was_inspected(run):
        return
    topics = Topics.of(run)
    kept = topics.kept
    for seen in run.of(Confirmed):
        event = seen.event
        if event.ledger_id == DUPLICATE:
            entries = kept.get(log_path(event.topic), {}).values()
            if not topics.has_been_trimmed(log_path(event.topic)) and not any(
                event.payload in messages for messages in entries
            ):
                yield f"{seen.actor} {event}; in the end it is nowhere"
            continue
        if topics.is_trimmed(log_path(event.topic), event.ledger_id):
            continue  # C6 says whether that was allowed
        messages = kept.get(log_path(event.topic), {}).get((event.ledger_id, event.entry_id), ())
        at = max(0, event.batch_index)
        if at >= len(messages) or messages[at] != event.payload:
            yield f"{seen.actor} {event}; in the end there is {messages}"


@invariant("C2", "One order: ids of a producer increase, and all who read see the same")
def one_order(run: Record) -> Iterator[str]:
    numbers: dict[tuple[str, str, bytes], int] = {}
    for at, published in enumerate(run.of(Published)):
        message = published.event
        numbers.setdefault((message.producer, message.topic, message.payload), at)
    last: dict[tuple[str, str], tuple[int, tuple[int, int, int]]] = {}
    for seen in run.of(Confirmed):
        event = seen.event
        number = numbers.get((event.producer, event.topic, event.payload), -1)
        place = event.ledger_id, event.entry_id, event.batch_index
        if event.ledger_id == DUPLICATE:
            continue
        before = last.get((event.producer, event.topic))
        if before is not None and not (before[0] < number and before[1] < place):
            yield f"{seen.actor} {event}, after {before[1]}"
        last[event.producer, event.topic] = number, place
    yield from _readers(run)


def _readers(run: Record) -> Iterator[str]:
    kept = Topics.of(run).kept
    contents: dict[tuple[str, int, int, int], bytes] = {}
    reached: dict[tuple[str, str], tuple[int, int, int]] = {}
    for seen in run.of(Got):
        event = seen.event
        path = log_path(event.topic)
        place = event.ledger_id, event.entry_id, event.batch_index
        known = contents.setdefault((path, *place), event.payload)
        if known != event.payload:
            yield f"{event}, but it is {known!r}"
        entries = kept.get(path)
        entry = (event.ledger_id, event.entry_id)
        is_trimmed = Topics.of(run).is_trimmed(path, event.ledger_id)
        if entries is not None and not is_trimmed and event.payload not in entries.get(entry, ()):
            yield f"{event}, and in the end it is not there"
        if event.subscription:
            continue
        before = reached.get((event.consumer, event.topic))
        reached[event.consumer, event.topic] = place
        if before is None:
            continue
        if place <= before:
            yield f"{event}, after {before}"
        elif entries is not None:
            missed = [each for each in entries if before[:2] < each < entry]
            if missed:
                yield f"{event}, after {before}: it was never given {missed}"


@invariant("C3", "Every ledger with a confirmed entry is listed, and no listed ledger is missing")
def listed_and_there(run: Record) -> Iterator[str]:
    lists = Topics.of(run).lists
    for path, values in lists.items():
        metadata = values[-1][1]
        listed = {ledger.ledger_id for ledger in metadata.ledgers}
        for ledger_id in sorted(listed):
            if run.is_deleted(ledger_id):
                yield f"{path} names L{ledger_id}, which is deleted"
        for seen in run.of(Confirmed):
            event = seen.event
            if log_path(event.topic) != path or event.ledger_id in listed:
                continue
            if event.ledger_id > metadata.removed_through:
                yield f"{seen.actor} {event}, and {path} lists {sorted(listed)}"


@invariant("C4", "At most the last two ledgers of a list are open")
def open_ledgers(run: Record) -> Iterator[str]:
    for path, values in Topics.of(run).lists.items():
        for seen, metadata in values:
            for ledger in metadata.ledgers[:-OPEN_LEDGERS_MAX]:
                known = run.metadata_at(ledger.ledger_id, seen.place)
                if known is not None and known.state is not LedgerState.CLOSED:
                    yield f"{path} at line {seen.place}: L{ledger.ledger_id} is {known.state.name}"


_PROMISES = ("SEND_RECEIPT", "MESSAGE", "ACK_RESPONSE")


@invariant("C8", "Once another broker has the topic, the one before it says nothing for it")
def superseded_brokers_are_silent(run: Record) -> Iterator[str]:
    topics = Topics.of(run)
    if not topics.has_leases:
        return  # then the fence of the ledgers is all there is
    events: list[Seen[Spoke] | Seen[NodeWrote]] = sorted(
        [*run.of(Spoke), *run.of(NodeWrote)], key=lambda seen: seen.place
    )
    owners: dict[str, tuple[str, int]] = {}
    for seen in events:
        event = seen.event
        if isinstance(event, NodeWrote):
            # Who reads the logs in the end takes them over without a lease: a broker goes on.
            if event.path in topics.lists and event.value and seen.actor != INSPECTOR:
                owners[event.path] = seen.actor, seen.place
            continue
        if event.command not in _PROMISES or event.source != seen.actor or not event.topic:
            continue
        if event.command == "ACK_RESPONSE" and event.note != "OK":
            continue
        owner, since = owners.get(log_path(event.topic), ("", 0))
        if owner and owner != seen.actor:
            yield f"{event}, though {owner} has the topic (line {since})"


@invariant("C10", "The end of a terminated topic never moves, and nothing is read behind it")
def terminated_ends(run: Record) -> Iterator[str]:
    for path, values in Topics.of(run).lists.items():
        for (_, before), (seen, after) in pairwise(values):
            if before.terminated is not None and before.terminated != after.terminated:
                yield f"{path}: ended at {before.terminated}, at {after.terminated} by {seen.actor}"
        end = values[-1][1].terminated
        if end is None:
            continue
        for got in run.of(Got):
            if log_path(got.event.topic) == path and _place(got.event) > end:
                yield f"{got.event}; the topic ended at {end}"
        for read in run.of(LogRead):
            position = read.event.ledger_id, read.event.entry_id
            ledgers = [ledger.ledger_id for ledger in values[-1][1].ledgers]
            if position[0] in ledgers and position > end:
                yield f"{read.event}; the log ended at {end}"


def _place(event: Got) -> Place:
    return event.ledger_id, event.entry_id


@invariant("C12", "An owner hears of no entry that was not there when the next one took over")
def superseded_owners_get_no_acks(run: Record) -> Iterator[str]:
    for path, values in Topics.of(run).lists.items():
        mine = {ledger.ledger_id for _, metadata in values for ledger in metadata.ledgers}
        for seen in run.of(LogAppended):
            event = seen.event
            if event.error or event.ledger_id not in mine:
                continue
            later = [each for each in values if each[0].place < seen.place]
            if not later or later[-1][0].actor == seen.actor:
                continue
            # The list that superseded it says how far its ledgers go.
            taken = next(
                metadata
                for wrote, metadata in later
                if all(each[0].actor != seen.actor for each in later if each[0].place > wrote.place)
                and wrote.actor != seen.actor
            )
            ends = {ledger.ledger_id: ledger.entries for ledger in taken.ledgers}
            if event.entry_id >= ends.get(event.ledger_id, 0):
                yield f"{seen.actor} {event}; {path} was taken over with {ends}"


@invariant("C14", "A topic that deduplicates keeps each message once")
def kept_once(run: Record) -> Iterator[str]:
    topics = Topics.of(run)
    for path, entries in topics.kept.items():
        if (path, deduplication.CURSOR) not in topics.nodes:
            continue
        first: dict[bytes, Place] = {}
        for place, messages in entries.items():
            for message in messages:
                if first.setdefault(message, place) != place:
                    yield f"{message!r} is at {first[message]} and at {place} of {path}"


@invariant("C17", "Moves in order make no message come twice")
def moves_double_nothing(run: Record) -> Iterator[str]:
    if not run.of(Calm):
        return
    for path, entries in Topics.of(run).kept.items():
        first: dict[bytes, Place] = {}
        for place, messages in entries.items():
            for message in messages:
                if first.setdefault(message, place) != place:
                    yield f"{message!r} is at {first[message]} and at {place} of {path}"


@invariant("C18", "Who has dropped a topic asks for no write of it any more")
def dropped_topics_rest(run: Record) -> Iterator[str]:
    topics = Topics.of(run)
    ledgers: dict[str, set[int]] = {path: set(order) for path, order in topics.order.items()}
    events: list[Seen[Dropped] | Seen[Closed] | Seen[Sent] | Seen[Proposed] | Seen[Fault]] = sorted(
        [
            *run.of(Dropped),
            *run.of(Closed),
            *run.of(Sent),
            *run.of(Proposed),
            *run.of(Fault),
        ],
        key=lambda seen: seen.place,
    )
    greeted = {
        (seen.actor, seen.event.connection): seen.place
        for seen in run.of(Delivered)
        if seen.event.op == Op.INFO and seen.event.is_reply
    }
    """Where each connection to a bookie was ready: it had kept what was asked before."""
    given_up: dict[tuple[str, str], int] = {}
    asked: set[tuple[str, int, int]] = set()
    """By whom, ledger and entry: what is asked of one bookie may wait for the connection to
    another. Others that take the place of one are asked only behind a change of metadata."""
    for seen in events:
        event, actor = seen.event, seen.actor
        if isinstance(event, Dropped):
            given_up[actor, log_path(event.topic)] = seen.place
        elif isinstance(event, Closed):
            given_up.pop((actor, log_path(event.topic)), None)
        elif isinstance(event, Fault):
            if event.what == _CRASHED:
                given_up = {each: at for each, at in given_up.items() if each[0] != actor}
        elif isinstance(event, Proposed) or (event.op == Op.ADD and not event.is_reply):
            entries = {(actor, event.ledger_id, each) for each in _entries_of(event)}
            is_asked = bool(entries) and entries <= asked
            asked |= entries
            ready = greeted.get((actor, event.connection), -1) if isinstance(event, Sent) else -1
            for (who, path), dropped in given_up.items():
                if who != actor or event.ledger_id not in ledgers.get(path, ()) or is_asked:
                    continue
                if ready < dropped and not _tidies_up(topics, path, event, seen.place):
                    yield f"{actor} dropped {path}, and then {event}"


def _tidies_up(topics: Topics, path: str, event: Sent | Proposed, place: int) -> bool:
    """Whether it deletes a ledger that the list does not name any more: a change of the list that
    was asked for before the drop may come through after it, and no owner misses what it removed."""
    if not isinstance(event, Proposed) or event.metadata is not None:
        return False
    before = [metadata for wrote, metadata in topics.lists[path] if wrote.place < place]
    return bool(before) and all(
        ledger.ledger_id != event.ledger_id for ledger in before[-1].ledgers
    )


_CRASHED = "crashes"


def _entries_of(event: Sent | Proposed) -> tuple[int, ...]:
    return tuple(event.entries) if isinstance(event, Sent) else ()
