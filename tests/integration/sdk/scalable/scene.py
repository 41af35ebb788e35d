"""What tests of the client on scalable topics have in common: changes of the layout, keyed load."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

from magnetar.sdk import Consumer, Message, Producer
from tests.http_calls import Answer, Server, follow
from tests.waiting import until

KEYS = [f"key-{number}" for number in range(24)]
RECEIVE_S = 60.0
_UNAVAILABLE = 503


def path_of(topic: str) -> str:
    """Path of a scalable topic in the admin interface."""
    return f"/admin/v2/scalable/{topic.partition('://')[2]}"


class Layouts:
    """Changes the layout of one topic through the admin interface."""

    def __init__(self, server: Server, topic: str) -> None:
        self._server, self._path = server, path_of(topic)

    async def _call(self, method: str, path: str = "") -> Any:
        """A request to the broker that owns the topic, which must succeed."""
        return (await self._ask(method, path)).ok()

    async def _ask(self, method: str, path: str = "") -> Answer:
        return await asyncio.to_thread(follow, self._server, method, f"{self._path}{path}")

    async def active(self) -> list[tuple[int, int]]:
        """Range start and id of each active segment, in the order of their ranges."""
        record = await self._call("GET")
        found = [
            (each["hashRange"]["start"], each["segmentId"])
            for each in record["segments"].values()
            if each["state"] == "ACTIVE"
        ]
        return sorted(found)

    async def split(self, at: int) -> None:
        """Split the active segment number `at`, in the order of their ranges."""
        _, segment_id = (await self.active())[at]
        answer = await self._ask("POST", f"/split/{segment_id}")
        if answer.status == _UNAVAILABLE:  # a broker has just ended: again, as an operator would
            await until(lambda: self._is_split(segment_id), within_s=RECEIVE_S)
        else:
            answer.ok()

    async def _is_split(self, segment_id: int) -> bool:
        """Whether a segment has been split; if not, ask for it once more."""
        record = await self._ask("GET")
        if not record.is_ok:
            return False
        states = {each["segmentId"]: each["state"] for each in record.json["segments"].values()}
        if states[segment_id] != "ACTIVE":
            return True
        await self._ask("POST", f"/split/{segment_id}")
        return False

    async def merge(self, at: int) -> None:
        """Merge the active segment number `at` with the next one."""
        active = await self.active()
        first, second = active[at][1], active[at + 1][1]
        await self._call("POST", f"/merge/{first}/{second}")

    async def rebucket(self, at: int, buckets: int) -> None:
        """Give the active segment number `at` so many entry buckets."""
        segment_id = (await self.active())[at][1]
        await self._call("POST", f"/rebucket/{segment_id}?bucketCount={buckets}")

    async def migrate(self) -> None:
        """Make the ordinary topic of the name scalable."""
        await self._call("POST", "/migrate")

    async def several(self) -> None:
        """Four splits and two merges, some of them one behind the other at once."""
        await self.split(0)
        await self.split(0)
        await self.split(2)
        await self.merge(0)
        await self.split(1)
        await self.merge(0)


class Load:
    """Sends numbered messages of all keys, until it is told to stop."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._stop = asyncio.Event()
        self.sent: Counter[str] = Counter()
        self.failures: list[Exception] = []

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        """Send, always with several messages of each key under way; flush at the end."""
        while not self._stop.is_set():
            await self.round(5)
        await self._producer.flush()

    async def round(self, count: int) -> None:
        """Send `count` messages of each key, and wait for the receipts of the last ones."""
        sends = []
        for at in range(count):
            for key in KEYS:
                body = b"%d" % self.sent[key]
                self.sent[key] += 1
                if at < count - 1:
                    self._producer.send_nowait(body, key=key)
                else:
                    sends.append(self._producer.send(body, key=key))
        await asyncio.gather(*sends)

    @property
    def total(self) -> int:
        """Messages sent so far."""
        return sum(self.sent.values())


class Received:
    """Numbers of each key's messages, in the order of their coming."""

    def __init__(self) -> None:
        self.numbers: dict[str, list[int]] = {}
        self.count = 0
        self.distinct = 0
        self._seen: set[tuple[str, int]] = set()

    def add(self, message: Message[Any]) -> None:
        key, number = message.key or "", int(message.data)
        self.numbers.setdefault(key, []).append(number)
        self.count += 1
        self._seen.add((key, number))
        self.distinct = len(self._seen)

    def add_all(self, messages: Iterable[Message[Any]]) -> None:
        for message in messages:
            self.add(message)

    def assert_exact(self, sent: Counter[str]) -> None:
        """Each message of each key came once, in order."""
        assert self.numbers == {key: list(range(count)) for key, count in sent.items()}

    def assert_in_order(self, sent: Counter[str]) -> None:
        """Each message came at least once, and for the first time in the order of its key."""
        for key, count in sent.items():
            assert list(dict.fromkeys(self.numbers.get(key, []))) == list(range(count)), key


async def consume(consumer: Consumer, received: Received) -> None:
    """Receive and acknowledge for ever; each message is acknowledged before the next one."""
    async for message in consumer:
        received.add(message)
        consumer.acknowledge(message)
