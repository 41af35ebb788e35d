"""The state of a subscription: as the source reports it, and translated to the target. Pure.

A subscription has a mark (everything up to it is acknowledged), entries after it that are
acknowledged one by one, and batches of which some messages are acknowledged. Clusters report the
first two in a topic's internal statistics (`markDeletePosition`, `individuallyDeletedMessages`);
Magnetar shows at most 1,000 ranges there. No cluster reports the third: only a consumer sees it, in
the `ack_set` of a message. So where statistics are incomplete (`is_told_by_statistics`), a consumer
reads the subscription, and acknowledges nothing.

Source: pulsar-admin sheet, sections 9.5 and 9.6.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_plus

from magnetar.deploy.errors import BrokerUnreachableError
from magnetar.deploy.migration.positions import EntryRange, Interval, PositionMap
from magnetar.ledger.position import EARLIEST, Position

HOLD: Final = "magnetar.migrate"
"""Name of the migration's own subscriptions. At the source the migration reads it; on both sides it
holds messages until everything is moved."""

EARLIEST_BODY: Final = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
"""Position before the first message, in HTTP requests."""

_INTERNAL: Final = (HOLD, "__compaction", "pulsar.dedup", "magnetar.geo.marks")
_INTERNAL_PREFIX: Final = "pulsar.repl."
_RANGE: Final = re.compile(r"([\[(])(-?\d+):(-?\d+)\.\.(-?\d+):(-?\d+)([\])])")


class PartOfBatch(NamedTuple):
    """A batch of which some messages are acknowledged."""

    words: tuple[int, ...]
    """The ack_set: a bit for each message, 1 if it is not acknowledged."""
    messages: int
    """Number of messages in the batch."""


@dataclass(frozen=True, slots=True)
class SubscriptionState:
    """The acknowledged part of a topic, in positions of the reporting cluster."""

    name: str
    mark: Position
    acked: tuple[Interval, ...] = ()
    parts: Mapping[Position, PartOfBatch] = field(default_factory=dict)
    backlog: int = 0
    """Number of unacknowledged entries, as the cluster itself reports it."""
    is_replicated: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Told:
    """A subscription as the statistics report it."""

    state: SubscriptionState
    ranges_total: int
    """Number of ranges of entries that are acknowledged one by one; perhaps more than are
    listed."""
    consumers: tuple[str, ...]
    """Names of the connected consumers."""

    @property
    def is_complete(self) -> bool:
        """Whether all ranges are listed."""
        return self.ranges_total <= len(self.state.acked)


def is_moved(name: str, stats: Mapping[str, Any]) -> bool:
    """Return whether a subscription belongs to an application, and outlives its consumers."""
    if name in _INTERNAL or name.startswith(_INTERNAL_PREFIX):
        return False
    return bool(stats.get("isDurable", stats.get("durable", True)))


def told_by(stats: Mapping[str, Any], internal: Mapping[str, Any]) -> Sequence[Told]:
    """Return the subscriptions of one topic, from its statistics and internal statistics.

    Raises:
        BrokerUnreachableError: the internal statistics lack the cursor of one of them.
    """
    shown = stats.get("subscriptions") or {}
    names = sorted(name for name, each in shown.items() if is_moved(name, each))
    cursors = _cursors_of(names, internal.get("cursors") or {})
    return [_told(name, shown[name], cursors[name]) for name in names]


def _cursors_of(names: Collection[str], listed: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the cursors of subscriptions, by the names of these.

    A Magnetar lists cursors by the names of their subscriptions, Pulsar by the names of their nodes
    in the metadata store: encoded like HTML forms (Java's URLEncoder). All names of a cluster have
    one form: name by name, `a%3Ab` would be a subscription of its own as well as the cursor of
    `a:b`.

    Raises:
        BrokerUnreachableError: the cursor of a subscription is not listed.
    """
    if all(name in listed for name in names):
        return listed
    decoded = {unquote_plus(name): each for name, each in listed.items()}
    for name in names:
        if name not in decoded:
            raise BrokerUnreachableError(
                f"the internal statistics of its topic do not list subscription {name} just now, "
                "so its position is unknown: check that the topic can be consumed, and repeat the "
                "command"
            )
    return decoded


