"""The db storage against a dictionary: whatever happens, the answers are those of the model."""

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnetar.bookie.errors import (
    NoSuchEntryInStorageError,
    NoSuchLedgerInStorageError,
    StorageIOError,
)
from magnetar.bookie.indexes.index_mark import EngineKind
from magnetar.bookie.storage import LedgerState, LedgerStorage
from magnetar.ledger.wire import encode_block
from magnetar.ledger.wire_bodies import decode_entry_list, encode_entry_list
from tests.ledger_storage import (
    ENGINES,
    STATE,
    FailingDisk,
    copy_as_after_a_crash,
    default_engine,
    make_packet,
    make_storage,
    turn_loop,
)

LEDGERS = 2
ENTRIES = 40


@dataclass(frozen=True)
class Add:
    ledger_id: int
    entry_ids: tuple[int, ...]
    payload_bytes: int


@dataclass(frozen=True)
class Read:
    ledger_id: int
    first: int
    count: int
    bytes_max: int


@dataclass(frozen=True)
class ReadLast:
    ledger_id: int


@dataclass(frozen=True)
class PutState:
    ledger_id: int
    fenced: bool


@dataclass(frozen=True)
class Delete:
    ledger_id: int


@dataclass(frozen=True)
class ListEntries:
    ledger_id: int
    first: int
    bytes_max: int


@dataclass(frozen=True)
class Flush:
    in_background: bool


@dataclass(frozen=True)
class FailingFlush:
    calls_until_failure: int


@dataclass(frozen=True)
class Reopen:
    after_crash: bool


Operation = Add | Read | ReadLast | ListEntries | PutState | Delete | Flush | FailingFlush | Reopen

ledger_ids = st.sampled_from((0, 0, 0, 1))


def _ids(first: int, count: int, step: int, hole: int) -> tuple[int, ...]:
    ids = range(first, first + count * step, step)
    return tuple(entry_id for entry_id in ids if entry_id % 7 != hole) or (first,)


entry_ids = st.builds(
    _ids,
    st.integers(0, ENTRIES - 1),
    st.integers(1, 12),
    st.sampled_from((1, 1, 2, 3)),
    st.sampled_from((-1, -1, -1, 2, 5)),
)
operations = st.one_of(
    st.builds(Add, ledger_ids, entry_ids, st.sampled_from((0, 10, 100, 700))),
    st.builds(Add, ledger_ids, entry_ids, st.sampled_from((0, 10, 100, 700))),
    st.builds(Add, ledger_ids, entry_ids, st.sampled_from((0, 10, 100, 700))),
    st.builds(
        Read,
        ledger_ids,
        st.integers(0, ENTRIES + 5),
        st.sampled_from((1, 1, 3, 100)),
        st.sampled_from((1, 200, 1 << 20)),
    ),
    st.builds(Read, ledger_ids, st.integers(0, ENTRIES), st.just(1000), st.just(1 << 20)),
    st.builds(ReadLast, ledger_ids),
    st.builds(ListEntries, ledger_ids, st.integers(0, ENTRIES + 5), st.integers(1, 4)),
    st.builds(PutState, ledger_ids, st.booleans()),
    st.builds(Delete, ledger_ids),
    st.builds(Flush, st.booleans()),
    st.builds(Flush, st.booleans()),
    st.builds(FailingFlush, st.integers(0, 8)),
    st.builds(Reopen, st.booleans()),
)


class Model:
    """What the storage should hold: now, and after a crash."""

    def __init__(self) -> None:
        self.states: dict[int, LedgerState] = {}
        self.entries: dict[int, dict[int, bytes]] = {}

    def copy(self) -> "Model":
        copy = Model()
        copy.states = dict(self.states)
        copy.entries = {ledger_id: dict(entries) for ledger_id, entries in self.entries.items()}
        return copy

    def read(self, operation: Read) -> list[bytes] | type[Exception]:
        if operation.ledger_id not in self.states:
            return NoSuchLedgerInStorageError
        entries = self.entries.get(operation.ledger_id, {})
        packets: list[bytes] = []
        left = operation.bytes_max
        for entry_id in range(operation.first, operation.first + operation.count):
            packet = entries.get(entry_id)
            if packet is None or (packets and len(packet) > left):
                break
            packets.append(packet)
            left -= len(packet)
            if left <= 0:
                break
        return packets or NoSuchEntryInStorageError

    def last(self, ledger_id: int) -> bytes | None:
        entries = self.entries.get(ledger_id)
        return entries[max(entries)] if entries else None


