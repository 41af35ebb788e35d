"""Access modes: who gets a topic for itself, who waits, who is fenced; the topic's epoch."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from magnetar.broker.protocol.connection import BinaryServer, Connection
from magnetar.ledger.errors import LogFencedError, MetadataUnavailableError
from magnetar.ledger.system import SystemNetwork
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Client, Harness
from tests.unit.broker.memory_parts import TOPIC
from tests.waiting import settle

_SHARED = pb.ProducerAccessMode.Shared
_EXCLUSIVE = pb.ProducerAccessMode.Exclusive
_WAIT = pb.ProducerAccessMode.WaitForExclusive
_FENCING = pb.ProducerAccessMode.ExclusiveWithFencing
_BUSY = pb.ServerError.ProducerBusy
_FENCED = pb.ServerError.ProducerFenced

_SUCCESS = BaseCommand.PRODUCER_SUCCESS
_ERROR = BaseCommand.ERROR


async def _open(client: Client, mode: Any, **fields: Any) -> Any:
    """A producer that must be let in at once; its PRODUCER_SUCCESS."""
    answer = await client.produce(producer_access_mode=mode, **fields)
    assert answer.type == _SUCCESS, answer
    assert answer.producer_success.producer_ready
    return answer.producer_success


async def _refused(client: Client, mode: Any, **fields: Any) -> Any:
    answer = await client.produce(producer_access_mode=mode, **fields)
    assert answer.type == _ERROR, answer
    return answer.error.error


async def _queue(client: Client, **fields: Any) -> int:
    """A producer that has to wait; the request id that its turn will be told with."""
    answer = await client.produce(producer_access_mode=_WAIT, **fields)
    assert answer.type == _SUCCESS, answer
    assert not answer.producer_success.producer_ready
    assert not answer.producer_success.HasField("topic_epoch")
    return answer.producer_success.request_id


def _close(client: Client, producer_id: int = 0) -> None:
    client.send(
        BaseCommand.CLOSE_PRODUCER,
        close_producer=pb.CommandCloseProducer(producer_id=producer_id, request_id=900),
    )


def _pong(client: Client) -> None:
    client.send(BaseCommand.PONG, pong=pb.CommandPong())


# Exclusive


async def test_an_exclusive_producer_is_alone() -> None:
    harness = Harness()
    owner = await _open(harness.client(), _EXCLUSIVE)
    assert owner.topic_epoch == 0
    assert await _refused(harness.client(), _SHARED) == _BUSY
    assert await _refused(harness.client(), _EXCLUSIVE) == _FENCED
    assert len(harness.topic.producers) == 1


async def test_nobody_is_exclusive_beside_others() -> None:
    harness = Harness()
    shared = harness.client()
    assert not (await _open(shared, _SHARED)).HasField("topic_epoch")
    assert await _refused(harness.client(), _EXCLUSIVE) == _FENCED
    _close(shared)
    assert (await _open(harness.client(), _EXCLUSIVE)).topic_epoch == 0


async def test_producers_of_a_dead_connection_keep_nobody_from_being_exclusive() -> None:
    harness = Harness()
    dead = harness.client()
    many = 100  # More than leave in one turn of the event loop.
    for producer_id in range(many):
        await dead.produce(producer_id)
    dead.connection.lost()
    assert len(harness.topic.producers) > many / 2
    await _open(harness.client(), _EXCLUSIVE)
    assert len(harness.topic.producers) == 1


async def test_connections_that_are_about_to_leave_keep_nobody_from_being_exclusive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Harness()
    server = BinaryServer(replace(harness.services, clock=harness.clock), SystemNetwork())
    leave = Connection.lost

    def leave_slowly(connection: Connection) -> None:
        harness.clock.steady_s += 1  # No other leaves in this turn of the event loop.
        leave(connection)

    monkeypatch.setattr(Connection, "lost", leave_slowly)
    dead = harness.client()
    await dead.produce()
    for _ in range(100):
        server.lost(harness.client(connect=False).connection)
    server.lost(dead.connection)
    await _open(harness.client(), _EXCLUSIVE)
    assert not dead.connection.is_closed
    assert len(harness.topic.producers) == 1


async def test_a_connection_that_is_about_to_leave_counts_as_dead_though_it_was_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Harness()
    server = BinaryServer(harness.services, SystemNetwork())
    monkeypatch.setattr(Connection, "lost", lambda _: None)  # As if it were not its turn yet.
    dead = harness.client()
    dead.connection.link.read(is_wanted=False)
    assert await dead.connection.publishing.is_alive()
    server.lost(dead.connection)
    assert not await dead.connection.publishing.is_alive()


async def test_each_grant_raises_the_epoch_durably() -> None:
    harness = Harness()
    for epoch in range(3):
        client = harness.client()
        assert (await _open(client, _EXCLUSIVE)).topic_epoch == epoch
        assert harness.log.properties == {"pulsar.topic.epoch": str(epoch)}
        _close(client)


async def test_the_topic_is_free_again_when_the_connection_is_lost() -> None:
    harness = Harness()
    client = harness.client()
    await _open(client, _EXCLUSIVE)
    client.connection.lost()
    await _open(harness.client(), _SHARED)


async def test_who_comes_back_with_its_epoch_keeps_it() -> None:
    harness = Harness()
    first, again = harness.client(), harness.client()
    await _open(first, _EXCLUSIVE, producer_name="p")
    first.connection.lost()
    back = await _open(again, _EXCLUSIVE, producer_name="p", topic_epoch=0, epoch=1)
    assert back.topic_epoch == 0
    assert harness.log.properties == {"pulsar.topic.epoch": "0"}


@pytest.mark.parametrize("mode", [_EXCLUSIVE, _WAIT, _FENCING])
async def test_who_comes_back_with_an_old_epoch_is_fenced(mode: Any) -> None:
    harness = Harness()
    for _ in range(2):
        client = harness.client()
        await _open(client, _EXCLUSIVE)
        _close(client)
    assert await _refused(harness.client(), mode, topic_epoch=0, epoch=1) == _FENCED
    assert (await _open(harness.client(), _EXCLUSIVE)).topic_epoch == 2


async def test_a_higher_epoch_is_adopted() -> None:
    """The topic was deleted and made anew meanwhile."""
    harness = Harness()
    client = harness.client()
    assert (await _open(client, _EXCLUSIVE, topic_epoch=7)).topic_epoch == 7
    _close(client)
    assert (await _open(harness.client(), _EXCLUSIVE)).topic_epoch == 8


@pytest.mark.parametrize("is_beyond", [False, True])
async def test_an_epoch_has_an_end(is_beyond: bool) -> None:
    harness = Harness()
    epoch = (1 << 63) - 1 + is_beyond
    answer = await harness.client().produce(producer_access_mode=_EXCLUSIVE, topic_epoch=epoch)
    if is_beyond:
        assert answer.error.error == pb.ServerError.MetadataError
    else:
        assert answer.producer_success.topic_epoch == epoch


async def test_an_owner_takes_the_place_of_its_own_zombie() -> None:
    harness = Harness()
    zombie, again = harness.client(), harness.client()
    await _open(zombie, _EXCLUSIVE, producer_name="p")
    answer = await again.produce(
        producer_name="p", producer_access_mode=_EXCLUSIVE, topic_epoch=0, epoch=1
    )
    assert answer.producer_success.topic_epoch == 0
    assert zombie.io.is_closed


async def test_an_owner_that_is_alive_keeps_its_name() -> None:
    harness = Harness()
    owner, other = harness.client(), harness.client()
    await _open(owner, _EXCLUSIVE, producer_name="p")
    other.send(
        BaseCommand.PRODUCER,
        producer=pb.CommandProducer(
            topic=TOPIC,
            producer_id=0,
            request_id=1,
            producer_name="p",
            producer_access_mode=_EXCLUSIVE,
        ),
    )
    await owner.next(BaseCommand.PING)
    _pong(owner)
    assert (await other.next()).error.error == _FENCED
    assert not owner.io.is_closed


async def test_an_epoch_that_cannot_be_stored_is_not_told() -> None:
    harness = Harness()
    harness.log.properties_error = MetadataUnavailableError("the store is away")
    assert await _refused(harness.client(), _EXCLUSIVE) == pb.ServerError.MetadataError
    harness.log.properties_error = LogFencedError("another owner")
    assert await _refused(harness.client(), _EXCLUSIVE) == pb.ServerError.ServiceNotReady
    harness.log.properties_error = None
    assert (await _open(harness.client(), _EXCLUSIVE)).topic_epoch == 0


async def test_an_epoch_that_is_no_number_is_refused_and_left_as_it_is() -> None:
    harness = Harness()
    harness.log.properties["pulsar.topic.epoch"] = "many"
    assert await _refused(harness.client(), _EXCLUSIVE) == pb.ServerError.MetadataError
    assert harness.log.properties == {"pulsar.topic.epoch": "many"}


async def test_while_the_epoch_is_stored_nobody_else_is_let_in() -> None:
    harness = Harness()
    harness.log.properties_gate = asyncio.Event()
    owner = harness.client()
    opening = asyncio.ensure_future(_open(owner, _EXCLUSIVE))
    await settle()
    assert await _refused(harness.client(), _SHARED) == _BUSY
    assert await _refused(harness.client(), _EXCLUSIVE) == _FENCED
    harness.log.properties_gate.set()
    assert (await opening).topic_epoch == 0


async def test_a_client_that_leaves_while_the_epoch_is_stored_leaves_nothing_behind() -> None:
    harness = Harness()
    harness.log.properties_gate = asyncio.Event()
    client = harness.client()
    client.send(
        BaseCommand.PRODUCER,
        producer=pb.CommandProducer(
            topic=TOPIC, producer_id=0, request_id=1, producer_access_mode=_EXCLUSIVE
        ),
    )
    await settle()
    client.connection.lost()
    await settle()
    harness.log.properties_gate = None
    await _open(harness.client(), _SHARED)


# WaitForExclusive


async def test_it_is_the_turn_of_those_who_wait_one_after_the_other() -> None:
    harness = Harness()
    clients = [harness.client() for _ in range(3)]
    await _open(clients[0], _WAIT, producer_name="p0")
    requests = [await _queue(client) for client in clients[1:]]
    assert await _refused(harness.client(), _SHARED) == _BUSY
    assert await _refused(harness.client(), _EXCLUSIVE) == _FENCED
    for at, (client, request_id) in enumerate(zip(clients[1:], requests, strict=True)):
        assert client.received() == []
        _close(clients[at])
        success = (await client.next(_SUCCESS)).producer_success
        assert success.producer_ready
        assert (success.request_id, success.topic_epoch) == (request_id, at + 1)
        assert len(harness.topic.producers) == 1
    clients[-1].publish(0)
    await clients[-1].next(BaseCommand.SEND_RECEIPT)


async def test_who_waits_for_shared_producers_has_its_turn_when_all_have_left() -> None:
    harness = Harness()
    one, two, waiting = (harness.client() for _ in range(3))
    await _open(one, _SHARED)
    await _open(two, _SHARED)
    await _queue(waiting)
    _close(one)
    await settle()
    assert waiting.received() == []
    two.connection.lost()
    assert (await waiting.next(_SUCCESS)).producer_success.topic_epoch == 0


async def test_who_gives_up_waiting_is_passed_over() -> None:
    harness = Harness()
    owner, impatient, lost, patient = (harness.client() for _ in range(4))
    await _open(owner, _EXCLUSIVE)
    for client in (impatient, lost, patient):
        await _queue(client)
    _close(impatient)
    assert impatient.commands() == [BaseCommand.SUCCESS]
    lost.connection.lost()
    await settle()
    assert harness.topic.access.waiting == 1
    owner.connection.lost()
    assert (await patient.next(_SUCCESS)).producer_success.producer_ready
    assert impatient.received() == []


async def test_a_turn_that_nobody_takes_goes_to_the_next() -> None:
    harness = Harness()
    owner, first, second = (harness.client() for _ in range(3))
    await _open(owner, _EXCLUSIVE)
    await _queue(first)
    await _queue(second)
    harness.log.properties_error = MetadataUnavailableError("the store is away")
    _close(owner)
    assert (await first.next()).error.error == pb.ServerError.MetadataError
    assert (await second.next()).error.error == pb.ServerError.MetadataError
    harness.log.properties_error = None
    await _open(harness.client(), _SHARED)


async def test_who_waits_is_told_when_the_topic_is_closed() -> None:
    harness = Harness()
    owner, waiting = harness.client(), harness.client()
    await _open(owner, _EXCLUSIVE)
    request_id = await _queue(waiting)
    harness.topic.disconnect_all()
    error = (await waiting.next(_ERROR)).error
    assert (error.request_id, error.error) == (request_id, pb.ServerError.ServiceNotReady)


async def test_the_same_id_again_while_it_waits_is_not_ready() -> None:
    harness = Harness()
    await _open(harness.client(), _EXCLUSIVE)
    waiting = harness.client()
    await _queue(waiting)
    assert await _refused(waiting, _WAIT) == pb.ServerError.ServiceNotReady


@pytest.mark.parametrize("waiting_max", [0, 1])
async def test_those_who_wait_are_bounded(waiting_max: int) -> None:
    harness = Harness(producers_waiting_per_topic_max=waiting_max)
    await _open(harness.client(), _EXCLUSIVE)
    for _ in range(waiting_max):
        await _queue(harness.client())
    assert await _refused(harness.client(), _WAIT) == _BUSY


# ExclusiveWithFencing


async def test_fencing_drives_out_everybody() -> None:
    harness = Harness()
    one, two, waiting, fencing = (harness.client() for _ in range(4))
    await _open(one, _SHARED)
    await _open(two, _SHARED)
    request_id = await _queue(waiting)
    assert (await _open(fencing, _FENCING)).topic_epoch == 0
    assert one.commands() == two.commands() == [BaseCommand.CLOSE_PRODUCER]
    error = (await waiting.next(_ERROR)).error
    assert (error.request_id, error.error) == (request_id, _FENCED)
    assert len(harness.topic.producers) == 1


async def test_a_fenced_owner_does_not_come_back() -> None:
    harness = Harness()
    first, second = harness.client(), harness.client()
    await _open(first, _FENCING, producer_name="p")
    assert (await _open(second, _FENCING, producer_name="q")).topic_epoch == 1
    first.take(BaseCommand.CLOSE_PRODUCER)
    for mode in (_FENCING, _EXCLUSIVE, _WAIT):
        refused = await _refused(first, mode, producer_name="p", topic_epoch=0, epoch=1)
        assert refused == _FENCED
    assert second.received() == []


async def test_nothing_of_the_fenced_is_stored_behind_the_new_owner() -> None:
    harness = Harness()
    first, second = harness.client(), harness.client()
    await _open(first, _EXCLUSIVE)
    harness.log.is_immediate = False
    first.publish(0, body=b"under way")
    await _open(second, _FENCING)
    first.publish(1, body=b"too late")
    second.publish(0, body=b"new")
    harness.log.confirm()
    assert first.commands() == [BaseCommand.CLOSE_PRODUCER]
    stored = [entry.rpartition(b"-")[0] for entry in harness.log.entries[7]]
    assert [each.endswith(b"under way") for each in stored] == [True, False]


async def test_fencing_reaches_a_grant_that_is_under_way() -> None:
    harness = Harness()
    harness.log.properties_gate = asyncio.Event()
    first, second = harness.client(), harness.client()
    refused = asyncio.ensure_future(_refused(first, _EXCLUSIVE))
    await settle()
    opening = asyncio.ensure_future(_open(second, _FENCING))
    await settle()
    harness.log.properties_gate.set()
    assert await refused == _FENCED
    assert (await opening).topic_epoch >= 0
    assert (
        harness.topic.access.holder is harness.topic.producers[next(iter(harness.topic.producers))]
    )


async def test_the_epoch_is_told_again_when_it_is_asked_for_again() -> None:
    client = Harness().client()
    await _open(client, _EXCLUSIVE)
    assert (await _open(client, _EXCLUSIVE)).topic_epoch == 0
