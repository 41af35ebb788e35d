"""A model of brokers that have one scalable topic, and what a query asks of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from magnetar.arrow.stored.admin_client import AdminClient, Answers
from magnetar.arrow.stored.errors import RefusedError
from magnetar.sdk.wire.topic_name import TopicName

WHOLE = TopicName.parse("persistent://public/default/grows")
TOPIC = "topic://public/default/grows"
KEYS = tuple(range(0, 1 << 16, 1 << 13))
"""Hashes of the keys: eight, evenly over the ring."""
SUBSCRIPTION = "held"

Place = tuple[int, int]


@dataclass
class ModelLedger:
    """Entries, each the key and number of one message."""

    id: int
    entries: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class ModelSegment:
    """One segment with its log and cursors."""

    id: int
    start: int
    end: int
    parents: tuple[int, ...]
    ledgers: list[ModelLedger]
    children: tuple[int, ...] = ()
    is_sealed: bool = False
    removed_through: int = -1
    cursors: dict[str, Place] = field(default_factory=dict)
    """Through where everything is acknowledged."""

    @property
    def name(self) -> str:
        return str(WHOLE.segment(self.id, start=self.start, end=self.end))

    @property
    def last(self) -> Place:
        for ledger in reversed(self.ledgers):
            if ledger.entries:
                return ledger.id, len(ledger.entries) - 1
        return self.ledgers[0].id, -1

    def is_drained(self) -> bool:
        """As brokers see it: where no entry is left, nobody need acknowledge one."""
        if not any(ledger.entries for ledger in self.ledgers):
            return True
        return all(mark >= self.last for mark in self.cursors.values())


class ModelTopic:
    """The topic. Its owner splits, merges, trims and prunes as brokers do."""

    def __init__(self) -> None:
        self.epoch = 1
        self.next_id = self._next_ledger = 0
        self.segments: dict[int, ModelSegment] = {}
        self.gone: dict[str, ModelSegment] = {}
        """Segments that were pruned."""
        self.sent = dict.fromkeys(KEYS, 0)
        self._add(0, 0xFFFF, ())

    @property
    def active(self) -> list[ModelSegment]:
        found = [each for each in self.segments.values() if not each.is_sealed]
        return sorted(found, key=lambda each: each.start)

    def named(self, name: str) -> ModelSegment | None:
        return next((each for each in self.segments.values() if each.name == name), None)

    def publish(self, key: int) -> None:
        (segment,) = (each for each in self.active if each.start <= key <= each.end)
        segment.ledgers[-1].entries.append((key, self.sent[key]))
        self.sent[key] += 1

    def split(self, at: int) -> None:
        parent = self.active[at % len(self.active)]
        if parent.start == parent.end:
            return
        middle = parent.start + (parent.end - parent.start) // 2
        first = self._add(parent.start, middle, (parent.id,))
        second = self._add(middle + 1, parent.end, (parent.id,))
        self._seal([parent], [first, second])

    def merge(self, at: int) -> None:
        if len(self.active) < 2:
            return
        at %= len(self.active) - 1
        one, other = self.active[at : at + 2]
        self._seal([one, other], [self._add(one.start, other.end, (one.id, other.id))])

    def roll(self, at: int) -> None:
        """The next entry of a segment begins a ledger."""
        segment = self.active[at % len(self.active)]
        if segment.ledgers[-1].entries:
            segment.ledgers.append(self._ledger())

    def trim(self) -> None:
        """Delete what no subscription needs any more; the last ledger of a log stays."""
        for each in self.segments.values():
            while len(each.ledgers) > 1 and self._may_go(each, each.ledgers[0]):
                ledger = each.ledgers.pop(0)
                each.removed_through = ledger.id

    def prune(self) -> None:
        """Take sealed segments out that are drained and have no parents."""
        gone = [
            each
            for each in self.segments.values()
            if each.is_sealed
            and each.is_drained()
            and not any(parent in self.segments for parent in each.parents)
        ]
        for each in gone:
            del self.segments[each.id]
            self.gone[each.name] = each
        self.epoch += bool(gone)

    def record(self) -> dict[str, Any]:
        """The layout, as the administration interface tells it."""
        shown = {}
        for each in self.segments.values():
            shown[str(each.id)] = {
                "segmentId": each.id,
                "hashRange": {"start": each.start, "end": each.end},
                "state": "SEALED" if each.is_sealed else "ACTIVE",
                "parentIds": each.parents,
                "childIds": each.children,
            }
        return {"epoch": self.epoch, "nextSegmentId": self.next_id, "segments": shown}

    def _may_go(self, segment: ModelSegment, ledger: ModelLedger) -> bool:
        last = ledger.id, len(ledger.entries) - 1
        return all(mark >= last for mark in segment.cursors.values())

    def _ledger(self) -> ModelLedger:
        self._next_ledger += 1
        return ModelLedger(self._next_ledger)

    def _add(self, start: int, end: int, parents: tuple[int, ...]) -> ModelSegment:
        made = ModelSegment(self.next_id, start, end, parents, [self._ledger()])
        self.segments[made.id] = made
        self.next_id += 1
        return made

    def _seal(self, parents: list[ModelSegment], children: list[ModelSegment]) -> None:
        for parent in parents:
            parent.is_sealed = True
            parent.children = tuple(each.id for each in children)
            for child in children:
                for name in parent.cursors:
                    child.cursors[name] = (child.ledgers[0].id, -1)
        self.epoch += 1


class ModelAdmin(AdminClient):
    """The administration interface of the model's brokers."""

    def __init__(self, topic: ModelTopic) -> None:
        self._topic = topic
        self.stale: list[dict[str, Any]] = []
        """Layouts that are told before the present one: by brokers that are behind."""

    def close(self) -> None:
        pass

    def get(self, path: str) -> Any:
        assert path == "/admin/v2/scalable/public/default/grows"
        return self.stale.pop() if self.stale else self._topic.record()

    def ask_topics(
        self,
        what: str,
        topics: Iterable[str],
        *,
        values: Mapping[str, Any] | None = None,
        **body: Any,
    ) -> Answers:
        answers = Answers({}, {})
        for name in topics:
            segment = self._topic.named(name)
            if what.startswith("schemas"):
                answers.found[name] = []
            elif segment is None:
                answers.refused[name] = RefusedError(404, f"{name} not found")
            elif what == "internalStats":
                answers.found[name] = _stats(segment)
            else:
                assert what == "subscriptions"
                place = values[name] if values is not None else None
                self._hold(segment, body, place, answers)
        return answers

    def _hold(
        self, segment: ModelSegment, body: Mapping[str, Any], place: Any, answers: Answers
    ) -> None:
        subscription = body["subscription"]
        if body["action"] != "hold" and subscription not in segment.cursors:
            answers.refused[segment.name] = RefusedError(404, "no such subscription")
            return
        if body["action"] == "delete":
            del segment.cursors[subscription]
        else:
            at = place["entryId"] if place["isExcluded"] else place["entryId"] - 1
            segment.cursors[subscription] = max(
                (place["ledgerId"], at), (segment.ledgers[0].id, -1)
            )
        answers.found[segment.name] = {}


def _stats(segment: ModelSegment) -> dict[str, Any]:
    current = None if segment.is_sealed else segment.ledgers[-1]
    return {
        "lastConfirmedEntry": "{}:{}".format(*segment.last),
        "currentLedgerEntries": len(current.entries) if current is not None else 0,
        "currentLedgerSize": 100 * len(current.entries) if current is not None else 0,
        "ledgers": [
            {
                "ledgerId": each.id,
                "entries": 0 if each is current else len(each.entries),
                "size": 0 if each is current else 100 * len(each.entries),
            }
            for each in segment.ledgers
        ],
        "cursors": {
            name: {"markDeletePosition": "{}:{}".format(*mark)}
            for name, mark in segment.cursors.items()
        },
        "removedThrough": segment.removed_through,
        "state": "Terminated" if segment.is_sealed else "LedgerOpened",
    }
