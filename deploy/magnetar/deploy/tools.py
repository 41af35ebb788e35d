"""Implementation of `magnetar produce`, `consume` and `read`.

If a topic has a schema, payloads are encoded and shown by it. Payloads that are not UTF-8 are
printed with replacement characters, and in JSON as base64, which loses nothing. `message_lines.py`
describes the lines.
"""

import asyncio
import logging
import secrets
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import TypeVar

import uvloop

from magnetar.deploy.credentials import ClientCredentials
from magnetar.deploy.errors import NothingCameError, SettingsError
from magnetar.deploy.logs import LogFormat, LogLevel, configure_logging
from magnetar.deploy.message_format import MessageFormat
from magnetar.deploy.message_lines import GivenMessage, json_of_message, text_of_message
from magnetar.deploy.quantities import moment_ms, parse_message_id
from magnetar.deploy.sdk_refusals import refusal_of
from magnetar.sdk.client import Client
from magnetar.sdk.consumer import Consumer
from magnetar.sdk.errors import SchemaError, SdkError
from magnetar.sdk.message import Message
from magnetar.sdk.message_id import MessageId
from magnetar.sdk.producer import Producer
from magnetar.sdk.reader import Reader
from magnetar.sdk.schema import Schema, SchemaInfo
from magnetar.sdk.schemas.auto import AutoConsumeSchema, AutoTextSchema
from magnetar.sdk.settings import (
    ConsumerSettings,
    InitialPosition,
    ProducerSettings,
    SubscriptionType,
)

E = TypeVar("E", bound=Enum)
T = TypeVar("T")

LAST_MAX = 100_000
"""Largest N of `read --last`: the messages are held in memory."""
_FLUSH_EVERY = 5_000
_FLUSH_EVERY_BYTES = 16 << 20
_OPERATION_TIMEOUT_MS = 5_000
_KEPT_UNTIL = (
    "They stay until every subscription has acknowledged them. While a topic has no subscription, "
    "a cluster deletes it after a minute without clients, a standalone keeps it: "
    "docs/message-lifetime.md."
)
"""One line that says how long a cluster keeps messages."""
_LOOK_S = 1.0
"""Interval in seconds between checks for more messages to read."""
_LOOK_MESSAGES = 1_000
_WINDOW_FIRST_MS = 1_000
_WINDOW_GROWTH = 10
_WINDOW_MAX_MS = 30 * 86_400_000
"""Longest time before now that `read --last` searches; after that it reads the whole topic."""


def run(work: Coroutine[object, object, T]) -> T:
    """Run a tool. Ctrl-C is a normal way to end it.

    Raises:
        DeployError: no broker answered, or it refused.
    """
    configure_logging(LogLevel.WARNING, LogFormat.AUTO, stream=sys.stderr)
    # The error that follows says that no broker answers, or that something else does.
    logging.getLogger("magnetar.sdk").addFilter(_is_news)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work)
    except KeyboardInterrupt:
        sys.exit(130)
    except SdkError as error:
        raise refusal_of(error) from error