class Run:
    """One example: a storage and its model, side by side."""

    turns_to_begin = 1
    """Turns of the event loop after which a flush that was called has frozen what it takes."""

    def __init__(self, directory: Path) -> None:
        self._root = directory
        self._generation = 0
        self._disk = FailingDisk()
        self._model = Model()
        self._durable = Model()
        self._maybe: list[Model] = []
        """What flushes that failed since then may have made durable, ledger by ledger."""
        self._deleted: list[Model] = []
        """After each deletion since the last flush: who makes a ledger again may be cut there."""
        self._version = 0
        self._flushes: list[tuple[asyncio.Task[None], Model]] = []

    @property
    def _directory(self) -> Path:
        return self._root / str(self._generation)

    def _make(self) -> LedgerStorage:
        return make_storage(self._directory, disk=self._disk)

    async def run(self, todo: Sequence[Operation]) -> None:
        self._storage = self._make()
        await self._storage.open()
        try:
            for operation in todo:
                await self._apply(operation)
            await self._check_everything()
            await self._apply(Flush(in_background=False))
            await self._check_everything()
            await self._apply(Reopen(after_crash=True))
            await self._check_everything()
        finally:
            await self._storage.close()

    async def _apply(self, operation: Operation) -> None:
        storage, model = self._storage, self._model
        match operation:
            case Add(ledger_id, ids, payload_bytes):
                self._add(ledger_id, ids, payload_bytes)
            case Read():
                await check_read(storage, model, operation)
            case ReadLast(ledger_id):
                await check_last(storage, model, ledger_id)
            case ListEntries(ledger_id, first, bytes_max):
                await check_list(storage, model, ledger_id, first, bytes_max)
            case PutState(ledger_id, fenced):
                state = LedgerState(b"key", fenced, self._version)
                storage.put_state(ledger_id, state)
                model.states[ledger_id] = state
            case Delete(ledger_id):
                storage.delete_ledger(ledger_id)
                model.states.pop(ledger_id, None)
                model.entries.pop(ledger_id, None)
                self._deleted.append(model.copy())
            case Flush(in_background):
                # One that waits for another would take more than there is now.
                await self._join_flushes()
                task = asyncio.create_task(storage.flush())
                await turn_loop(self.turns_to_begin)
                self._flushes.append((task, model.copy()))
                if not in_background:
                    await self._join_flushes()
            case FailingFlush(calls_until_failure):
                await self._flush_failing(calls_until_failure)
            case Reopen(after_crash):
                await self._reopen(after_crash)

    def _add(self, ledger_id: int, ids: tuple[int, ...], payload_bytes: int) -> None:
        if ledger_id not in self._model.states:
            self._storage.put_state(ledger_id, STATE)
            self._model.states[ledger_id] = STATE
        self._version += 1
        payload = b"%8d" % self._version + bytes(payload_bytes)
        packets = [make_packet(ledger_id, entry_id, payload) for entry_id in ids]
        entries = self._model.entries.setdefault(ledger_id, {})
        entries.update(zip(ids, packets, strict=True))
        self._storage.add(ledger_id, encode_block(packets), ids)

    async def _join_flushes(self) -> None:
        for task, flushed in self._flushes:
            await task
            self._on_durable(flushed)
        self._flushes.clear()

    def _on_durable(self, flushed: Model) -> None:
        self._durable = flushed
        self._maybe.clear()
        self._deleted.clear()

    async def _flush_failing(self, calls_until_failure: int) -> None:
        await self._join_flushes()
        self._disk.calls_until_failure = calls_until_failure
        self._disk.writes.clear()
        try:
            await self._storage.flush()
        except StorageIOError:
            # Nothing is promised, something may be done, and nothing may be lost.
            self._maybe += (*self._deleted, self._model.copy())
        else:
            self._on_durable(self._model.copy())
        self._disk.calls_until_failure = None

    async def _reopen(self, after_crash: bool) -> None:
        await self._join_flushes()
        if after_crash:
            old = self._directory
            self._generation += 1
            copy_as_after_a_crash(old, self._directory)
        await self._storage.close()
        self._storage = self._make()
        await self._storage.open()
        self._model = Model()
        for ledger_id in range(LEDGERS):
            found = await read_ledger(self._storage, ledger_id)
            assert found in [
                (each.states.get(ledger_id), each.entries.get(ledger_id, {}))
                for each in (self._durable, *self._maybe)
            ]
            if found[0] is not None:
                self._model.states[ledger_id] = found[0]
                self._model.entries[ledger_id] = found[1]
        self._on_durable(self._model.copy())

    async def _check_everything(self) -> None:
        for ledger_id in range(LEDGERS):
            await check_last(self._storage, self._model, ledger_id)
            await check_list(self._storage, self._model, ledger_id, 0, 2)
            assert self._storage.state(ledger_id) == self._model.states.get(ledger_id)
            for first in range(2 * ENTRIES):
                await check_read(self._storage, self._model, Read(ledger_id, first, 1, 1))
            await check_read(self._storage, self._model, Read(ledger_id, 0, 1000, 1 << 20))


