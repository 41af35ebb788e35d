"""From offsets to slices: the entries between two offsets, and how they are divided. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from magnetar.arrow.stored.slices import LEDGERS_BEFORE_MAX
from magnetar.arrow.stored.topic_states import TopicState
from magnetar.arrow.stored.trigger_limits import TriggerLimits, Unread, in_sum
from magnetar.sdk.message_id import MessageId

_SLICE_BEGIN_BYTES = 1 << 20
"""Cost of starting a slice, as bytes that could be read in that time."""

_TASKS_MIN = 8
"""Fewest tasks that small slices are joined into: the number of cores is unknown."""


class EntryRange(NamedTuple):
    """Entries `first` to `last` of a ledger, both included."""

    ledger_id: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """A slice before the locations of its ledgers are looked up."""

    topic: str
    partition: int
    ranges: tuple[EntryRange, ...]
    before: tuple[tuple[int, int], ...]
    """Earlier ledgers, nearest last: id and last entry."""
    is_cut_off: bool = False
    """Whether ledgers before the start are gone."""
    skip_through_batch_index: int = -1
    stop_at_batch_index: int = -1


def ranges_between(state: TopicState, start: MessageId, end: MessageId) -> list[EntryRange]:
    """Return the entries after `start` (an offset: the last that was read) up to `end`, inclusive.

    An offset with a batch index ends within its entry, which is then read again from there.
    """
    found: list[EntryRange] = []
    for ledger in state.ledgers:
        first, last = 0, ledger.entries - 1
        if ledger.ledger_id == start.ledger_id:
            first = start.entry_id if start.batch_index >= 0 else start.entry_id + 1
        elif (ledger.ledger_id, 0) < (start.ledger_id, start.entry_id):
            continue
        if ledger.ledger_id == end.ledger_id:
            last = min(last, end.entry_id)
        elif ledger.ledger_id > end.ledger_id:
            break
        if first <= last:
            found.append(EntryRange(ledger.ledger_id, max(0, first), last))
    return found


def slice_entries(state: TopicState, start: MessageId, end: MessageId, *, slice_bytes: int) -> int:
    """Return the number of entries per slice of about `slice_bytes`; at least 1.

    Sizes are averages of ledgers, and the average of a growing ledger changes. A micro-batch that
    is run again must be cut as before, or a sink could not recognize what it has stored already.
    This number is therefore a part of the offset that Spark logs (`QueryOffset.slice_entries`).
    """
    entries, size = entries_between(state, start, end)
    return max(1, math.ceil(entries / max(1, math.ceil(size / slice_bytes))))


def joined_topics(
    states: Mapping[str, TopicState],
    starts: Mapping[str, MessageId],
    ends: Mapping[str, MessageId],
    cuts: Mapping[str, int],
    *,
    slice_bytes: int,
) -> dict[str, int]:
    """Group topics that are too small for a task of their own: topic -> number of the task.

    All other topics are read by tasks of their own. Small slices are joined up to a quarter of
    `slice_bytes`, and each slice adds a fixed cost in bytes. At least `_TASKS_MIN` tasks result, to
    use the cores. The grouping depends on sizes, which are averages that change. It is therefore a
    part of the offset that Spark logs (`QueryOffset.joined`), as `slice_entries` is.
    """
    weights: dict[str, int] = {}
    for name in sorted(ends):
        if name in states:
            entries, size = entries_between(states[name], starts[name], ends[name])
            weight = 4 * size + _SLICE_BEGIN_BYTES
            if 0 < entries <= cuts[name] and weight <= slice_bytes:
                weights[name] = weight
    room = min(slice_bytes, sum(weights.values()) // _TASKS_MIN)
    groups: list[list[str]] = []
    total = slice_bytes
    for name, weight in weights.items():
        if total + weight > room:
            groups.append([])
            total = 0
        groups[-1].append(name)
        total += weight
    several = (group for group in groups if len(group) > 1)
    return {name: number for number, group in enumerate(several) for name in group}


def plan_slices(
    state: TopicState, start: MessageId, end: MessageId, *, entries_max: int
) -> list[SlicePlan]:
    """Return slices of at most `entries_max` entries each, in the order of the log."""
    ledgers = {each.ledger_id: each for each in state.ledgers}
    order = [each.ledger_id for each in state.ledgers]
    # A query that begins with a whole ledger, as only its own start does, misses nothing before it.
    has_lost = state.removed_through >= 0 or start.ledger_id < state.first_ledger_id
    is_cut_off = start.entry_id >= 0 and has_lost
    groups: list[list[EntryRange]] = []
    room = 0
    for whole in ranges_between(state, start, end):
        first = whole.first
        while first <= whole.last:
            if not room:
                groups.append([])
                room = entries_max
            last = min(whole.last, first + room - 1)
            groups[-1].append(EntryRange(whole.ledger_id, first, last))
            room -= last - first + 1
            first = last + 1
    plans = []
    for number, ranges in enumerate(groups):
        at = order.index(ranges[0].ledger_id)
        earlier = order[max(0, at - LEDGERS_BEFORE_MAX) : at]
        before = tuple((each, ledgers[each].entries - 1) for each in earlier)
        is_first, is_last = number == 0, number == len(groups) - 1
        first_id, last_id = ranges[0], ranges[-1]
        skips = is_first and (first_id.ledger_id, first_id.first) == (
            start.ledger_id,
            start.entry_id,
        )
        stops = is_last and (last_id.ledger_id, last_id.last) == (end.ledger_id, end.entry_id)
        plans.append(
            SlicePlan(
                state.name,
                state.partition,
                tuple(ranges),
                before,
                is_cut_off,
                start.batch_index if skips else -1,
                end.batch_index if stops else -1,
            )
        )
    return plans


def entries_between(state: TopicState, start: MessageId, end: MessageId) -> tuple[int, int]:
    """Return the number of entries between two offsets, and approximately their bytes."""
    ledgers = {each.ledger_id: each for each in state.ledgers}
    entries, size = 0, 0.0
    for each in ranges_between(state, start, end):
        count = each.last - each.first + 1
        entries += count
        size += count * ledgers[each.ledger_id].entry_bytes
    return entries, int(size)


def entries_left(state: TopicState, offset: MessageId) -> int:
    """Return the number of entries after an offset in its ledger; a partly read entry counts as
    one."""
    first = offset.entry_id + (offset.batch_index < 0)
    counts = [each.entries for each in state.ledgers if each.ledger_id == offset.ledger_id]
    return max(0, counts[0] - first) if counts else 0


def releasable(state: TopicState, held: MessageId, done: MessageId) -> MessageId:
    """Return the new position of the query's subscription when everything through `done` was read.

    The subscription is at `held`. It does not move to `done` at once: a chunked message may have
    begun before, and end in the next micro-batch, which needs all of it.

    Therefore the last entry is retained, and with it its ledger. If this micro-batch began in an
    earlier ledger, the last entry of the previous ledger is retained as well. When the next
    micro-batch has nothing of the topic, everything is released: an idle topic has no backlog. The
    same holds for a query that is idle for a while (`StreamReader._release_idle`).
    """
    place = held.ledger_id, held.entry_id + (held.batch_index < 0)
    if done.entry_id < 0 or place >= (done.ledger_id, done.entry_id):
        return done
    earlier = [each for each in state.ledgers if each.ledger_id < done.ledger_id and each.entries]
    if earlier:
        last = earlier[-1].ledger_id, earlier[-1].entries - 1
        if place < last:
            return MessageId(*last, batch_index=0)
    return MessageId(done.ledger_id, done.entry_id, batch_index=0)


def unread(
    states: Mapping[str, TopicState],
    starts: Mapping[str, MessageId],
    ends: Mapping[str, MessageId],
) -> dict[str, Unread]:
    """Count the data of each topic between its two offsets."""
    found: dict[str, Unread] = {}
    for name, end in ends.items():
        if name in states and name in starts:
            entries, size = entries_between(states[name], starts[name], end)
            found[name] = Unread(entries, entries * (states[name].messages_per_entry or 1.0), size)
    return found


def limited_ends(
    states: Mapping[str, TopicState],
    starts: Mapping[str, MessageId],
    ends: Mapping[str, MessageId],
    limits: TriggerLimits,
) -> dict[str, MessageId]:
    """Return the ends of a micro-batch within limits, divided in proportion to each topic's data.

    Every topic with data gives at least one entry, so that none is starved. With very many topics a
    limit may be exceeded by that.
    """
    amounts = unread(states, starts, ends)
    there = in_sum(amounts)
    share = min(
        (
            most / count
            for most, count in (
                (limits.entries_max, there.entries),
                (limits.messages_max, there.messages),
                (limits.bytes_max, there.bytes),
            )
            if most is not None and count > most
        ),
        default=1.0,
    )
    if share >= 1.0:
        return dict(ends)
    limited = {}
    for name, end in ends.items():
        count = amounts[name].entries if name in amounts else 0
        limited[name] = (
            _after(states[name], starts[name], end, max(1, int(count * share))) if count else end
        )
    return limited


def _after(state: TopicState, start: MessageId, end: MessageId, count: int) -> MessageId:
    """Return the end of the first `count` entries after `start`."""
    for each in ranges_between(state, start, end):
        have = each.last - each.first + 1
        if have >= count:
            last = each.first + count - 1
            if (each.ledger_id, last) == (end.ledger_id, end.entry_id):
                return end
            return MessageId(each.ledger_id, last)
        count -= have
    return end
