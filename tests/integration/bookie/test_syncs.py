"""Every answer comes after its sync: what a real bookie, RocksDB and SQLite ask of the kernel.

The simulators stand in for the disk, so nothing of theirs sees whether the lowest layer syncs at
all. Here the system calls are counted; and each sync is left out once, which must be noticed.
"""

import asyncio
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.bookie.journaling.journal_format import NEWEST_NAME
from magnetar.ledger.wire import Status
from tests.bookie_parts import BookieClient, add_request
from tests.processes import ROOT, magnetar_environment
from tests.system_calls import DiskState, calls_in, is_answer, is_rename, is_write, strace
from tests.waiting import until

pytestmark = pytest.mark.disk

ADDS = 80
PAYLOAD = b"x" * 1500
ENTRIES_PER_ADD = 5
NODES = 20

_SYNCS_LEFT_OUT = {
    "": "",
    "datasync": 'edited(SystemFile, "datasync", ("os.fdatasync(self._descriptor)", "pass"))',
    "replace_file": 'edited(SystemDisk, "replace_file", ("os.fsync(descriptor)", "pass"))',
    "sync_directory": 'edited(SystemDisk, "sync_directory", ("os.fsync(descriptor)", "pass"))',
    "rocksdb": 'edited(RocksStore, "sync", ("self._database.flush_wal(True)", "pass"))',
    "sqlite": 'edited(SqliteTree, "_prepare", ("synchronous = FULL", "synchronous = OFF"))',
}
"""What a process can do without, as the text that a mutation of it takes."""
_PREFACE = """
import asyncio, contextlib, sys
from pathlib import Path
from magnetar.bookie.indexes.rocks_store import RocksStore
from magnetar.ledger.metadata.sqlite_tree import SqliteTree
from magnetar.ledger.system import SystemDisk, SystemFile
from tests.simulation.mutations.mutation import edited
from tests.integration.bookie.serve import serve
from magnetar.ledger.metadata.url import open_store
"""
_BOOKIE = 'asyncio.run(serve(Path(sys.argv[1]), "db", 1))'
_STORE = f"""
async def main():
    store = await open_store("embedded:" + sys.argv[1] + "/metadata.db")
    for number in range({NODES}):
        await store.create(f"/node-{{number}}", bytes(300))
        sys.stdout.write(f"made {{number}}\\n")
        sys.stdout.flush()
asyncio.run(main())
"""


async def _process(
    directory: Path, code: str, without: str
) -> tuple[asyncio.subprocess.Process, Path]:
    context = _SYNCS_LEFT_OUT[without] or "contextlib.nullcontext()"
    body = "\n".join(f"    {line}" for line in code.strip().splitlines())
    script = f"{_PREFACE}\nwith {context}:\n{body}\n"
    trace = directory / "trace"
    process = await asyncio.create_subprocess_exec(
        *strace(trace, [sys.executable, "-c", script, str(directory)]),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=magnetar_environment(),
        cwd=ROOT,
    )
    return process, trace


async def _skip_if_not_permitted(process: asyncio.subprocess.Process) -> None:
    assert process.stderr is not None
    said = (await process.stderr.read()).decode()
    if "Operation not permitted" in said and "ptrace" in said.lower():
        pytest.skip("nobody may trace a process here")
    raise AssertionError(f"it did not start: {said[-2000:]}")


async def _serve_adds(directory: Path, without: str) -> Path:
    """Have a bookie take adds, one at a time; returns the trace."""
    process, trace = await _process(directory, _BOOKIE, without)
    try:
        assert process.stdout is not None
        while not (line := await process.stdout.readline()).startswith(b"ready"):
            if not line:
                await _skip_if_not_permitted(process)
        client = await BookieClient.connect(int(line.split()[1]))
        for number in range(ADDS):
            reply = await client.ask(
                lambda request_id, first=number * ENTRIES_PER_ADD: add_request(  # type: ignore[misc]
                    request_id, 4, first, ENTRIES_PER_ADD, payload=PAYLOAD
                )
            )
            assert reply.status == Status.OK
        marks = directory / "ledgers-0" / "last-mark"
        async with asyncio.timeout(60):
            # One more in any case: its answer says that the call which sent the last one is over.
            # A call that is cut short by the kill has no result, and is not in the trace.
            await client.ask(lambda request_id: add_request(request_id, 6, 0))
            while not marks.exists():
                await client.ask(lambda request_id: add_request(request_id, 6, 0))
        client.close()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    await _written_to_its_end(trace, process.pid)
    return trace


async def _written_to_its_end(trace: Path, process_id: int) -> None:
    """The process is gone before its tracer, which has some last lines to write."""
    end = re.compile(rf"^{process_id} +\+\+\+ ", re.MULTILINE)  # "+++ killed by SIGKILL +++"
    await until(lambda: end.search(trace.read_text(errors="replace")) is not None, "the trace ends")


