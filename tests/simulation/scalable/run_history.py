"""What the history of a run says about the topic, found once for all invariants."""

from collections.abc import Iterable
from functools import cached_property

from magnetar.broker.base import naming
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.sdk.wire import parse_topic_name
from tests.simulation.cluster.events import AckCalled, Confirmed, Got, Kept, NodeWrote, Spoke
from tests.simulation.history import Entry, Fault, History, Said
from tests.simulation.scalable.clients import key_of
from tests.simulation.scalable.events import (
    CoordinatorEnded,
    Departed,
    Given,
    Moved,
    Place,
)
from tests.simulation.scalable.stored import RECORD_PATH, StoredRecord

SETTLED = "everything is settled"
"""What the plan says before the inspection."""
_CRASHES = "crashes"
Decision = Given | Departed | CoordinatorEnded | Moved | Spoke
"""What S15 is judged by."""


class RunHistory:
    """Of one run. A line is a place in the history."""

    def __init__(self, history: History) -> None:
        self.history = history

    @property
    def entries(self) -> list[Entry]:
        return self.history.entries

    def history_has(self, kind: type) -> bool:
        """Whether something of a kind has happened."""
        return any(isinstance(entry.event, kind) for entry in self.entries)

    def time_of(self, line: int) -> float:
        """When a line was written, virtual time."""
        return self.entries[line].time_s

    @cached_property
    def settled(self) -> int:
        """The line from which on nothing is published any more, and brokers are stopped."""
        settled = (
            line
            for line, entry in enumerate(self.entries)
            if isinstance(entry.event, Said) and entry.event.text == SETTLED
        )
        return next(settled, len(self.entries))

    # The record

    @cached_property
    def records(self) -> list[tuple[int, float, StoredRecord]]:
        """Every value of the topic's record: line, time and what it says."""
        return [
            (line, self.time_of(line), StoredRecord.of(wrote.value))
            for line, _, wrote in self.history.of(NodeWrote)
            if wrote.path == RECORD_PATH and wrote.value
        ]

    @cached_property
    def names(self) -> dict[int, str]:
        """Names of all segments that there ever were, by their ids."""
        return {each.id: each.name for _, _, record in self.records for each in record.segments}

    @cached_property
    def parents(self) -> dict[str, tuple[str, ...]]:
        """Parents of each segment, by names."""
        return {
            each.name: tuple(self.names[parent] for parent in each.parents)
            for _, _, record in self.records
            for each in record.segments
        }

    def ancestors(self, segment: str) -> list[str]:
        """Of all generations."""
        found: dict[str, None] = {}
        waiting = list(self.parents.get(segment, ()))
        while waiting:
            each = waiting.pop()
            if each not in found:
                found[each] = None
                waiting += self.parents.get(each, ())
        return list(found)

    @cached_property
    def pruned(self) -> set[str]:
        """Names of segments that have left the layout."""
        return {each.name for _, _, record in self.records for each in record.pruned}

    # Logs

    @cached_property
    def segment_of_path(self) -> dict[str, str]:
        """Names of segments by the paths of their logs."""
        return {naming.log_path(parse_topic_name(name)): name for name in self.parents}

    @cached_property
    def ended(self) -> dict[str, tuple[int, Place]]:
        """Where a log has ended: the line at which that was stored first, and its last entry."""
        found: dict[str, tuple[int, Place]] = {}
        for line, _, wrote in self.history.of(NodeWrote):
            segment = self.segment_of_path.get(wrote.path)
            if segment is None or not wrote.value:
                continue
            end = LogMetadata.from_json(wrote.value, path=wrote.path).terminated
            if end is not None:
                found.setdefault(segment, (line, (end.ledger_id, end.entry_id)))
        return found

    @cached_property
    def first_receipt(self) -> dict[str, int]:
        """The line at which a broker first said that a segment has stored something."""
        found: dict[str, int] = {}
        for line, _, spoke in self.history.of(Spoke):
            if spoke.command == "SEND_RECEIPT" and spoke.topic in self.parents:
                found.setdefault(spoke.topic, line)
        return found

    # Messages

    @cached_property
    def confirmed_in(self) -> dict[str, dict[bytes, Place]]:
        """Messages with a receipt, and where they are, by segment."""
        found: dict[str, dict[bytes, Place]] = {}
        for _, _, event in self.history.of(Confirmed):
            messages = found.setdefault(event.topic, {})
            messages[event.payload] = (event.ledger_id, event.entry_id)
        return found

    @cached_property
    def kept(self) -> dict[str, dict[Place, tuple[bytes, ...]]]:
        """What is in each segment in the end, in order."""
        found: dict[str, dict[Place, tuple[bytes, ...]]] = {}
        for _, _, event in self.history.of(Kept):
            entries = found.setdefault(event.topic, {})
            entries[event.ledger_id, event.entry_id] = event.messages
        return found

    @cached_property
    def _known(self) -> dict[str, dict[bytes, Place]]:
        """All messages that are known to have been in a segment."""
        found = {name: dict(messages) for name, messages in self.confirmed_in.items()}
        for _, _, got in self.history.of(Got):
            place = got.ledger_id, got.entry_id
            found.setdefault(got.topic, {}).setdefault(got.payload, place)
        for name, entries in self.kept.items():
            for place, messages in entries.items():
                for payload in messages:
                    found.setdefault(name, {}).setdefault(payload, place)
        return found

    def before(self, got: Got) -> Iterable[bytes]:
        """The messages of the same key that are known to be before one in its segment."""
        place, key = (got.ledger_id, got.entry_id), key_of(got.payload)
        known = self._keys.get((got.topic, key), [])
        return [payload for where, payload in known if where < place]

    @cached_property
    def _keys(self) -> dict[tuple[str, str], list[tuple[Place, bytes]]]:
        """All messages with one key in one segment."""
        found: dict[tuple[str, str], list[tuple[Place, bytes]]] = {}
        for topic, messages in self._known.items():
            for payload, where in messages.items():
                found.setdefault((topic, key_of(payload)), []).append((where, payload))
        return found

    def messages_of(self, segment: str) -> set[bytes]:
        """All messages that are known to have been in a segment."""
        return set(self._known.get(segment, ()))

    def copies(self) -> dict[bytes, list[tuple[str, Place]]]:
        """Where each message is in the end."""
        found: dict[bytes, list[tuple[str, Place]]] = {}
        for name, entries in self.kept.items():
            for place, messages in entries.items():
                for payload in messages:
                    found.setdefault(payload, []).append((name, place))
        return found

    # Consumers

    @cached_property
    def taken(self) -> list[tuple[int, str, Got | AckCalled]]:
        """What consumers got and acknowledged, in order."""
        return [
            (line, entry.actor, entry.event)
            for line, entry in enumerate(self.entries)
            if isinstance(entry.event, Got | AckCalled)
        ]

    @cached_property
    def decisions(self) -> list[tuple[int, str, Decision]]:
        """What coordinators gave out, where a subscription went back, and acknowledgements when
        they are sent: one that a consumer still held when the subscription went back moves it on
        again. A broker that dies is no coordinator any more, either."""
        found: list[tuple[int, str, Decision]] = []
        for line, entry in enumerate(self.entries):
            event = entry.event
            if isinstance(event, Spoke) and event.command != "ACK":
                continue
            if isinstance(event, Decision):
                found.append((line, entry.actor, event))
            elif isinstance(event, Fault) and event.what == _CRASHES:
                found.append((line, entry.actor, CoordinatorEnded("")))
        return found

    def covered_up_to(self, topic: str, places: Iterable[Place]) -> set[bytes]:
        """The messages that a cumulative acknowledgement of these places is about."""
        last = max(places)
        known = self._known.get(topic, {})
        return {payload for payload, where in known.items() if where <= last}

    def covered_by(self, ack: AckCalled) -> set[bytes]:
        """The messages that an acknowledgement is about."""
        place = ack.ledger_id, ack.entry_id
        known = self._known.get(ack.topic, {})
        if ack.is_cumulative:
            return {payload for payload, where in known.items() if where <= place}
        return {payload for payload, where in known.items() if where == place}

    def acknowledged_at(self, subscription: str) -> dict[tuple[str, bytes], int]:
        """The line at which each message of each segment was first acknowledged."""
        found: dict[tuple[str, bytes], int] = {}
        for line, _, event in self.taken:
            if isinstance(event, AckCalled) and event.subscription == subscription:
                for payload in self.covered_by(event):
                    found.setdefault((event.topic, payload), line)
        return found
