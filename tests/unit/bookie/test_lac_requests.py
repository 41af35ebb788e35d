"""READ_LAC, WRITE_LAC and LIST_ENTRIES, through the request handler."""

import asyncio
from dataclasses import replace

import pytest

from magnetar.bookie.journaling.journal_format import RecordType
from magnetar.bookie.metrics import BookieMetrics
from magnetar.bookie.requests.fencing import LedgerTable
from magnetar.ledger.digest import packet_codec
from magnetar.ledger.errors import BookieProtocolError
from magnetar.ledger.wire import Flag, Frame, Op, Status
from magnetar.ledger.wire_bodies import (
    LacReply,
    LongPoll,
    decode_entry_list,
    decode_lac_reply,
    encode_list_entries,
    encode_long_poll,
)
from tests.bookie_parts import (
    KEY,
    OTHER_KEY,
    ManualConnection,
    ManualJournal,
    MemoryStorage,
    add_request,
    bookie_settings,
    make_handler,
    packets_of,
    read_lac_request,
    read_request,
)

LEDGER = 7
LIMITS = bookie_settings(long_poll_ms_max=60_000, long_polls_max=3, connection_long_polls_max=2)


def lac_packet(last_add_confirmed: int, ledger_id: int = LEDGER) -> bytes:
    return packet_codec(ledger_id).seal_lac(last_add_confirmed)


def write_lac(
    request_id: int, last_add_confirmed: int, *, key: bytes = KEY, packet: bytes | None = None
) -> Frame:
    body = key + (lac_packet(last_add_confirmed) if packet is None else packet)
    return Frame(Op.WRITE_LAC, False, 0, 0, request_id, LEDGER, last_add_confirmed, body)


def long_poll(
    request_id: int,
    previous_lac: int = -1,
    *,
    wait_ms: int = 60_000,
    entries_bytes: int = 0,
    flags: int = Flag.LONG_POLL,
    key: bytes = KEY,
) -> Frame:
    body = encode_long_poll(LongPoll(previous_lac, wait_ms, entries_bytes, key))
    return Frame(Op.READ_LAC, False, flags, 0, request_id, LEDGER, -1, body)


class Parts:
    def __init__(self, storage: MemoryStorage) -> None:
        self.storage = storage
        self.ledgers = LedgerTable(storage)
        self.metrics = BookieMetrics()
        self.handler = make_handler(storage, self.ledgers, metrics=self.metrics, settings=LIMITS)
        self.journal = ManualJournal(self.handler)
        self.handler.use_journal(self.journal)
        self.connection = ManualConnection()

    def handle(self, *frames: Frame) -> None:
        assert self.handler.handle(self.connection, frames) == len(frames)

    def status(self, request_id: int) -> Status:
        return Status(self.connection.replies[request_id].status)

    def lac_reply(self, request_id: int) -> LacReply:
        reply = self.connection.replies[request_id]
        assert reply.status == Status.OK
        return decode_lac_reply(reply.body)


@pytest.fixture
async def parts() -> Parts:
    return Parts(MemoryStorage())


# WRITE_LAC


async def test_a_write_lac_is_answered_after_the_commit_and_seen_before(parts: Parts) -> None:
    parts.handle(add_request(1, LEDGER, 0, 3), write_lac(2, 2), read_lac_request(3, LEDGER))
    assert set(parts.connection.replies) == {3}
    assert parts.lac_reply(3) == LacReply(packets_of(LEDGER, 0, 3)[2], lac_packet(2), None)
    parts.journal.commit()
    reply = parts.connection.replies[2]
    assert (reply.status, reply.op, reply.entry_id, reply.body) == (0, Op.WRITE_LAC, 2, b"")
    assert parts.journal.written[-1] == (RecordType.EXPLICIT_LAC, LEDGER)


async def test_the_highest_explicit_lac_is_kept_and_lower_ones_are_fine(parts: Parts) -> None:
    parts.handle(write_lac(1, 5), write_lac(2, 3), read_lac_request(3, LEDGER))
    parts.journal.commit()
    assert [parts.status(1), parts.status(2)] == [Status.OK, Status.OK]
    assert parts.lac_reply(3).explicit_packet == lac_packet(5)


async def test_an_explicit_lac_goes_to_the_storage_with_the_next_checkpoint(parts: Parts) -> None:
    parts.handle(write_lac(1, 5))
    parts.journal.commit()
    await parts.ledgers.put_changed_states()
    state = parts.storage.states[LEDGER]
    assert (state.explicit_lac, state.last_add_confirmed) == (lac_packet(5), 5)
    later = Parts(parts.storage)
    later.handle(read_lac_request(1, LEDGER), write_lac(2, 4), read_lac_request(3, LEDGER))
    assert later.lac_reply(1).explicit_packet == later.lac_reply(3).explicit_packet == lac_packet(5)


