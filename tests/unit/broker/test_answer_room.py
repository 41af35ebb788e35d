"""Large answers wait, unbuilt, for a client that reads, and one that never reads is dropped."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from magnetar.broker.policies.model import Policies
from magnetar.broker.protocol.answer_room import AnswerRoom
from magnetar.broker.protocol.connection import UNREAD_INTERVALS_MAX, Connection
from magnetar.broker.schemas.model import SchemaData, SchemaType, StoredSchema
from magnetar.broker.topics import topic_lists
from magnetar.sdk.wire import BaseCommand, TopicName, encode_command
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.unit.broker.harness import Client, Harness, MemoryIO
from tests.unit.broker.memory_parts import TOPIC, MemoryTopics
from tests.waiting import settle

HIGH, MOST = 64 << 10, 1 << 20
NAMESPACE = "public/default"
NAMES = [f"persistent://{NAMESPACE}/{number:0100}" for number in range(1000)]
ANSWERS = 100
"""Answers of 100 KB each, 10 MB together."""


class UnreadIO(MemoryIO):
    """A socket whose other end reads only when the test says so."""

    connection: Connection

    def write(self, data: bytes) -> None:
        super().write(data)
        self.unsent_bytes += len(data)
        if self.unsent_bytes > HIGH:
            self.connection.on_writable(False)

    def read(self) -> None:
        self.unsent_bytes = 0
        self.connection.on_writable(True)


class UnreadClient(Client):
    """A client that sends, and reads nothing."""

    io: UnreadIO

    def __init__(self, harness: Harness, io: type[UnreadIO] = UnreadIO) -> None:
        super().__init__(harness, "client:1")
        self.io = io()
        self.connection = self.io.connection = Connection(self.io, harness.services, "client:1")
        self.connect()


def lists(number: int) -> BaseCommand:
    request = pb.CommandGetTopicsOfNamespace(request_id=number, namespace=NAMESPACE)
    return BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE, getTopicsOfNamespace=request)


def watches(number: int) -> BaseCommand:
    request = pb.CommandWatchTopicList(
        request_id=number, watcher_id=number, namespace=NAMESPACE, topics_pattern=".*"
    )
    return BaseCommand(type=BaseCommand.WATCH_TOPIC_LIST, watchTopicList=request)


def schemas(number: int) -> BaseCommand:
    request = pb.CommandGetSchema(request_id=number, topic=TOPIC)
    return BaseCommand(type=BaseCommand.GET_SCHEMA, getSchema=request)


@pytest.fixture
async def harness(monkeypatch: pytest.MonkeyPatch) -> Harness:
    async def names(_self: MemoryTopics, _namespace: str) -> list[str]:
        return NAMES

    monkeypatch.setattr(MemoryTopics, "names", names)
    harness = Harness(
        write_buffer_bytes_high=HIGH,
        write_buffer_bytes_max=MOST,
        message_bytes_max=200 << 10,
        schema_bytes_max=200 << 10,
    )
    schema = SchemaData(SchemaType.STRING, properties={"note": "x" * (100 << 10)})
    await harness.services.schemas.put(TopicName.parse(TOPIC), schema, Policies())
    return harness


@pytest.mark.parametrize("request_of", [lists, watches, schemas])
async def test_answers_are_built_as_far_as_they_are_read(harness: Harness, request_of: Any) -> None:
    client = UnreadClient(harness)
    client.send_bytes(b"".join(encode_command(request_of(number)) for number in range(ANSWERS)))
    await settle(1000)
    answered = request_ids(client)
    assert len(answered) < ANSWERS
    assert HIGH < client.io.unsent_bytes <= HIGH + MOST
    while client.io.unsent_bytes:
        client.io.read()
        await settle(1000)
        assert client.io.unsent_bytes <= HIGH + MOST
        answered += request_ids(client)
    assert sorted(answered) == list(range(ANSWERS))


def request_ids(client: UnreadClient) -> list[int]:
    """Return the ids of the requests that were answered since the last call."""
    fields = [value for command, _ in client.received() for _, value in command.ListFields()]
    return [each.request_id for each in fields if hasattr(each, "request_id")]


OTHER = "public/other"


@pytest.fixture
async def slow(monkeypatch: pytest.MonkeyPatch, harness: Harness) -> Harness:
    """A broker that never comes to an end with reading a list or a schema, except for the list of
    another namespace, and the schema of another topic."""
    never, latest = asyncio.Event(), harness.services.schemas.latest

    async def names(_self: object, namespace: str) -> list[str]:
        if namespace == NAMESPACE:
            await never.wait()
        return [f"persistent://{namespace}/topic"]

    async def schema(topic: TopicName) -> StoredSchema:
        if topic == TopicName.parse(TOPIC):
            await never.wait()
        return await latest(topic)

    monkeypatch.setattr(MemoryTopics, "names", names)
    monkeypatch.setattr(harness.services.schemas, "latest", schema)
    await harness.policies.have_namespace(OTHER)
    for followed in (harness.services.topic_lists, harness.services.scalable_lists):
        monkeypatch.setattr(followed, "_list_names", partial(names, None))
    other = SchemaData(SchemaType.STRING)
    await harness.services.schemas.put(TopicName.parse(f"{TOPIC}-2"), other, Policies())
    return harness


def scalable_watches(number: int) -> BaseCommand:
    request = pb.CommandWatchScalableTopics(watch_id=number, namespace=NAMESPACE)
    return BaseCommand(type=BaseCommand.WATCH_SCALABLE_TOPICS, watchScalableTopics=request)


KINDS = {each.__name__: each for each in (lists, watches, schemas, scalable_watches)}
SLOW_ONES = [
    (slow_kind, kind)
    for slow_kind in KINDS
    for kind in KINDS
    if slow_kind != kind or kind not in ("lists", "schemas")
]


@pytest.mark.parametrize(("slow_kind", "kind"), SLOW_ONES)
async def test_answers_do_not_wait_for_what_others_read(
    slow: Harness, slow_kind: str, kind: str
) -> None:
    client = UnreadClient(slow)
    for number in range(10):
        client.send_bytes(encode_command(KINDS[slow_kind](number)))
    await settle(100)
    assert client.received() == []
    quick = KINDS[kind](99)
    field = quick.ListFields()[1][1]
    if isinstance(field, pb.CommandGetSchema):
        field.topic = f"{TOPIC}-2"
    else:
        field.namespace = OTHER
    client.send_bytes(encode_command(quick))
    await settle(100)
    assert len(client.received()) == 1


@pytest.mark.parametrize("kind", [lists, schemas])
async def test_few_answers_are_read_at_once(slow: Harness, kind: Any) -> None:
    """Each list and each schema that is read is a copy."""
    client, begun = UnreadClient(slow), 0

    async def count(*_: object) -> None:
        nonlocal begun
        begun += 1
        await asyncio.Event().wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryTopics, "names", count)
        patch.setattr(slow.services.schemas, "latest", count)
        client.send_bytes(b"".join(encode_command(kind(number)) for number in range(ANSWERS)))
        await settle(100)
    assert begun == MOST // (200 << 10)
    client.connection.lost()


@pytest.mark.parametrize("kind", [watches, scalable_watches])
async def test_a_list_is_measured_once_for_all_its_watches(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    """Nothing else runs while the names are counted, and a client opens all its watches at once."""
    counted, size_of = list[int](), topic_lists.size_of

    def count(names: Sequence[str]) -> int:
        counted.append(len(names))
        return size_of(names)

    async def names(_namespace: str) -> list[str]:
        return NAMES[:3]

    for followed in (harness.services.topic_lists, harness.services.scalable_lists):
        monkeypatch.setattr(followed, "_list_names", names)
    monkeypatch.setattr(topic_lists, "size_of", count)
    monkeypatch.setattr(topic_lists, "check_size", lambda *_: None)  # measures each answer
    client = UnreadClient(harness)
    client.send_bytes(b"".join(encode_command(kind(number)) for number in range(5)))
    await settle(100)
    assert len(client.received()) == 5
    assert counted == [3]


class UnreadTlsIO(UnreadIO):
    """TLS adds some bytes to each write, and counts them as unsent."""

    def write(self, data: bytes) -> None:
        super().write(data)
        self.unsent_bytes += 22


@pytest.mark.parametrize("io", [UnreadIO, UnreadTlsIO])
async def test_a_client_that_reads_none_of_its_answers_is_dropped(
    harness: Harness, io: type[UnreadIO]
) -> None:
    client = UnreadClient(harness, io)
    client.io.unsent_bytes = MOST + 1000
    client.connection.on_writable(False)
    assert client.io.is_paused
    for _ in range(UNREAD_INTERVALS_MAX):
        client.connection.on_tick()
    assert not client.io.is_closed
    client.connection.on_tick()
    assert client.io.is_closed
    assert harness.services.counters.connections_timed_out == 1


@pytest.mark.parametrize("io", [UnreadIO, UnreadTlsIO])
async def test_a_client_that_reads_in_steps_of_more_than_an_interval_stays(
    harness: Harness, io: type[UnreadIO]
) -> None:
    client = UnreadClient(harness, io)
    client.io.unsent_bytes = MOST + 10_000
    client.connection.on_writable(False)
    for tick in range(20):
        client.connection.on_tick()
        if tick % UNREAD_INTERVALS_MAX == 0:
            client.io.unsent_bytes -= 200
    assert client.connection.link.unsent_bytes > MOST
    assert not client.io.is_closed


async def test_a_client_that_is_not_read_for_another_reason_is_not_dropped(
    harness: Harness,
) -> None:
    client = UnreadClient(harness)
    client.connection.on_writable(False)
    client.connection.link.read(is_wanted=False)  # for example while publishes wait for a bookie
    for _ in range(5):
        client.connection.on_tick()
    assert not client.io.is_closed


# The room itself


class Answers:
    """Answers that hold their room until the test says that they are written."""

    def __init__(self, bytes_max: int) -> None:
        self.room = AnswerRoom(bytes_max, is_writable=True)
        self.begun: list[int] = []
        self.written: dict[int, asyncio.Event] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}

    async def _answer(self, number: int, size_bytes: int) -> None:
        async with self.room.hold(size_bytes):
            self.begun.append(number)
            await self.written[number].wait()

    async def ask(self, *sizes: int) -> None:
        for size_bytes in sizes:
            number = len(self.tasks)
            self.written[number] = asyncio.Event()
            self.tasks[number] = asyncio.ensure_future(self._answer(number, size_bytes))
        await settle()

    async def write(self, number: int) -> None:
        self.written[number].set()
        await settle()

    async def cancel(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)


async def test_room_is_given_in_order_and_no_more_than_there_is() -> None:
    answers = Answers(10)
    await answers.ask(4, 6, 8, 1)
    assert answers.begun == [0, 1]
    await answers.write(0)
    assert answers.begun == [0, 1]  # the third has no room yet, and the fourth is behind it
    await answers.write(1)
    assert answers.begun == [0, 1, 2, 3]
    await answers.cancel()


async def test_an_answer_larger_than_all_of_the_room_gets_it_alone() -> None:
    answers = Answers(10)
    await answers.ask(1, 99, 1)
    assert answers.begun == [0]
    await answers.write(0)
    assert answers.begun == [0, 1]
    await answers.write(1)
    assert answers.begun == [0, 1, 2]
    await answers.cancel()


async def test_no_room_is_given_while_the_connection_takes_nothing() -> None:
    answers = Answers(10)
    answers.room.set_writable(False)
    await answers.ask(1, 1)
    assert answers.begun == []
    answers.room.set_writable(True)
    await settle()
    assert answers.begun == [0, 1]
    await answers.cancel()


async def test_a_cancelled_request_keeps_no_room() -> None:
    answers = Answers(10)
    await answers.ask(10, 10, 10, 10)
    answers.tasks[1].cancel()  # it waits
    answers.tasks[2].cancel()
    await settle()
    answers.written[0].set()
    answers.tasks[0].cancel()  # it has begun
    await settle()
    assert answers.begun == [0, 3]
    await answers.cancel()


async def test_a_request_that_is_cancelled_right_after_its_turn_has_come_keeps_no_room() -> None:
    answers = Answers(10)
    answers.room.set_writable(False)
    await answers.ask(10, 10)
    answers.room.set_writable(True)
    answers.tasks[0].cancel()
    await settle()
    assert answers.begun == [1]
    await answers.cancel()
