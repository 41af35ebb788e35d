"""The simulated world keeps its own promises: time, processes, frames, disks, metadata."""

import asyncio
import errno
import os
from dataclasses import replace

import pytest

from magnetar.ledger.errors import (
    BadVersionError,
    MetadataUnavailableError,
    NoNodeError,
    UnknownOutcomeError,
)
from magnetar.ledger.metadata.store import SessionState, WatchEvent
from magnetar.ledger.wire import Op, Status
from tests.simulation.disk import PowerLossError, SimDisk
from tests.simulation.drawing import draw
from tests.simulation.history import Delivered, History
from tests.simulation.loop import SimLoop, SimProcess, SimulationStuckError
from tests.simulation.network import Fabric, SimNetwork
from tests.simulation.plan import Plan
from tests.simulation.record import Violation
from tests.simulation.run import Outcome
from tests.simulation.shrink import shrink
from tests.simulation.store import MetadataServer, SimStore


@pytest.fixture
def loop() -> SimLoop:
    return SimLoop()  # type: ignore[abstract]  # no sockets, signals, subprocesses


# Time and processes


def test_time_jumps_to_the_next_timer_and_ready_callbacks_keep_their_order(loop: SimLoop) -> None:
    seen: list[tuple[float, str]] = []

    async def main() -> None:
        loop.call_later(3600.0, lambda: seen.append((loop.time(), "late")))
        loop.call_later(1.0, lambda: seen.append((loop.time(), "first")))
        loop.call_later(1.0, lambda: seen.append((loop.time(), "second")))
        await asyncio.sleep(3600.0)

    loop.run(main())
    assert seen == [(1.0, "first"), (1.0, "second"), (3600.0, "late")]


def test_a_paused_process_goes_on_where_it_was_and_a_dead_one_never(loop: SimLoop) -> None:
    seen: list[str] = []
    process = SimProcess(loop, "p")

    async def work() -> None:
        for at in range(4):
            await asyncio.sleep(1.0)
            seen.append(f"{at} at {loop.time()}")

    async def main() -> None:
        process.spawn(work())
        await asyncio.sleep(1.5)
        process.pause()
        await asyncio.sleep(10.0)
        assert seen == ["0 at 1.0"]
        process.resume()
        await asyncio.sleep(2.0)
        process.kill()
        await asyncio.sleep(10.0)

    loop.run(main())
    loop.close()
    assert seen == ["0 at 1.0", "1 at 11.5", "2 at 12.5"]


def test_an_error_in_a_callback_fails_the_run(loop: SimLoop) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    async def main() -> None:
        loop.call_soon(fail)
        await asyncio.sleep(1.0)

    with pytest.raises(ZeroDivisionError):
        loop.run(main())
    loop.close()


def test_a_run_that_cannot_go_on_says_who_waits(loop: SimLoop) -> None:
    async def wait_for_ever() -> None:
        await loop.create_future()

    with pytest.raises(SimulationStuckError, match="wait_for_ever"):
        loop.run(wait_for_ever())
    loop.close()


# Network


class _Peer(asyncio.Protocol):
    def __init__(self) -> None:
        self.received = b""
        self.is_lost = False

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


def _frame(number: int) -> bytes:
    return (36).to_bytes(4, "big") + b"MB\x01\x05\x00\x00" + number.to_bytes(30, "big")


async def _connect(fabric: Fabric, loop: SimLoop) -> tuple[asyncio.Transport, _Peer, _Peer]:
    a, b = SimProcess(loop, "a"), SimProcess(loop, "b")
    server, client = _Peer(), _Peer()
    await SimNetwork(fabric, b).listen("b", 1, lambda: server)
    transport = await SimNetwork(fabric, a).connect("b", 1, lambda: client, timeout_s=1)
    return transport, client, server


def test_what_a_blocked_link_holds_arrives_late_even_if_the_sender_gave_up(loop: SimLoop) -> None:
    fabric = Fabric(loop, History(), seed="0")

    async def main() -> None:
        transport, _, server = await _connect(fabric, loop)
        fabric.block("a", "b")
        transport.write(_frame(1) + _frame(2))
        transport.abort()
        await asyncio.sleep(1.0)
        assert server.received == b""
        fabric.unblock("a", "b")
        await asyncio.sleep(1.0)
        assert server.received == _frame(1) + _frame(2)
        assert server.is_lost

    loop.run(main())
    loop.close()


def test_a_held_frame_stops_those_behind_it(loop: SimLoop) -> None:
    fabric = Fabric(loop, History(), seed="0")

    async def main() -> None:
        transport, _, server = await _connect(fabric, loop)
        hold = fabric.hold(client="a")
        transport.write(_frame(1))
        transport.write(_frame(2))
        await asyncio.sleep(1.0)
        assert server.received == b""
        hold.release(1)
        await asyncio.sleep(1.0)
        assert server.received == _frame(1)
        hold.release()
        await asyncio.sleep(1.0)
        assert server.received == _frame(1) + _frame(2)

    loop.run(main())
    loop.close()


def test_a_lost_frame_takes_its_connection_with_it(loop: SimLoop) -> None:
    fabric = Fabric(loop, History(), seed="0")

    async def main() -> None:
        transport, client, server = await _connect(fabric, loop)
        fabric.drop(client="a")
        transport.write(_frame(1))
        await asyncio.sleep(1.0)
        assert server.received == b""
        assert client.is_lost
        assert server.is_lost

    loop.run(main())
    loop.close()


