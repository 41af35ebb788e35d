"""What requests see of a ledger that garbage collection deleted (defect B13)."""

import pytest

from magnetar.bookie.requests.fencing import LedgerTable
from magnetar.bookie.requests.past_ledgers import Tombstones
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
    packets_in,
    packets_of,
    read_lac_request,
    read_request,
)

LEDGER = 7
NOW_S = 1000.0


class Parts:
    def __init__(self) -> None:
        self.storage = MemoryStorage()
        self.ledgers = LedgerTable(self.storage, Tombstones(keep_s=10, count_max=2))
        self.handler = make_handler(self.storage, self.ledgers)
        self.journal = ManualJournal(self.handler)
        self.handler.use_journal(self.journal)
        self.connection = ManualConnection()

    def handle(self, *frames: Frame) -> None:
        assert self.handler.handle(self.connection, frames) == len(frames)
        self.journal.commit()

    def status(self, request_id: int) -> Status:
        return Status(self.connection.replies[request_id].status)

    def delete(self, ledger_id: int = LEDGER, now_s: float = NOW_S) -> bool:
        return self.ledgers.delete(ledger_id, now_s)


@pytest.fixture
async def parts() -> Parts:
    return Parts()


async def test_a_deleted_ledger_is_not_known_any_more(parts: Parts) -> None:
    parts.handle(add_request(1, LEDGER, 0))
    assert parts.delete()
    parts.handle(read_request(2, LEDGER, 0), read_lac_request(3, LEDGER))
    assert (parts.status(2), parts.status(3)) == (Status.NO_SUCH_LEDGER, Status.NO_SUCH_LEDGER)
    assert parts.storage.ledger_ids() == []


async def test_b13_a_stale_writer_cannot_make_a_fenced_ledger_again(parts: Parts) -> None:
    parts.handle(add_request(1, LEDGER, 0), read_lac_request(2, LEDGER, fence_key=KEY))
    parts.delete()
    parts.handle(add_request(3, LEDGER, 1))
    assert parts.status(3) == Status.FENCED
    assert parts.storage.ledger_ids() == []


async def test_b13_nor_can_it_after_a_recovery_add_brought_the_ledger_back(parts: Parts) -> None:
    parts.handle(add_request(1, LEDGER, 0))
    parts.delete()
    parts.handle(add_request(2, LEDGER, 0, flags=Flag.RECOVERY), add_request(3, LEDGER, 1))
    assert (parts.status(2), parts.status(3)) == (Status.OK, Status.FENCED)
    parts.handle(read_request(4, LEDGER, 0))
    assert packets_in(parts.connection.replies[4]) == packets_of(LEDGER, 0, 1)


async def test_b13_nor_may_it_tell_of_a_lac(parts: Parts) -> None:
    parts.handle(add_request(1, LEDGER, 0))
    parts.delete()
    packet = packet_codec(LEDGER).seal_lac(0)
    parts.handle(Frame(Op.WRITE_LAC, False, 0, 0, 2, LEDGER, 0, KEY + packet))
    assert parts.status(2) == Status.FENCED
    assert parts.storage.ledger_ids() == []


async def test_the_key_is_journalled_anew_when_a_ledger_comes_back(parts: Parts) -> None:
    """Replay drops entries of ledgers without a key as those of deleted ones."""
    parts.handle(add_request(1, LEDGER, 0))
    parts.delete()
    before = len(parts.journal.written)
    parts.handle(add_request(2, LEDGER, 0, flags=Flag.RECOVERY))
    assert len(parts.journal.written) - before == 2


async def test_a_fence_of_a_deleted_ledger_is_written_like_any_other(parts: Parts) -> None:
    """C2 holds for it too: the memory of the deletion ends with the process."""
    parts.handle(add_request(1, LEDGER, 0))
    parts.delete()
    before = len(parts.journal.written)
    parts.handle(read_lac_request(2, LEDGER, fence_key=KEY))
    assert parts.status(2) == Status.OK
    assert len(parts.journal.written) - before == 2


async def test_a_ledger_is_not_deleted_while_its_fence_is_being_written(parts: Parts) -> None:
    parts.handler.handle(parts.connection, [read_lac_request(1, LEDGER, fence_key=KEY)])
    assert not parts.delete()
    assert parts.storage.ledger_ids() == [LEDGER]
    parts.journal.commit()
    assert parts.status(1) == Status.OK
    assert parts.delete()


async def test_a_lac_that_moved_before_the_deletion_does_not_bring_the_ledger_back(
    parts: Parts,
) -> None:
    parts.handle(add_request(1, LEDGER, 0, 3))
    parts.delete()
    await parts.ledgers.put_changed_states()
    assert parts.storage.ledger_ids() == []


async def test_who_waits_for_news_hears_of_the_deletion(parts: Parts) -> None:
    parts.handle(add_request(1, LEDGER, 0))
    body = encode_long_poll(LongPoll(5, 60_000, 0, KEY))
    poll = Frame(Op.READ_LAC, False, Flag.LONG_POLL, 0, 2, LEDGER, -1, body)
    parts.handler.handle(parts.connection, [poll])
    parts.delete()
    assert parts.status(2) == Status.NO_SUCH_LEDGER
    await parts.handler.close()


async def test_a_tombstone_lasts_as_long_as_it_should(parts: Parts) -> None:
    parts.delete()
    parts.ledgers.tombstones.expire(NOW_S + 9.9)
    assert parts.ledgers.was_deleted(LEDGER)
    parts.ledgers.tombstones.expire(NOW_S + 10)
    assert not parts.ledgers.was_deleted(LEDGER)


async def test_tombstones_are_bounded_and_the_oldest_goes(parts: Parts) -> None:
    for ledger_id in (1, 2, 1, 3):
        parts.delete(ledger_id)
    assert [parts.ledgers.was_deleted(each) for each in (1, 2, 3)] == [True, False, True]
    assert len(parts.ledgers.tombstones) == 2
