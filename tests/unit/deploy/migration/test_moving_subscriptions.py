import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from magnetar.deploy.errors import BrokerUnreachableError
from magnetar.deploy.migration import moving_subscriptions
from magnetar.deploy.migration.moving_subscriptions import Part, set_at_target, state_at_source
from magnetar.deploy.migration.positions import Interval, PositionMap
from magnetar.deploy.migration.sides import Side
from magnetar.deploy.migration.subscriptions import (
    HOLD,
    Moved,
    PartOfBatch,
    SubscriptionState,
    Told,
    told_by,
)
from magnetar.ledger.position import Position
from magnetar.sdk.wire import BaseCommand, MessageMetadata, TopicName, encode_payload
from magnetar.sdk.wire import pulsar_pb2 as pb

TOPIC = TopicName.parse("persistent://public/default/t")
ENTRIES = 10


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving_subscriptions, "LOOK_IDLE_S", 0.01)


class Cluster:
    """A source with one topic and one subscription, and its only connection."""

    what = "source"
    name = "broker"
    is_open = True
    failure = None

    def __init__(
        self, *, backlog: int, ranges: str = "[]", ranges_total: int = 0, misses: int = 0
    ) -> None:
        """`backlog`, `ranges`: as statistics tell them. `misses`: so many statistics lack the
        subscription; entries arrive after them only."""
        self.consumers: dict[int, Any] = {}
        self.deliveries: list[Sequence[tuple[int, tuple[int, ...]]]] = []
        """Entry ids and ack sets that arrive together."""
        self._backlog = backlog
        self._cursor = {
            "markDeletePosition": "5:-1",
            "individuallyDeletedMessages": ranges,
            "totalNonContiguousDeletedMessagesRange": ranges_total,
        }
        self._misses = misses

    def told(self) -> Told:
        (found,) = told_by(*self._statistics())
        return found

    def _statistics(self) -> tuple[dict[str, Any], dict[str, Any]]:
        subscriptions = {"s": {"msgBacklog": self._backlog}, HOLD: {}}
        return {"subscriptions": subscriptions}, {"cursors": {"s": self._cursor}}

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        if path.endswith("/internalStats"):
            return self._statistics()[1]
        if self._misses:
            self._misses -= 1
            asyncio.get_running_loop().call_soon(self._deliver)
            return None
        return self._statistics()[0]

    def next_id(self) -> int:
        return 1

    async def connection_for(self, topic: TopicName) -> "Cluster":
        return self

    # The connection

    def next_request_id(self) -> int:
        return 1

    async def request(self, request_id: int, command: BaseCommand) -> BaseCommand:
        return BaseCommand(type=BaseCommand.SUCCESS)

    def send(self, command: BaseCommand) -> None:
        if command.type == BaseCommand.FLOW and self.deliveries and not self._misses:
            self._deliver()

    def _deliver(self) -> None:
        arrived = self.deliveries.pop(0)
        for consumer in self.consumers.values():
            consumer.on_messages([_message(*each) for each in arrived])
        if self.deliveries:
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._deliver)

    async def state(self) -> SubscriptionState:
        part = Part(TOPIC, _copied())
        return await state_at_source(cast(Side, self), part, self.told(), keeps_parts=True)


def _message(entry_id: int, words: tuple[int, ...]) -> tuple[pb.CommandMessage, bytes]:
    metadata = MessageMetadata(
        producer_name="p", sequence_id=entry_id, publish_time=1, num_messages_in_batch=2
    )
    place = pb.MessageIdData(ledgerId=5, entryId=entry_id)
    return (
        pb.CommandMessage(consumer_id=1, message_id=place, ack_set=words),
        encode_payload(metadata.SerializeToString(), b"body"),
    )


def _copied() -> PositionMap:
    found = PositionMap()
    for entry_id in range(ENTRIES):
        found.add(Position(5, entry_id), Position(90, entry_id), 2)
    return found


def _plain(*entry_ids: int) -> Sequence[tuple[int, tuple[int, ...]]]:
    return [(each, ()) for each in entry_ids]


async def test_a_backlog_that_counts_too_few_acknowledges_no_unread_entry() -> None:
    source = Cluster(backlog=3, ranges_total=2_000)
    source.deliveries = [_plain(0, 1, 2), _plain(3, 4), _plain(7, 8)]
    state = await source.state()
    assert state.acked == (
        Interval(Position(5, 4), Position(5, 6)),
        Interval(Position(5, 8), Position(5, 9)),
    )
    assert state.backlog == 7


async def test_where_statistics_list_all_ranges_nothing_else_counts_as_acknowledged() -> None:
    source = Cluster(backlog=3, ranges="[(5:4..5:6]]", ranges_total=1)
    source.deliveries = [[(0, ()), (1, (2,)), (2, ())]]
    state = await source.state()
    assert state.acked == (Interval(Position(5, 4), Position(5, 6)),)
    assert state.parts == {Position(5, 1): PartOfBatch((2,), 2)}
    assert state.backlog == 3, "so that the comparison notices"


async def test_statistics_without_the_subscription_do_not_end_the_reading() -> None:
    source = Cluster(backlog=8, ranges_total=2_000, misses=1)
    source.deliveries = [_plain(*range(ENTRIES))]
    assert (await source.state()).acked == ()


async def test_entries_that_arrive_while_statistics_are_asked_for_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Cluster(backlog=0, ranges_total=2_000)
    get = source.get

    async def get_while_entries_arrive(path: str, query: Mapping[str, str] | None = None) -> Any:
        if not source.deliveries:
            source.deliveries = [_plain(*range(ENTRIES))]
            source._deliver()
        return await get(path, query)

    monkeypatch.setattr(source, "get", get_while_entries_arrive)
    assert (await source.state()).acked == ()


class Target:
    """A target that has the subscription, but lists none: it loads the topic."""

    what = "target"

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def create(self, path: str, body: Any = None, query: Any = None) -> bool:
        return False

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        return None

    async def ask(self, method: str, path: str, body: Any = None, query: Any = None) -> None:
        self.asked.append(path)


async def test_a_subscription_that_may_be_in_use_at_the_target_is_not_reset() -> None:
    target = Target()
    state = SubscriptionState("s", Position(5, 1))
    with pytest.raises(BrokerUnreachableError):  # the cut-over begins again
        await set_at_target(cast(Side, target), TOPIC, state, Moved(Position(90, 1), (), {}))
    assert target.asked == []