async def test_first_contact_by_a_write_lac_makes_the_ledger_known(parts: Parts) -> None:
    parts.handle(write_lac(1, 0), add_request(2, LEDGER, 1, key=OTHER_KEY))
    parts.journal.commit()
    assert parts.journal.written == [
        (RecordType.MASTER_KEY, LEDGER),
        (RecordType.EXPLICIT_LAC, LEDGER),
    ]
    assert parts.status(2) == Status.UNAUTHORIZED


async def test_a_write_lac_needs_the_master_key(parts: Parts) -> None:
    parts.handle(add_request(1, LEDGER, 0), write_lac(2, 0, key=OTHER_KEY))
    assert parts.status(2) == Status.UNAUTHORIZED


async def test_a_fenced_ledger_refuses_a_write_lac_once_the_fence_is_durable(parts: Parts) -> None:
    parts.handle(read_request(1, LEDGER, 0, fence_key=KEY), write_lac(2, 0))
    assert parts.connection.replies == {}
    parts.journal.commit()
    assert parts.status(2) == Status.FENCED
    assert parts.ledgers.last_add_confirmed(LEDGER) == -1


async def test_a_full_disk_fails_the_write_lac(parts: Parts) -> None:
    parts.handle(write_lac(1, 0))
    parts.journal.fail()
    assert parts.status(1) == Status.IO_ERROR


@pytest.mark.parametrize(
    "frame",
    [
        write_lac(1, 4, packet=lac_packet(5)),
        write_lac(1, 4, packet=lac_packet(4, LEDGER + 1)),
        write_lac(1, -1),
    ],
    ids=["another LAC", "another ledger", "no entry"],
)
async def test_a_packet_that_does_not_fit_the_request_is_refused(
    parts: Parts, frame: Frame
) -> None:
    parts.handle(frame)
    assert parts.status(1) == Status.BAD_REQUEST
    assert parts.journal.batches == []


@pytest.mark.parametrize("packet", [bytes(15), bytes(37)])
async def test_a_malformed_write_lac_ends_the_connection(parts: Parts, packet: bytes) -> None:
    with pytest.raises(BookieProtocolError):
        parts.handle(write_lac(1, 0, packet=packet))


# READ_LAC


async def test_a_read_lac_that_memory_can_answer_needs_no_task(parts: Parts) -> None:
    parts.handle(add_request(1, LEDGER, 0, 3))
    tasks = len(asyncio.all_tasks())
    parts.handle(read_lac_request(2, LEDGER))
    assert parts.lac_reply(2).last_packet == packets_of(LEDGER, 0, 3)[2]
    assert len(asyncio.all_tasks()) == tasks


async def test_one_that_only_the_disk_can_answer_is_answered_later(parts: Parts) -> None:
    parts.handle(add_request(1, LEDGER, 0, 3))
    parts.storage.is_slow = True
    parts.handle(read_lac_request(2, LEDGER))
    assert 2 not in parts.connection.replies
    await parts.connection.wait_reply(2)
    assert parts.lac_reply(2).last_packet == packets_of(LEDGER, 0, 3)[2]


# Long polls


async def test_a_long_poll_is_answered_by_the_entry_that_tells_news(parts: Parts) -> None:
    parts.handle(add_request(1, LEDGER, 0), long_poll(2))
    assert 2 not in parts.connection.replies
    assert parts.metrics.long_polls == 1
    parts.handle(add_request(3, LEDGER, 1))
    assert parts.lac_reply(2) == LacReply(packets_of(LEDGER, 1, 1)[0], b"", None)
    assert parts.metrics.long_polls == 0


async def test_one_who_waits_on_another_connection_is_told_at_once(parts: Parts) -> None:
    other = ManualConnection()
    parts.handler.handle(other, [long_poll(1)])
    parts.handle(add_request(1, LEDGER, 0, 2), add_request(2, LEDGER, 2))
    assert other.replies[1].status == Status.OK


async def test_an_explicit_lac_answers_with_its_packet_alone_and_the_entries(parts: Parts) -> None:
    parts.handle(add_request(1, LEDGER, 0, 3), long_poll(2, 0, entries_bytes=1 << 20))
    parts.handle(write_lac(3, 2))
    reply = parts.lac_reply(2)
    assert (reply.last_packet, reply.explicit_packet) == (b"", lac_packet(2))
    assert reply.block is not None
    assert reply.block.packets() == packets_of(LEDGER, 0, 3)[1:]


