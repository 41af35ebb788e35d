"""What a connection says of a peer that is no broker."""

import asyncio

from magnetar.sdk.connection import Connection
from magnetar.sdk.settings import ClientSettings


class _NoTransport(asyncio.Transport):
    def abort(self) -> None:
        pass


def _connection() -> Connection:
    connection = Connection(ClientSettings(), name="host:8080")
    connection.connection_made(_NoTransport())
    return connection


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
