"""The object store of a run: a bucket in memory, a handle per process, and the faults of both.

A request travels to the store and its answer back. Each may be lost, and a request may come late:
after whoever sent it has given up, or is dead. What the store gives may be cut, flipped or denied,
once or for good.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from random import Random
from typing import TypeVar, cast

from magnetar.ledger.errors import (
    ObjectDamagedError,
    ObjectError,
    ObjectMissingError,
    ObjectStoreRefusedError,
    ObjectStoreUnavailableError,
)
from magnetar.ledger.offloading.object_store import ObjectStore, ObjectTail, StoredObject
from tests.simulation.cluster.events import ObjectGone, ObjectPut, ObjectRotted
from tests.simulation.history import Event, Fault, History
from tests.simulation.loop import SimLoop, SimProcess

T = TypeVar("T")


@dataclass(slots=True)
class ObjectFaults:
    """How likely the store does what it should not, per request."""

    unavailable: float = 0.0
    """Nothing was done; the caller hears that the store does not answer."""
    reply_lost: float = 0.0
    """The request was carried out; the caller hears that the store does not answer."""
    late: float = 0.0
    """The caller hears the same, and the request is carried out later."""
    cut: float = 0.0
    """A read ends before its end."""
    flipped: float = 0.0
    """A bit of what is read is wrong."""
    denied: float = 0.0
    """A read hears that there is no such object, though there is."""
    spoiled: float = 0.0
    """What is stored is not what was sent: a bit of it is wrong, for good."""


class ObjectServer:
    """The bucket, its handles and its faults."""

    def __init__(self, loop: SimLoop, history: History, *, seed: str) -> None:
        self.loop = loop
        self.history = history
        self.random = Random(f"{seed}/objects")
        self.objects: dict[str, bytes] = {}
        self.faults = ObjectFaults()
        self.is_away = False
        """Nothing that anybody asks is answered."""
        self.latency_s = 0.002
        self.jitter_s = 0.004
        self.late_s = 2.0
        """How late a late request may be."""
        self.context = Context()
        """The store's own: it works on while its clients are paused or dead."""
        self.puts = 0

    def open(self, process: SimProcess) -> "SimObjectStore":
        return SimObjectStore(self, process)

    def record(self, actor: str, event: Event) -> None:
        self.history.add(self.loop.time(), actor, event)

    def rot(self, key: str) -> None:
        """A bit of an object changes, for good."""
        data = bytearray(self.objects[key])
        data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
        self.objects[key] = bytes(data)
        self.record("objects", ObjectRotted(key, self.objects[key]))

    def lose(self, key: str) -> None:
        """An object is deleted by hand."""
        del self.objects[key]
        self.record("objects", Fault(f"{key} is lost"))
        self.record("objects", ObjectGone(key))


