"""A ledger in limbo: what is found is served, what is not found is not denied."""

import pytest

from magnetar.bookie.requests.fencing import LedgerTable
from magnetar.bookie.requests.past_ledgers import LossHorizon
from magnetar.bookie.storage import LedgerState
from magnetar.ledger.digest import packet_codec
from magnetar.ledger.wire import Flag, Frame, Op, Status
from magnetar.ledger.wire_bodies import (
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
    make_handler,
    packets_in,
    packets_of,
    read_lac_request,
    read_request,
)

LEDGER = 7


class Parts:
    """A handler whose ledger 7 is in limbo, fenced or not, as a pre-boot pass leaves it."""

    def __init__(self, *, fenced: bool = True, horizon: LossHorizon | None = None) -> None:
        self.storage = MemoryStorage()
        self.storage.put_state(LEDGER, LedgerState(b"", fenced, -1, limbo=True))
        self.ledgers = LedgerTable(self.storage, horizon=horizon)
        self.handler = make_handler(self.storage, self.ledgers)
        self.journal = ManualJournal(self.handler)
        self.handler.use_journal(self.journal)
        self.connection = ManualConnection()

    def handle(self, *frames: Frame) -> None:
        assert self.handler.handle(self.connection, frames) == len(frames)

    def store(self, first: int, count: int) -> None:
        """Entries as a repair brings them: fenced ledgers take them too."""
        self.handle(add_request(1000 + first, LEDGER, first, count, flags=Flag.RECOVERY))
        self.journal.commit()
        assert self.connection.replies[1000 + first].status == Status.OK


@pytest.fixture
async def parts() -> Parts:
    return Parts()


def list_request(request_id: int, ledger_id: int = LEDGER) -> Frame:
    body = encode_list_entries(64, master_key=KEY)
    return Frame(Op.LIST_ENTRIES, False, 0, 0, request_id, ledger_id, 0, body)


def poll_request(request_id: int, previous_lac: int, *, wait_ms: int) -> Frame:
    body = encode_long_poll(LongPoll(previous_lac, wait_ms, 0, KEY))
    return Frame(Op.READ_LAC, False, Flag.LONG_POLL, 0, request_id, LEDGER, -1, body)


@pytest.mark.parametrize("is_slow", [False, True])
async def test_what_is_found_is_served_and_what_is_not_is_unknown(
    parts: Parts, is_slow: bool
) -> None:
    parts.store(0, 2)
    parts.storage.is_slow = is_slow
    parts.handle(read_request(1, LEDGER, 0, 5), read_request(2, LEDGER, 2))
    assert packets_in(await parts.connection.wait_reply(1)) == packets_of(LEDGER, 0, 2)
    reply = await parts.connection.wait_reply(2)
    assert reply.status == Status.UNKNOWN_LEDGER_STATE


async def test_a_fencing_read_fences_and_does_not_deny(parts: Parts) -> None:
    open_parts = Parts(fenced=False)
    open_parts.handle(read_request(1, LEDGER, 0, fence_key=KEY))
    assert not open_parts.connection.replies, "the fence is not durable yet"
    open_parts.journal.commit()
    reply = open_parts.connection.replies[1]
    assert reply.status == Status.UNKNOWN_LEDGER_STATE
    assert reply.flags & Flag.FENCED
    assert open_parts.storage.states[LEDGER].limbo


async def test_a_lac_read_says_unknown_and_fences_all_the_same(parts: Parts) -> None:
    parts.store(0, 2)
    parts.handle(read_lac_request(1, LEDGER), read_lac_request(2, LEDGER, fence_key=KEY))
    parts.journal.commit()
    for request_id in (1, 2):
        reply = parts.connection.replies[request_id]
        assert reply.status == Status.UNKNOWN_LEDGER_STATE
        assert reply.flags & Flag.FENCED


async def test_a_list_of_entries_is_refused(parts: Parts) -> None:
    parts.store(0, 2)
    parts.handle(list_request(1))
    assert parts.connection.replies[1].status == Status.UNKNOWN_LEDGER_STATE


async def test_a_long_poll_hears_news_and_never_that_there_is_none(parts: Parts) -> None:
    parts.store(0, 2)
    parts.store(2, 1)  # it carries LAC 1
    parts.handle(poll_request(1, -1, wait_ms=0), poll_request(2, 1, wait_ms=0))
    assert decode_lac_reply(parts.connection.replies[1].body).last_packet
    assert parts.connection.replies[2].status == Status.UNKNOWN_LEDGER_STATE


async def test_a_long_poll_that_waits_in_vain_ends_with_unknown(parts: Parts) -> None:
    parts.handle(poll_request(1, -1, wait_ms=1))
    reply = await parts.connection.wait_reply(1)
    assert reply.status == Status.UNKNOWN_LEDGER_STATE


