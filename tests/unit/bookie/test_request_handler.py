import asyncio
import json
from dataclasses import dataclass

import pytest

from magnetar.bookie.journaling.journal_format import RecordType
from magnetar.bookie.requests.fencing import LedgerTable
from magnetar.bookie.requests.request_handler import RequestHandler
from magnetar.ledger.errors import BookieProtocolError, WrongBookieError
from magnetar.ledger.wire import Flag, Frame, Op, Status
from tests.bookie_parts import (
    KEY,
    OTHER_KEY,
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
ENTRIES, MASTER_KEY, FENCE = RecordType.ENTRY_BLOCK, RecordType.MASTER_KEY, RecordType.FENCE


class ManualClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def boot_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return int(self.now_s * 1000)


@dataclass
class Parts:
    storage: MemoryStorage
    handler: RequestHandler
    journal: ManualJournal
    connection: ManualConnection
    clock: ManualClock
    ledgers: LedgerTable

    def handle(self, *frames: Frame) -> int:
        return self.handler.handle(self.connection, frames)

    def status(self, request_id: int) -> Status:
        return Status(self.connection.replies[request_id].status)

    @property
    def answered(self) -> set[int]:
        return set(self.connection.replies)


@pytest.fixture
async def parts() -> Parts:
    return make_parts(MemoryStorage())


def make_parts(storage: MemoryStorage) -> Parts:
    clock = ManualClock()
    ledgers = LedgerTable(storage)
    handler = make_handler(storage, ledgers, clock=clock, instance_id="c1")
    journal = ManualJournal(handler)
    handler.use_journal(journal)
    return Parts(storage, handler, journal, ManualConnection(), clock, ledgers)


# Adds


async def test_an_add_is_answered_after_the_commit_only(parts: Parts) -> None:
    parts.handle(add_request(1, LEDGER, 0, 3))
    assert parts.answered == set()
    parts.journal.commit()
    reply = parts.connection.replies[1]
    assert (reply.status, reply.op, reply.ledger_id, reply.entry_id) == (0, Op.ADD, LEDGER, 0)


async def test_an_add_is_readable_before_it_is_handed_to_the_journal(parts: Parts) -> None:
    """Rule 2.1: what the journal's mark covers is in the storage."""
    parts.handle(add_request(1, LEDGER, 0, 3), read_request(2, LEDGER, 0, 2))
    assert packets_in(parts.connection.replies[2]) == packets_of(LEDGER, 0, 3)
    assert 1 not in parts.answered


async def test_the_adds_of_one_read_are_one_batch_and_one_write(parts: Parts) -> None:
    parts.handle(*(add_request(i, LEDGER, i) for i in range(10)))
    assert len(parts.journal.batches) == 1
    parts.journal.commit()
    assert parts.answered == set(range(10))
    assert parts.connection.writes == 1


async def test_the_master_key_is_journalled_once_ahead_of_the_first_entry(parts: Parts) -> None:
    parts.handle(add_request(1, LEDGER, 0), add_request(2, LEDGER, 1))
    parts.journal.commit()
    assert parts.journal.written == [(MASTER_KEY, LEDGER), (ENTRIES, LEDGER), (ENTRIES, LEDGER)]


async def test_another_master_key_is_unauthorized(parts: Parts) -> None:
    parts.handle(add_request(1, LEDGER, 0), add_request(2, LEDGER, 1, key=OTHER_KEY))
    parts.journal.commit()
    assert parts.status(1) == Status.OK
    assert parts.status(2) == Status.UNAUTHORIZED
    assert list(parts.storage.packets[LEDGER]) == [0]


async def test_an_entry_that_is_sent_again_is_accepted(parts: Parts) -> None:
    parts.handle(add_request(1, LEDGER, 0), add_request(2, LEDGER, 0))
    parts.journal.commit()
    assert parts.status(1) == parts.status(2) == Status.OK


async def test_a_bad_add_is_a_bad_request_and_stores_nothing(parts: Parts) -> None:
    frame = add_request(1, LEDGER, 0)._replace(ledger_id=LEDGER + 1)
    parts.handle(frame)
    assert parts.status(1) == Status.BAD_REQUEST
    assert parts.journal.batches == []
    assert parts.storage.packets == {}


async def test_what_came_before_a_malformed_frame_is_still_journalled(parts: Parts) -> None:
    malformed = add_request(2, LEDGER, 1)._replace(body=KEY + b"\0\0\0\5junk")
    with pytest.raises(BookieProtocolError):
        parts.handle(add_request(1, LEDGER, 0), malformed)
    parts.journal.commit()
    assert parts.status(1) == Status.OK


async def test_the_highest_lac_of_an_add_travels_with_read_replies(parts: Parts) -> None:
    parts.handle(add_request(1, LEDGER, 5), read_request(2, LEDGER, 5))
    assert int.from_bytes(parts.connection.replies[2].body[:8], "big", signed=True) == 4
    assert parts.storage.states[LEDGER].last_add_confirmed == -1
    await parts.ledgers.put_changed_states()
    assert parts.storage.states[LEDGER].last_add_confirmed == 4


# A full write cache


async def test_an_add_without_room_waits_and_nothing_is_journalled(parts: Parts) -> None:
    parts.storage.is_full = True
    frames = [add_request(1, LEDGER, 0), add_request(2, LEDGER, 1)]
    assert parts.handle(*frames) == 0
    assert parts.journal.batches == []
    assert parts.answered == set()
    parts.storage.is_full = False
    parts.handler.on_flushed()
    assert parts.connection.tries == 1
    assert parts.handle(*frames) == 2
    parts.journal.commit()
    assert parts.status(1) == parts.status(2) == Status.OK
    assert parts.journal.written[0] == (MASTER_KEY, LEDGER)


async def test_an_add_that_waited_too_long_for_room_is_refused(parts: Parts) -> None:
    parts.storage.is_full = True
    frames = [add_request(1, LEDGER, 0), add_request(2, LEDGER, 1)]
    parts.handle(*frames)
    parts.clock.now_s += 4
    assert parts.handle(*frames) == 2
    assert parts.status(1) == parts.status(2) == Status.TOO_MANY_REQUESTS
    assert parts.journal.batches == []
    await parts.handler.close()


async def test_frames_of_a_congested_connection_are_left(parts: Parts) -> None:
    parts.connection.is_congested = True
    assert parts.handle(read_request(1, LEDGER, 0)) == 0
    assert parts.answered == set()


# A full journal disk


async def test_adds_of_a_failed_group_get_an_io_error(parts: Parts) -> None:
    parts.handle(add_request(1, LEDGER, 0))
    parts.journal.fail()
    assert parts.status(1) == Status.IO_ERROR
    assert b"no space left" in parts.connection.replies[1].body


async def test_a_key_whose_group_failed_is_journalled_again(parts: Parts) -> None:
    """Without its key the entry of the second add would be dropped by replay."""
    parts.handle(add_request(1, LEDGER, 0))
    parts.journal.fail()
    parts.handle(add_request(2, LEDGER, 1))
    parts.journal.commit()
    assert parts.journal.written == [(MASTER_KEY, LEDGER), (ENTRIES, LEDGER)]


# Fences


@pytest.mark.parametrize(
    "request_frame",
    [
        read_request(1, LEDGER, 0, fence_key=KEY),
        read_lac_request(1, LEDGER, fence_key=KEY),
    ],
    ids=["read", "read_lac"],
)
@pytest.mark.parametrize("is_known", [True, False])
async def test_d18_no_reply_to_a_fence_before_it_is_durable(
    parts: Parts, request_frame: Frame, is_known: bool
) -> None:
    if is_known:
        parts.handle(add_request(0, LEDGER, 5))
        parts.journal.commit()
    parts.handle(request_frame)
    await asyncio.sleep(0)
    assert 1 not in parts.answered
    assert parts.journal.waiting[-1] == (FENCE, LEDGER)
    parts.journal.commit()
    reply = await parts.connection.wait_reply(1)
    assert reply.flags == Flag.FENCED
    assert reply.status in (Status.OK, Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER)


async def test_d20_a_second_fence_waits_for_the_write_of_the_first(parts: Parts) -> None:
    parts.handle(read_request(1, LEDGER, 0, fence_key=KEY))
    other = ManualConnection()
    parts.handler.handle(other, [read_request(1, LEDGER, 0, fence_key=KEY)])
    assert parts.journal.waiting == [(MASTER_KEY, LEDGER), (FENCE, LEDGER)]
    assert parts.answered == set()
    assert other.replies == {}
    parts.journal.commit()
    assert parts.connection.replies[1].flags == other.replies[1].flags == Flag.FENCED


async def test_a_fence_that_is_durable_is_not_written_again(parts: Parts) -> None:
    parts.handle(read_request(1, LEDGER, 0, fence_key=KEY))
    parts.journal.commit()
    parts.handle(read_request(2, LEDGER, 0, fence_key=KEY))
    assert parts.connection.replies[2].flags == Flag.FENCED
    assert parts.journal.batches == []


async def test_d19_an_add_behind_a_fence_is_refused_and_not_stored(parts: Parts) -> None:
    parts.handle(read_request(1, LEDGER, 0, fence_key=KEY), add_request(2, LEDGER, 0))
    parts.journal.commit()
    assert parts.status(2) == Status.FENCED
    assert LEDGER not in parts.storage.packets


async def test_i13_an_add_hears_of_a_fence_only_when_it_is_durable(parts: Parts) -> None:
    parts.handle(read_request(1, LEDGER, 0, fence_key=KEY), add_request(2, LEDGER, 0))
    assert parts.answered == set()
    parts.journal.fail()
    assert parts.status(1) == parts.status(2) == Status.IO_ERROR
    assert parts.connection.replies[1].flags == 0


async def test_a_fence_that_could_not_be_written_still_holds_and_is_written_again(
    parts: Parts,
) -> None:
    parts.handle(read_request(1, LEDGER, 0, fence_key=KEY))
    parts.journal.fail()
    parts.handle(add_request(2, LEDGER, 0))
    assert parts.status(2) == Status.IO_ERROR
    parts.handle(read_request(3, LEDGER, 0, fence_key=KEY))
    assert 3 not in parts.answered
    parts.journal.commit()
    assert parts.journal.written == [(MASTER_KEY, LEDGER), (FENCE, LEDGER)]
    assert parts.connection.replies[3].flags == Flag.FENCED


async def test_an_add_ahead_of_the_fence_is_seen_by_the_fenced_read(parts: Parts) -> None:
    parts.handle(add_request(1, LEDGER, 0), read_request(2, LEDGER, 0, fence_key=KEY))
    parts.journal.commit()
    assert parts.status(1) == Status.OK
    assert packets_in(parts.connection.replies[2]) == packets_of(LEDGER, 0, 1)
    assert parts.journal.written == [(MASTER_KEY, LEDGER), (ENTRIES, LEDGER), (FENCE, LEDGER)]


async def test_d24_a_recovery_add_is_accepted_by_a_fenced_ledger(parts: Parts) -> None:
    parts.handle(read_request(1, LEDGER, 0, fence_key=KEY))
    parts.journal.commit()
    parts.handle(add_request(2, LEDGER, 0, flags=Flag.RECOVERY))
    parts.journal.commit()
    assert parts.status(2) == Status.OK


async def test_a_fence_needs_the_ledgers_master_key(parts: Parts) -> None:
    parts.handle(add_request(1, LEDGER, 0))
    parts.journal.commit()
    parts.handle(
        read_request(2, LEDGER, 0, fence_key=OTHER_KEY),
        read_request(3, LEDGER, 0, fence_key=b""),
        read_lac_request(4, LEDGER, fence_key=b""),
    )
    assert [parts.status(i) for i in (2, 3, 4)] == [Status.UNAUTHORIZED] * 3
    assert parts.journal.batches == []
    parts.handle(add_request(5, LEDGER, 1))
    parts.journal.commit()
    assert parts.status(5) == Status.OK


async def test_a_fence_stores_the_key_of_an_unknown_ledger(parts: Parts) -> None:
    parts.handle(read_lac_request(1, LEDGER, fence_key=KEY))
    parts.journal.commit()
    assert parts.journal.written == [(MASTER_KEY, LEDGER), (FENCE, LEDGER)]
    parts.handle(add_request(2, LEDGER, 0, key=OTHER_KEY, flags=Flag.RECOVERY))
    assert parts.status(2) == Status.UNAUTHORIZED


async def test_a_fence_of_an_earlier_process_holds(parts: Parts) -> None:
    parts.handle(read_request(1, LEDGER, 0, fence_key=KEY))
    parts.journal.commit()
    later = make_parts(parts.storage)
    later.handle(add_request(1, LEDGER, 0), read_request(2, LEDGER, 0, fence_key=KEY))
    assert later.status(1) == Status.FENCED
    assert later.connection.replies[2].flags == Flag.FENCED
    assert later.journal.batches == []


# Reads


async def test_negatives_tell_unknown_ledgers_from_missing_entries(parts: Parts) -> None:
    parts.handle(add_request(1, LEDGER, 0))
    parts.handle(
        read_request(2, LEDGER, 1), read_request(3, LEDGER + 1, 0), read_lac_request(4, LEDGER + 1)
    )
    statuses = [parts.status(i) for i in (2, 3, 4)]
    assert statuses == [Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER, Status.NO_SUCH_LEDGER]


async def test_a_range_stops_at_the_gap_and_at_the_bound(parts: Parts) -> None:
    parts.handle(add_request(1, LEDGER, 0, 4), add_request(2, LEDGER, 9))
    size = len(packets_of(LEDGER, 0, 1)[0])
    parts.handle(
        read_request(3, LEDGER, 1, 100),
        read_request(4, LEDGER, 0, 3, bytes_max=2 * size),
        read_request(5, LEDGER, 0, 3, bytes_max=1),
    )
    assert [len(packets_in(parts.connection.replies[i])) for i in (3, 4, 5)] == [3, 2, 1]


async def test_a_read_from_disk_is_answered_when_it_is_there(parts: Parts) -> None:
    parts.handle(add_request(1, LEDGER, 0))
    parts.storage.is_slow = True
    parts.handle(read_request(2, LEDGER, 0), read_request(3, LEDGER, 1))
    assert parts.answered == set()
    assert parts.connection.reads_bytes > 0
    assert packets_in(await parts.connection.wait_reply(2)) == packets_of(LEDGER, 0, 1)
    assert (await parts.connection.wait_reply(3)).status == Status.NO_SUCH_ENTRY
    assert parts.connection.reads_bytes == 0


async def test_read_lac_returns_the_last_packet(parts: Parts) -> None:
    parts.handle(add_request(1, LEDGER, 0, 3), read_lac_request(2, LEDGER))
    reply = await parts.connection.wait_reply(2)
    packet = packets_of(LEDGER, 0, 3)[2]
    assert reply.body == len(packet).to_bytes(4, "big") + packet + bytes(4)


async def test_read_lac_of_an_empty_ledger_is_ok_without_a_packet(parts: Parts) -> None:
    parts.handle(read_lac_request(1, LEDGER, fence_key=KEY))
    parts.journal.commit()
    reply = await parts.connection.wait_reply(1)
    assert (reply.status, reply.body, reply.flags) == (Status.OK, bytes(8), Flag.FENCED)


@pytest.mark.parametrize(("first", "last"), [(-1, 0), (3, 2)])
async def test_a_range_that_makes_no_sense_is_a_bad_request(
    parts: Parts, first: int, last: int
) -> None:
    parts.handle(read_request(1, LEDGER, first, last))
    assert parts.status(1) == Status.BAD_REQUEST


# Other operations


@pytest.mark.parametrize("op", [Op.AUTH, 99])
async def test_an_operation_that_is_not_built_is_a_bad_request(parts: Parts, op: int) -> None:
    parts.handle(Frame(op, False, 0, 0, 1, LEDGER, 0, b""))
    assert parts.status(1) == Status.BAD_REQUEST


async def test_a_response_sent_to_a_bookie_is_malformed(parts: Parts) -> None:
    with pytest.raises(BookieProtocolError):
        parts.handle(Frame(Op.ADD, True, 0, 0, 1, LEDGER, 0, b""))


async def test_info_tells_who_we_are(parts: Parts) -> None:
    parts.handle(Frame(Op.INFO, False, 0, 0, 1, -1, -1, b""))
    assert json.loads(parts.connection.replies[1].body) == {
        "bookie_id": "b1",
        "instance_id": "c1",
        "version": "1",
        "reads_take_keys": True,
        "writable": True,
        "read_only_reasons": [],
        "free_bytes": 1000,
    }


def hello(bookie_id: str, instance_id: str, *, request_id: int = 1) -> Frame:
    body = json.dumps({"bookie_id": bookie_id, "instance_id": instance_id}).encode()
    return Frame(Op.INFO, False, 0, 0, request_id, 0, -1, body)


@pytest.mark.parametrize(("bookie_id", "instance_id"), [("b1", "c1"), ("b1", "")])
async def test_a_hello_to_this_bookie_is_answered_with_who_it_is(
    parts: Parts, bookie_id: str, instance_id: str
) -> None:
    parts.handle(hello(bookie_id, instance_id))
    answer = json.loads(parts.connection.replies[1].body)
    assert (answer["bookie_id"], answer["instance_id"]) == ("b1", "c1")


@pytest.mark.parametrize(("bookie_id", "instance_id"), [("b2", "c1"), ("b2", ""), ("b1", "c2")])
async def test_what_follows_a_hello_to_another_bookie_is_not_obeyed(
    parts: Parts, bookie_id: str, instance_id: str
) -> None:
    with pytest.raises(WrongBookieError, match="answered"):
        parts.handle(hello(bookie_id, instance_id), Frame(Op.INFO, False, 0, 0, 2, LEDGER, -1, b""))
    assert parts.status(1) == Status.WRONG_BOOKIE
    assert 2 not in parts.connection.replies


@pytest.mark.parametrize("body", [b"{", b"[]", b"{}", b'{"bookie_id": 7}', b"7", b"\xff"])
async def test_a_hello_that_names_nobody_is_malformed(parts: Parts, body: bytes) -> None:
    with pytest.raises(BookieProtocolError):
        parts.handle(Frame(Op.INFO, False, 0, 0, 1, 0, -1, body))
