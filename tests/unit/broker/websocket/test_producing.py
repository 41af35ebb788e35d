"""Producer sessions pass on what frames say, and share a bound on what is under way."""

import asyncio
import json
from base64 import b64encode
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.security import Authorizer
from magnetar.broker.security.identity import NOBODY
from magnetar.broker.topic.publish_limits import PublishBudget
from magnetar.broker.websocket.access import Rights
from magnetar.broker.websocket.endpoint import ProducerParameters, parse_target
from magnetar.broker.websocket.frames import parse_publish
from magnetar.broker.websocket.producer_core import deliver_at_ms, encoded_metadata
from magnetar.broker.websocket.producing import ProducerSession
from magnetar.broker.websocket.session import Links
from magnetar.ledger.system import SystemClock
from magnetar.sdk.message_id import MessageId
from tests.waiting import settle

LONG_MAX = (1 << 63) - 1


class FakeProducer:
    """Keeps what it is given, and says nothing by itself."""

    def __init__(self) -> None:
        self.waiting: list[Callable[..., None]] = []
        self.sent: list[dict[str, Any]] = []
        self.may_close = asyncio.Event()
        self.may_close.set()

    def send_nowait(self, payload: bytes, *, on_sent: Callable[..., None], **more: Any) -> None:
        self.waiting.append(on_sent)
        self.sent.append(more)

    async def close(self) -> None:
        """Close without an outcome of what waits."""
        await self.may_close.wait()


class FakeSocket:
    is_writable = True

    def __init__(self) -> None:
        self.is_held = False
        self.answers: list[bytes] = []

    def send(self, frames: Sequence[bytes]) -> None:
        self.answers += frames

    def hold_reading(self, is_held: bool) -> None:
        self.is_held = is_held

    def close(self, code: int, reason: str) -> None:
        raise AssertionError(reason)


class Client:
    """A session with its socket and its producer."""

    def __init__(self, budget: PublishBudget) -> None:
        endpoint = parse_target("/ws/v2/producer/persistent/public/default/t")
        self.producer, self.socket = FakeProducer(), FakeSocket()
        self.session = ProducerSession(
            endpoint.topic,
            ProducerParameters.of(endpoint.query),
            Rights(NOBODY, cast(Authorizer, None), "client:1"),
            cast(Links, SimpleNamespace(budget=budget)),
            BrokerSettings(),
            clock=SystemClock(),
            first_partition=0,
        )
        self.session._producers = cast(Any, [self.producer])
        self.session.begin(self.socket)

    def publish(self, size: int) -> None:
        self.publish_frame(payload=b64encode(bytes(size)).decode())

    def publish_frame(self, **frame: Any) -> None:
        self.session.on_text(json.dumps({"payload": "", **frame}).encode())

    def stored(self) -> None:
        self.producer.waiting.pop(0)(MessageId(1, 0), None)


async def test_what_one_has_under_way_holds_up_all_until_half_of_it_is_stored() -> None:
    budget = PublishBudget(100)
    one, other = Client(budget), Client(budget)
    one.publish(60)
    assert not one.socket.is_held
    one.publish(60)
    other.publish(1)
    assert [one.socket.is_held, other.socket.is_held] == [True, True]
    one.stored()
    await settle()
    assert [one.socket.is_held, other.socket.is_held] == [True, True]
    one.stored()
    await settle()
    assert [one.socket.is_held, other.socket.is_held] == [False, False]
    assert budget.pending_bytes == 1
    assert len(one.socket.answers) == 2


@pytest.mark.parametrize(
    "frame",
    [
        {"key": "k" * 200},
        {"context": "c" * 200},
        {"properties": {"name": "v" * 200}},
        {"properties": {str(number): "" for number in range(10)}},
        {"replicationClusters": ["west" * 50]},
    ],
    ids=["key", "context", "property", "properties", "clusters"],
)
async def test_what_a_frame_holds_beside_its_payload_counts(frame: dict[str, Any]) -> None:
    budget = PublishBudget(100)
    one = Client(budget)
    one.publish_frame(**frame)
    assert one.socket.is_held
    one.stored()
    await settle()
    assert (one.socket.is_held, budget.pending_bytes) == (False, 0)


async def test_properties_fill_the_bound_of_a_session() -> None:
    client = Client(PublishBudget(1 << 40))
    properties = {f"name-{number}": "value" for number in range(10_000)}
    frames = 0
    while not client.socket.is_held:
        client.publish_frame(properties=properties)
        frames += 1
    assert frames < 10
    for _ in range(frames):
        client.stored()
    await settle()
    assert not client.socket.is_held


async def test_a_session_that_ends_gives_back_what_nobody_will_tell_of() -> None:
    budget = PublishBudget(100)
    one, other = Client(budget), Client(budget)
    one.publish(200)
    other.publish(10)
    assert other.socket.is_held
    await one.session.close()
    assert budget.pending_bytes == 10
    assert not other.socket.is_held
    one.stored()  # after all
    assert budget.pending_bytes == 10


async def test_a_session_whose_publishes_never_end_closes_in_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("magnetar.broker.websocket.producing._FLUSH_S_MAX", 0.001)
    budget = PublishBudget(100)
    client = Client(budget)
    client.publish(60)
    client.producer.may_close.clear()
    await client.session.close()
    assert budget.pending_bytes == 0


async def test_a_close_that_is_cancelled_gives_the_budget_back() -> None:
    budget = PublishBudget(100)
    client = Client(budget)
    client.publish(60)
    client.producer.may_close.clear()
    closing = asyncio.create_task(client.session.close())
    await settle()
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    assert budget.pending_bytes == 0


def test_a_publish_names_the_clusters_that_get_a_copy() -> None:
    client = Client(PublishBudget(100))
    client.publish_frame(replicationClusters=["west", "east"])
    client.publish_frame()
    assert [each["replicate_to"] for each in client.producer.sent] == [("west", "east"), ()]
    publish = parse_publish(b'{"payload": "", "replicationClusters": ["west"]}')
    assert list(encoded_metadata(publish, None).replicate_to) == ["west"]


@pytest.mark.parametrize("delay_ms", [1, LONG_MAX])
def test_a_delay_past_the_end_of_time_means_the_end_of_time(delay_ms: int) -> None:
    publish = parse_publish(json.dumps({"payload": "", "deliverAfterMs": delay_ms}).encode())
    due_ms = deliver_at_ms(publish, LONG_MAX - 1)
    assert due_ms == encoded_metadata(publish, due_ms).deliver_at_time == LONG_MAX
