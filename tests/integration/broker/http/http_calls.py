"""HTTP requests of tests, with nothing followed and nothing assumed."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    text: str
    path: str = field(default="", compare=False)

    @property
    def json(self) -> Any:
        return json.loads(self.text)


async def request(port: int, method: str, path: str, body: object = None) -> Answer:
    """One request to a broker of this machine."""
    content = b"" if body is None else json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    writer.write(head.encode() + content)
    answer = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    top, _, text = answer.partition("\r\n\r\n")
    status, *lines = top.split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return Answer(int(status.split()[1]), headers, text, path)


async def get(port: int, path: str) -> Answer:
    return await request(port, "GET", path)


async def put(port: int, path: str, body: object = None) -> Answer:
    return await request(port, "PUT", path, body)