async def test_the_first_real_key_replaces_the_empty_one_and_the_fence_stays(parts: Parts) -> None:
    parts.handle(add_request(1, LEDGER, 0))
    assert parts.connection.replies[1].status == Status.FENCED
    parts.store(0, 1)
    assert parts.storage.states[LEDGER] == LedgerState(KEY, True, -1, limbo=True)


async def test_a_ledger_that_left_limbo_denies_again(parts: Parts) -> None:
    parts.store(0, 2)
    parts.ledgers.leave_limbo(LEDGER, KEY)
    assert not parts.storage.states[LEDGER].limbo
    assert parts.storage.states[LEDGER].fenced
    parts.handle(read_request(1, LEDGER, 2), list_request(2), read_lac_request(3, LEDGER))
    assert parts.connection.replies[1].status == Status.NO_SUCH_ENTRY
    page = decode_entry_list((await parts.connection.wait_reply(2)).body)
    assert page.entry_ids() == [0, 1]
    assert parts.connection.replies[3].status == Status.OK


async def test_a_read_that_began_in_limbo_denies_nothing_when_it_ends_after_it(
    parts: Parts,
) -> None:
    """The read may have looked before the repair stored what it asked for."""
    parts.storage.is_slow = True
    parts.handle(read_request(1, LEDGER, 0))
    parts.ledgers.leave_limbo(LEDGER, KEY)
    reply = await parts.connection.wait_reply(1)
    assert reply.status == Status.UNKNOWN_LEDGER_STATE


# Ledgers that the bookie does not know any more


def write_lac_request(request_id: int, ledger_id: int) -> Frame:
    body = KEY + packet_codec(ledger_id).seal_lac(0)
    return Frame(Op.WRITE_LAC, False, 0, 0, request_id, ledger_id, 0, body)


async def test_d16_what_was_not_open_before_a_loss_takes_no_ordinary_adds() -> None:
    parts = Parts(horizon=LossHorizon(9, frozenset({8})))
    parts.handle(
        add_request(1, 6, 0), add_request(2, 8, 0), add_request(3, 10, 0), write_lac_request(4, 6)
    )
    parts.journal.commit()
    status = {each: reply.status for each, reply in parts.connection.replies.items()}
    assert status == {1: Status.FENCED, 2: Status.OK, 3: Status.OK, 4: Status.FENCED}
    # Re-replication may bring it back; a writer that paused all the while may not.
    parts.handle(add_request(5, 6, 0, flags=Flag.RECOVERY), add_request(6, 6, 1))
    parts.journal.commit()
    assert parts.connection.replies[5].status == Status.OK
    assert parts.connection.replies[6].status == Status.FENCED


async def test_what_may_have_been_known_before_a_loss_is_not_denied() -> None:
    parts = Parts(horizon=LossHorizon(9, frozenset({8})))
    for at, ledger_id in ((10, 6), (20, 8), (30, 10)):
        parts.handle(read_request(at, ledger_id, 0), read_lac_request(at + 1, ledger_id))
    status = {each: reply.status for each, reply in parts.connection.replies.items()}
    unknown, absent = Status.UNKNOWN_LEDGER_STATE, Status.NO_SUCH_LEDGER
    assert status == {10: unknown, 11: unknown, 20: absent, 21: absent, 30: absent, 31: absent}


async def test_what_comes_back_after_a_loss_is_listed_and_what_it_lacks_is_denied() -> None:
    """Else re-replication would never know whether its copy is whole, nor complete it."""
    parts = Parts(horizon=LossHorizon(9))
    parts.handle(list_request(1, 6))
    assert parts.connection.replies[1].status == Status.UNKNOWN_LEDGER_STATE
    parts.handle(add_request(2, 6, 3, flags=Flag.RECOVERY))
    parts.journal.commit()
    parts.handle(list_request(3, 6), read_request(4, 6, 0))
    page = decode_entry_list((await parts.connection.wait_reply(3)).body)
    assert page.entry_ids() == [3]
    assert parts.connection.replies[4].status == Status.NO_SUCH_ENTRY


async def test_a_ledger_that_left_limbo_is_read_with_its_key_only(parts: Parts) -> None:
    """In limbo nobody may know the key; who looked at all of the ledger knows it."""
    parts.handle(read_request(1, LEDGER, 0, key=OTHER_KEY))
    assert parts.connection.replies[1].status == Status.UNKNOWN_LEDGER_STATE
    parts.ledgers.leave_limbo(LEDGER, KEY)
    assert parts.storage.states[LEDGER].master_key == KEY
    parts.handle(read_request(2, LEDGER, 0, key=OTHER_KEY), read_request(3, LEDGER, 0))
    assert parts.connection.replies[2].status == Status.UNAUTHORIZED
    assert parts.connection.replies[3].status == Status.NO_SUCH_ENTRY


async def test_a_key_that_is_known_is_not_replaced_by_leaving_limbo(parts: Parts) -> None:
    parts.store(0, 2)
    parts.ledgers.leave_limbo(LEDGER, OTHER_KEY)
    assert parts.storage.states[LEDGER].master_key == KEY
