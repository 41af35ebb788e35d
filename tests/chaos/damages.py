"""One damage to one file of a server at rest: what the next start says, and what is left.

`Original` makes the data once, as an orderly end and as kill -9 leave them; `strike` damages a
copy. Promised is that nothing is lost in silence: the server refuses to start, naming the file and
a remedy, or it serves, and what it does not give it has told of. A wrong message is never given.
"""

import asyncio
import json
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from magnetar.sdk.client import Client
from magnetar.sdk.errors import SdkError
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.settings import (
    ClientSettings,
    ConsumerSettings,
    InitialPosition,
    ProducerSettings,
)
from tests.processes import ServerFailedError
from tests.standalone import Standalone

_TOPICS = 3
_MESSAGES = 150
_MORE_MESSAGES = 60
"""Published before the kill, into the files that an orderly end has left."""
_IDLE_S = 2.0
"""A reader that gets nothing for so long has come to the end, or to what cannot be read."""
_CLIENT = ClientSettings(operation_timeout_ms=15_000)
_FROM_THE_BEGINNING = ConsumerSettings(initial_position=InitialPosition.EARLIEST)
_SETTINGS = {"RETENTION_MINUTES": "-1", "RETENTION_MIB": "-1"}
_WITHOUT_DATA = ("LOG", "LOCK", "lock", "scrub-position")
"""Ends of names of files that hold nothing that anybody was promised."""
_REMEDIES = (
    "bring it back",
    "bring the",
    "backup",
    "restore",
    "rebuild-index",
    "remove the file",
    "put it back",
    "put the right files back",
    "put the secret of",
    "start with",
    "--data",
    "bookie-tool",
    "from a copy",
    "use an empty directory",
    "or another directory",
)
_PAGE = 4096


@dataclass(frozen=True, slots=True)
class Damage:
    """Of which copy, which file, and what is done to it."""

    end: str
    """How the server ended: orderly or killed."""
    file: str
    act: str
    seed: int

    def __str__(self) -> str:
        return f"{self.act} {self.file} after an end that was {self.end} (seed {self.seed})"


def _flip(content: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(content.rstrip(b"\0")) or 1)
    return content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :]


def _blank(content: bytes, draw: random.Random) -> bytes:
    """A page that was never written."""
    at = draw.randrange(len(content)) // _PAGE * _PAGE
    page = content[at : at + _PAGE]
    return content[:at] + bytes(len(page)) + content[at + _PAGE :]


ACTS: dict[str, Callable[[bytes, random.Random], bytes | None]] = {
    "flip": _flip,
    "blank": _blank,
    "cut": lambda content, draw: content[: draw.randrange(len(content))],
    "empty": lambda content, draw: b"",
    "remove": lambda content, draw: None,
}
"""What is done to a file's content; None removes it."""


