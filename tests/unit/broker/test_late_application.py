"""An application that is made when somebody asks for it."""

import asyncio
import threading

import pytest

from magnetar.broker.http.app import LateApplication
from magnetar.broker.http.authentication import Application, Message, Receive, Scope, Send


async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "answer", "path": scope["path"]})


async def _receive() -> Message:
    return {}


async def _ask(application: Application, path: str) -> str:
    said: list[str] = []

    async def send(message: Message) -> None:
        said.append(message["path"])

    await application({"type": "http", "path": path}, _receive, send)
    return said[0]


class _Maker:
    """Makes the application when it is let, and counts how often."""

    def __init__(self) -> None:
        self.let = threading.Event()
        self.begun = 0
        self.error: Exception | None = None

    def __call__(self) -> Application:
        self.begun += 1
        assert self.let.wait(10)
        if self.error is not None:
            raise self.error
        return _answer


async def test_nothing_is_made_before_somebody_asks() -> None:
    maker = _Maker()
    LateApplication(maker)
    await asyncio.sleep(0)
    assert maker.begun == 0


async def test_requests_wait_for_the_one_making_and_are_all_answered() -> None:
    maker = _Maker()
    late = LateApplication(maker)
    asked = [asyncio.create_task(_ask(late, f"/{number}")) for number in range(20)]
    await asyncio.sleep(0)
    assert not any(each.done() for each in asked)
    maker.let.set()
    assert await asyncio.gather(*asked) == [f"/{number}" for number in range(20)]
    assert await _ask(late, "/later") == "/later"
    assert maker.begun == 1


async def test_who_gives_up_waiting_takes_it_from_nobody() -> None:
    maker = _Maker()
    late = LateApplication(maker)
    first = asyncio.create_task(_ask(late, "/first"))
    second = asyncio.create_task(_ask(late, "/second"))
    await asyncio.sleep(0)
    first.cancel()
    maker.let.set()
    assert await second == "/second"
    with pytest.raises(asyncio.CancelledError):
        await first
    assert maker.begun == 1


async def test_a_failure_is_the_answer_to_those_who_waited_and_the_next_one_tries_again() -> None:
    maker = _Maker()
    maker.let.set()
    maker.error = RuntimeError("no memory")
    late = LateApplication(maker)
    with pytest.raises(RuntimeError, match="no memory"):
        await _ask(late, "/first")
    maker.error = None
    assert await _ask(late, "/next") == "/next"
    assert maker.begun == 2
