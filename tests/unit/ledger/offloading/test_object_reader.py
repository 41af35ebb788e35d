"""Reading entries out of objects in a directory: what readers return, share, cost and refuse."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from magnetar.ledger.digest import codec_for
from magnetar.ledger.errors import (
    BeyondLastConfirmedError,
    FutureObjectVersionError,
    LedgerClosedError,
    ObjectDamagedError,
    ObjectMissingError,
    ObjectStoreUnavailableError,
)
from magnetar.ledger.ledger_metadata import DigestType
from magnetar.ledger.offloading import shared_runs
from magnetar.ledger.offloading.directory_store import DirectoryStore
from magnetar.ledger.offloading.object_builder import ObjectBuilder
from magnetar.ledger.offloading.object_format import ObjectName, run_payloads
from magnetar.ledger.offloading.object_reader import ObjectReader, ObjectReads
from magnetar.ledger.settings import ObjectReadSettings
from magnetar.ledger.system import SystemClock
from magnetar.ledger.wire import encode_block
from tests.ledger_objects import NAME, closed_ledger, footer_in, object_of
from tests.waiting import settle, until

KEY = "a/7.mgo"

RUN = 1_000
VALUES = [bytes([number]) * RUN for number in range(200)]
OBJECT = object_of(VALUES)
"""200 runs of one entry, of little more than 1,000 bytes each."""
RUN_BYTES = footer_in(OBJECT).runs[0].size_bytes

SMALL = ObjectReadSettings(
    object_read_memory_bytes=256 * RUN_BYTES,
    object_read_window_bytes=48 * RUN_BYTES,
    object_read_range_bytes=8 * RUN_BYTES,
)
"""The proportions of the defaults, with runs of 1 KB in place of 1 MiB."""


class Store(DirectoryStore):
    """A directory whose requests are noted, and may be made to go wrong."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.requests: list[tuple[int, int]] = []
        """Start and end of each; of a tail its size, negative, and 0."""
        self.before: Callable[[], Awaitable[None]] | None = None
        self.after: Callable[[bytes], bytes] = lambda data: data

    def shut(self) -> asyncio.Event:
        """Have requests wait for an event."""
        gate = asyncio.Event()

        async def wait() -> None:
            await gate.wait()

        self.before = wait
        return gate

    async def get(self, key: str, start: int, end: int) -> bytes:
        self.requests.append((start, end))
        if self.before is not None:
            await self.before()
        return self.after(await super().get(key, start, end))

    async def tail(self, key: str, size_bytes: int) -> Any:
        self.requests.append((-size_bytes, 0))
        if self.before is not None:
            await self.before()
        return await super().tail(key, size_bytes)


