"""The end of a terminated topic: who is told, when, and who must not be."""

from typing import Any

import pytest

from magnetar.ledger.position import Position
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Client, Harness, entry
from tests.waiting import settle

_SUB = pb.CommandSubscribe
_END = BaseCommand.REACHED_END_OF_TOPIC
_TYPES = pytest.mark.parametrize(
    "sub_type", [_SUB.Exclusive, _SUB.Shared, _SUB.Failover, _SUB.Key_Shared]
)


async def _join(harness: Harness, sub_type: Any, client_version: str = "Pulsar-Java") -> Client:
    client = harness.client(connect=False)
    client.connect(client_version=client_version)
    client.send_subscribe(subType=sub_type)
    await settle()
    return client


async def _commands(client: Client) -> list[int]:
    await settle()
    return client.commands()


def _terminate(harness: Harness) -> None:
    harness.log.terminated = harness.log.last_confirmed
    harness.topic.log_ended()


@_TYPES
async def test_consumers_that_have_seen_everything_are_told_at_once(sub_type: Any) -> None:
    harness = Harness()
    client = await _join(harness, sub_type)
    assert _END not in await _commands(client)
    _terminate(harness)
    assert await _commands(client) == [_END]
    harness.topic.log_ended()
    assert await _commands(client) == []  # once is enough


@_TYPES
async def test_the_last_acknowledgement_tells_the_end(sub_type: Any) -> None:
    harness = Harness()
    harness.log.store(entry(), entry())
    client = await _join(harness, sub_type)
    client.flow(10)
    _terminate(harness)
    client.ack(Position(7, 0))
    assert _END not in await _commands(client)
    client.ack(Position(7, 1))
    assert await _commands(client) == [_END]


async def test_a_cumulative_acknowledgement_tells_it_too() -> None:
    harness = Harness()
    harness.log.store(entry(), entry())
    client = await _join(harness, _SUB.Exclusive)
    client.flow(10)
    _terminate(harness)
    await _commands(client)
    client.ack(Position(7, 1), ack_type=pb.CommandAck.Cumulative)
    assert await _commands(client) == [_END]


@_TYPES
async def test_who_joins_with_nothing_left_is_told_after_the_answer(sub_type: Any) -> None:
    harness = Harness()
    first = await _join(harness, sub_type)
    first.connection.lost()
    _terminate(harness)
    client = await _join(harness, sub_type)
    found = await _commands(client)
    assert found[0] == BaseCommand.SUCCESS
    assert found[-1] == _END or _END in found


async def test_the_cpp_client_is_never_told() -> None:
    """The C++ client ends its connection on the command, and comes back in a loop."""
    harness = Harness()
    client = await _join(harness, _SUB.Exclusive, client_version="Pulsar-CPP-v4.2.0")
    _terminate(harness)
    assert await _commands(client) == [BaseCommand.SUCCESS]


async def test_nobody_is_told_without_tenure() -> None:
    harness = Harness()
    client = await _join(harness, _SUB.Exclusive)
    await _commands(client)
    harness.topics.tenure.is_held = False
    _terminate(harness)
    assert await _commands(client) == []
