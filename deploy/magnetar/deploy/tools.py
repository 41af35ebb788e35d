"""What `magnetar produce`, `consume` and `read` do.

Payloads that are no UTF-8 are printed with replacement characters, and as base64 in JSON, so that
nothing is lost there: a message without a value has the payload null, a key of bytes is base64.
"""

import asyncio
import base64
import contextlib
import json
import os
import sys
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from enum import Enum
from typing import TypeVar

import uvloop

from magnetar.deploy.credentials import ClientCredentials
from magnetar.deploy.errors import BrokerUnreachableError, SettingsError
from magnetar.deploy.logs import LogFormat, LogLevel, configure_logging
from magnetar.sdk.client import Client
from magnetar.sdk.consumer import Consumer
from magnetar.sdk.errors import SdkError
from magnetar.sdk.message import Message
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.reader import Reader
from magnetar.sdk.schemas import BYTES, AutoTextSchema, Schema
from magnetar.sdk.settings import (
    ConsumerSettings,
    InitialPosition,
    ProducerSettings,
    ReaderSettings,
    SubscriptionType,
)

E = TypeVar("E", bound=Enum)
T = TypeVar("T")

_FLUSH_EVERY = 5_000
_OPERATION_TIMEOUT_MS = 5_000
_STDIN_BYTES = 64 << 10
_LOOK_S = 1.0
"""Between two looks at whether there is more to read."""


def run(work: Coroutine[object, object, T]) -> T:
    """Run a tool; Ctrl-C is a normal way to end it.

    Raises:
        BrokerUnreachableError: no broker, or it refused.
    """
    configure_logging(LogLevel.WARNING, LogFormat.AUTO, stream=sys.stderr)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work)
    except KeyboardInterrupt:
        sys.exit(130)
    except SdkError as error:
        raise BrokerUnreachableError(" ".join(str(error).split())) from error


async def payloads_of(messages: Sequence[str] | None) -> AsyncIterator[bytes]:
    """The payloads given as options, or the lines of stdin as they come."""
    if messages:
        for message in messages:
            yield message.encode()
        return
    rest = b""
    while piece := await _read_stdin():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.rstrip(b"\r")
    if rest:
        yield rest.rstrip(b"\r")


async def _read_stdin() -> bytes:
    """What is there, as soon as something is; empty at the end.

    By a thread, since the loop has PINGs to answer meanwhile; by one that nobody waits for, since
    Ctrl-C does not end its read.
    """
    loop = asyncio.get_running_loop()
    piece: asyncio.Future[bytes] = loop.create_future()

    def give(data: bytes, error: OSError | None) -> None:
        if piece.done():
            return  # cancelled
        if error is None:
            piece.set_result(data)
        else:
            piece.set_exception(error)

    def read() -> None:
        data, failed = b"", None
        try:
            data = os.read(sys.stdin.fileno(), _STDIN_BYTES)
        except OSError as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # The loop was closed meanwhile.
            loop.call_soon_threadsafe(give, data, failed)

    threading.Thread(target=read, name="stdin", daemon=True).start()
    return await piece


def parse_properties(texts: Iterable[str]) -> dict[str, str]:
    """Parse NAME=VALUE pairs.

    Raises:
        SettingsError: one has no `=`.
    """
    properties = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise SettingsError(f"bad --property {text!r}: give NAME=VALUE")
        properties[name] = value
    return properties


async def produce(
    *,
    url: str,
    topic: str,
    payloads: AsyncIterator[bytes],
    key: str | None,
    properties: dict[str, str],
    as_is: bool,
) -> None:
    """Publish everything, and return when all of it is durable.

    Payloads are text that is encoded by the topic's schema, or go `as_is`.
    """
    settings = ProducerSettings(pending_messages_max=2 * _FLUSH_EVERY)
    schema: Schema[bytes] = BYTES if as_is else AutoTextSchema()
    async with (
        _client(url) as client,
        await client.producer(topic, settings, schema=schema) as producer,
    ):
        count = 0
        async for payload in payloads:
            count += 1
            producer.send_nowait(payload, key=key, properties=properties or None)
            if count % _FLUSH_EVERY == 0:
                await producer.flush()
        await producer.flush()
        sys.stderr.write(f"{count} messages stored\n")


