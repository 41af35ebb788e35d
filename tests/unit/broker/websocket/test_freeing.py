"""WebSocket connections and sessions that are over are freed by themselves."""

import weakref
from typing import cast

import pytest

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.security import Authorizer
from magnetar.broker.security.identity import NOBODY
from magnetar.broker.websocket.access import Rights
from magnetar.broker.websocket.consuming import ConsumerSession, ReaderSession
from magnetar.broker.websocket.endpoint import (
    ConsumerParameters,
    ProducerParameters,
    ReaderParameters,
    parse_target,
)
from magnetar.broker.websocket.errors import UpgradeRefusedError
from magnetar.broker.websocket.producing import ProducerSession
from magnetar.broker.websocket.session import Links, Session
from magnetar.ledger.system import SystemClock
from tests.unit.broker.websocket.test_connection import FakeHost, Pair
from tests.waiting import settle

pytestmark = pytest.mark.usefixtures("no_collections")


async def _left_of(pair: Pair) -> list[object]:
    """What is still there of a connection after its end."""
    connection, host = pair.connection, pair.host
    parts: list[weakref.ref[object]] = [
        weakref.ref(connection),
        weakref.ref(connection._protocol),
    ]
    connection.connection_lost(None)
    # As a closed session does; and no error is kept, with the stack in which it was raised.
    host.session.socket = host.refusal = None
    del pair.connection, connection
    await settle()
    return [part for each in parts if (part := each()) is not None]


@pytest.mark.parametrize(
    "said",
    [b"", b"GET /ws/v2/producer HT", b"\xff" * 64 + b"\r\n\r\n"],
    ids=["nothing", "half a request", "noise"],
)
async def test_a_connection_without_an_upgrade_is_freed(said: bytes) -> None:
    pair = Pair(FakeHost())
    if said:
        pair.connection.data_received(said)
    assert await _left_of(pair) == []


@pytest.mark.parametrize("last", [b"", b"\xff" * 64], ids=["it goes", "it breaks the protocol"])
async def test_an_upgraded_connection_is_freed(last: bytes) -> None:
    pair = Pair(FakeHost())
    pair.request()
    await settle()
    assert pair.host.session.socket is pair.connection
    if last:
        pair.connection.data_received(last)
    assert await _left_of(pair) == []


async def test_a_refused_upgrade_is_freed() -> None:
    pair = Pair(FakeHost())
    pair.host.refusal = UpgradeRefusedError(404, "not here")
    pair.request()
    await settle()
    assert pair.transport.is_closed
    assert await _left_of(pair) == []


def _session(path: str) -> Session:
    endpoint = parse_target(path)
    rights = Rights(NOBODY, cast(Authorizer, None), "client:1")
    links, settings, clock = cast(Links, None), BrokerSettings(), SystemClock()
    query = endpoint.query
    if "/consumer/" in path:
        consumer = ConsumerParameters.of(query, queue_max=10)
        return ConsumerSession(endpoint, consumer, rights, links, settings, clock=clock)
    if "/reader/" in path:
        reader = ReaderParameters.of(query, queue_max=10)
        return ReaderSession(endpoint.topic, reader, rights, links, settings, clock=clock)
    producer = ProducerParameters.of(query)
    return ProducerSession(
        endpoint.topic, producer, rights, links, settings, clock=clock, first_partition=0
    )


@pytest.mark.parametrize(
    "path",
    [
        "/ws/v2/producer/persistent/public/default/topic",
        "/ws/v2/reader/persistent/public/default/topic",
        "/ws/v2/consumer/persistent/public/default/topic/s",
    ],
)
async def test_a_closed_session_is_freed_and_lets_its_connection_go(path: str) -> None:
    session = _session(path)
    pair = Pair(FakeHost())
    session.begin(pair.connection)
    await settle()
    parts: list[weakref.ref[object]] = [weakref.ref(session), weakref.ref(pair.connection)]
    pair.connection.connection_lost(None)
    await session.close()
    del session, pair
    await settle()
    assert [part for each in parts if (part := each()) is not None] == []