class HandClock(SystemClock):
    """Time moves only when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic_s(self) -> float:
        return self.now_s


@pytest.fixture
async def store(tmp_path: Path) -> Store:
    store = Store(tmp_path)
    await put(store, OBJECT)
    return store


@pytest.fixture
async def reads() -> AsyncIterator[ObjectReads]:
    reads = ObjectReads(SMALL, SystemClock())
    yield reads
    await reads.close()
    assert reads.window_bytes == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def unavailable() -> None:
    await asyncio.sleep(0.001)
    raise ObjectStoreUnavailableError("503")


async def hang() -> None:
    await asyncio.Event().wait()


async def put(store: DirectoryStore, data: bytes, key: str = KEY) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield data

    await store.put(key, pieces())


async def read_all(reader: ObjectReader, bytes_max: int = RUN) -> list[bytes]:
    found: list[bytes] = []
    while len(found) <= reader.last_entry_id:
        found += await reader.read(len(found), reader.last_entry_id, bytes_max=bytes_max)
    return found


async def read_one(reader: ObjectReader, entry_id: int) -> bytes:
    (found,) = await reader.read(entry_id, entry_id, bytes_max=1)
    return found


def settings(**values: Any) -> ObjectReadSettings:
    return ObjectReadSettings(**(SMALL.model_dump() | values))


# What is returned


async def test_an_object_that_was_copied_from_a_ledger_is_read(tmp_path: Path) -> None:
    values = [bytes([number]) * (300 << 10) for number in range(20)]
    metadata = closed_ledger(values, digest_type=DigestType.HMAC, password=b"secret")
    codec = codec_for(metadata)
    building = ObjectBuilder(
        metadata, codec, NAME.attempt, instance_id="i", log="l", made_by="test"
    )
    pieces = building.add(encode_block(codec.seal(0, -1, 0, values)))
    store = DirectoryStore(tmp_path)
    await put(store, b"".join([*pieces, *building.finish()]))
    reads = ObjectReads(ObjectReadSettings(), SystemClock())
    reader = await reads.open(store, KEY, NAME, password=b"secret")
    assert len(reader.footer.runs) == 5
    assert await read_all(reader, 1 << 20) == values
    await reads.close()


async def test_a_read_returns_at_most_up_to_its_last_entry_and_about_its_bytes(
    store: Store, reads: ObjectReads
) -> None:
    values = [b"aa", b"bb", b"cc", b"dd"]
    await put(store, object_of(values, [4]), "b")
    reader = await reads.open(store, "b", NAME)
    assert await reader.read(1, 2, bytes_max=100) == [b"bb", b"cc"]
    assert await reader.read(0, 3, bytes_max=5) == [b"aa", b"bb"]
    assert await reader.read(3, 3, bytes_max=1) == [b"dd"]


async def test_a_read_beyond_the_last_entry_requests_nothing(
    store: Store, reads: ObjectReads
) -> None:
    reader = await reads.open(store, KEY, NAME)
    with pytest.raises(BeyondLastConfirmedError, match="ends with entry 199"):
        await reader.read(0, 200, bytes_max=1)
    with pytest.raises(ValueError, match="no range"):
        await reader.read(5, 4, bytes_max=1)
    assert len(store.requests) == 1


async def test_an_object_of_an_empty_ledger_has_nothing_to_read(
    store: Store, reads: ObjectReads
) -> None:
    await put(store, object_of([]), "empty")
    reader = await reads.open(store, "empty", NAME)
    assert reader.last_entry_id == -1
    assert reader.entries_after(0) == range(0)
    with pytest.raises(BeyondLastConfirmedError):
        await reader.read(0, 0, bytes_max=1)


async def test_a_time_leads_to_the_first_run_that_may_have_it_without_a_request(
    store: Store, reads: ObjectReads
) -> None:
    await put(store, object_of([b"a", b"b", b"c", b"d"], [2], publish_ms=[10, 20, 15]), "b")
    reader = await reads.open(store, "b", NAME)
    found = [reader.entries_after(time_ms) for time_ms in (5, 10, 11, 20, 21)]
    assert found == [range(2), range(2), range(2, 3), range(2, 3), range(4, 4)]
    assert len(store.requests) == 1


async def test_a_wrong_password_opens_nothing_and_spoils_nothing(
    store: Store, reads: ObjectReads
) -> None:
    data = object_of([b"a"], digest_type=DigestType.HMAC, password=b"right")
    await put(store, data, "b")
    right = await reads.open(store, "b", NAME, password=b"right")
    wrong = await reads.open(store, "b", NAME, password=b"wrong")
    found, refused = await asyncio.gather(
        read_one(right, 0), read_one(wrong, 0), return_exceptions=True
    )
    assert found == b"a"
    assert isinstance(refused, ObjectDamagedError)


# What is refused


async def test_an_object_is_opened_only_as_the_one_that_is_meant(
    store: Store, reads: ObjectReads
) -> None:
    with pytest.raises(ObjectDamagedError):
        await reads.open(store, KEY, ObjectName(8, NAME.attempt))
    with pytest.raises(ObjectDamagedError):
        await reads.open(store, KEY, ObjectName(7, bytes(16)))


async def test_an_object_that_describes_another_ledger_is_damaged(
    store: Store, reads: ObjectReads
) -> None:
    await put(store, object_of([b"a"], described={"ledger_id": 8}), "b")
    with pytest.raises(ObjectDamagedError, match="describes ledger 8"):
        await reads.open(store, "b", NAME)


async def test_a_digest_that_is_not_known_is_of_a_newer_release(
    store: Store, reads: ObjectReads
) -> None:
    await put(store, object_of([b"a"], described={"digest_type": "BLAKE3"}), "b")
    with pytest.raises(FutureObjectVersionError, match="BLAKE3"):
        await reads.open(store, "b", NAME)


async def test_a_closed_reader_reads_no_more(store: Store, reads: ObjectReads) -> None:
    reader = await reads.open(store, KEY, NAME)
    await reader.close()
    await reader.close()
    with pytest.raises(LedgerClosedError):
        await read_one(reader, 0)


# What it costs


async def test_the_first_read_after_a_seek_takes_two_requests(
    store: Store, reads: ObjectReads
) -> None:
    reader = await reads.open(store, KEY, NAME)
    assert await read_one(reader, 150) == VALUES[150]
    assert len(store.requests) == 2


async def test_an_index_that_is_longer_than_usual_takes_one_request_more(
    store: Store, reads: ObjectReads
) -> None:
    values = [b"x"] * 4_000
    await put(store, object_of(values), "long")
    reader = await reads.open(store, "long", NAME)
    assert len(store.requests) == 2
    assert await read_one(reader, 3_999) == b"x"


async def test_a_sequential_reader_needs_few_requests_and_each_byte_once(
    store: Store, reads: ObjectReads
) -> None:
    reader = await reads.open(store, KEY, NAME)
    before = reads.counts.bytes_read
    assert await read_all(reader) == VALUES
    assert reads.counts.bytes_read - before == len(VALUES) * RUN_BYTES
    assert len(store.requests) < len(VALUES) / 5


async def test_runs_are_fetched_while_the_consumer_works(store: Store, reads: ObjectReads) -> None:
    reader = await reads.open(store, KEY, NAME)
    before = reads.counts.bytes_read
    for entry_id in range(4):
        await read_one(reader, entry_id)
    await until(lambda: reads.counts.bytes_read - before == 11 * RUN_BYTES)
    store.before = unavailable
    assert [await read_one(reader, entry_id) for entry_id in range(4, 11)] == VALUES[4:11]
    with pytest.raises(ObjectStoreUnavailableError):
        await read_one(reader, 11)


async def test_jumps_do_not_read_the_index_again(store: Store, reads: ObjectReads) -> None:
    reader = await reads.open(store, KEY, NAME)
    for entry_id in (150, 3, 90, 4, 150):
        assert await read_one(reader, entry_id) == VALUES[entry_id]
    assert [start < 0 for start, _ in store.requests] == [True] + [False] * 5


async def test_a_jump_costs_one_run(store: Store, reads: ObjectReads) -> None:
    reader = await reads.open(store, KEY, NAME)
    for entry_id in (0, 1, 2, 3, 100):
        await read_one(reader, entry_id)
    start, end = store.requests[-1]
    assert end - start == RUN_BYTES


async def test_an_index_that_is_in_the_cache_is_not_requested_again(
    store: Store, reads: ObjectReads
) -> None:
    for _ in range(3):
        await (await reads.open(store, KEY, NAME)).close()
    assert len(store.requests) == 1
    assert (reads.counts.indexes_read, reads.counts.indexes_found) == (1, 2)


async def test_indexes_stay_within_their_memory_and_those_used_last_stay(store: Store) -> None:
    for key in "bcd":
        await put(store, OBJECT, key)
    probe = ObjectReads(SMALL, SystemClock())
    await probe.open(store, KEY, NAME)
    one_bytes = probe.index_bytes
    await probe.close()
    reads = ObjectReads(settings(object_index_cache_bytes=2 * one_bytes), SystemClock())
    for key in "bcbd":
        await reads.open(store, key, NAME)
    assert reads.index_bytes == 2 * one_bytes
    asked = len(store.requests)
    await reads.open(store, "b", NAME)
    assert len(store.requests) == asked
    await reads.open(store, "c", NAME)
    assert len(store.requests) == asked + 1
    await reads.close()


async def test_an_index_above_the_bound_is_not_kept_and_evicts_nothing(store: Store) -> None:
    await put(store, object_of([b"x"]), "small")
    reads = ObjectReads(settings(object_index_cache_bytes=20_000), SystemClock())
    await reads.open(store, "small", NAME)
    kept_bytes = reads.index_bytes
    assert kept_bytes > 0
    reader = await reads.open(store, KEY, NAME)
    assert reads.index_bytes == kept_bytes
    assert await read_one(reader, 0) == VALUES[0]
    await reads.close()


async def test_a_store_has_a_bounded_number_of_requests_at_once(store: Store) -> None:
    reads = ObjectReads(settings(object_reads_max=3), SystemClock())
    reader = await reads.open(store, KEY, NAME)
    at_once = at_once_max = 0

    async def count() -> None:
        nonlocal at_once, at_once_max
        at_once += 1
        at_once_max = max(at_once, at_once_max)
        await asyncio.sleep(0.001)
        at_once -= 1

    store.before = count
    readers = [reader] + [await reads.open(store, KEY, NAME) for _ in range(19)]
    await asyncio.gather(*(read_one(each, 7 * at) for at, each in enumerate(readers)))
    assert at_once_max == 3
    await reads.close()


async def test_a_reader_has_a_bounded_number_of_requests_at_once(store: Store) -> None:
    bounded = settings(object_read_ranges_max=2, object_read_range_bytes=RUN_BYTES)
    reads = ObjectReads(bounded, SystemClock())
    reader = await reads.open(store, KEY, NAME)
    for entry_id in range(4):
        await read_one(reader, entry_id)
    await until(lambda: len(asyncio.all_tasks()) == 1)
    del store.requests[:]
    gate = store.shut()
    waiting = asyncio.ensure_future(read_one(reader, 4))
    await settle()
    assert len(store.requests) == 2
    gate.set()
    assert await waiting == VALUES[4]
    await reads.close()


@pytest.mark.parametrize("turns", range(12))
async def test_a_turn_that_comes_as_its_request_is_cancelled_goes_to_the_next_one(
    store: Store, turns: int
) -> None:
    reads = ObjectReads(settings(object_reads_max=1), SystemClock())
    first, second, third = [await reads.open(store, KEY, NAME) for _ in range(3)]
    gate = asyncio.Event()

    async def fail() -> None:
        await gate.wait()
        raise ObjectStoreUnavailableError("503")

    store.before = fail
    readings = [
        asyncio.ensure_future(read_one(first, 5)),
        asyncio.ensure_future(read_one(second, 9)),
    ]
    await settle()
    gate.set()
    await settle(turns)
    readings[1].cancel()
    await second.close()
    await asyncio.wait(readings)
    store.before = None
    async with asyncio.timeout(5):
        assert await read_one(third, 100) == VALUES[100]
    for each in readings:
        assert each.cancelled() or isinstance(each.exception(), ObjectStoreUnavailableError)
    await reads.close()


async def test_a_run_that_a_reader_waits_for_goes_before_those_fetched_ahead(store: Store) -> None:
    reads = ObjectReads(settings(object_reads_max=1), SystemClock())
    ahead, other = [await reads.open(store, KEY, NAME) for _ in range(2)]
    for entry_id in (0, 1, 2, 3):
        await read_one(ahead, entry_id)
    gate = store.shut()
    del store.requests[:]
    readings = [asyncio.ensure_future(read_one(ahead, entry_id)) for entry_id in (4, 5)]
    await until(lambda: len(store.requests) == 1)
    waiting = asyncio.ensure_future(read_one(other, 199))
    await settle()
    gate.set()
    assert await waiting == VALUES[199]
    await asyncio.gather(*readings)
    assert store.requests[1][1] == footer_in(OBJECT).runs[199].offset + RUN_BYTES
    await reads.close()


async def test_one_run_is_checked_in_a_turn_of_the_event_loop(
    store: Store, reads: ObjectReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = 0
    checked: list[int] = []
    loop = asyncio.get_running_loop()

    def count() -> None:
        nonlocal turn
        turn += 1
        handle[0] = loop.call_soon(count)

    def noting(*arguments: Any) -> list[bytes]:
        checked.append(turn)
        return check(*arguments)

    check = run_payloads
    handle = [loop.call_soon(count)]
    monkeypatch.setattr(shared_runs, "run_payloads", noting)
    readers = [await reads.open(store, KEY, NAME) for _ in range(2)]
    await asyncio.gather(*(read_all(each) for each in readers))
    handle[0].cancel()
    assert len(checked) >= len(VALUES)
    assert len(set(checked)) == len(checked)


# What is shared


async def test_two_readers_of_one_object_share_their_requests(
    store: Store, reads: ObjectReads
) -> None:
    await read_all(await reads.open(store, KEY, NAME))
    alone = len(store.requests)
    del store.requests[:]
    readers = [await reads.open(store, KEY, NAME) for _ in range(2)]
    found = await asyncio.gather(*(read_all(each) for each in readers))
    assert found == [VALUES, VALUES]
    assert len(store.requests) <= alone
    assert reads.counts.shared_runs > 0


async def test_two_that_open_an_object_share_its_index(store: Store, reads: ObjectReads) -> None:
    await asyncio.gather(*(reads.open(store, KEY, NAME) for _ in range(5)))
    assert len(store.requests) == 1


async def test_when_the_reader_that_asked_is_cancelled_the_others_get_the_run(
    store: Store, reads: ObjectReads
) -> None:
    readers = [await reads.open(store, KEY, NAME) for _ in range(3)]
    waiting = [asyncio.ensure_future(read_one(each, 5)) for each in readers]
    await asyncio.sleep(0)
    waiting[0].cancel()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert found[1:] == [VALUES[5], VALUES[5]]
    assert len(store.requests) == 2


@pytest.mark.parametrize("turns", range(5))
async def test_when_everybody_who_asked_is_cancelled_the_next_reader_gets_the_run_all_the_same(
    store: Store, turns: int
) -> None:
    nothing = settings(object_read_memory_bytes=0, object_read_window_bytes=0)
    reads = ObjectReads(nothing, SystemClock())
    first, second = [await reads.open(store, KEY, NAME) for _ in range(2)]
    gate = store.shut()
    waiting = asyncio.ensure_future(read_one(first, 5))
    await settle()
    waiting.cancel()
    await settle(turns)
    gate.set()
    assert await read_one(second, 5) == VALUES[5]
    await reads.close()


async def test_a_cancelled_request_that_is_slow_to_end_holds_nobody_up(
    store: Store, reads: ObjectReads
) -> None:
    first, second = [await reads.open(store, KEY, NAME) for _ in range(2)]
    ended = asyncio.Event()

    async def end_slowly() -> None:
        try:
            await hang()
        finally:
            await ended.wait()

    store.before = end_slowly
    waiting = asyncio.ensure_future(read_one(first, 5))
    await settle()
    store.before = None
    waiting.cancel()
    closing = asyncio.ensure_future(first.close())
    await settle()
    async with asyncio.timeout(5):
        assert await read_one(second, 5) == VALUES[5]
    ended.set()
    await closing


async def test_a_request_goes_on_while_anybody_wants_one_of_its_runs(
    store: Store, reads: ObjectReads
) -> None:
    first, second = [await reads.open(store, KEY, NAME) for _ in range(2)]
    await read_one(first, 0)
    gate = store.shut()
    ahead = asyncio.ensure_future(read_one(first, 1))
    await settle()
    waiting = asyncio.ensure_future(read_one(second, 2))
    await settle()
    ahead.cancel()
    await first.close()
    gate.set()
    assert await waiting == VALUES[2]
    assert len(store.requests) == 3


@pytest.mark.parametrize("cancelled", [0, 1, 2])
async def test_when_a_task_that_opens_is_cancelled_the_others_open(
    store: Store, reads: ObjectReads, cancelled: int
) -> None:
    gate = store.shut()
    opening = [asyncio.ensure_future(reads.open(store, KEY, NAME)) for _ in range(3)]
    await settle()
    opening.pop(cancelled).cancel()
    await settle()
    gate.set()
    assert [(await each).last_entry_id for each in opening] == [199, 199]
    assert len(store.requests) == (2 if cancelled == 0 else 1)


async def test_when_a_request_fails_everybody_who_waits_is_told(
    store: Store, reads: ObjectReads
) -> None:
    readers = [await reads.open(store, KEY, NAME) for _ in range(3)]
    store.before = unavailable
    found = await asyncio.gather(*(read_one(each, 5) for each in readers), return_exceptions=True)
    assert [type(each) for each in found] == [ObjectStoreUnavailableError] * 3
    assert len(store.requests) == 2
    assert [each.window_bytes for each in readers] == [0, 0, 0]


async def test_a_fault_of_the_program_is_told_as_well(store: Store, reads: ObjectReads) -> None:
    readers = [await reads.open(store, KEY, NAME) for _ in range(2)]

    async def fail() -> None:
        raise RuntimeError("a bug")

    store.before = fail
    found = await asyncio.gather(*(read_one(each, 5) for each in readers), return_exceptions=True)
    assert [type(each) for each in found] == [RuntimeError] * 2


# Damage, loss and silence


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def flip_once(at: int) -> Callable[[bytes], bytes]:
    """Change a byte of the first answer that has it."""
    left = [at]

    def change(data: bytes) -> bytes:
        return flip(data, left.pop()) if left and len(data) > at else data

    return change


async def test_a_run_that_was_changed_on_the_way_is_requested_once_more(
    store: Store, reads: ObjectReads
) -> None:
    reader = await reads.open(store, KEY, NAME)
    store.after = flip_once(500)
    assert await read_one(reader, 5) == VALUES[5]
    assert len(store.requests) == 3
    assert (reads.counts.repeated_runs, reads.counts.damaged_runs) == (1, 0)


async def test_of_a_large_request_only_the_changed_run_is_requested_once_more(
    store: Store, reads: ObjectReads
) -> None:
    reader = await reads.open(store, KEY, NAME)
    store.after = flip_once(3 * RUN_BYTES + 500)
    before = reads.counts.bytes_read
    assert await read_all(reader) == VALUES
    assert reads.counts.bytes_read - before == (len(VALUES) + 1) * RUN_BYTES
    assert (reads.counts.repeated_runs, reads.counts.damaged_runs) == (1, 0)


async def test_a_damaged_run_fails_only_reads_in_it(store: Store, reads: ObjectReads) -> None:
    damaged = footer_in(OBJECT).runs[60]
    await put(store, flip(OBJECT, damaged.offset + 500))
    reader = await reads.open(store, KEY, NAME)
    found: list[bytes | None] = []
    for entry_id in range(len(VALUES)):
        try:
            found.append(await read_one(reader, entry_id))
        except ObjectDamagedError:
            found.append(None)
    assert found == [*VALUES[:60], None, *VALUES[61:]]
    assert len(store.requests) < len(VALUES) / 2


async def test_a_damaged_run_that_was_fetched_ahead_is_requested_again_only_when_it_is_read(
    store: Store, reads: ObjectReads
) -> None:
    await put(store, flip(OBJECT, footer_in(OBJECT).runs[60].offset + 500))
    reader = await reads.open(store, KEY, NAME)
    for entry_id in range(60):
        await read_one(reader, entry_id)
        await until(lambda: len(asyncio.all_tasks()) == 1)
    assert reads.counts.damaged_runs == 1
    with pytest.raises(ObjectDamagedError):
        await read_one(reader, 60)
    assert reads.counts.damaged_runs == 2


async def test_an_object_that_was_cut_off_serves_the_runs_that_it_has(
    store: Store, reads: ObjectReads, tmp_path: Path
) -> None:
    reader = await reads.open(store, KEY, NAME)
    (tmp_path / KEY).write_bytes(OBJECT[: footer_in(OBJECT).runs[50].offset + 10])
    for entry_id in range(50):
        assert await read_one(reader, entry_id) == VALUES[entry_id]
    with pytest.raises(ObjectDamagedError):
        await read_one(reader, 50)


async def test_a_footer_that_was_changed_on_the_way_is_requested_once_more(
    store: Store, reads: ObjectReads, tmp_path: Path
) -> None:
    file = tmp_path / KEY
    file.write_bytes(flip(OBJECT, len(OBJECT) - 30))

    async def mend() -> None:
        if len(store.requests) == 2:
            file.write_bytes(OBJECT)

    store.before = mend
    assert await read_one(await reads.open(store, KEY, NAME), 0) == VALUES[0]


async def test_an_object_is_missing_only_if_the_store_says_so_twice(
    store: Store, reads: ObjectReads, tmp_path: Path
) -> None:
    answers: list[Exception] = [ObjectMissingError("once")]

    async def miss_once() -> None:
        if answers:
            raise answers.pop()

    store.before = miss_once
    reader = await reads.open(store, KEY, NAME)
    answers.append(ObjectMissingError("once"))
    assert await read_one(reader, 0) == VALUES[0]
    (tmp_path / KEY).unlink()
    del store.requests[:]
    with pytest.raises(ObjectMissingError):
        await read_one(reader, 100)
    with pytest.raises(ObjectMissingError):
        await reads.open(store, "other", NAME)
    assert len(store.requests) == 4


async def test_an_object_is_not_missing_if_the_second_answer_proves_nothing(
    store: Store, reads: ObjectReads
) -> None:
    answers: list[Exception] = [ObjectStoreUnavailableError("503"), ObjectMissingError("404")]

    async def fail() -> None:
        raise answers.pop()

    store.before = fail
    with pytest.raises(ObjectStoreUnavailableError):
        await reads.open(store, KEY, NAME)


async def test_a_store_that_does_not_answer_is_unavailable_within_the_deadline(
    store: Store,
) -> None:
    reads = ObjectReads(settings(object_read_timeout_s=0.2, object_reads_max=1), SystemClock())
    readers = [await reads.open(store, KEY, NAME) for _ in range(10)]
    store.before = hang
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    found = await asyncio.gather(
        *(read_one(each, at) for at, each in enumerate(readers)), return_exceptions=True
    )
    # All of them, although they had to wait for each other.
    assert [type(each) for each in found] == [ObjectStoreUnavailableError] * 10
    assert loop.time() - begun_s < 5 * 0.2
    store.before = None
    assert await read_one(readers[0], 0) == VALUES[0]
    await reads.close()


async def test_fetching_ahead_that_failed_fails_no_later_read(
    store: Store, reads: ObjectReads
) -> None:
    reader = await reads.open(store, KEY, NAME)
    await read_one(reader, 0)
    failing = True

    async def fail() -> None:
        start, end = store.requests[-1]
        if failing and end - start > RUN_BYTES:
            raise ObjectStoreUnavailableError("503")

    await read_one(reader, 1)
    store.before = fail
    await read_one(reader, 2)
    await until(lambda: reads.counts.failed_requests > 0)
    failing = False
    assert [await read_one(reader, entry_id) for entry_id in range(3, 60)] == VALUES[3:60]


# Memory


async def widened(reader: ObjectReader, entry_id: int = 0) -> None:
    """Read until the window is as wide as it may be."""
    for number in range(entry_id, entry_id + 8):
        await read_one(reader, number)


async def test_a_jump_gives_the_window_back(store: Store, reads: ObjectReads) -> None:
    reader = await reads.open(store, KEY, NAME)
    await widened(reader)
    assert reader.window_bytes > 30 * RUN_BYTES
    await read_one(reader, 150)
    assert reader.window_bytes == 0
    await until(lambda: reads.window_bytes == 0)


async def test_a_window_is_never_wider_than_its_bound(store: Store, reads: ObjectReads) -> None:
    reader = await reads.open(store, KEY, NAME)
    for entry_id in range(len(VALUES)):
        await read_one(reader, entry_id)
        assert reader.window_bytes <= SMALL.object_read_window_bytes


async def test_closing_a_reader_gives_its_window_back_and_ends_its_requests(
    store: Store, reads: ObjectReads
) -> None:
    reader = await reads.open(store, KEY, NAME)
    await widened(reader)
    await reader.close()
    assert reads.window_bytes == 0
    assert reads.readers == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_read_that_waits_outlives_its_reader_and_keeps_nothing(
    store: Store, reads: ObjectReads
) -> None:
    await put(store, object_of([b"a", b"b"], [2]), "b")
    reader = await reads.open(store, "b", NAME)
    gate = store.shut()
    waiting = asyncio.ensure_future(read_one(reader, 0))
    await settle()
    await reader.close()
    gate.set()
    assert await waiting == b"a"
    assert reads.window_bytes == 0


async def test_runs_that_were_skipped_while_they_were_under_way_take_no_memory(
    store: Store, reads: ObjectReads
) -> None:
    reader = await reads.open(store, KEY, NAME)
    for entry_id in range(3):
        await read_one(reader, entry_id)
    await until(lambda: len(asyncio.all_tasks()) == 1)
    gate = store.shut()
    await read_one(reader, 3)  # and 6 to 10 ahead
    waiting = asyncio.ensure_future(read_one(reader, 8))
    await settle()
    gate.set()
    assert await waiting == VALUES[8]
    await until(lambda: len(asyncio.all_tasks()) == 1)
    assert reads.window_bytes == reader.window_bytes > 0


async def test_a_run_that_nobody_wants_any_more_when_it_was_checked_takes_no_memory(
    store: Store, reads: ObjectReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = await reads.open(store, KEY, NAME)
    for entry_id in range(3):
        await read_one(reader, entry_id)
    await until(lambda: len(asyncio.all_tasks()) == 1)

    def giving_back(*arguments: Any) -> list[bytes]:
        reader.give_back()
        return run_payloads(*arguments)

    monkeypatch.setattr(shared_runs, "run_payloads", giving_back)
    await read_one(reader, 3)  # and 6 to 10 ahead
    await until(lambda: len(asyncio.all_tasks()) == 1)
    assert reads.window_bytes == 0


async def test_a_run_of_two_readers_counts_once_and_stays_until_both_gave_it_back(
    store: Store, reads: ObjectReads
) -> None:
    await put(store, object_of([b"a", b"b"], [2]), "b")
    readers = [await reads.open(store, "b", NAME) for _ in range(2)]
    for each in readers:
        await read_one(each, 0)
    assert reads.window_bytes == readers[0].window_bytes == readers[1].window_bytes
    await readers[0].close()
    assert reads.window_bytes == readers[1].window_bytes > 0
    assert await read_one(readers[1], 1) == b"b"
    assert len(store.requests) == 2


async def test_the_memory_of_many_readers_is_bounded(store: Store) -> None:
    bounded = settings(object_read_memory_bytes=50 * RUN_BYTES)
    reads = ObjectReads(bounded, SystemClock())
    seen: list[int] = []

    async def look() -> None:
        seen.append(reads.window_bytes)

    store.before = look
    for at in range(12):
        await put(store, OBJECT, f"m{at}")
    readers = [await reads.open(store, f"m{at}", NAME) for at in range(12)]
    found = await asyncio.gather(*(read_all(each) for each in readers))
    assert found == [VALUES] * 12
    assert 30 * RUN_BYTES < max(seen) <= 50 * RUN_BYTES
    await reads.close()
    assert reads.window_bytes == 0


async def test_a_reader_that_gets_no_memory_reads_run_by_run(store: Store) -> None:
    nothing = settings(object_read_memory_bytes=0, object_read_window_bytes=0)
    reads = ObjectReads(nothing, SystemClock())
    reader = await reads.open(store, KEY, NAME)
    assert await read_all(reader) == VALUES
    assert len(store.requests) == 1 + len(VALUES)
    assert reads.window_bytes == 0
    await reads.close()


async def test_idle_readers_give_their_memory_to_those_that_need_it(store: Store) -> None:
    clock = HandClock()
    bounded = settings(object_read_memory_bytes=52 * RUN_BYTES, object_read_idle_s=10)
    reads = ObjectReads(bounded, clock)
    for key in "bc":
        await put(store, OBJECT, key)
    idle, busy = [await reads.open(store, key, NAME) for key in "bc"]
    await widened(idle)
    clock.now_s += 9
    await widened(busy)
    kept = idle.window_bytes
    assert kept > 0
    clock.now_s += 1
    await widened(busy, 8)
    assert idle.window_bytes == 0
    assert busy.window_bytes > 20 * RUN_BYTES
    assert reads.counts.windows_given_back == 1
    assert await read_one(idle, 8) == VALUES[8]
    await reads.close()


async def test_a_reader_that_waits_for_its_store_is_not_idle(store: Store) -> None:
    clock = HandClock()
    bounded = settings(object_read_memory_bytes=52 * RUN_BYTES, object_read_idle_s=10)
    reads = ObjectReads(bounded, clock)
    await put(store, OBJECT, "b")
    slow, other = await reads.open(store, KEY, NAME), await reads.open(store, "b", NAME)
    await widened(slow)
    await until(lambda: len(asyncio.all_tasks()) == 1)
    gate = store.shut()
    waiting = asyncio.ensure_future(read_one(slow, 52))
    await settle()
    clock.now_s += 100
    store.before = None
    await widened(other)
    assert reads.counts.windows_given_back == 0
    gate.set()
    assert await waiting == VALUES[52]
    await reads.close()


async def test_a_read_that_waits_ends_when_everything_is_closed(store: Store) -> None:
    reads = ObjectReads(SMALL, SystemClock())
    reader = await reads.open(store, KEY, NAME)
    store.before = hang
    waiting = asyncio.ensure_future(read_one(reader, 0))
    await until(lambda: len(store.requests) == 2)
    await reads.close()
    with pytest.raises(LedgerClosedError):
        await waiting
    with pytest.raises(LedgerClosedError):
        await reads.open(store, KEY, NAME)
