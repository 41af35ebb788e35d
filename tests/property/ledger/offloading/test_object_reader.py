"""Reading entries out of objects, from a store that does anything: what a reader returns is what
the ledger held, everybody gets an answer, and memory stays within its bounds."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from enum import Enum, auto
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from magnetar.ledger.errors import (
    FutureObjectVersionError,
    ObjectDamagedError,
    ObjectError,
    ObjectMissingError,
    ObjectStoreUnavailableError,
)
from magnetar.ledger.offloading.object_reader import ObjectReader, ObjectReads
from magnetar.ledger.offloading.object_store import ObjectTail, StoredObject
from magnetar.ledger.settings import ObjectReadSettings
from tests.ledger_objects import NAME, object_of
from tests.simulation.loop import SimLoop
from tests.simulation.worker import SimClock

KEY = "ledgers/7.mgo"
TIMEOUT_S = 5.0


class Act(Enum):
    """What the store does with one request."""

    ANSWER = auto()
    FLIP = auto()
    """Answer with a changed byte."""
    CUT = auto()
    """Answer with fewer bytes than were asked for."""
    END = auto()
    """Say that the object ends before."""
    MISS = auto()
    FAIL = auto()
    HANG = auto()


class Call(NamedTuple):
    act: Act
    delay_ms: int
    at: int
    """Index of the byte that is changed, or of the first that is left out."""


class PlannedStore:
    """`ObjectStore` with one object. Requests are answered as planned, and well after that."""

    def __init__(self, data: bytes, plan: Sequence[Call]) -> None:
        self._data = data
        self._plan = list(plan)
        self.acts: list[Act] = []
        self.at_once = self.at_once_max = 0
        self.on_request: Callable[[], None] = lambda: None

    async def get(self, key: str, start: int, end: int) -> bytes:
        return await self._answer(key, self._data[start:end])

    async def tail(self, key: str, size_bytes: int) -> ObjectTail:
        tail = self._data[max(0, len(self._data) - size_bytes) :]
        return ObjectTail(await self._answer(key, tail), len(self._data))

    async def _answer(self, key: str, data: bytes) -> bytes:
        self.on_request()
        call = self._plan.pop(0) if self._plan else Call(Act.ANSWER, 0, 0)
        self.acts.append(call.act)
        self.at_once += 1
        self.at_once_max = max(self.at_once, self.at_once_max)
        try:
            if call.act is Act.HANG:
                await asyncio.sleep(10 * TIMEOUT_S)
            await asyncio.sleep(call.delay_ms / 1000)
        finally:
            self.at_once -= 1
        at = call.at % len(data)
        match call.act:
            case Act.FLIP:
                return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
            case Act.CUT:
                return data[:at]
            case Act.END:
                raise ObjectDamagedError(f"{key} ends before")
            case Act.MISS:
                raise ObjectMissingError(f"there is no {key}")
            case Act.FAIL:
                raise ObjectStoreUnavailableError("503")
        return data

    async def put(self, key: str, pieces: AsyncIterator[bytes], *, expected_bytes: int = 0) -> int:
        raise NotImplementedError

    async def create(self, key: str, body: bytes) -> bool:
        raise NotImplementedError

    def list(self, prefix: str) -> AsyncIterator[Sequence[StoredObject]]:
        raise NotImplementedError

    async def delete(self, keys: Sequence[str]) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


class Step(NamedTuple):
    """One read of a consumer."""

    jump: int | None
    """The entry to read from; None: behind the last one that was read."""
    last: int
    bytes_max: int
    cancelled_after_ms: int | None
    pause_ms: int


payloads = st.lists(st.binary(max_size=40), min_size=1, max_size=40)
splits = st.lists(st.integers(1, 6), max_size=40)
calls = st.builds(
    Call, st.sampled_from(Act) | st.just(Act.ANSWER), st.integers(0, 20), st.integers(0, 1 << 16)
)
steps = st.lists(
    st.builds(
        Step,
        st.none() | st.integers(0, 40),
        st.integers(0, 40),
        st.integers(1, 200),
        st.none() | st.none() | st.integers(0, 30),
        st.integers(0, 30),
    ),
    max_size=25,
)


@st.composite
def bounds(draw: st.DrawFn) -> ObjectReadSettings:
    """Bounds that objects of some hundred bytes meet."""
    window = draw(st.integers(0, 800))
    return ObjectReadSettings(
        object_index_cache_bytes=draw(st.sampled_from([0, 1 << 20])),
        object_read_memory_bytes=window + draw(st.integers(0, 1500)),
        object_read_window_bytes=window,
        object_read_range_bytes=draw(st.integers(1, 400)),
        object_read_ranges_max=draw(st.integers(1, 3)),
        object_reads_max=draw(st.integers(1, 4)),
        object_read_timeout_s=TIMEOUT_S,
        object_read_idle_s=draw(st.sampled_from([0.0, 0.01, 10.0])),
    )


class World:
    """Consumers of one object, and all that may be said of what they got."""

    def __init__(
        self, loop: SimLoop, values: Sequence[bytes], store: PlannedStore, bound: ObjectReadSettings
    ) -> None:
        self.loop = loop
        self.values = values
        self.store = store
        self.bound = bound
        self.reads = ObjectReads(bound, SimClock(loop))
        self.errors: list[ObjectError] = []
        self.window_bytes_max = 0
        store.on_request = self.look

    def look(self) -> None:
        self.window_bytes_max = max(self.window_bytes_max, self.reads.window_bytes)

    async def open(self) -> ObjectReader:
        while True:
            try:
                return await self.reads.open(self.store, KEY, NAME)
            except ObjectError as error:
                self.errors.append(error)

    async def consume(self, script: Sequence[Step]) -> None:
        reader = await self.open()
        following = 0
        for step in script:
            first = following if step.jump is None else step.jump
            first %= len(self.values)
            following = first + len(await self._read(reader, first, step))
            await asyncio.sleep(step.pause_ms / 1000)
        await reader.close()
        assert reader.window_bytes == 0

    async def _read(self, reader: ObjectReader, first: int, step: Step) -> list[bytes]:
        last = min(first + step.last, len(self.values) - 1)
        task = asyncio.ensure_future(reader.read(first, last, bytes_max=step.bytes_max))
        if step.cancelled_after_ms is not None:
            self.loop.call_later(step.cancelled_after_ms / 1000, task.cancel)
        try:
            found = await task
        except asyncio.CancelledError:
            return []
        except ObjectError as error:
            self.errors.append(error)
            return []
        finally:
            self.look()
        assert found
        assert found == self.values[first : first + len(found)]
        assert len(found) <= last - first + 1
        assert len(found) == 1 or sum(map(len, found)) <= step.bytes_max
        return found

    async def run(self, scripts: Sequence[Sequence[Step]]) -> None:
        await asyncio.gather(*(self.consume(script) for script in scripts))
        assert self.reads.readers == 0
        assert self.reads.window_bytes == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert self.window_bytes_max <= self.bound.object_read_memory_bytes
        assert self.store.at_once_max <= self.bound.object_reads_max


def play(
    values: Sequence[bytes],
    data: bytes,
    plan: Sequence[Call],
    bound: ObjectReadSettings,
    story: Callable[[World], Coroutine[object, object, None]],
) -> World:
    loop = SimLoop()  # type: ignore[abstract]  # no sockets, signals, subprocesses
    try:
        world = World(loop, values, PlannedStore(data, plan), bound)
        loop.run(story(world))
        assert loop.unretrieved() == []
        return world
    finally:
        loop.close()


@given(payloads, splits, bounds(), st.lists(steps, min_size=1, max_size=4))
def test_any_reads_of_any_object_return_what_the_ledger_held(
    values: list[bytes], split: list[int], bound: ObjectReadSettings, scripts: list[list[Step]]
) -> None:
    world = play(values, object_of(values, split), [], bound, lambda world: world.run(scripts))
    assert world.errors == []


@given(payloads, splits, bounds(), st.lists(calls), st.lists(steps, min_size=1, max_size=4))
def test_whatever_a_store_does_a_reader_returns_what_the_ledger_held_or_says_why_not(
    values: list[bytes],
    split: list[int],
    bound: ObjectReadSettings,
    plan: list[Call],
    scripts: list[list[Step]],
) -> None:
    world = play(values, object_of(values, split), plan, bound, lambda world: world.run(scripts))
    acts = world.store.acts
    for error in world.errors:
        match error:
            case ObjectMissingError():
                assert acts.count(Act.MISS) >= 2
            case ObjectDamagedError() | FutureObjectVersionError():
                assert sum(act in (Act.FLIP, Act.CUT, Act.END) for act in acts) >= 2
            case ObjectStoreUnavailableError():
                assert Act.HANG in acts or Act.FAIL in acts
            case _:
                raise error


@given(payloads, splits, bounds())
def test_a_sequential_reader_requests_each_run_once(
    values: list[bytes], split: list[int], bound: ObjectReadSettings
) -> None:
    data = object_of(values, split)
    ample = bound.model_copy(update={"object_read_memory_bytes": 1 << 20})

    async def story(world: World) -> None:
        reader = await world.open()
        before = world.reads.counts.bytes_read
        first = 0
        while first <= reader.last_entry_id:
            first += len(await reader.read(first, reader.last_entry_id, bytes_max=50))
        runs = sum(run.size_bytes for run in reader.footer.runs)
        assert world.reads.counts.bytes_read - before == runs
        await reader.close()

    play(values, data, [], ample, story)


@given(payloads, splits, bounds(), st.integers(2, 5))
def test_readers_at_the_same_place_cost_what_one_costs(
    values: list[bytes], split: list[int], bound: ObjectReadSettings, count: int
) -> None:
    data = object_of(values, split)
    ample = bound.model_copy(update={"object_read_memory_bytes": 1 << 20})
    script = [Step(None, 40, 200, None, 0)] * len(values)

    async def story(world: World) -> None:
        await world.run([script] * count)

    async def alone(world: World) -> None:
        await world.run([script])

    together = play(values, data, [], ample, story)
    assert (
        together.reads.counts.requests == play(values, data, [], ample, alone).reads.counts.requests
    )


@given(payloads, splits, bounds(), st.lists(calls), st.lists(steps, min_size=1, max_size=4))
def test_closing_ends_every_wait(
    values: list[bytes],
    split: list[int],
    bound: ObjectReadSettings,
    plan: list[Call],
    scripts: list[list[Step]],
) -> None:
    async def story(world: World) -> None:
        consumers = [asyncio.ensure_future(world.consume(script)) for script in scripts]
        await asyncio.sleep(0.03)
        await world.reads.close()
        await asyncio.wait(consumers)
        for consumer in consumers:
            consumer.exception()  # reads of objects are closed
        assert world.reads.window_bytes == 0
        assert world.reads.readers == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    play(values, object_of(values, split), plan, bound, story)
