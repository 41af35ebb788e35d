"""The life of a server: steady traffic, and everything that comes and goes.

Every part runs until it is told to stop, at a pace of its own, and counts what it did. What goes
wrong that should not is noted as an error.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

from magnetar.sdk.client import Client
from magnetar.sdk.consumer import Consumer
from magnetar.sdk.errors import SdkError
from magnetar.sdk.producer import Producer
from magnetar.sdk.settings import (
    ClientSettings,
    ConsumerSettings,
    InitialPosition,
    ProducerSettings,
    SubscriptionType,
)
from tests.http_calls import ask
from tests.processes import HOST

NAMESPACE = "persistent://public/default"
_STEADY_TOPICS = 4
_STEADY_PER_S = 40
"""Messages of each of these topics."""
_PAYLOAD_BYTES = 500
_ERRORS_MAX = 50
_CLIENT = ClientSettings(operation_timeout_ms=30_000)
_KINDS = (
    ("one", SubscriptionType.EXCLUSIVE, 1),
    ("some", SubscriptionType.SHARED, 2),
    ("keyed", SubscriptionType.KEY_SHARED, 2),
    ("spare", SubscriptionType.FAILOVER, 2),
)
"""Subscriptions of each steady topic: name, type, consumers."""


class Load:
    """All of it, against one server."""

    def __init__(self, port: int, http_port: int, *, seed: int) -> None:
        self._port = port
        self._http = f"http://{HOST}:{http_port}"
        self._random = random.Random(seed)
        self._is_over = asyncio.Event()
        self.done: Counter[str] = Counter()
        self.errors: list[str] = []
        self._sent: Counter[str] = Counter()
        self._taken: Counter[tuple[str, str]] = Counter()

    async def run(self, seconds: float) -> None:
        """Go on for so long; then wait until everything that was sent has been taken."""
        async with Client(f"pulsar://{HOST}:{self._port}", _CLIENT) as client:
            topics = [f"{NAMESPACE}/steady-{number}" for number in range(_STEADY_TOPICS)]
            consuming = [
                asyncio.ensure_future(self._consume(client, topic, name, kind, number))
                for topic in topics
                for name, kind, consumers in _KINDS
                for number in range(consumers)
            ]
            working = [asyncio.ensure_future(self._publish(client, topic)) for topic in topics]
            working += [
                asyncio.ensure_future(self._again(what, pause_s))
                for what, pause_s in (
                    (self._short_topic, 0.5),
                    (self._reconnect, 0.5),
                    (self._short_subscription, 1.0),
                    (self._garbage, 0.2),
                    (self._administrate, 0.3),
                )
            ]
            # What fails is heard of now, and not in an hour.
            await asyncio.wait(working, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
            self._is_over.set()
            await asyncio.gather(*working)
            await self._wait_taken(topics)
            for task in consuming:
                task.cancel()
            await asyncio.gather(*consuming, return_exceptions=True)

    # Steady

    async def _publish(self, client: Client, topic: str) -> None:
        producer = await client.producer(topic, ProducerSettings(batching=False))
        payload = bytes(_PAYLOAD_BYTES)
        while not self._is_over.is_set():
            key = f"k{self._random.randrange(16)}"
            try:
                await producer.send(payload, key=key)
            except SdkError as error:
                self._note("publish", error)
                await asyncio.sleep(1.0)
                continue
            self._sent[topic] += 1
            self.done["published"] += 1
            await asyncio.sleep(1 / _STEADY_PER_S)

    async def _consume(
        self, client: Client, topic: str, name: str, kind: SubscriptionType, number: int
    ) -> None:
        settings = ConsumerSettings(
            name=f"{name}-{number}",
            subscription_type=kind,
            initial_position=InitialPosition.EARLIEST,
        )
        consumer = await client.consumer(topic, name, settings)
        while True:
            message = await consumer.receive()
            consumer.acknowledge(message)
            self._taken[topic, name] += 1
            self.done["consumed"] += 1

    async def _wait_taken(self, topics: list[str]) -> None:
        async def all_taken() -> None:
            for topic in topics:
                for name, _, _ in _KINDS:
                    while self._taken[topic, name] < self._sent[topic]:  # noqa: ASYNC110
                        await asyncio.sleep(0.1)

        try:
            async with asyncio.timeout(60.0):
                await all_taken()
        except TimeoutError:
            self.errors.append(f"not everything was taken: {self._sent}, {self._taken}")

    # Coming and going

    async def _again(self, what: Callable[[], Awaitable[None]], pause_s: float) -> None:
        while not self._is_over.is_set():
            try:
                await what()
            except (SdkError, OSError, TimeoutError, AssertionError) as error:
                self._note(what.__name__, error)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s * (0.5 + self._random.random())):
                    await self._is_over.wait()

    async def _short_topic(self) -> None:
        """A topic is made, used and deleted."""
        name = f"short-{self._random.getrandbits(40):x}"
        topic = f"{NAMESPACE}/{name}"
        async with Client(f"pulsar://{HOST}:{self._port}", _CLIENT) as client:
            consumer: Consumer = await client.consumer(topic, "s")
            producer: Producer = await client.producer(topic)
            for number in range(5):
                await producer.send(b"%d" % number)
            for _ in range(5):
                consumer.acknowledge(await consumer.receive(timeout_s=30.0))
        await self._call("DELETE", f"/admin/v2/persistent/public/default/{name}?force=true")
        self.done["topics made and deleted"] += 1

    async def _reconnect(self) -> None:
        """A client comes, reads something, and goes without a word."""
        client = Client(f"pulsar://{HOST}:{self._port}", _CLIENT)
        reader = await client.reader(f"{NAMESPACE}/steady-{self._random.randrange(_STEADY_TOPICS)}")
        with suppress(TimeoutError):
            await reader.read_next(timeout_s=0.2)
        await client.close(flush=False)
        self.done["reconnections"] += 1

    async def _short_subscription(self) -> None:
        """A subscription is made on a steady topic, and deleted."""
        name = f"short-{self._random.getrandbits(40):x}"
        topic = f"steady-{self._random.randrange(_STEADY_TOPICS)}"
        path = f"/admin/v2/persistent/public/default/{topic}/subscription/{name}"
        await self._call("PUT", path, b"")
        await self._call("DELETE", path)
        self.done["subscriptions made and deleted"] += 1

    async def _garbage(self) -> None:
        """Somebody who speaks something else, or stops in the middle of it."""
        port = self._port if self._random.random() < 0.5 else int(self._http.rpartition(":")[2])
        garbage = self._random.choice(
            (
                self._random.randbytes(200),
                b"GET /admin/v2/clu",
                b"",
                b"\x00\x00\x00\x20\x00\x00\x00\x1c",
            )
        )
        _, writer = await asyncio.open_connection(HOST, port)
        writer.write(garbage)
        with suppress(OSError):
            await writer.drain()
        writer.transport.abort()
        self.done["garbage connections"] += 1

    async def _administrate(self) -> None:
        path = self._random.choice(
            (
                "/metrics",
                "/health",
                "/admin/v2/persistent/public/default",
                "/admin/v2/persistent/public/default/steady-0/stats",
                "/admin/v2/persistent/public/default/steady-1/internalStats",
                "/admin/v2/namespaces/public",
            )
        )
        await self._call("GET", path)
        self.done["requests"] += 1

    async def _call(self, method: str, path: str, body: bytes | None = None) -> None:
        answer = await ask(self._http, method, path, body, timeout_s=30.0)
        assert answer.is_ok, answer  # metrics and health are no JSON

    def _note(self, what: str, error: BaseException) -> None:
        text = f"{what.strip('_')}: {json.dumps(str(error))[:300]}"
        if text not in self.errors and len(self.errors) < _ERRORS_MAX:
            self.errors.append(text)
