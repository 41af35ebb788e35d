"""B23: one event that answers many requests does not put all their replies into memory at once."""

import asyncio

import pytest

from magnetar.bookie.requests.fencing import LedgerTable
from magnetar.ledger.digest import packet_codec
from magnetar.ledger.wire import Flag, Frame, Op, Status
from magnetar.ledger.wire_bodies import LongPoll, encode_long_poll
from tests.bookie_parts import (
    KEY,
    ManualConnection,
    ManualJournal,
    MemoryStorage,
    add_request,
    make_handler,
    read_request,
)

LEDGER = 7
REQUESTS = 1000
PAYLOAD = b"p" * 100_000
BUFFER_BYTES = READS_BYTES_MAX = 1 << 20


class SlowClient(ManualConnection):
    """Takes no reply; says so when its buffer is full, as a socket does."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self.is_write_paused = False
        self.largest_write = 0

    def send(self, data: bytes) -> None:
        super().send(data)
        self.bytes += len(data)
        self.largest_write = max(self.largest_write, len(data))
        self.is_write_paused = self.bytes > BUFFER_BYTES

    @property
    def is_congested(self) -> bool:
        return self.is_write_paused or self.reads_bytes >= READS_BYTES_MAX

    @is_congested.setter
    def is_congested(self, value: bool) -> None:
        """Ignore the value: congestion is not for others to say."""


class Parts:
    def __init__(self) -> None:
        self.bugs: list[BaseException] = []
        storage = MemoryStorage()
        self.handler = make_handler(storage, LedgerTable(storage), on_bug=self.bugs.append)
        self.journal = ManualJournal(self.handler)
        self.handler.use_journal(self.journal)
        self.writer, self.slow = ManualConnection(), SlowClient()

    def check(self, requests: range) -> None:
        """All are answered, and few of them with packets."""
        statuses = {self.slow.replies[each].status for each in requests}
        assert statuses == {Status.OK, Status.TOO_MANY_REQUESTS}
        assert self.slow.bytes < 2 * BUFFER_BYTES
        assert self.slow.largest_write < BUFFER_BYTES
        assert self.bugs == []


@pytest.fixture
async def parts() -> Parts:
    return Parts()


async def test_b23_news_for_many_long_polls_of_one_client(parts: Parts) -> None:
    body = encode_long_poll(LongPoll(-1, 60_000, 1 << 20, KEY))
    polls = [
        Frame(Op.READ_LAC, False, Flag.LONG_POLL, 0, each, LEDGER, -1, body)
        for each in range(REQUESTS)
    ]
    parts.handler.handle(parts.writer, [add_request(0, LEDGER, 0, payload=PAYLOAD)])
    parts.journal.commit()
    parts.handler.handle(parts.slow, polls)
    packet = packet_codec(LEDGER).seal_lac(0)
    parts.handler.handle(
        parts.writer, [Frame(Op.WRITE_LAC, False, 0, 0, 1, LEDGER, 0, KEY + packet)]
    )
    parts.check(range(REQUESTS))
    await parts.handler.close()


async def test_b23_many_reads_that_wait_for_one_fence(parts: Parts) -> None:
    parts.handler.handle(parts.writer, [add_request(0, LEDGER, 0, payload=PAYLOAD)])
    parts.journal.commit()
    reads = [
        read_request(each, LEDGER, 0, fence_key=KEY, bytes_max=100_000) for each in range(REQUESTS)
    ]
    taken = parts.handler.handle(parts.slow, reads)
    assert 0 < taken < REQUESTS
    assert parts.slow.replies == {}
    parts.journal.commit()
    assert set(parts.slow.replies) == set(range(taken))
    assert parts.slow.reads_bytes == 0
    assert parts.slow.bytes < 2 * BUFFER_BYTES
    assert parts.slow.largest_write < BUFFER_BYTES
    await asyncio.sleep(0)
    assert parts.slow.tries >= 1


async def test_b23_a_client_that_reads_on_gets_all_of_them(parts: Parts) -> None:
    parts.handler.handle(parts.writer, [add_request(0, LEDGER, 0, payload=PAYLOAD)])
    parts.journal.commit()
    reads = [read_request(each, LEDGER, 0, fence_key=KEY) for each in range(100)]
    while reads:
        reads = reads[parts.handler.handle(parts.slow, reads) :]
        parts.slow.bytes = 0
        parts.slow.is_write_paused = False
        if parts.journal.batches:
            parts.journal.commit()
    assert {reply.status for reply in parts.slow.replies.values()} == {Status.OK}
    assert len(parts.slow.replies) == 100
