"""In which order a topic's parts look at a message, hear of its outcome, and answer it.

The order is a promise: a check that notes something comes behind those that may refuse, whoever
hides an entry hears of it before it can be dispatched, and a receipt is written last.
"""

from typing import Any

import pytest

from magnetar.broker.features.transactions.topic_transactions import TopicTransactions
from magnetar.broker.policies.model import DelayedDelivery
from magnetar.ledger.errors import LogUnavailableError
from magnetar.ledger.position import Position
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.memory_parts import feature_of
from tests.unit.broker.topic.everything import Everything, answers
from tests.waiting import settle

_CODES = pb.ServerError
_KEYS = [pb.EncryptionKeys(key="k", value=b"encrypted")]

# Checks


_WRONGS: list[tuple[str, dict[str, Any], dict[str, Any], int]] = [
    # What is wrong; with that; without it; the code it is refused with.
    ("requires encryption", {}, {"encryption_keys": _KEYS}, _CODES.MetadataError),
    ("the topic's limit is", {"body": b"x" * 101}, {"body": b"x"}, _CODES.NotAllowedError),
    ("the longest delay is", {"deliver_at_time": 1 << 60}, {}, _CODES.NotAllowedError),
    ("may not publish transaction markers", {"marker_type": 1}, {}, _CODES.NotAllowedError),
    ("deduplicates", {"inner_id": 5}, {}, _CODES.MetadataError),
]


@pytest.mark.parametrize("first", range(len(_WRONGS)))
async def test_checks_refuse_in_their_order(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """Encryption, size, delay, transactions, deduplication; a trace begins behind all of them."""
    world = Everything(monkeypatch)
    await world.start(subscribes=False)
    policies = world.topic.policies.with_values(
        max_message_bytes=100,
        delayed_delivery=DelayedDelivery(active=True, max_delay_ms=1_000),
    )
    world.topic.apply_policies(policies)
    # The producer does not encrypt: it must not be closed before it sends.
    (producer,) = world.topic.producers.values()
    producer.is_encrypted = True
    world.topic.apply_policies(policies.with_values(encryption_required=True))
    metadata: dict[str, Any] = {}
    for at, (_, wrong, right, _) in enumerate(_WRONGS):
        metadata |= right if at < first else wrong
    world.send(0, **metadata)
    error = world.client.take().send_error
    text, _, _, code = _WRONGS[first]
    assert text in error.message
    assert error.error == code
    assert world.happened[0] == "SEND_ERROR", "no trace has begun"


async def test_a_trace_begins_when_no_check_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Everything(monkeypatch)
    await world.start()
    world.send(0)
    assert world.happened == ["span publish begins", "span store begins"]


async def test_what_a_check_noted_about_a_refused_message_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Transactions note a message that deduplication refuses: the next entry is not its own."""
    world = Everything(monkeypatch)
    await world.start()
    other = world.harness.client()
    await other.produce(producer_name="q")
    world.client.send_bytes(
        world.frame(0, in_transaction=True) + world.frame(1, in_transaction=True, inner_id=5)
    )
    world.harness.log.confirm()
    other.send_bytes(world.frame(0, producer_name="q"))
    world.harness.log.confirm()
    state = feature_of(world.topic, TopicTransactions).buffer.state
    (found,) = state.open.values()
    assert Position(7, 0) in found.positions
    assert Position(7, 1) not in found.positions


# Outcomes


async def test_who_hears_of_a_stored_message_in_which_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Transactions, deduplication, traces, the tail cache, the receipt, and then the consumer."""
    world = Everything(monkeypatch)
    await world.start()
    world.send(0, in_transaction=True)
    world.send(1)
    world.happened.clear()
    world.harness.log.confirm(1)
    assert world.happened == [
        "transactions note the entry",
        "deduplication takes a snapshot",
        "span store ends",
        "span publish ends",
        "span dispatch begins",
        "the tail cache has the entry",
        "SEND_RECEIPT",
    ]
    world.happened.clear()
    await settle()
    assert "MESSAGE" not in world.happened, "its transaction is open"


async def test_a_consumer_gets_a_message_behind_its_receipt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = Everything(monkeypatch)
    await world.start()
    world.send(0)
    world.harness.log.confirm(1)
    assert world.happened[-2:] == ["the tail cache has the entry", "SEND_RECEIPT"]
    await settle()
    assert "MESSAGE" in world.happened


@pytest.mark.parametrize(
    ("in_transaction", "reason"),
    [(True, "a message of a transaction"), (False, "the topic deduplicates")],
)
async def test_one_of_those_who_cannot_go_on_has_the_topic_loaded_again(
    monkeypatch: pytest.MonkeyPatch, in_transaction: bool, reason: str
) -> None:
    """Transactions hear of a failure first, then deduplication; a topic is given up once."""
    world = Everything(monkeypatch)
    await world.start()
    world.send(0, in_transaction=in_transaction)
    world.happened.clear()
    world.harness.log.fail(LogUnavailableError("the bookies are away"))
    (told,) = world.reloads
    assert reason in told
    assert "span store ends in an error" in world.happened
    assert "span publish ends in an error" in world.happened
    assert "SEND_RECEIPT" not in world.happened


# Receipts


async def test_answers_leave_in_the_order_of_the_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever becomes of a message, its answer waits for those before it."""
    world = Everything(monkeypatch)
    await world.start()
    world.send(5)
    world.harness.log.confirm()
    await settle()
    assert answers(world.client) == [("receipt", 5)]
    world.send(6)
    world.send(4)
    world.send(7, in_transaction=True)
    world.send(8)
    world.send(9, marker_type=1)
    assert answers(world.client) == []
    world.harness.log.confirm(1)
    assert answers(world.client) == [("receipt", 6), ("duplicate", 4)]
    world.harness.log.confirm(1)
    assert answers(world.client) == [("receipt", 7)]
    world.harness.log.confirm(1)
    assert answers(world.client) == [("receipt", 8), ("error", 9)]


# Draining comes before everything else


async def test_a_topic_that_moves_asks_nobody_about_what_still_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = Everything(monkeypatch)
    await world.start()
    world.send(0)
    world.harness.log.confirm()
    await world.topic.drain(1.0)
    await settle()
    world.client.received()
    world.send(0)  # a duplicate, which gets no receipt any more
    world.send(1)
    assert not world.harness.log.waiting
    assert answers(world.client) == []
    assert world.harness.services.budget.pending_bytes == 0
