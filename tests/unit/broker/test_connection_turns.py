"""All busy clients together get one share of each turn of the event loop, and take turns at it."""

import asyncio

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.protocol.connection import COMMAND_COST_BYTES
from magnetar.sdk.wire import PING_FRAME, BaseCommand, Send, encode_command
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Client, Harness, send_frame

TURN_BYTES_MAX = BrokerSettings.model_fields["turn_bytes_max"].default
COMMAND_BYTES = COMMAND_COST_BYTES + len(PING_FRAME)
COMMANDS_MAX = TURN_BYTES_MAX // COMMAND_COST_BYTES


async def fresh(client: Client) -> Client:
    """With a turn of which nothing is used yet."""
    client.connection.services.shares.use_bytes(TURN_BYTES_MAX)
    client.send_bytes(b"")
    assert client.io.is_paused
    await turn()
    assert not client.io.is_paused
    client.received()
    return client


async def turn() -> None:
    """One turn of the loop: what was ready before has run."""
    await asyncio.sleep(0)


async def test_thousands_of_commands_in_one_read_are_spread_over_turns() -> None:
    client = await fresh(Harness().client())
    count = 3 * COMMANDS_MAX
    client.send_bytes(PING_FRAME * count)
    first = (TURN_BYTES_MAX - count * len(PING_FRAME)) // COMMAND_COST_BYTES
    assert client.commands() == [BaseCommand.PONG] * first
    assert client.io.is_paused
    await turn()
    assert client.commands() == [BaseCommand.PONG] * COMMANDS_MAX
    assert client.io.is_paused
    await turn()
    await turn()
    assert client.commands() == [BaseCommand.PONG] * (count - first - COMMANDS_MAX)
    assert not client.io.is_paused


async def test_the_share_ends_with_its_last_byte() -> None:
    for more, is_used_up in ((-1, False), (0, True)):
        client = await fresh(Harness().client())
        count = TURN_BYTES_MAX // COMMAND_BYTES
        client.connection.services.shares.use_bytes(TURN_BYTES_MAX - count * COMMAND_BYTES + more)
        client.send_bytes(PING_FRAME * count)
        assert len(client.received()) == count
        assert client.io.is_paused is is_used_up


async def test_messages_that_waited_are_stored_in_their_order() -> None:
    harness = Harness()
    client = harness.client()
    await client.produce()
    await fresh(client)
    body = bytes(TURN_BYTES_MAX // 8)
    for start in range(0, 40, 4):
        frames = (send_frame(0, each, body=body) for each in range(start, start + 4))
        client.send_bytes(b"".join(frames))
    found = [(await client.next(BaseCommand.SEND_RECEIPT)).send_receipt for _ in range(40)]
    assert [each.sequence_id for each in found] == list(range(40))
    assert [each.message_id.entryId for each in found] == list(range(40))
    assert not client.io.is_paused


async def test_busy_clients_share_a_turn_and_none_waits_twice_as_long() -> None:
    harness = Harness()
    clients = [harness.client() for _ in range(4)]
    for client in clients:
        client.received()
    await fresh(clients[0])
    half = COMMANDS_MAX // 2
    for client in clients:
        client.send_bytes(PING_FRAME * half)
    done = [len(client.received()) for client in clients]
    assert done[0] == half
    assert sum(done) <= COMMANDS_MAX
    assert done[3] == 0
    for _ in range(4):
        await turn()
    assert [len(client.received()) for client in clients] == [half - each for each in done]
    assert not any(client.io.is_paused for client in clients)


async def test_a_client_below_the_share_is_obeyed_at_once() -> None:
    client = await fresh(Harness().client())
    for _ in range(10):
        client.send_bytes(PING_FRAME)
        assert client.commands() == [BaseCommand.PONG]
    assert not client.io.is_paused


async def test_resting_is_not_being_full() -> None:
    """What is unpersisted does not have to become half of the limit first."""
    harness = Harness(publishes_per_connection_max=10)
    client = harness.client()
    await client.produce()
    harness.log.is_immediate = False
    await fresh(client)
    client.publish(*range(9))
    client.send_bytes(PING_FRAME * COMMANDS_MAX)
    assert client.io.is_paused
    await turn()
    await turn()
    assert not client.io.is_paused
    client.publish(9)
    assert client.io.is_paused


async def test_rests_are_not_counted_as_pauses_of_publishers() -> None:
    """Operators are told that more comes in than bookies take: a rest says nothing of that."""
    harness = Harness(publishes_per_connection_max=10)
    client = harness.client()
    await client.produce()
    harness.log.is_immediate = False
    counters = client.connection.services.counters
    await fresh(client)
    client.send_bytes(PING_FRAME * 3 * COMMANDS_MAX)
    assert client.io.is_paused
    for _ in range(4):
        await turn()
    assert counters.publish_pauses == 0
    client.publish(*range(10))
    assert client.io.is_paused
    assert counters.publish_pauses == 1


async def test_a_connection_that_ends_while_it_rests_is_left_alone() -> None:
    harness = Harness()
    ending, other = harness.client(), await fresh(harness.client())
    ending.send_bytes(PING_FRAME * 2 * COMMANDS_MAX)
    other.send_bytes(PING_FRAME)
    ending.connection.close()
    ending.received()
    await turn()
    await turn()
    assert ending.received() == []
    assert other.commands() == [BaseCommand.PONG]
    assert not other.io.is_paused


async def test_what_breaks_the_protocol_ends_the_connection_in_its_turn() -> None:
    client = await fresh(Harness().client())
    again = encode_command(
        BaseCommand(type=BaseCommand.CONNECT, connect=pb.CommandConnect(client_version="again"))
    )
    client.send_bytes(PING_FRAME * COMMANDS_MAX + again + PING_FRAME)
    assert not client.io.is_closed
    await turn()
    assert client.io.is_closed


async def test_a_defect_in_a_later_turn_ends_the_connection_and_no_other() -> None:
    harness = Harness()
    failing, other = harness.client(), await fresh(harness.client())

    def fail(send: Send, payload: bytes) -> None:
        raise ZeroDivisionError

    reported: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
    failing.send_bytes(PING_FRAME * (COMMANDS_MAX + 1))
    other.send_bytes(PING_FRAME)
    failing.connection.publishing.on_send = fail  # type: ignore[method-assign]
    failing.send_bytes(send_frame(0, 0))
    for _ in range(4):
        await turn()
    assert failing.io.is_closed
    assert [type(each) for each in reported] == [ZeroDivisionError]
    assert other.commands() == [BaseCommand.PONG]
