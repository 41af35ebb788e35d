"""The sessions of a broker: what is asked of their rights, and when."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from websockets.datastructures import Headers
from websockets.http11 import Request

from magnetar.broker.base.errors import BrokerMetadataError
from magnetar.broker.websocket.connection import WebSocketConnection
from magnetar.broker.websocket.errors import UpgradeRefusedError
from magnetar.broker.websocket.service import WebSocketService
from magnetar.ledger.system import SystemNetwork
from magnetar.sdk.wire import TopicName, parse_topic_name
from tests.unit.broker.harness import Harness

_PATH = "/ws/v2/producer/persistent/public/default/topic"
_DENIED = UpgradeRefusedError(403, "it may not")
_UNKNOWN = BrokerMetadataError("that cannot be told now")


class FakeSession:
    """A session whose rights are what the test says; `while_opening` changes them."""

    def __init__(self, denial: Exception | None = None, while_opening: Any = None) -> None:
        self.denial = denial
        self.is_closed = False
        self.topics: list[TopicName] = [parse_topic_name("persistent://public/default/topic")]
        self._while_opening = while_opening
        self.closing = asyncio.Event()
        self.may_close = asyncio.Event()
        self.may_close.set()

    async def open(self) -> None:
        if self.denial is not None:
            raise self.denial
        self.denial = self._while_opening

    async def check_rights(self) -> None:
        if self.denial is not None:
            raise self.denial

    async def close(self) -> None:
        self.closing.set()
        await self.may_close.wait()
        self.is_closed = True


class FakeConnection:
    peer = "client:1"
    certificate_role = ""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def close(self, _code: int, reason: str) -> None:
        self.reasons.append(reason)


async def _open(service: WebSocketService, session: FakeSession) -> FakeConnection:
    vars(service)["_make"] = lambda *_: session
    connection = FakeConnection()
    request = Request(_PATH, Headers())
    await service.session_for(cast(WebSocketConnection, connection), request)
    return connection


def _service() -> WebSocketService:
    services = Harness().services
    network = SystemNetwork()
    return WebSocketService(
        cast(Any, SimpleNamespace(**{name: getattr(services, name) for name in _PARTS})),
        network,
        plain_network=network,
        over_tls=False,
        port=lambda: 0,
        advertised=list,
        client_token=lambda: b"",
    )


_PARTS = ("settings", "clock", "topics", "authenticator", "authorizer", "random")


async def test_a_session_that_cannot_be_told_about_keeps_no_other_one_open() -> None:
    service = _service()
    unknown, denied, allowed = FakeSession(), FakeSession(), FakeSession()
    connections = [await _open(service, each) for each in (unknown, denied, allowed)]
    unknown.denial, denied.denial = _UNKNOWN, _DENIED
    with pytest.raises(BrokerMetadataError):
        await service.check_rights(lambda _: True)
    assert [each.reasons for each in connections] == [[], ["it may not"], []]


async def test_a_right_that_is_taken_away_while_a_session_is_opened_is_gone() -> None:
    service = _service()
    session = FakeSession(while_opening=_DENIED)
    with pytest.raises(UpgradeRefusedError):
        await _open(service, session)
    assert service.sessions == 0
    await service.stop()
    assert session.is_closed


async def test_a_client_that_leaves_after_the_timeout_does_not_keep_its_session_open() -> None:
    service = _service()
    session = FakeSession(denial=TimeoutError())
    session.may_close.clear()
    opening = asyncio.create_task(_open(service, session))
    await session.closing.wait()
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    session.may_close.set()
    await service.stop()
    assert session.is_closed


async def test_a_session_that_is_not_ready_in_time_is_closed_before_the_refusal() -> None:
    session = FakeSession(denial=TimeoutError())
    with pytest.raises(UpgradeRefusedError, match="not ready in time"):
        await _open(_service(), session)
    assert session.is_closed
