"""HTTP requests one behind the other on one connection, and their answers in the same order.

A client for fuzzers: it sends what it is given, whole batches in one write, and reads no more of an
answer than where it ends. Nothing of it is for anything else.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from tests.processes import HOST
from tests.waiting import until

_ANSWER_BYTES_MAX = 64 << 20
_TRY_AGAIN = 503
_TRY_AGAIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Request:
    """`path` with its query, as it goes over the wire; a body of None is none."""

    method: str
    path: str
    body: bytes | None = None

    def encoded(self) -> bytes:
        head = f"{self.method} {self.path} HTTP/1.1\r\nHost: {HOST}\r\n"
        if self.body is None:
            return f"{head}\r\n".encode()
        head += f"Content-Type: application/json\r\nContent-Length: {len(self.body)}\r\n\r\n"
        return head.encode() + self.body

    def __str__(self) -> str:
        return f"{self.method} {self.path} {self.body!r:.300}"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes


class PipelinedHttp:
    """One connection, opened when it is needed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, requests: list[Request]) -> list[Answer]:
        """Answers in the order of the requests; fewer if the server ended the connection.

        A connection that was idle may have been ended meanwhile: then they go over another one.

        Raises:
            OSError: nobody listens there.
        """
        was_open = self._writer is not None
        answers = await self._ask(requests)
        return await self._ask(requests) if was_open and not answers else answers

    async def _ask(self, requests: list[Request]) -> list[Answer]:
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(
                HOST, self._port, limit=_ANSWER_BYTES_MAX
            )
        self._writer.write(b"".join(request.encoded() for request in requests))
        answers: list[Answer] = []
        is_last = False
        try:
            while len(answers) < len(requests) and not is_last:
                answer, is_last = await self._answer(requests[len(answers)])
                answers.append(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            is_last = True
        if is_last:
            await self.close()
        return answers

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = self._reader = None

    async def _answer(self, request: Request) -> tuple[Answer, bool]:
        """The next answer, and whether the server ends the connection behind it."""
        assert self._reader is not None
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        status = int(head[9:12])
        is_last = b"\r\nconnection: close\r\n" in head
        if status in (204, 304) or request.method == "HEAD":
            return Answer(status, b""), is_last
        if b"\r\ntransfer-encoding: chunked\r\n" in head:
            return Answer(status, await self._chunks()), is_last
        at = head.find(b"\r\ncontent-length:")
        if at < 0:
            return Answer(status, await self._reader.read()), True
        size = int(head[at + 17 : head.index(b"\r\n", at + 2)])
        return Answer(status, await self._reader.readexactly(size)), is_last

    async def _chunks(self) -> bytes:
        assert self._reader is not None
        found = b""
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            found += (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)
        return found


async def tried_again(port: int, request: Request, answer: Answer) -> Answer:
    """The answer; of a request that was answered with a 503 the first that is none, if one comes in
    time, as tools ask then."""

    async def is_another() -> bool:
        nonlocal answer
        answers = await http.ask([request])
        answer = answers[0] if answers else answer
        return answer.status != _TRY_AGAIN

    if answer.status != _TRY_AGAIN:
        return answer
    http = PipelinedHttp(port)
    with suppress(AssertionError):
        await until(is_another, within_s=_TRY_AGAIN_S)
    await http.close()
    return answer