async def test_entries_above_the_lac_do_not_come_along(parts: Parts) -> None:
    parts.handle(add_request(1, LEDGER, 0, 9), write_lac(2, 2))
    parts.handle(long_poll(3, entries_bytes=1 << 20))
    block = parts.lac_reply(3).block
    assert block is not None
    assert block.packets() == packets_of(LEDGER, 0, 3)


async def test_old_news_are_told_at_once(parts: Parts) -> None:
    parts.handle(add_request(1, LEDGER, 5), long_poll(2, 3), long_poll(3, 4))
    assert parts.lac_reply(2).last_packet == packets_of(LEDGER, 5, 1)[0]
    assert 3 not in parts.connection.replies


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("wait_ms", [0, 5])
async def test_when_the_time_is_up_there_is_nothing_new(
    parts: Parts, is_known: bool, wait_ms: int
) -> None:
    if is_known:
        parts.handle(add_request(1, LEDGER, 0))
    parts.handle(long_poll(2, wait_ms=wait_ms))
    if wait_ms == 0:
        assert 2 in parts.connection.replies
    reply = await parts.connection.wait_reply(2)
    if is_known:
        assert parts.lac_reply(2) == LacReply(b"", b"", None)
    else:
        assert reply.status == Status.NO_SUCH_LEDGER
    assert parts.metrics.long_polls == 0


async def test_too_many_long_polls_are_refused(parts: Parts) -> None:
    others = [ManualConnection() for _ in range(2)]
    parts.handle(long_poll(1), long_poll(2), long_poll(3))
    assert set(parts.connection.replies) == {3}
    assert parts.status(3) == Status.TOO_MANY_REQUESTS
    parts.handler.handle(others[0], [long_poll(1)])
    parts.handler.handle(others[1], [long_poll(1)])
    assert others[0].replies == {}
    assert others[1].replies[1].status == Status.TOO_MANY_REQUESTS
    parts.handler.forget(parts.connection)
    parts.handler.handle(others[1], [long_poll(2)])
    assert 2 not in others[1].replies
    await parts.handler.close()


async def test_who_does_not_take_replies_gets_no_packets(parts: Parts) -> None:
    other = ManualConnection()
    parts.handle(long_poll(1))
    parts.connection.is_congested = True
    parts.handler.handle(other, [write_lac(1, 0)])
    assert parts.status(1) == Status.TOO_MANY_REQUESTS


async def test_a_long_poll_cannot_fence(parts: Parts) -> None:
    parts.handle(long_poll(1, flags=Flag.LONG_POLL | Flag.FENCE))
    assert parts.status(1) == Status.BAD_REQUEST


async def test_a_malformed_long_poll_ends_the_connection(parts: Parts) -> None:
    with pytest.raises(BookieProtocolError):
        parts.handle(long_poll(1)._replace(body=bytes(15)))


# LIST_ENTRIES


def list_entries(request_id: int, first: int, bytes_max: int = 100) -> Frame:
    body = encode_list_entries(bytes_max, master_key=KEY)
    return Frame(Op.LIST_ENTRIES, False, 0, 0, request_id, LEDGER, first, body)


async def test_a_list_of_entries_comes_in_pages(parts: Parts) -> None:
    parts.handle(add_request(1, LEDGER, 3, 4), add_request(2, LEDGER, 20))
    parts.handle(list_entries(3, 0, bytes_max=1), list_entries(4, 11, bytes_max=1 << 30))
    pages = [decode_entry_list((await parts.connection.wait_reply(i)).body) for i in (3, 4)]
    assert [page.entry_ids() for page in pages] == [[3, 4, 5, 6], [20]]
    assert [page.next_entry_id for page in pages] == [20, -1]


async def test_a_list_of_an_unknown_ledger_is_a_negative_and_of_an_empty_one_is_empty(
    parts: Parts,
) -> None:
    parts.handle(list_entries(1, 0))
    assert (await parts.connection.wait_reply(1)).status == Status.NO_SUCH_LEDGER
    parts.handle(write_lac(2, 0), list_entries(3, 0))
    page = decode_entry_list((await parts.connection.wait_reply(3)).body)
    assert (page.entry_ids(), page.next_entry_id) == ([], -1)


async def test_a_list_from_a_negative_id_is_refused(parts: Parts) -> None:
    parts.handle(list_entries(1, -1))
    assert parts.status(1) == Status.BAD_REQUEST


# State


async def test_a_state_of_an_earlier_process_has_its_explicit_lac(parts: Parts) -> None:
    parts.handle(add_request(1, LEDGER, 0))
    state = parts.storage.states[LEDGER]
    parts.storage.states[LEDGER] = replace(state, explicit_lac=lac_packet(0), last_add_confirmed=0)
    later = Parts(parts.storage)
    later.handle(long_poll(1))
    assert later.lac_reply(1).explicit_packet == lac_packet(0)
