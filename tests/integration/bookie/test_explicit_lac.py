"""An explicit LAC that was answered is there after kill -9, and after any number of flushes."""

from pathlib import Path

from magnetar.ledger.digest import packet_codec
from magnetar.ledger.wire import Frame, Op, Status
from magnetar.ledger.wire_bodies import decode_lac_reply
from tests.bookie_parts import KEY, BookieClient, add_request, read_lac_request
from tests.integration.bookie.test_kill import bookie_process

LEDGER = 7


async def write(port: int, last_add_confirmed: int) -> None:
    body = KEY + packet_codec(LEDGER).seal_lac(last_add_confirmed)
    client = await BookieClient.connect(port)
    reply = await client.ask(
        lambda i: Frame(Op.WRITE_LAC, False, 0, 0, i, LEDGER, last_add_confirmed, body)
    )
    assert reply.status == Status.OK
    client.close()


async def explicit_packet(port: int) -> bytes:
    client = await BookieClient.connect(port)
    reply = await client.ask(lambda i: read_lac_request(i, LEDGER))
    client.close()
    assert reply.status == Status.OK
    return decode_lac_reply(reply.body).explicit_packet


async def test_an_explicit_lac_survives_kills_and_the_highest_wins(tmp_path: Path) -> None:
    highest = -1
    for last_add_confirmed in (3, 9, 5):
        async with bookie_process(tmp_path) as (process, port):
            if highest >= 0:
                assert await explicit_packet(port) == packet_codec(LEDGER).seal_lac(highest)
            else:
                client = await BookieClient.connect(port)
                await client.ask(lambda i: add_request(i, LEDGER, 0, 10))
                client.close()
            await write(port, last_add_confirmed)
            process.kill()
        highest = max(highest, last_add_confirmed)
    async with bookie_process(tmp_path) as (_, port):
        assert await explicit_packet(port) == packet_codec(LEDGER).seal_lac(9)