# Disk


def _disk() -> SimDisk:
    disk = SimDisk(seed="0")
    disk.make_directory("/d")
    return disk


def test_a_crash_loses_what_was_not_synced() -> None:
    disk = _disk()
    file = disk.create("/d/f")
    file.append([b"synced"])
    file.datasync()
    disk.sync_directory("/d")
    file.append([b" and not"])
    disk.create("/d/without-a-durable-name").datasync()
    disk.crash()
    assert disk.read_file("/d/f") == b"synced"
    assert disk.list("/d") == ["f"]
    with pytest.raises(PowerLossError):
        file.append([b"a file of the time before"])


def test_a_crash_may_tear_the_last_write() -> None:
    kept = set()
    for seed in range(50):
        disk = SimDisk(seed=str(seed))
        disk.make_directory("/d")
        disk.keeps_some = True
        file = disk.create("/d/f")
        disk.sync_directory("/d")
        file.append([b"one"])
        file.append([b"two"])
        disk.crash()
        content = disk.read_file("/d/f")
        assert b"onetwo".startswith(content)
        kept.add(content)
    assert len(kept) > 4


def test_a_renamed_file_has_its_name_back_after_a_crash_without_a_sync() -> None:
    disk = _disk()
    disk.create("/d/old").datasync()
    disk.sync_directory("/d")
    disk.rename("/d/old", "/d/new")
    disk.crash()
    assert disk.list("/d") == ["old"]


def test_a_full_disk_takes_what_fits_and_a_failed_sync_loses_it() -> None:
    disk = _disk()
    file = disk.create("/d/f")
    disk.sync_directory("/d")
    disk.bytes_left = 3
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        file.append([b"four"])
    disk.sync_error = errno.EIO
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        file.datasync()
    disk.sync_error = None
    file.datasync()
    disk.crash()
    assert disk.read_file("/d/f") == bytes(3)  # the size, and nothing of what was written


# Metadata


async def _store(loop: SimLoop) -> tuple[MetadataServer, SimStore, SimStore]:
    server = MetadataServer(loop, History(), seed="0")
    return server, server.open(SimProcess(loop, "a")), server.open(SimProcess(loop, "b"))


def test_a_lost_reply_is_unknown_and_done_and_a_lost_request_unknown_and_not(
    loop: SimLoop,
) -> None:
    async def main() -> None:
        server, store, _ = await _store(loop)
        await store.create("/n", b"0")
        server.lose_reply(client="a")
        with pytest.raises(UnknownOutcomeError):
            await store.set("/n", b"1", version=0)
        server.lose_request(client="a")
        with pytest.raises(UnknownOutcomeError):
            await store.set("/n", b"2", version=1)
        server.refuse(client="a")
        with pytest.raises(MetadataUnavailableError):
            await store.get("/n")
        assert await store.get("/n") == (await store.get("/n"))
        assert (await store.get("/n")).value == b"1"
        with pytest.raises(BadVersionError):
            await store.set("/n", b"3", version=0)

    loop.run(main())
    loop.close()


def test_a_read_waits_for_a_write_that_its_caller_gave_up(loop: SimLoop) -> None:
    async def main() -> None:
        server, store, _ = await _store(loop)
        await store.create("/n", b"0")
        hold = server.hold_cas(client="a")
        with pytest.raises(UnknownOutcomeError):
            await store.set("/n", b"1", version=0)
        reading = asyncio.ensure_future(store.get("/n"))
        await asyncio.sleep(1.0)
        assert not reading.done()
        hold.release()
        assert (await reading).value == b"1"

    loop.run(main())
    loop.close()


def test_watches_and_sessions_tell_of_changes_late_but_surely(loop: SimLoop) -> None:
    async def main() -> None:
        server, store, other = await _store(loop)
        events: list[WatchEvent] = []
        states: list[SessionState] = []
        store.watch("/n", events.append)
        other.on_session_change(states.append)
        await other.create("/n", ephemeral=True)
        await asyncio.sleep(1.0)
        assert events == [WatchEvent.CREATED]
        server.expire_session("b")
        await asyncio.sleep(1.0)
        assert events == [WatchEvent.CREATED, WatchEvent.DELETED]
        assert states == [SessionState.EXPIRED, SessionState.CONNECTED]
        with pytest.raises(NoNodeError):
            await store.get("/n")

    loop.run(main())
    loop.close()


# Shrinking


def test_a_failing_plan_is_cut_down_to_what_makes_it_fail() -> None:
    plan = next(plan for plan in map(draw, range(1000)) if len(plan.steps) >= 8)
    wanted = plan.steps[5]

    def run(candidate: Plan) -> Outcome:
        has_failed = wanted in candidate.steps and candidate.entries >= 2
        violations = (Violation("I1", "lost"),) if has_failed else ()
        return Outcome(candidate, History(), violations, "", 0)

    short = shrink(replace(plan, bookies=6), run=run)
    assert short.steps == (wanted,)
    assert short.entries == 2
    assert short.window == 1


def test_a_damaged_entry_id_is_told_without_counting_up_to_it() -> None:
    frame = Delivered(1, "b1", "c", Op.READ, True, Status.OK, 0, 0, 0, 0, (0, 1 << 62))
    assert str(frame) == f"c <- b1  READ L0 e0,{1 << 62} OK"