@dataclass
class Original:
    """The data before the damage, and what was acknowledged."""

    directory: Path
    messages: dict[str, dict[tuple[int, int], bytes]] = field(default_factory=dict)
    """By topic and position."""
    usual: dict[str, set[str]] = field(default_factory=dict)
    """By the end: the warnings of a start on what is not damaged."""

    def copy_of(self, end: str) -> Path:
        return self.directory / end

    def make(self) -> None:
        """Publish, end in order, copy; publish more, kill, copy."""
        self.directory.mkdir(parents=True, exist_ok=True)
        server = Standalone(self.directory / "data", settings=_SETTINGS)
        for end, count in (("orderly", _MESSAGES), ("killed", _MORE_MESSAGES)):
            with server:
                asyncio.run(self._publish(server, count))
                if end == "orderly":
                    assert server.terminate() == 0
            shutil.copytree(server.directory, self.copy_of(end))
        for end in ("orderly", "killed"):
            directory = self.directory / f"{end}-started"
            shutil.copytree(self.copy_of(end), directory)
            with Standalone(directory, settings=_SETTINGS) as undamaged:
                pass
            self.usual[end] = set(_warnings(undamaged))

    async def _publish(self, server: Standalone, count: int) -> None:
        async with Client(server.url, _CLIENT) as client:
            for number in range(_TOPICS):
                topic = f"persistent://public/default/kept-{number}"
                kept = self.messages.setdefault(topic, {})
                consumer = await client.consumer(topic, "s", _FROM_THE_BEGINNING)
                producer = await client.producer(topic, ProducerSettings(batching=False))
                for _ in range(count):
                    payload = b"%d of %s" % (len(kept), topic.encode())
                    place = await producer.send(payload)
                    kept[place.ledger_id, place.entry_id] = payload
                consumer.acknowledge(await consumer.receive())

    def expected(self, end: str) -> dict[str, dict[tuple[int, int], bytes]]:
        """What was acknowledged by then."""
        if end == "killed":
            return self.messages
        return {
            topic: dict(list(kept.items())[:_MESSAGES]) for topic, kept in self.messages.items()
        }

    def damages(self, count: int, seed: int) -> Iterator[Damage]:
        """Random ones; every kind of file has its turn, however few of it there are."""
        draw = random.Random(seed)
        by_kind: dict[tuple[str, str], list[str]] = {}
        for end in ("orderly", "killed"):
            root = self.copy_of(end)
            for path in sorted(root.rglob("*")):
                name = path.name
                is_empty = not path.is_file() or not path.stat().st_size
                if is_empty or name.endswith(_WITHOUT_DATA) or name.startswith(("LOG", "OPTIONS")):
                    continue
                kind = f"{path.parent.name}/{name.strip('0123456789abcdef-')}"
                by_kind.setdefault((end, kind), []).append(str(path.relative_to(root)))
        kinds = sorted(by_kind)
        for number in range(count):
            if number % len(kinds) == 0:
                draw.shuffle(kinds)
            end, kind = kinds[number % len(kinds)]
            file = draw.choice(by_kind[end, kind])
            yield Damage(end, file, draw.choice(list(ACTS)), draw.getrandbits(32))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a damaged copy."""

    damage: Damage
    refusal: str
    """What a start said that was refused; empty: it served."""
    missing: int
    wrong: tuple[str, ...]
    told: tuple[str, ...]
    """Warnings and errors in the log of a server that served, but for the usual ones."""

    @property
    def problem(self) -> str:
        """What was not as it should be; empty: nothing."""
        if self.wrong:
            return f"{self.damage}: wrong messages: {self.wrong[:3]}"
        if self.refusal:
            if not self._names_the_file:
                return f"{self.damage}: the refusal does not name the file: {self.refusal}"
            if not any(each in self.refusal.lower() for each in _REMEDIES):
                return f"{self.damage}: the refusal names no remedy: {self.refusal}"
            return ""
        if self.missing and not self.told:
            return f"{self.damage}: {self.missing} messages are gone, and nothing was said"
        return ""

    @property
    def _names_the_file(self) -> bool:
        """By its name, or that of the database that it is part of."""
        path = Path(self.damage.file)
        names = [path.name, path.name.removesuffix("-wal").removesuffix("-end"), path.parent.name]
        return any(name in self.refusal for name in names)


def strike(original: Original, damage: Damage, directory: Path) -> Outcome:
    """Damage a copy, start a server on it, and look."""
    data = directory / "data"
    shutil.rmtree(data, ignore_errors=True)
    shutil.copytree(original.copy_of(damage.end), data)
    path = data / damage.file
    content = ACTS[damage.act](path.read_bytes(), random.Random(damage.seed))
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    server = Standalone(data, settings=_SETTINGS)
    server.log_path.unlink(missing_ok=True)
    try:
        server.start()
    except ServerFailedError as error:
        return Outcome(damage, _said(server, error), 0, (), ())
    with suppress(ServerFailedError):
        try:
            missing, wrong = asyncio.run(_compare(server, original.expected(damage.end)))
        finally:
            server.kill()
    told = [each for each in _warnings(server) if each not in original.usual[damage.end]]
    return Outcome(damage, "", missing, tuple(wrong), tuple(told))


def _said(server: Standalone, error: ServerFailedError) -> str:
    text = server.log_text().strip() or str(error)
    return text[-3000:]


def _warnings(server: Standalone) -> Iterator[str]:
    for line in server.log_text().splitlines():
        with suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, dict) and entry.get("level") in ("warning", "error", "critical"):
                yield str(entry.get("event"))


async def _compare(
    server: Standalone, expected: dict[str, dict[tuple[int, int], bytes]]
) -> tuple[int, list[str]]:
    """How many messages are not there, and those that are wrong."""
    missing, wrong = 0, list[str]()
    async with Client(server.url, _CLIENT) as client:
        for topic, kept in expected.items():
            seen: dict[tuple[int, int], bytes] = {}
            with suppress(SdkError, TimeoutError):
                reader = await client.reader(topic, MessageId.EARLIEST)
                while len(seen) < len(kept):
                    message = await reader.read_next(timeout_s=_IDLE_S)
                    seen[message.ledger_id, message.entry_id] = message.data
            missing += sum(place not in seen for place in kept)
            wrong += [
                f"{topic} {place}: {payload!r}"
                for place, payload in seen.items()
                if kept.get(place) != payload
            ]
    return missing, wrong
