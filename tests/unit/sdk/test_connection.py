"""Connections of the SDK: when they write, and how they name a peer that is no broker."""

import asyncio

from magnetar.sdk.connection import Connection
from magnetar.sdk.settings import ClientSettings


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        self.writes: list[int] = []
        """The size of each."""

    def abort(self) -> None:
        pass

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(len(data))


def _connection(transport: _Transport | None = None) -> Connection:
    connection = Connection(ClientSettings(), name="host:8080")
    connection.connection_made(transport or _Transport())
    return connection


async def test_small_frames_of_a_turn_leave_together_and_large_ones_at_once() -> None:
    transport = _Transport()
    connection = _connection(transport)
    del transport.writes[:]
    connection.write((b"x" * 10, b"y" * 1000))
    connection.write((b"z" * 20,))
    assert transport.writes == [], "they wait for the end of the turn"
    await asyncio.sleep(0)
    assert transport.writes == [1030]
    connection.write((b"x" * 40_000,))
    connection.write((b"x" * 40_000,))
    assert transport.writes == [1030, 80_000], "the broker begins with it meanwhile"
    connection.write((b"x" * 30,))
    await asyncio.sleep(0)
    assert transport.writes == [1030, 80_000, 30]


async def test_the_port_of_the_admin_interface_is_named_as_such() -> None:
    connection = _connection()
    connection.data_received(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert str(connection.failure) == (
        "host:8080 answers in HTTP: clients connect to the broker's service port, 6650 by default"
    )


async def test_who_closes_without_a_word_may_want_tls() -> None:
    connection = _connection()
    connection.connection_lost(None)
    assert "does this port want TLS (pulsar+ssl://)?" in str(connection.failure)