async def _make_nodes(directory: Path, without: str) -> Path:
    process, trace = await _process(directory, _STORE, without)
    assert process.stdout is not None
    if (await process.stdout.read()).count(b"made") != NODES:
        await _skip_if_not_permitted(process)
    await process.wait()
    await _written_to_its_end(trace, process.pid)
    return trace


def _offences_of_bookie(trace: Path, directory: Path) -> list[str]:
    """What a power cut would have taken although somebody relied on it."""
    return [
        *_answers_before_syncs(trace, directory),
        *_replaced_before_syncs(trace, directory),
    ]


def _answers_before_syncs(trace: Path, directory: Path) -> Iterator[str]:
    disk, journal, answers = DiskState(), str(directory / "journal-0") + os.sep, 0
    written: set[str] = set()
    for call in calls_in(trace):
        if is_write(call) and call.path.startswith(journal + NEWEST_NAME):
            files = [each for each in disk.files if each.endswith(".journal")]
            for what in disk.wet(files):
                yield f"line {call.begun}: a journal file is named before the sync of {what}"
        disk.follow(call)
        is_ours = call.path.endswith((".journal", NEWEST_NAME))
        if is_write(call) and call.path.startswith(journal) and is_ours:
            written.add(call.path)
        if not is_answer(call):
            continue
        answers += 1
        if not written:
            yield f"line {call.begun}: an answer without a record in the journal"
        for what in disk.wet(written):
            yield f"line {call.begun}: an answer before the sync of {what}"
        written.clear()
    if answers < ADDS:
        yield f"the trace has {answers} answers to {ADDS} adds"


def _replaced_before_syncs(trace: Path, directory: Path) -> Iterator[str]:
    """A file that takes another one's place is whole, and its name is durable before its thread
    goes on; and a mark is not before what it says."""
    disk, replaced, marks = DiskState(), dict[int, str](), 0
    for call in calls_in(trace):
        name = replaced.get(call.thread)
        if name is not None and (is_write(call) or call.is_new):
            for what in disk.wet([name]):
                yield f"line {call.begun}: {what} is not durable yet, and its thread goes on"
            del replaced[call.thread]
        if is_rename(call) and call.source.endswith(".new"):
            for what in disk.wet([call.source]):
                if what.startswith("bytes"):
                    yield f"line {call.begun}: {what} take the place of others before their sync"
            replaced[call.thread] = call.path
        disk.follow(call)
        if is_rename(call) and call.path.endswith("/last-mark"):
            marks += 1
            stored = [each for each in disk.files if each.startswith(str(directory / "ledgers-0"))]
            for what in disk.wet(each for each in stored if each.endswith(".log")):
                yield f"line {call.begun}: a mark before the sync of {what}"
    if not marks:
        yield "the trace has no mark"


def _offences_of_store(trace: Path, directory: Path) -> list[str]:
    disk, log, answers = DiskState(), str(directory / "metadata.db-wal"), 0
    found, is_written = list[str](), False
    for call in calls_in(trace):
        disk.follow(call)
        is_written |= is_write(call) and call.path == log
        if is_write(call) and call.path.startswith("pipe:"):
            answers += 1
            if not is_written:
                found.append(f"line {call.begun}: an answer without a record in the log")
            found += [f"line {call.begun}: an answer before {each}" for each in disk.wet([log])]
            is_written = False
    return found if answers >= NODES else [*found, f"the trace has {answers} answers"]


async def test_a_bookie_syncs_before_it_answers_and_before_it_marks(tmp_path: Path) -> None:
    trace = await _serve_adds(tmp_path, "")
    assert _offences_of_bookie(trace, tmp_path) == []


@pytest.mark.parametrize(
    ("without", "offence"),
    [
        ("datasync", "an answer before the sync of bytes"),
        ("replace_file", "take the place of others before their sync"),
        ("sync_directory", "an answer before the sync of the name"),
        ("sync_directory", "is not durable yet, and its thread goes on"),
        ("rocksdb", "a mark before the sync of bytes"),
    ],
)
async def test_a_sync_that_is_left_out_is_noticed(
    tmp_path: Path, without: str, offence: str
) -> None:
    trace = await _serve_adds(tmp_path, without)
    assert any(offence in each for each in _offences_of_bookie(trace, tmp_path))


async def test_the_embedded_store_syncs_before_it_answers(tmp_path: Path) -> None:
    trace = await _make_nodes(tmp_path, "")
    assert _offences_of_store(trace, tmp_path) == []


async def test_an_embedded_store_that_does_not_sync_is_noticed(tmp_path: Path) -> None:
    trace = await _make_nodes(tmp_path, "sqlite")
    assert any("an answer before bytes" in each for each in _offences_of_store(trace, tmp_path))