async def consume(
    *,
    url: str,
    topic: str,
    subscription: str,
    count: int,
    kind: str,
    initial: str,
    as_json: bool,
) -> None:
    """Print and acknowledge messages; ends after `count` of them, or never."""
    settings = ConsumerSettings(
        subscription_type=choose(SubscriptionType, "--type", kind),
        initial_position=choose(InitialPosition, "--initial", initial),
        # Stopping in the middle of a batch must not bring its first half back.
        batch_index_ack=True,
    )
    async with _client(url) as client:
        consumer: Consumer = await client.consumer(topic, subscription, settings)
        async with consumer:
            received = 0
            while received < count or count == 0:
                message = await consumer.receive()
                _print(message, as_json=as_json)
                consumer.acknowledge(message)
                received += 1


async def read(
    *, url: str, topic: str, start: str, count: int, follow: bool, as_json: bool
) -> None:
    """Print messages from `start` to the end of the topic, or on and on with `follow`."""
    async with _client(url) as client:
        position, is_inclusive = _parse_start(start)
        settings = ReaderSettings(start_inclusive=is_inclusive)
        reader: Reader = await client.reader(topic, position, settings)
        async with reader:
            received = 0
            while received < count or count == 0:
                if not follow and not await reader.has_message_available():
                    return
                # The last entry may turn out to be no message: an end that never came.
                for message in await reader.read_many(1, timeout_s=None if follow else _LOOK_S):
                    _print(message, as_json=as_json)
                    received += 1


def _client(url: str) -> Client:
    credentials = ClientCredentials.of_environment()
    return Client(url, credentials.client_settings(operation_timeout_ms=_OPERATION_TIMEOUT_MS))


def _parse_start(text: str) -> tuple[MessageId, bool]:
    """Where to begin, and whether the message there is wanted too."""
    named = {"earliest": MessageId.EARLIEST, "latest": MessageId.LATEST}
    if text in named:
        return named[text], False
    ledger, colon, entry = text.partition(":")
    if colon and ledger.isdecimal() and entry.isdecimal():
        return MessageId(int(ledger), int(entry)), True
    raise SettingsError(f"bad --start {text!r}: give earliest, latest or LEDGER:ENTRY")


def choose(kinds: type[E], option: str, text: str) -> E:
    """The member of an enumeration that an option names.

    Raises:
        SettingsError: there is none; the message lists them.
    """
    try:
        return kinds(text.lower())
    except ValueError as error:
        known = ", ".join(str(kind.value) for kind in kinds)
        raise SettingsError(f"bad {option} {text!r}: give one of {known}") from error


def _print(message: Message, *, as_json: bool) -> None:
    sys.stdout.write((_as_json(message) if as_json else _as_text(message.data)) + "\n")
    sys.stdout.flush()


def _as_text(payload: bytes) -> str:
    return payload.decode(errors="replace")


def _as_json(message: Message) -> str:
    fields: dict[str, object] = {
        "id": str(message.message_id),
        "publish_time_ms": message.publish_time_ms,
        "key": None,
        "properties": dict(message.properties),
    }
    key = message.given_key
    if isinstance(key, bytes):
        del fields["key"]
        fields["key_base64"] = base64.b64encode(key).decode()
    elif not message.is_null_key:
        fields["key"] = key
    try:
        fields["payload"] = None if message.is_null else message.data.decode()
    except UnicodeDecodeError:
        fields["payload_base64"] = base64.b64encode(message.data).decode()
    return json.dumps(fields)