def _is_news(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(("no_broker_yet", "bad_frame"))


class GivenSchema(Schema[GivenMessage]):
    """Payloads that people give, encoded by the topic's schema; encoded ones are sent unchanged."""

    def __init__(self, *, encodes: bool) -> None:
        """Make a schema. If `encodes` is false, all payloads are sent unchanged, and the broker
        learns of no schema."""
        self.takes_topic_schema = encodes
        self._encodes = encodes
        self._text = AutoTextSchema()

    def for_topic(self) -> "GivenSchema":
        return GivenSchema(encodes=self._encodes)

    def adopt(self, info: SchemaInfo | None) -> None:
        self._text.adopt(info)
        self.info = self._text.info

    def encode(self, value: GivenMessage) -> bytes:
        payload = value.payload or b""
        if not self._encodes or value.is_encoded or value.payload is None:
            return payload
        return self._text.encode(payload)

    def is_null(self, value: GivenMessage | None) -> bool:
        return value is None or value.payload is None


class ShownSchema(AutoConsumeSchema):
    """Decodes each message by the schema that it was written with. Remembers schemas that it cannot
    read, so that it fetches them once."""

    def for_topic(self) -> "ShownSchema":
        return ShownSchema()

    def add_version(self, version: bytes, info: SchemaInfo) -> None:
        try:
            super().add_version(version, info)
        except SchemaError:
            self._remember(version)

    def decode(self, data: bytes, version: bytes = b"", key: bytes | None = None) -> object:
        try:
            return super().decode(data, version, key)
        except KeyError:
            return data


async def produce(
    *,
    url: str,
    topic: str,
    messages: AsyncIterator[GivenMessage],
    key: str | None,
    properties: dict[str, str],
    as_is: bool,
    is_large: bool = False,
) -> None:
    """Publish all messages, and return when they are stored.

    Args:
        key: key of messages that have none of their own.
        properties: properties of every message; a message's own override them.
        is_large: whether a message may exceed the broker's limit, and must be chunked.
    """
    settings = ProducerSettings(
        pending_messages_max=2 * _FLUSH_EVERY,
        batching=not is_large,
        chunking=is_large,
    )
    async with (
        _client(url) as client,
        await client.producer(topic, settings, schema=GivenSchema(encodes=not as_is)) as producer,
    ):
        count = 0
        try:
            async for message in _by_turns(messages, producer):
                given = {
                    "key": key if message.key is None else message.key,
                    "ordering_key": message.ordering_key,
                    "properties": {**properties, **message.properties} or None,
                    "event_time_ms": message.event_time_ms,
                    "deliver_at_ms": message.deliver_at_ms,
                }
                if is_large:
                    await producer.send(message, **given)  # type: ignore[arg-type]  # as above
                else:
                    producer.send_nowait(message, **given)  # type: ignore[arg-type]  # as above
                count += 1
        except SettingsError:
            # Messages before the bad line are published: tell how many.
            await producer.flush()
            if count:
                _say_stored(count)
            raise
        await producer.flush()
        _say_stored(count)


async def _by_turns(
    messages: AsyncIterator[GivenMessage], producer: Producer[GivenMessage]
) -> AsyncIterator[GivenMessage]:
    """Yield the messages; wait for receipts when too many are outstanding."""
    waiting = waiting_bytes = 0
    async for message in messages:
        if waiting == _FLUSH_EVERY or waiting_bytes >= _FLUSH_EVERY_BYTES:
            await producer.flush()
            waiting = waiting_bytes = 0
        waiting += 1
        waiting_bytes += len(message.payload or b"")
        yield message


def _say_stored(count: int) -> None:
    sys.stderr.write(f"{count} message{'' if count == 1 else 's'} stored\n")
    if sys.stderr.isatty():  # a person; scripts need no advice
        sys.stderr.write(f"{_KEPT_UNTIL}\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """How messages are printed, and when the printing ends."""

    count: int = 0
    """Number of messages after which to end; 0: no limit."""
    timeout_ms: int = 0
    """Time in ms without a message after which to end; 0: wait for ever."""
    as_json: bool = False
    as_is: bool = False
    """Whether to show the bytes, even if the topic's schema can decode them."""
    raw: bool = False
    """Whether to print the bytes and nothing else, not even an end of line."""
    form: MessageFormat | None = None
    """Parsed text of `--format`, or None."""

    def __post_init__(self) -> None:
        if sum((self.as_json, self.raw, self.form is not None)) > 1:
            raise SettingsError("--json, --raw and --format exclude each other: give one")

    @property
    def timeout_s(self) -> float | None:
        return self.timeout_ms / 1000 or None

    @property
    def schema(self) -> "ShownSchema | None":
        return None if self.as_is or self.raw else ShownSchema()

    def show(self, message: Message[object]) -> None:
        """Print a message."""
        if self.raw or self.form is not None:
            form = self.form
            data = message.data if form is None else form.bytes_of(message, as_is=self.as_is)
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
            return
        shown = json_of_message if self.as_json else text_of_message
        sys.stdout.write(shown(message, as_is=self.as_is) + "\n")
        sys.stdout.flush()

    def check_came(self, received: int) -> None:
        """Check the count when no message came for too long.

        Raises:
            NothingCameError: fewer messages came than wanted.
        """
        if received < self.count:
            raise NothingCameError(
                f"{received} of {self.count} messages came; nothing more within "
                f"{self.timeout_ms / 1000:g} s"
            )


async def consume(
    *, url: str, topic: str, subscription: str, kind: str, initial: str, shown: Shown
) -> None:
    """Print and acknowledge messages, until the limits in `shown` or for ever."""
    settings = ConsumerSettings(
        subscription_type=choose(SubscriptionType, "--type", kind),
        initial_position=choose(InitialPosition, "--initial", initial),
        # After a stop in the middle of a batch, its first half must not be delivered again.
        batch_index_ack=True,
    )
    async with _client(url) as client:
        consumer: Consumer[object] = await client.consumer(
            topic, subscription, settings, schema=shown.schema
        )
        async with consumer:
            received = 0
            while received < shown.count or shown.count == 0:
                try:
                    message = await consumer.receive(timeout_s=shown.timeout_s)
                except TimeoutError:
                    shown.check_came(received)
                    return
                shown.show(message)
                consumer.acknowledge(message)
                received += 1


async def read(*, url: str, topic: str, start: str, last: int, follow: bool, shown: Shown) -> None:
    """Print messages from `start` to the end of the topic; with `follow`, wait for new ones.

    Args:
        last: number of newest messages to start with, instead of `start`; 0: use `start`.
    """
    position = _parse_start(start)
    async with _client(url) as client, await _reader(client, topic, position, shown) as reader:
        if isinstance(position, int):
            await reader.seek_to_time(position)
        received = 0
        if last:
            newest = await _newest(reader, last)
            for message in newest[: shown.count or None]:
                shown.show(message)
                received += 1
        quiet_s = 0.0
        while received < shown.count or shown.count == 0:
            if not follow and not await reader.has_message_available():
                return
            wait_s = _LOOK_S if not follow or shown.timeout_s is None else shown.timeout_s
            # The last entry may hold no message, such as chunks without an end: the read times out.
            messages = await reader.read_many(1, timeout_s=wait_s)
            for message in messages:
                shown.show(message)
                received += 1
            quiet_s = 0.0 if messages else quiet_s + wait_s
            if shown.timeout_s is not None and quiet_s >= shown.timeout_s:
                shown.check_came(received)
                return


async def _reader(
    client: Client, topic: str, position: tuple[MessageId, bool] | int, shown: Shown
) -> Reader[object]:
    """Make a reader of an existing topic: a typo must not create one."""
    start, is_inclusive = (MessageId.EARLIEST, False) if isinstance(position, int) else position
    settings = ConsumerSettings(
        durable=False,
        start_message_id=start,
        start_inclusive=is_inclusive,
        create_topic=False,
    )
    name = f"reader-{secrets.token_hex(5)}"
    return Reader(await client.consumer(topic, name, settings, schema=shown.schema))


async def _newest(reader: Reader[object], last: int) -> list[Message[object]]:
    """Return the newest messages of a topic, oldest first; of several partitions, by publish time.

    Reads ever longer times before now, because a topic does not tell how many messages it has.
    """
    ids = await reader.last_message_ids()
    if all(each.entry_id < 0 for each in ids.values()):
        return []
    now_ms, window_ms = int(time.time() * 1000), _WINDOW_FIRST_MS
    while True:
        is_whole = window_ms > _WINDOW_MAX_MS
        await reader.seek_to_time(0 if is_whole else max(0, now_ms - window_ms))
        found: dict[str, deque[Message[object]]] = {}
        while await reader.has_message_available():
            for message in await reader.read_many(_LOOK_MESSAGES, timeout_s=_LOOK_S):
                found.setdefault(message.topic, deque(maxlen=last)).append(message)
        if is_whole or sum(map(len, found.values())) >= last:
            return _latest_of(list(found.values()), last)
        window_ms *= _WINDOW_GROWTH


def _latest_of(topics: Sequence[Iterable[Message[object]]], last: int) -> list[Message[object]]:
    if len(topics) == 1:
        return list(topics[0])  # in the order of the topic, whatever the clocks say
    return sorted(chain(*topics), key=lambda each: each.publish_time_ms)[-last:]


def _client(url: str) -> Client:
    credentials = ClientCredentials.of_environment()
    return Client(
        service_url(url), credentials.client_settings(operation_timeout_ms=_OPERATION_TIMEOUT_MS)
    )


def service_url(text: str) -> str:
    """Return a service URL; a host and a port suffice."""
    return text if "://" in text else f"pulsar://{text}"


def _parse_start(text: str) -> tuple[MessageId, bool] | int:
    """Return the start position, and whether it includes the message there; or a time in ms since
    1970.

    Raises:
        SettingsError: the text is neither a position nor a time.
    """
    named = {"earliest": MessageId.EARLIEST, "latest": MessageId.LATEST}
    if text in named:
        return named[text], False
    found = parse_message_id(text)
    if found is not None:
        ledger, entry, partition, index = found
        return MessageId(ledger, entry, index, partition), True
    try:
        return moment_ms("--start", text, now_ms=int(time.time() * 1000))
    except SettingsError as error:
        raise SettingsError(
            f"bad --start {text!r}: give earliest, latest, LEDGER:ENTRY, -1h or 2026-11-26T23:00"
        ) from error


def choose(kinds: type[E], option: str, text: str) -> E:
    """Return the member of an enumeration that an option names.

    Raises:
        SettingsError: no member has this name; the text lists them.
    """
    try:
        return kinds(text.lower())
    except ValueError as error:
        known = ", ".join(str(kind.value) for kind in kinds)
        raise SettingsError(f"bad {option} {text!r}: give one of {known}") from error