class SimObjectStore:
    """`ObjectStore`: the handle of one process."""

    def __init__(self, server: ObjectServer, process: SimProcess) -> None:
        self._server = server
        self._process = process

    async def put(self, key: str, pieces: AsyncIterator[bytes], *, expected_bytes: int = 0) -> int:
        data = b"".join([piece async for piece in pieces])
        self._server.puts += 1
        number = self._server.puts

        def apply() -> int:
            stored = self._stored(key, data)
            self._server.objects[key] = stored
            self._server.record(self._process.name, ObjectPut(key, stored, number))
            return len(data)

        return await self._ask(f"put {key}", apply)

    async def create(self, key: str, body: bytes) -> bool:
        self._server.puts += 1
        number = self._server.puts

        def apply() -> bool:
            if key in self._server.objects:
                return False
            self._server.objects[key] = body
            self._server.record(self._process.name, ObjectPut(key, body, number))
            return True

        return await self._ask(f"create {key}", apply)

    async def get(self, key: str, start: int, end: int) -> bytes:
        data = await self._ask(f"get {key}", lambda: self._read(key)[start:end])
        data = self._spoiled(key, data)
        if len(data) != end - start:
            raise ObjectDamagedError(f"{key}: {len(data)} bytes where {end - start} were wanted")
        return data

    async def tail(self, key: str, size_bytes: int) -> ObjectTail:
        def apply() -> ObjectTail:
            data = self._read(key)
            return ObjectTail(data[-size_bytes:], len(data))

        tail = await self._ask(f"tail {key}", apply)
        return tail._replace(data=self._spoiled(key, tail.data))

    async def list(self, prefix: str) -> AsyncIterator[Sequence[StoredObject]]:
        def apply() -> list[StoredObject]:
            return [
                StoredObject(key, len(data), 0)
                for key, data in sorted(self._server.objects.items())
                if key.startswith(prefix)
            ]

        found = await self._ask(f"list {prefix}", apply)
        for at in range(0, len(found), 3):
            yield found[at : at + 3]

    async def delete(self, keys: Sequence[str]) -> None:
        def apply() -> None:
            for key in keys:
                if self._server.objects.pop(key, None) is not None:
                    self._server.record(self._process.name, ObjectGone(key))

        await self._ask(f"delete {len(keys)} keys", apply)

    async def close(self) -> None:
        pass

    def _read(self, key: str) -> bytes:
        data = self._server.objects.get(key)
        if data is None:
            raise ObjectMissingError(f"there is no object {key}")
        if self._server.random.random() < self._server.faults.denied:
            raise ObjectMissingError(f"there seems to be no object {key}")
        return data

    def _stored(self, key: str, data: bytes) -> bytes:
        server = self._server
        if server.random.random() >= server.faults.spoiled:
            return data
        server.record(self._process.name, Fault(f"{key} is stored wrong"))
        at = server.random.randrange(len(data))
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    def _spoiled(self, key: str, data: bytes) -> bytes:
        server = self._server
        if data and server.random.random() < server.faults.flipped:
            server.record(self._process.name, Fault(f"a bit of {key} is read wrong"))
            at = server.random.randrange(len(data))
            # Another bit than the one that is stored wrong: else the two might make it right.
            return data[:at] + bytes([data[at] ^ 2]) + data[at + 1 :]
        if data and server.random.random() < server.faults.cut:
            server.record(self._process.name, Fault(f"a read of {key} is cut"))
            return data[: server.random.randrange(len(data))]
        return data

    async def _ask(self, what: str, apply: Callable[[], T]) -> T:
        server = self._server
        random = server.random
        answer: asyncio.Future[object] = server.loop.create_future()
        fault = self._drawn()
        if fault:
            server.record(self._process.name, Fault(f"{what}: {fault}"))

        def arrive() -> None:
            result: object = None
            error: ObjectError | None = None
            if fault != "unavailable":
                try:
                    result = apply()
                except ObjectError as failure:
                    error = failure
            if fault:
                error = ObjectStoreUnavailableError(f"{what}: no answer")
            if not answer.done():
                if error is None:
                    answer.set_result(result)
                else:
                    answer.set_exception(error)

        delay_s = server.latency_s + random.random() * server.jitter_s
        if fault == "late":
            server.loop.call_later(
                delay_s + random.random() * server.late_s, arrive, context=server.context
            )
            server.loop.call_later(delay_s, _give_up, answer, what, context=server.context)
        else:
            server.loop.call_later(delay_s, arrive, context=server.context)
        return cast(T, await answer)

    def _drawn(self) -> str:
        server = self._server
        if server.is_away:
            return "unavailable"
        drawn = server.random.random()
        for name in ("unavailable", "reply_lost", "late"):
            drawn -= getattr(server.faults, name)
            if drawn < 0:
                return name
        return ""


def _give_up(answer: "asyncio.Future[object]", what: str) -> None:
    if not answer.done():
        answer.set_exception(ObjectStoreUnavailableError(f"{what}: no answer"))


class OneStore:
    """`ObjectStores` with the store of a run, under the name "bucket"."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def store(self, name: str) -> ObjectStore:
        if name != "bucket":
            raise ObjectStoreRefusedError(f"no store is named {name}")
        return self._store
