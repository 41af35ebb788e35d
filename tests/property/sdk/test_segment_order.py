"""A producer's messages through random splits, merges, refusals and receipts, against a broker that
is a plain model: each key's messages are stored once, in the order of the calls."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from magnetar.sdk.scalable.lanes import SegmentLanes
from magnetar.sdk.scalable.layout import Layout, Segment
from tests.unit.sdk.scalable.layouts import segment

KEYS = [b"a", b"b", b"k1"]
"""Few: orders of the same key are what matters."""


@dataclass(eq=False)
class _Message:
    order: int
    key: bytes | None
    number: int
    """In the order of its key's messages."""
    segment_id: int = -1


@dataclass
class _Stored:
    """A segment at the broker."""

    segment: Segment
    messages: list[_Message] = field(default_factory=list)
    arriving: list[_Message] = field(default_factory=list)
    """Sent, and not looked at yet."""
    answers: list[tuple[_Message, bool]] = field(default_factory=list)
    """Whether each was stored; not told yet."""
    is_sealed: bool = False


class _Broker:
    """Segments and layouts; what each segment tells is told later."""

    def __init__(self) -> None:
        self.stored = {0: _Stored(segment(0))}
        self.layouts: list[Layout] = [self._layout(1)]
        self._epoch = 1

    def _layout(self, epoch: int) -> Layout:
        found = []
        for each in self.stored.values():
            own = each.segment
            found.append(
                segment(
                    own.id,
                    own.hash_start,
                    own.hash_end,
                    parents=own.parents,
                    is_sealed=each.is_sealed,
                )
            )
        return Layout(epoch, found)

    def active(self) -> list[Segment]:
        found = [each.segment for each in self.stored.values() if not each.is_sealed]
        return sorted(found, key=lambda each: each.hash_start)

    def split(self, at: int) -> None:
        parent = self.active()[at % len(self.active())]
        if parent.hash_start == parent.hash_end:
            return
        middle = (parent.hash_start + parent.hash_end) // 2
        self._replace([parent], [(parent.hash_start, middle), (middle + 1, parent.hash_end)])

    def merge(self, at: int) -> None:
        active = self.active()
        if len(active) < 2:
            return
        first = at % (len(active) - 1)
        low, high = active[first : first + 2]
        self._replace([low, high], [(low.hash_start, high.hash_end)])

    def _replace(self, parents: list[Segment], ranges: list[tuple[int, int]]) -> None:
        for each in parents:
            self.stored[each.id].is_sealed = True
        for start, end in ranges:
            number = len(self.stored)
            child = segment(number, start, end, parents=[each.id for each in parents])
            self.stored[number] = _Stored(child)
        self._epoch += 1
        self.layouts.append(self._layout(self._epoch))

    def take(self, number: int) -> None:
        """Look at what has arrived in a segment: after its seal nothing is stored."""
        stored = self.stored[number]
        for message in stored.arriving:
            if not stored.is_sealed:
                stored.messages.append(message)
            stored.answers.append((message, not stored.is_sealed))
        stored.arriving.clear()


class _Client:
    """The lanes, and producers that are made at once or later."""

    def __init__(self, broker: _Broker) -> None:
        self.broker = broker
        self.lanes: SegmentLanes[_Message] = SegmentLanes(
            broker.layouts.pop(0), lambda send, count: send.order % count
        )
        self.opening: list[int] = []
        self.sent: dict[bytes | None, int] = {}
        self._order = 0

    def send(self, key: bytes | None) -> None:
        self._order += 1
        number = self.sent.get(key, 0)
        self.sent[key] = number + 1
        message = _Message(self._order, key, number)
        target = self.lanes.put(message)
        if target is not None:
            self.broker.stored[target.id].arriving.append(message)
        self.step()

    def step(self) -> None:
        while self.lanes.is_due:
            step = self.lanes.step()
            for target, sends in step.given:
                self.broker.stored[target.id].arriving += sends
            self.opening += [each.id for each in step.opened]

    def open(self) -> None:
        """Have the producers that are being made ready, or refused."""
        opening, self.opening = self.opening, []
        for number in opening:
            if self.broker.stored[number].is_sealed:
                assert self.lanes.not_ready(number, has_ended=True) == []
            else:
                self.lanes.ready(number)
        self.step()

    def hear(self, number: int, count: int) -> None:
        """Get some of the answers of a segment."""
        answers = self.broker.stored[number].answers
        told, answers[:] = answers[:count], answers[count:]
        if any(not stored for _, stored in told):
            # A producer that is refused fails with all that it has under way.
            told, answers[:] = told + answers, []
        for message, stored in told:
            if stored:
                self.lanes.done(message)
            else:
                self.lanes.refused(message)
        self.step()

    def take_layout(self) -> None:
        if self.broker.layouts:
            self.lanes.change(self.broker.layouts.pop(0))
            self.step()


def _orders(broker: _Broker) -> dict[bytes | None, list[int]]:
    """Numbers of each key's messages: of parents before their children, as consumers read them."""
    found: dict[bytes | None, list[int]] = {}
    for number in sorted(broker.stored):
        for message in broker.stored[number].messages:
            found.setdefault(message.key, []).append(message.number)
    return found


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["send", "send", "send", "nokey", "split", "merge", "take", "hear", "layout", "open"]
        ),
        st.integers(0, 50),
    ),
    min_size=40,
    max_size=150,
)


@given(STEPS)
def test_each_keys_messages_are_stored_once_and_in_order(steps: list[tuple[str, int]]) -> None:
    broker = _Broker()
    client = _Client(broker)
    client.send(KEYS[0])
    client.open()
    for what, number in steps:
        match what:
            case "send":
                client.send(KEYS[number % len(KEYS)])
            case "nokey":
                client.send(None)
            case "split":
                broker.split(number)
            case "merge":
                broker.merge(number)
            case "take":
                broker.take(number % len(broker.stored))
            case "hear":
                client.hear(number % len(broker.stored), 1 + number % 4)
            case "layout":
                client.take_layout()
            case "open":
                client.open()
    for _ in range(4 * len(broker.stored) + 4):
        client.take_layout()
        client.open()
        for number in list(broker.stored):
            broker.take(number)
            client.hear(number, 1_000)
    assert not client.lanes.has_waiting
    orders = _orders(broker)
    for key, count in client.sent.items():
        stored = orders.get(key, [])
        if key is None:
            assert sorted(stored) == list(range(count))
        else:
            assert stored == list(range(count)), key