def _told(name: str, shown: Mapping[str, Any], cursor: Mapping[str, Any]) -> Told:
    acked = ranges_in(str(cursor.get("individuallyDeletedMessages") or ""))
    total = cursor.get("totalNonContiguousDeletedMessagesRange")
    state = SubscriptionState(
        name,
        position_in(str(cursor["markDeletePosition"])),
        tuple(acked),
        backlog=int(shown.get("msgBacklog") or 0),
        is_replicated=bool(shown.get("isReplicated", shown.get("replicated", False))),
        properties=dict(shown.get("subscriptionProperties") or {}),
    )
    consumers = tuple(str(one.get("consumerName")) for one in shown.get("consumers") or ())
    return Told(state, len(acked) if total is None else int(total), consumers)


def position_in(text: str) -> Position:
    """Parse `ledger:entry`.

    Raises:
        ValueError: of another form.
    """
    ledger_id, _, entry_id = text.partition(":")
    return Position(int(ledger_id), int(entry_id))


def ranges_in(text: str) -> Sequence[Interval]:
    """Parse ranges as Pulsar writes them: `[(1:2..1:5],(1:7..1:9]]`. A round bracket excludes its
    end, a square one includes it."""
    found = []
    for opening, *numbers, closing in _RANGE.findall(text):
        after_ledger, after_entry, through_ledger, through_entry = map(int, numbers)
        found.append(
            Interval(
                Position(after_ledger, after_entry - (opening == "[")),
                Position(through_ledger, through_entry - (closing == ")")),
            )
        )
    return found


def is_told_by_statistics(told: Told, copied: PositionMap, *, keeps_parts: bool) -> bool:
    """Return whether statistics show the complete state of a subscription.

    Args:
        copied: position map of the topic.
        keeps_parts: whether the cluster records which messages of a batch are acknowledged.
    """
    if not told.is_complete:
        return False
    may_have_parts = keeps_parts and copied.has_batches_behind(told.state.mark)
    return not may_have_parts or told.state.backlog == 0


class Seen:
    """A subscription's backlog, as a consumer that acknowledges nothing has seen it."""

    def __init__(self, mark: Position) -> None:
        self._last = mark
        self._acked: list[Interval] = []
        self.parts: dict[Position, PartOfBatch] = {}
        self.entries = 0

    def saw(self, position: Position, words: Sequence[int], messages: int) -> None:
        """Add a delivered entry. Positions ascend; a repeated entry is not counted twice."""
        if position <= self._last:
            return
        before = Position(position.ledger_id, position.entry_id - 1)
        if before > self._last:
            self._acked.append(Interval(self._last, before))
        if words:
            self.parts[position] = PartOfBatch(tuple(words), messages)
        self._last = position
        self.entries += 1

    def acked(self, end: Position) -> tuple[Interval, ...]:
        """Return the acknowledged intervals, up to the end of the topic."""
        rest = (Interval(self._last, end),) if end > self._last else ()
        return (*self._acked, *rest)


@dataclass(frozen=True, slots=True)
class Moved:
    """A subscription in positions of the target."""

    mark: Position | None
    """The mark; None if nothing is acknowledged."""
    acked: tuple[EntryRange, ...]
    parts: Mapping[Position, PartOfBatch]

    @property
    def intervals(self) -> list[Interval]:
        """The intervals of `acked`."""
        return [each.interval for each in self.acked]


def moved(state: SubscriptionState, copied: PositionMap) -> Moved:
    """Translate a state of the source into positions of the target."""
    acked = [each for interval in state.acked for each in copied.translate(interval)]
    parts = {}
    for position, part in state.parts.items():
        place = copied.exact(position)
        if place is not None:
            parts[place] = part
    return Moved(copied.floor(state.mark), tuple(acked), parts)


def expected_open(wanted: Moved, copied: PositionMap) -> Sequence[EntryRange]:
    """Return the entries at the target that should be delivered."""
    mark = EARLIEST if wanted.mark is None else wanted.mark
    return copied.open_ranges(mark, wanted.intervals)
