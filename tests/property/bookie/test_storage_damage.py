"""One damaged byte anywhere: an error, or the right answer, never a false negative."""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.bookie.engine.entry_storage import EntryStorage
from magnetar.bookie.errors import StorageIOError
from magnetar.bookie.indexes.index_mark import EngineKind
from tests.ledger_storage import (
    ENGINES,
    SMALL,
    add,
    copy_as_after_a_crash,
    default_engine,
    entry_logs,
    make_packet,
    open_storage,
)

PAYLOAD = b"payload"
LEDGERS = {1: range(12), 2: range(0, 20, 2)}


async def _make(directory: Path) -> None:
    async with open_storage(directory / "crashed", SMALL) as storage:
        for ledger_id, ids in LEDGERS.items():
            add(storage, ledger_id, ids[:7], PAYLOAD)
            await storage.flush()
            add(storage, ledger_id, ids[7:], PAYLOAD)
        await storage.flush()
        copy_as_after_a_crash(directory / "crashed", directory / "copy")
    (directory / "crashed").rename(directory / "closed")
    (directory / "copy").rename(directory / "crashed")


def _damaged(directory: Path, choose: Callable[[Path], list[Path]], at: int, mask: int) -> None:
    files = [path for path in choose(directory) if path.stat().st_size]
    at %= sum(path.stat().st_size for path in files)
    for path in files:
        size = path.stat().st_size
        if at < size:
            data = bytearray(path.read_bytes())
            data[at] ^= mask
            path.write_bytes(data)
            return
        at -= size


async def _check(storage: EntryStorage) -> None:
    for ledger_id, ids in LEDGERS.items():
        assert storage.state(ledger_id) is not None
        for entry_id in ids:
            for last, bytes_max in ((entry_id, 1), (1000, 1 << 20)):
                try:
                    packets = await storage.read(ledger_id, entry_id, last, bytes_max)
                except StorageIOError:
                    continue
                # Every byte that is served was checked, payloads too.
                expected = range(entry_id, entry_id + len(packets))
                assert packets == [make_packet(ledger_id, each, PAYLOAD) for each in expected]
        try:
            last_packet = await storage.last_packet(ledger_id)
        except StorageIOError:
            continue
        assert last_packet == make_packet(ledger_id, ids[-1], PAYLOAD)


async def _run(directory: Path, files: str, which: str, at: int, mask: int) -> None:
    copy = copy_as_after_a_crash(directory / which, directory / "damaged")
    if files == "logs":
        _damaged(copy, entry_logs, at, mask)
    else:
        _damaged(copy, _index_files, at, mask)
    try:
        async with open_storage(copy, SMALL) as storage:
            await _check(storage)
    except StorageIOError:
        assert files == "index"  # it did not open


def _index_files(directory: Path) -> list[Path]:
    """The files that hold records; RocksDB's own log, options and lock say nothing."""
    pages = directory / "page-index"
    if pages.exists():
        return [directory / "index-mark", pages / "double-write", *sorted(pages.rglob("*.idx"))]
    names = ("MANIFEST", "CURRENT")
    files = [
        path
        for path in (directory / "index").iterdir()
        if path.name.startswith(names) or path.suffix in (".sst", ".log")
    ]
    return [directory / "index-mark", *sorted(files)]


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=80, deadline=None)
@given(
    files=st.sampled_from(("logs", "logs", "index")),
    which=st.sampled_from(("crashed", "closed")),
    at=st.integers(0, 1 << 20),
    mask=st.integers(1, 255),
)
def test_a_damaged_byte_gives_an_error_or_the_right_answer(
    engine: EngineKind, files: str, which: str, at: int, mask: int
) -> None:
    with default_engine(engine), tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        asyncio.run(_make(directory))
        asyncio.run(_run(directory, files, which, at, mask))
