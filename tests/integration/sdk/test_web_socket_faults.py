"""How the SDK over WebSocket takes a server that misbehaves."""

import asyncio
import base64
import contextlib
import json
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.http11 import Request, Response

from magnetar.sdk import ClientSettings, MessageId, ProducerSettings
from magnetar.sdk.authentication import TokenAuthentication
from magnetar.sdk.errors import AlreadyClosedError, SdkError, SendTimeoutError
from magnetar.sdk.web_socket import WebSocketClient
from magnetar.sdk.wire.errors import AuthenticationError

QUICK = ClientSettings(reconnect_delay_min_ms=5, reconnect_delay_max_ms=100)


def url_of(server: Server) -> str:
    return f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"


async def test_who_waits_is_told_of_a_frame_that_the_client_cannot_take() -> None:
    async def answer(connection: ServerConnection) -> None:
        message_id = base64.b64encode(MessageId(1, 2).to_bytes()).decode()
        frame = {"messageId": message_id, "payload": "", "publishTime": "1960-01-01T00:00:00Z"}
        await connection.send(json.dumps(frame))
        await connection.wait_closed()

    async with serve(answer, "127.0.0.1", 0) as server, WebSocketClient(url_of(server)) as web:
        consumer = await web.consumer("t", "s")
        with pytest.raises(SdkError, match="defect in the client"):
            await consumer.receive(timeout_s=5)


class Sessions:
    """A server of one topic, which sends readers what is behind their place: five messages, and a
    sixth to who comes back. A session is let in when `may_open` is set."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[Request] = asyncio.Queue()
        self.open: asyncio.Queue[ServerConnection] = asyncio.Queue()
        self.ended: asyncio.Queue[ServerConnection] = asyncio.Queue()
        self.may_open = asyncio.Event()
        self.may_open.set()

    async def decide(self, _: ServerConnection, request: Request) -> None:
        self.asked.put_nowait(request)
        await self.may_open.wait()

    async def serve(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        query = parse_qs(urlsplit(connection.request.path).query)
        place = query.get("messageId", ["earliest"])[0]
        first, end = 0, 5
        if place != "earliest":
            first, end = MessageId.from_bytes(base64.b64decode(place)).entry_id + 1, 6
        for at in range(first, end):
            await connection.send(message_frame(at))
        self.open.put_nowait(connection)
        await connection.wait_closed()
        self.ended.put_nowait(connection)


def message_frame(at: int) -> str:
    message_id = base64.b64encode(MessageId(1, at).to_bytes()).decode()
    payload = base64.b64encode(b"%d" % at).decode()
    return json.dumps(
        {"messageId": message_id, "payload": payload, "publishTime": "2026-01-01T00:00:00Z"}
    )


async def test_a_reader_gets_nothing_twice_though_it_reads_on_while_it_reconnects() -> None:
    sessions = Sessions()
    async with (
        serve(sessions.serve, "127.0.0.1", 0, process_request=sessions.decide) as server,
        WebSocketClient(url_of(server), QUICK) as web,
        await web.reader("t") as reader,
    ):
        taken = [(await reader.read_next(timeout_s=5)).data]
        first = await sessions.open.get()
        await sessions.asked.get()
        sessions.may_open.clear()
        await first.close()
        await sessions.asked.get()  # the place where it goes on is said
        with contextlib.suppress(TimeoutError):
            taken.append((await reader.read_next(timeout_s=0.05)).data)
        sessions.may_open.set()
        while taken[-1] != b"5":
            taken.append((await reader.read_next(timeout_s=5)).data)
    assert taken == [b"%d" % at for at in range(6)]


class Ends:
    """A server that hands its readers' questions for the end to the test, to be answered there."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[ServerConnection] = asyncio.Queue()

    async def serve(self, connection: ServerConnection) -> None:
        async for text in connection:
            assert json.loads(text) == {"type": "isEndOfTopic"}
            self.asked.put_nowait(connection)


async def test_each_call_that_asks_for_the_end_gets_its_own_answer() -> None:
    ends = Ends()
    async with (
        serve(ends.serve, "127.0.0.1", 0) as server,
        WebSocketClient(url_of(server), QUICK) as web,
        await web.reader("t") as reader,
        asyncio.timeout(5),
    ):
        calls = [asyncio.create_task(reader.reached_end()) for _ in range(3)]
        for _ in calls:
            connection = await ends.asked.get()
        calls[1].cancel()
        for is_end in ("false", "true", "true"):
            await connection.send(f'{{"endOfTopic":{is_end}}}')
        assert [await calls[0], await calls[2]] == [False, True]


