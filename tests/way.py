"""How many files of the product one message crosses from the socket to its receipt.

    python -m tests.way [message] [retention] [--json]

A reader of the code must open these files, so their number is kept low. There are two walks:

message    one SEND to a loaded topic, until its receipt, through broker, ledger client and bookie
retention  a namespace's retention is set by HTTP, until it applies to a loaded topic

Part of the second walk is common to every change by HTTP: the server, the authorization, the
metadata store. The same listener hears the change of a tenant. The files that both have in common
are marked (`~` in the list); the rest are there for policies.

Each walk runs in a whole standalone in this process, with one bookie and its data in memory. A
profiler notes the file of every Python function that is called, on every thread. The same requests
run a few times before, so that imports, first ledgers and caches are done. A file counts if each of
several requests calls a function in it: timers do not count, nor do files of constants or types,
which are not called.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import structlog

from magnetar.broker.broker import Broker
from magnetar.deploy.broker_server import broker_settings
from magnetar.deploy.options import Listen, Quorum, Sources
from magnetar.deploy.standalone import Standalone
from magnetar.sdk.wire import (
    BaseCommand,
    MessageMetadata,
    encode_command,
    encode_payload,
    encode_payload_command,
)
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.structure import COMPONENTS
from tests.waiting import until

_ROOT = Path(__file__).resolve().parent.parent
_MEMORY = Path("/dev/shm")
_HOST = "127.0.0.1"
_TOPIC = "persistent://public/default/way"
_WARM_UP = 3
_MEASURED = 3


class Footprints:
    """The files of the product in which a function is called while it listens."""

    def __init__(self) -> None:
        self._heard: list[set[str]] = []
        self._folders = tuple(str(_ROOT / each / "magnetar") + "/" for each in COMPONENTS)
        self._listens = False
        self.ordinary: set[str] = set()
        """Files of ordinary changes, with which a walk is compared."""

    def files(self) -> set[str]:
        """Return the files heard each time it listened."""
        return set.intersection(*self._heard)

    @contextmanager
    def in_new_threads(self) -> Iterator[None]:
        """Listen on threads that start meanwhile, too: Python 3.11 can reach no others."""
        threading.setprofile(self._hear)
        try:
            yield
        finally:
            threading.setprofile(None)

    def these_are_ordinary(self) -> None:
        """Take what was heard so far as ordinary: later walks are compared with it."""
        self.ordinary, self._heard = self.files(), []

    @contextmanager
    def listening(self) -> Iterator[None]:
        self._heard.append(set())
        sys.setprofile(self._hear)
        self._listens = True
        try:
            yield
        finally:
            self._listens = False
            sys.setprofile(None)

    def _hear(self, frame: FrameType, event: str, argument: Any) -> None:
        if self._listens and event == "call":
            path = frame.f_code.co_filename
            if path.startswith(self._folders):
                self._heard[-1].add(path)


class Publisher:
    """A producer on a socket. It parses frames by itself, so that no file of the product counts
    because of it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, port: int) -> "Publisher":
        """Connect a publisher to `_TOPIC`, which loads the topic."""
        made = cls(*await asyncio.open_connection(_HOST, port))
        connect = pb.CommandConnect(client_version="way", protocol_version=20)
        made._send(encode_command(BaseCommand(type=BaseCommand.CONNECT, connect=connect)))
        await made._receive(BaseCommand.CONNECTED)
        producer = pb.CommandProducer(topic=_TOPIC, producer_id=0, request_id=1)
        made._send(encode_command(BaseCommand(type=BaseCommand.PRODUCER, producer=producer)))
        await made._receive(BaseCommand.PRODUCER_SUCCESS)
        return made

    async def publish(self, frame: bytes) -> None:
        """Send one message; return with its receipt."""
        self._send(frame)
        await self._receive(BaseCommand.SEND_RECEIPT)

    def close(self) -> None:
        self._writer.close()

    def _send(self, frame: bytes) -> None:
        self._writer.write(frame)

    async def _receive(self, kind: "BaseCommand.Type") -> None:
        """Receive a frame: its size and its command's size, four bytes each, then the command."""
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        body = await self._reader.readexactly(size)
        command = BaseCommand.FromString(body[4 : 4 + int.from_bytes(body[:4], "big")])
        assert command.type == kind, command


async def walk_of_a_message(broker: Broker, footprints: Footprints) -> None:
    """Publish messages, and note the files that each crosses until its receipt."""
    publisher = await Publisher.connect(broker.port)
    frames = [_send_frame(sequence_id) for sequence_id in range(_WARM_UP + _MEASURED)]
    for frame in frames[:_WARM_UP]:
        await publisher.publish(frame)
    for frame in frames[_WARM_UP:]:
        with footprints.listening():
            await publisher.publish(frame)
    publisher.close()


