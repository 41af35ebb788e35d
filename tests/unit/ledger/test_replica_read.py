"""One read of several replicas, with the replies coming as the test says."""

import asyncio

import pytest

from magnetar.ledger.errors import (
    BookieUnavailableError,
    DigestMismatchError,
    LedgerError,
    NoSuchEntryError,
)
from magnetar.ledger.reading.entry_fetcher import OnReply, ReadCounts, ReplicaRead
from magnetar.ledger.wire import Frame, Op, Status

GOOD = Frame(Op.READ, True, 0, Status.OK, 0, 7, 3, b"good")
MISSING = Frame(Op.READ, True, 0, Status.NO_SUCH_ENTRY, 0, 7, 3, b"")
DAMAGED = Frame(Op.READ, True, 0, Status.OK, 0, 7, 3, b"damaged")
AWAY = BookieUnavailableError("away")


def judge(bookie_id: str, frame: Frame) -> bytes:
    if frame is MISSING:
        raise NoSuchEntryError(bookie_id)
    if frame is DAMAGED:
        raise DigestMismatchError(bookie_id)
    assert frame is GOOD, "a bug"
    return frame.body


class Read:
    def __init__(self, bookies: str = "abc", speculative_s: float = 0.0) -> None:
        self.asked: list[str] = []
        self.failed: list[tuple[str, LedgerError | None]] = []
        self.counts = ReadCounts()
        self._on_reply: dict[str, OnReply] = {}
        read = ReplicaRead(
            list(bookies),
            ledger_id=7,
            entry_id=3,
            send=self._send,
            judge=judge,
            on_failed=lambda bookie_id, error: self.failed.append((bookie_id, error)),
            counts=self.counts,
            speculative_s=speculative_s,
        )
        self.result = asyncio.ensure_future(read.run())

    def _send(self, bookie_id: str, on_reply: OnReply) -> None:
        self.asked.append(bookie_id)
        self._on_reply[bookie_id] = on_reply

    async def reply(self, bookie_id: str, reply: Frame | BookieUnavailableError) -> None:
        await self.wait_asked(bookie_id)
        self._on_reply[bookie_id](reply)

    async def wait_asked(self, bookie_id: str) -> None:
        while True:
            if bookie_id in self.asked:
                return
            await asyncio.sleep(0)


async def test_the_first_one_is_enough() -> None:
    read = Read()
    await read.reply("a", GOOD)
    assert await read.result == ("a", b"good")
    assert read.asked == ["a"]


async def test_who_fails_makes_way_for_the_next() -> None:
    read = Read()
    await read.reply("a", AWAY)
    await read.reply("b", DAMAGED)
    await read.reply("c", GOOD)
    assert await read.result == ("c", b"good")
    assert [bookie_id for bookie_id, _ in read.failed] == ["a", "b"]


async def test_when_all_fail_the_worst_is_raised() -> None:
    read = Read()
    for bookie_id, reply in (("a", MISSING), ("b", AWAY), ("c", MISSING)):
        await read.reply(bookie_id, reply)
    with pytest.raises(BookieUnavailableError):
        await read.result


async def test_all_must_deny_an_entry() -> None:
    read = Read()
    for bookie_id in "abc":
        assert not read.result.done()
        await read.reply(bookie_id, MISSING)
    with pytest.raises(NoSuchEntryError, match="every replica"):
        await read.result


async def test_a_slow_one_stays_in_the_race() -> None:
    read = Read(speculative_s=0.001)
    await read.wait_asked("c")
    assert read.counts.speculative_reads == 2
    assert read.failed == [("a", None), ("b", None)]
    await read.reply("a", GOOD)
    assert await read.result == ("a", b"good")


async def test_what_comes_later_is_counted_and_dropped() -> None:
    read = Read(speculative_s=0.001)
    await read.wait_asked("b")
    await read.reply("b", GOOD)
    assert (await read.result)[0] == "b"
    await read.reply("a", DAMAGED)
    assert read.counts.late_replies == 1
    assert read.failed == [("a", None)]


async def test_a_negative_of_one_waits_for_the_slow_ones() -> None:
    """Rule 9.1: the slow one may have it."""
    read = Read("ab", speculative_s=0.001)
    await read.wait_asked("b")
    await read.reply("b", MISSING)
    assert not read.result.done()
    await read.reply("a", AWAY)
    with pytest.raises(BookieUnavailableError):
        await read.result


async def test_a_bug_reaches_the_caller() -> None:
    read = Read()
    await read.reply("a", GOOD._replace(body=b"unexpected"))
    with pytest.raises(AssertionError, match="a bug"):
        await read.result


async def test_a_cancelled_read_asks_nobody_else() -> None:
    read = Read(speculative_s=0.001)
    await read.wait_asked("a")
    read.result.cancel()
    await asyncio.gather(read.result, return_exceptions=True)
    asked = list(read.asked)
    await read.reply("a", AWAY)
    assert read.asked == asked
    assert read.counts.late_replies == 1