async def read_ledger(
    storage: LedgerStorage, ledger_id: int
) -> tuple[LedgerState | None, dict[int, bytes]]:
    """State and entries as they are stored."""
    state = storage.state(ledger_id)
    if state is None:
        return None, {}
    page = await storage.list_entries(ledger_id, 0, 1 << 10)
    assert page.next_entry_id == -1
    entries: dict[int, bytes] = {}
    for entry_id in page.entry_ids():
        (entries[entry_id],) = await storage.read(ledger_id, entry_id, entry_id, 1 << 20)
    return state, entries


async def check_last(storage: LedgerStorage, model: Model, ledger_id: int) -> None:
    """From memory first: what that says must be what the disk says."""
    expected = model.last(ledger_id)
    assert storage.last_packet_now(ledger_id) in (None, expected or b"")
    assert await storage.last_packet(ledger_id) == expected
    # Where it is known what is stored, and in memory, no disk is needed.
    assert storage.last_packet_now(ledger_id) in (None, expected or b"")


async def check_list(
    storage: LedgerStorage, model: Model, ledger_id: int, first: int, bytes_max: int
) -> None:
    if ledger_id not in model.states:
        with pytest.raises(NoSuchLedgerInStorageError):
            await storage.list_entries(ledger_id, first, bytes_max)
        return
    expected = sorted(each for each in model.entries.get(ledger_id, {}) if each >= first)
    found: list[int] = []
    while first != -1:
        page = await storage.list_entries(ledger_id, first, bytes_max)
        assert len(page.bitmap) <= bytes_max
        assert decode_entry_list(encode_entry_list(page)) == page
        found += page.entry_ids()
        first = page.next_entry_id
    assert found == expected


async def check_read(storage: LedgerStorage, model: Model, operation: Read) -> None:
    ledger_id, first, count, bytes_max = (
        operation.ledger_id,
        operation.first,
        operation.count,
        operation.bytes_max,
    )
    last = first + count - 1
    expected = model.read(operation)
    try:
        now = storage.read_now(ledger_id, first, last, bytes_max)
    except NoSuchLedgerInStorageError:
        assert expected is NoSuchLedgerInStorageError
        return
    try:
        found: list[bytes] | type[Exception] = await storage.read(ledger_id, first, last, bytes_max)
    except (NoSuchEntryInStorageError, NoSuchLedgerInStorageError) as error:
        found = type(error)
    assert found == expected
    if now is not None:
        assert isinstance(found, list)
        assert now
        assert now == found[: len(now)]


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(todo=st.lists(operations, min_size=30, max_size=80))
def test_the_storage_answers_as_a_dictionary_would(
    engine: EngineKind, todo: list[Operation]
) -> None:
    with default_engine(engine), tempfile.TemporaryDirectory() as directory:
        asyncio.run(Run(Path(directory)).run(todo))