def _send_frame(sequence_id: int) -> bytes:
    metadata = MessageMetadata(producer_name="way", sequence_id=sequence_id, publish_time=1)
    send = pb.CommandSend(producer_id=0, sequence_id=sequence_id)
    return encode_payload_command(
        BaseCommand(type=BaseCommand.SEND, send=send),
        encode_payload(metadata.SerializeToString(), b"message"),
    )


async def walk_of_retention(broker: Broker, footprints: Footprints) -> None:
    """Set the retention of a namespace, and note the files until it applies to a loaded topic."""
    publisher = await Publisher.connect(broker.port)
    (topic,) = [each for each in broker.services.topics.loaded if str(each.name) == _TOPIC]

    for number in range(_WARM_UP + _MEASURED):
        tenant = {"adminRoles": [f"role-{number}"], "allowedClusters": ["standalone"]}
        method = "POST" if number else "PUT"
        if number < _WARM_UP:
            await _ask(broker.http_port, method, "tenants/way", tenant)
            continue
        with footprints.listening():
            await _ask(broker.http_port, method, "tenants/way", tenant)
    footprints.these_are_ordinary()

    async def set_retention(minutes: int) -> None:
        retention = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": 1024}
        await _ask(broker.http_port, "POST", "namespaces/public/default/retention", retention)
        await until(lambda: topic.policies.retention.time_s == 60 * minutes)

    for minutes in range(1, _WARM_UP + 1):
        await set_retention(minutes)
    for minutes in range(_WARM_UP + 1, _WARM_UP + _MEASURED + 1):
        with footprints.listening():
            await set_retention(minutes)
    publisher.close()


async def _ask(http_port: int, method: str, path: str, value: object) -> None:
    body = json.dumps(value)
    reader, writer = await asyncio.open_connection(_HOST, http_port)
    writer.write(
        f"{method} /admin/v2/{path} HTTP/1.1\r\n"
        f"Host: {_HOST}:{http_port}\r\nConnection: close\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 204"), answer


Walk = Callable[[Broker, Footprints], Awaitable[None]]

WALKS: Mapping[str, Walk] = {
    "message": walk_of_a_message,
    "retention": walk_of_retention,
}


class Crossed(NamedTuple):
    """A file of a walk."""

    lines: int
    is_ordinary: bool
    """Whether ordinary changes cross the file as well."""


def files_of(walk: str) -> dict[str, Crossed]:
    """Return the files of one walk, relative to the root of the project."""
    footprints = Footprints()
    memory = _MEMORY if _MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="way-", dir=memory) as data:
        asyncio.run(_run(WALKS[walk], footprints, Path(data)))
    return {
        Path(each).relative_to(_ROOT).as_posix(): Crossed(
            len(Path(each).read_text().splitlines()), each in footprints.ordinary
        )
        for each in sorted(footprints.files())
    }


async def _run(walk: Walk, footprints: Footprints, data: Path) -> None:
    sources = Sources(environment={})
    settings = broker_settings(
        sources, listen=Listen(_HOST), port=0, http_port=0, quorum=Quorum(1, 1, 1)
    )
    standalone = Standalone(data, settings, sources, bookies=1)
    with footprints.in_new_threads():
        await standalone.start()
    await walk(standalone.broker, footprints)
    await standalone.stop()


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.way")
    parser.add_argument("walk", nargs="*", help=f"of {', '.join(WALKS)}; all, if none is given")
    parser.add_argument("--json", action="store_true", help="files by walk, for programs")
    options = parser.parse_args(arguments)
    if unknown := set(options.walk) - WALKS.keys():
        parser.error(f"no such walk: {', '.join(sorted(unknown))}")
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    found = {walk: files_of(walk) for walk in options.walk or WALKS}
    if options.json:
        files_of_walks = {
            walk: {path: file._asdict() for path, file in files.items()}
            for walk, files in found.items()
        }
        sys.stdout.write(json.dumps(files_of_walks, indent=2) + "\n")
        return 0
    for walk, files in found.items():
        for path, file in files.items():
            sys.stdout.write(f"{file.lines:6} {'~' if file.is_ordinary else ' '} {path}\n")
        parts = Counter(path.partition("/")[0] for path in files)
        shares = ", ".join(f"{part} {count}" for part, count in parts.most_common())
        lines_of_all = sum(file.lines for file in files.values())
        own = sum(not file.is_ordinary for file in files.values())
        beside = f"; {own} beside what any change crosses" if own < len(files) else ""
        sys.stdout.write(f"{walk}: {len(files)} files ({shares}), {lines_of_all} lines{beside}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