async def test_a_question_for_the_end_is_asked_again_after_a_reconnect() -> None:
    ends = Ends()
    async with (
        serve(ends.serve, "127.0.0.1", 0) as server,
        WebSocketClient(url_of(server), QUICK) as web,
        await web.reader("t") as reader,
        asyncio.timeout(5),
    ):
        call = asyncio.create_task(reader.reached_end())
        await (await ends.asked.get()).close()
        await (await ends.asked.get()).send('{"endOfTopic":true}')
        assert await call


async def test_a_question_for_the_end_fails_when_the_reader_is_closed() -> None:
    ends = Ends()
    async with (
        serve(ends.serve, "127.0.0.1", 0) as server,
        WebSocketClient(url_of(server), QUICK) as web,
        asyncio.timeout(5),
    ):
        reader = await web.reader("t")
        call = asyncio.create_task(reader.reached_end())
        await ends.asked.get()
        await reader.close()
        with pytest.raises(AlreadyClosedError):
            await call


async def test_credentials_are_asked_for_at_each_session(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first")
    sessions = Sessions()
    settings = replace(QUICK, authentication=TokenAuthentication(path=path))
    async with (
        serve(sessions.serve, "127.0.0.1", 0, process_request=sessions.decide) as server,
        WebSocketClient(url_of(server), settings) as web,
        await web.reader("t"),
    ):
        assert (await sessions.asked.get()).headers["Authorization"] == "Bearer first"
        path.write_text("second")
        await (await sessions.open.get()).close()
        assert (await sessions.asked.get()).headers["Authorization"] == "Bearer second"


async def test_who_gets_credentials_elsewhere_hears_that_they_were_refused() -> None:
    class Own(TokenAuthentication):
        refusals = 0

        def on_refused(self) -> None:
            self.refusals += 1

    def refuse(connection: ServerConnection, _: Request) -> Response:
        return connection.respond(HTTPStatus.UNAUTHORIZED, "no")

    own = Own("token")
    settings = replace(QUICK, authentication=own)
    async with (
        serve(ServerConnection.wait_closed, "127.0.0.1", 0, process_request=refuse) as server,
        WebSocketClient(url_of(server), settings) as web,
    ):
        with pytest.raises(AuthenticationError):
            await web.reader("t")
    assert own.refusals == 1


async def test_a_session_that_opens_while_its_client_closes_is_closed_with_it() -> None:
    sessions = Sessions()
    sessions.may_open.clear()
    async with serve(sessions.serve, "127.0.0.1", 0, process_request=sessions.decide) as server:
        web = WebSocketClient(url_of(server), QUICK)
        making = asyncio.create_task(web.consumer("t", "s"))
        await sessions.asked.get()
        await web.close()
        sessions.may_open.set()
        async with asyncio.timeout(5):
            with pytest.raises(AlreadyClosedError):
                await making


async def test_sends_that_wait_for_room_leave_in_the_order_of_their_calls() -> None:
    stored: list[bytes] = []
    may_answer = asyncio.Event()

    async def answer(connection: ServerConnection) -> None:
        async for text in connection:
            frame = json.loads(text)
            stored.append(base64.b64decode(frame["payload"]))
            await may_answer.wait()
            message_id = base64.b64encode(MessageId(1, len(stored)).to_bytes()).decode()
            outcome = {"result": "ok", "messageId": message_id, "context": frame["context"]}
            await connection.send(json.dumps(outcome))

    async with serve(answer, "127.0.0.1", 0) as server, WebSocketClient(url_of(server)) as web:
        producer = await web.producer("t", ProducerSettings(pending_messages_max=1))
        sends = [asyncio.create_task(producer.send(b"%d" % at)) for at in range(3)]
        await asyncio.sleep(0)
        may_answer.set()
        # Whoever looks at every turn sees the room first.
        while producer._pending:  # noqa: ASYNC110  # Nothing tells of it that soon.
            await asyncio.sleep(0)
        await producer.send(b"3")
        await asyncio.gather(*sends)
    assert stored == [b"0", b"1", b"2", b"3"]


async def test_who_waits_for_room_has_that_of_a_message_whose_time_is_over() -> None:
    async def answer(connection: ServerConnection) -> None:
        await connection.recv()
        frame = json.loads(await connection.recv())
        message_id = base64.b64encode(MessageId(1, 1).to_bytes()).decode()
        outcome = {"result": "ok", "messageId": message_id, "context": frame["context"]}
        await connection.send(json.dumps(outcome))
        await connection.wait_closed()

    async with serve(answer, "127.0.0.1", 0) as server, WebSocketClient(url_of(server)) as web:
        settings = ProducerSettings(pending_messages_max=1, send_timeout_ms=300)
        producer = await web.producer("t", settings)
        first = asyncio.create_task(producer.send(b"no answer"))
        await asyncio.sleep(0)  # it has begun, so that its time is over before the next one's
        producer._settings = replace(settings, send_timeout_ms=30_000)
        assert await producer.send(b"one") == MessageId(1, 1)
        with pytest.raises(SendTimeoutError):
            await first
