"""ADDS: adds of several ledgers in one frame, each with a fate of its own."""

from dataclasses import dataclass
from struct import unpack

import pytest

from magnetar.bookie.journaling.journal_format import RecordType
from magnetar.bookie.requests.fencing import LedgerTable
from magnetar.bookie.requests.request_handler import RequestHandler
from magnetar.ledger.errors import BookieProtocolError
from magnetar.ledger.wire import Frame, FrameDecoder, Op, Status, encode_block
from magnetar.ledger.wire_adds import ADD_HEAD, ADDS_MAX, NO_ID, decode_outcome, encode_count
from tests.bookie_parts import (
    KEY,
    OTHER_KEY,
    ManualConnection,
    ManualJournal,
    MemoryStorage,
    add_request,
    make_handler,
    packets_of,
    read_request,
)

REQUEST = 9


class Answers(ManualConnection):
    """Keeps every reply; several may come to one request."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[Frame] = []
        self._every = FrameDecoder()

    def send(self, data: bytes) -> None:
        self.writes += 1
        self.frames += self._every.feed(data)

    def outcomes(self) -> dict[tuple[int, int], Status]:
        """What was said of each add of the request; none is told of twice."""
        found: dict[tuple[int, int], Status] = {}
        for frame in self.frames:
            if frame.request_id == REQUEST:
                assert (frame.op, frame.ledger_id, frame.entry_id) == (Op.ADDS, NO_ID, NO_ID)
                for pair in decode_outcome(frame.body).pairs:
                    ids = unpack(">qq", pair)
                    assert ids not in found
                    found[ids] = Status(frame.status)
        return found


@dataclass
class Parts:
    storage: MemoryStorage
    handler: RequestHandler
    journals: list[ManualJournal]
    connection: Answers
    ledgers: LedgerTable

    def handle(self, *frames: Frame) -> int:
        return self.handler.handle(self.connection, frames)


def make_parts(journals: int = 1) -> Parts:
    storage = MemoryStorage()

    ledgers = LedgerTable(storage)
    handler = make_handler(storage, ledgers)
    made = [ManualJournal(handler) for _ in range(journals)]
    handler.use_journal(*made)
    return Parts(storage, handler, made, Answers(), ledgers)


def an_add(ledger_id: int, entry_id: int, *, count: int = 1, key: bytes = KEY) -> bytes:
    block = encode_block(packets_of(ledger_id, entry_id, count)).data
    return ADD_HEAD.pack(ledger_id, entry_id, len(block), key) + block


def adds_request(*adds: bytes) -> Frame:
    body = encode_count(len(adds)) + b"".join(adds)
    return Frame(Op.ADDS, False, 0, 0, REQUEST, NO_ID, NO_ID, body)


async def test_all_are_answered_in_one_reply_after_the_commit_only() -> None:
    parts = make_parts()
    assert parts.handle(adds_request(*[an_add(n, 5 * n, count=n) for n in range(1, 5)])) == 1
    assert parts.connection.frames == []
    parts.journals[0].commit()
    assert parts.connection.outcomes() == {(n, 5 * n): Status.OK for n in range(1, 5)}
    assert len(parts.connection.frames) == 1
    assert [len(parts.storage.packets[n]) for n in range(1, 5)] == [1, 2, 3, 4]


async def test_each_ledger_has_its_key_and_entries_in_its_journal() -> None:
    parts = make_parts(journals=2)
    parts.handle(adds_request(an_add(1, 0), an_add(2, 0), an_add(3, 0)))
    assert {ledger for _, ledger in parts.journals[0].waiting} == {2}
    parts.journals[1].commit()
    assert parts.connection.outcomes() == {(1, 0): Status.OK, (3, 0): Status.OK}
    parts.journals[0].fail()
    assert parts.connection.outcomes()[2, 0] == Status.IO_ERROR
    assert parts.journals[1].written == [
        (RecordType.MASTER_KEY, 1),
        (RecordType.ENTRY_BLOCK, 1),
        (RecordType.MASTER_KEY, 3),
        (RecordType.ENTRY_BLOCK, 3),
    ]


async def test_what_is_refused_disturbs_no_other() -> None:
    parts = make_parts()
    parts.handle(add_request(1, 3, 0), read_request(2, 2, 0, fence_key=KEY))
    parts.journals[0].commit()
    not_its_own = an_add(4, 0)[:8] + bytes(8) + an_add(4, 7)[16:]
    parts.handle(adds_request(an_add(1, 0), an_add(2, 0), an_add(3, 1, key=OTHER_KEY), not_its_own))
    assert parts.connection.outcomes() == {
        (2, 0): Status.FENCED,
        (3, 1): Status.UNAUTHORIZED,
        (4, 0): Status.BAD_REQUEST,
    }
    parts.journals[0].commit()
    assert parts.connection.outcomes()[1, 0] == Status.OK
    assert 0 not in parts.storage.packets.get(2, {})
    assert list(parts.storage.packets[3]) == [0]


async def test_an_add_to_a_ledger_that_is_being_fenced_waits_for_the_fence_alone() -> None:
    parts = make_parts(journals=2)
    parts.handle(read_request(1, 2, 0, fence_key=KEY))
    parts.handle(adds_request(an_add(1, 0), an_add(2, 0)))
    parts.journals[1].commit()
    assert parts.connection.outcomes() == {(1, 0): Status.OK}
    parts.journals[0].commit()
    parts.handler.on_committed([], None)  # a refusal that waited leaves with the next replies
    assert parts.connection.outcomes()[2, 0] == Status.FENCED


async def test_what_finds_no_room_waits_and_nothing_is_stored_or_answered_twice() -> None:
    parts = make_parts()
    request = adds_request(an_add(1, 0), an_add(2, 0), an_add(3, 0))
    add = parts.storage.add

    def full_after_the_first(*args: object) -> None:
        add(*args)  # type: ignore[arg-type]
        parts.storage.is_full = True

    parts.storage.add = full_after_the_first  # type: ignore[method-assign, assignment]
    assert parts.handle(request) == 0
    assert parts.handle(request) == 0
    parts.storage.add = add  # type: ignore[method-assign]
    parts.storage.is_full = False
    parts.handler.on_flushed()
    assert parts.connection.tries == 1
    assert parts.handle(request) == 1
    parts.journals[0].commit()
    assert parts.connection.outcomes() == {(n, 0): Status.OK for n in (1, 2, 3)}
    entries = [each for each in parts.journals[0].written if each[0] == RecordType.ENTRY_BLOCK]
    assert entries == [(RecordType.ENTRY_BLOCK, n) for n in (1, 2, 3)]
    await parts.handler.close()


async def test_a_frame_may_be_full() -> None:
    parts = make_parts()
    assert parts.handle(adds_request(*[an_add(n, 0) for n in range(ADDS_MAX)])) == 1
    parts.journals[0].commit()
    assert parts.connection.outcomes() == {(n, 0): Status.OK for n in range(ADDS_MAX)}


async def test_a_connection_that_closes_takes_its_half_done_frame_along() -> None:
    parts = make_parts()
    parts.storage.is_full = True
    assert parts.handle(adds_request(an_add(1, 0), an_add(2, 0))) == 0
    parts.handler.forget(parts.connection)
    parts.storage.is_full = False
    assert parts.handle(adds_request(an_add(3, 0))) == 1
    parts.journals[0].commit()
    assert parts.connection.outcomes() == {(3, 0): Status.OK}
    await parts.handler.close()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        encode_count(0),
        encode_count(2) + an_add(1, 0),
        encode_count(ADDS_MAX + 1) + b"".join(an_add(n, 0) for n in range(ADDS_MAX + 1)),
        encode_count(1) + an_add(1, 0) + b"x",
        encode_count(1) + an_add(1, 0)[:-1],
        encode_count(1) + an_add(1, 0)[:30],
    ],
)
async def test_a_body_that_does_not_hold_what_it_says_ends_the_connection(body: bytes) -> None:
    parts = make_parts()
    frame = Frame(Op.ADDS, False, 0, 0, REQUEST, NO_ID, NO_ID, body)
    with pytest.raises(BookieProtocolError):
        parts.handle(frame)
