"""What the history of a run says about topics, found once for all invariants."""

from functools import cached_property

from magnetar.broker.base import naming
from magnetar.cursors.node import CursorNode, decode_node
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.sdk.wire import parse_topic_name
from tests.simulation.cluster.events import AckCalled, CursorSaved, Kept, NodeWrote, Place
from tests.simulation.record import Record, Seen

LEASES = "/namespace/"
_LOG_PARTS = len(naming.topics_path("t/n").split("/")) + 1

Subscription = tuple[str, str]
"""Path of the log, name."""


def log_path(topic: str) -> str:
    return naming.log_path(parse_topic_name(topic))


class Topics:
    """Lists, cursors and contents of all topics of a run."""

    def __init__(self, run: Record) -> None:
        self._run = run

    @classmethod
    def of(cls, run: Record) -> "Topics":
        found = _KNOWN.get(id(run))
        if found is None or found[0] is not run:
            _KNOWN.clear()
            found = _KNOWN[id(run)] = run, cls(run)
        return found[1]

    @cached_property
    def lists(self) -> dict[str, list[tuple[Seen[NodeWrote], LogMetadata]]]:
        """Every value of a topic's ledger list, by the path of the log."""
        found: dict[str, list[tuple[Seen[NodeWrote], LogMetadata]]] = {}
        for seen in self._run.of(NodeWrote):
            event = seen.event
            if _depth(event.path) == _LOG_PARTS and event.value:
                value = LogMetadata.from_json(event.value, path=event.path)
                found.setdefault(event.path, []).append((seen, value))
        return found

    @cached_property
    def nodes(self) -> dict[Subscription, list[tuple[Seen[NodeWrote], CursorNode | None]]]:
        """Every value of a cursor's node; None is its end."""
        found: dict[Subscription, list[tuple[Seen[NodeWrote], CursorNode | None]]] = {}
        for seen in self._run.of(NodeWrote):
            event = seen.event
            if _depth(event.path) == _LOG_PARTS + 1:
                path, _, name = event.path.rpartition("/")
                node = decode_node(event.value) if event.value is not None else None
                found.setdefault((path, name), []).append((seen, node))
        return found

    @cached_property
    def saved(self) -> dict[Subscription, list[Seen[CursorSaved]]]:
        """Every state that a broker knows to be in a cursor ledger."""
        found: dict[Subscription, list[Seen[CursorSaved]]] = {}
        for seen in self._run.of(CursorSaved):
            key = seen.event.log_path, seen.event.subscription
            found.setdefault(key, []).append(seen)
        return found

    @cached_property
    def kept(self) -> dict[str, dict[Place, tuple[bytes, ...]]]:
        """What is in each topic in the end, by the path of its log, in order."""
        found: dict[str, dict[Place, tuple[bytes, ...]]] = {}
        for seen in self._run.of(Kept):
            event = seen.event
            entries = found.setdefault(log_path(event.topic), {})
            entries[event.ledger_id, event.entry_id] = event.messages
        return found

    def is_trimmed(self, path: str, ledger_id: int) -> bool:
        """Whether a ledger of a topic has left its list in the end, as one that was consumed."""
        values = self.lists.get(path)
        if not values:
            return False
        metadata = values[-1][1]
        listed = {ledger.ledger_id for ledger in metadata.ledgers}
        return ledger_id <= metadata.removed_through and ledger_id not in listed

    def has_been_trimmed(self, path: str) -> bool:
        """Whether anything has left a topic's list in the end as consumed."""
        values = self.lists.get(path)
        return values is not None and values[-1][1].removed_through >= 0

    @cached_property
    def order(self) -> dict[str, dict[int, int]]:
        """Place of each ledger in its topic's list, whenever it was listed."""
        found: dict[str, dict[int, int]] = {}
        for path, values in self.lists.items():
            order = found.setdefault(path, {})
            for _, metadata in values:
                for ledger in metadata.ledgers:
                    order.setdefault(ledger.ledger_id, len(order))
        return found

    @cached_property
    def acked(self) -> dict[Subscription, dict[Place, int]]:
        """For each entry the place in the history where an application first acknowledged it."""
        found: dict[Subscription, dict[Place, int]] = {}
        for seen in self._run.of(AckCalled):
            event = seen.event
            path = log_path(event.topic)
            acked = found.setdefault((path, event.subscription), {})
            target = event.ledger_id, event.entry_id
            covered = [target]
            if event.is_cumulative:
                covered += [each for each in self.kept.get(path, {}) if each <= target]
            for each in covered:
                acked.setdefault(each, seen.place)
        return found

    @property
    def has_leases(self) -> bool:
        """Whether the brokers of the run hold leases at all."""
        return any(seen.event.path.startswith(LEASES) for seen in self._run.of(NodeWrote))

    def initial(self, key: Subscription) -> Place:
        """Where a subscription began: what is at or before it is none of its business."""
        for _, node in self.nodes.get(key, []):
            if node is not None:
                return node.mark_delete
        return (-1, -1)


_KNOWN: dict[int, tuple[Record, Topics]] = {}
"""Of the last record that was judged."""


def _depth(path: str) -> int:
    return len(path.split("/")) if path.startswith(naming.ROOT + "/") else 0


def covers(mark_delete: Place, ranges: tuple[tuple[int, int, int], ...], place: Place) -> bool:
    """Whether a state of a cursor has the entry as acknowledged."""
    if place <= mark_delete:
        return True
    ledger_id, entry_id = place
    return any(ledger == ledger_id and first <= entry_id <= last for ledger, first, last in ranges)
