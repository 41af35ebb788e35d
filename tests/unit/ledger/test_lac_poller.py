"""Waiting for a LAC, with the bookies' answers made by the test."""

import asyncio
from dataclasses import replace
from typing import cast

import pytest

from magnetar.ledger.channel import ChannelPool
from magnetar.ledger.digest import packet_codec
from magnetar.ledger.errors import BookieUnavailableError, LedgerClosedError
from magnetar.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.ledger.reading.entry_fetcher import OnReply
from magnetar.ledger.reading.lac_poller import LacPoller
from magnetar.ledger.reading.read_bound import ReadBound
from magnetar.ledger.settings import LedgerSettings
from magnetar.ledger.system import SystemClock
from magnetar.ledger.wire import Flag, Frame, Op, Status, encode_block
from magnetar.ledger.wire_bodies import LongPoll, decode_long_poll, encode_lac_reply
from tests.waiting import until

LEDGER = 7
CODEC = packet_codec(LEDGER)
METADATA = LedgerMetadata(
    ledger_id=LEDGER,
    ensemble_size=3,
    write_quorum=3,
    ack_quorum=2,
    state=LedgerState.OPEN,
    last_entry_id=-1,
    length=0,
    ensembles=(Fragment(0, ("a", "b", "c")),),
    created_ms=0,
    creation_token=1,
)
SETTINGS = LedgerSettings(
    request_timeout_s=10, long_poll_first_ms=100, long_poll_ms_max=350, reconnect_delay_s=0.01
)


class HandClock(SystemClock):
    """Stands until it is moved."""

    now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s


class Polls:
    """A poller, and the requests it has sent that are not answered."""

    def __init__(self, settings: LedgerSettings = SETTINGS, *, ack_quorum: int = 2) -> None:
        self.clock = HandClock()
        self.waiting: dict[str, list[tuple[LongPoll, OnReply]]] = {}
        self.sent: list[tuple[str, LongPoll]] = []
        self.entries: list[tuple[int, list[bytes]]] = []
        self.bound = ReadBound(METADATA)
        self.poller = LacPoller(
            replace(METADATA, ack_quorum=ack_quorum),
            CODEC,
            self.bound,
            channels=cast(ChannelPool, self),
            clock=self.clock,
            settings=settings,
            order=sorted,
            on_entries=lambda first, payloads: self.entries.append((first, payloads)),
        )

    def get(self, bookie_id: str) -> "_Channel":
        return _Channel(self, bookie_id)

    def wait(self, entry_id: int = -1, timeout_s: float = 60.0) -> "asyncio.Task[None]":
        return asyncio.ensure_future(self.poller.wait_beyond(entry_id, timeout_s))

    def time_is_up(self) -> None:
        """For all that wait, before their timers say so."""
        for waiter in list(self.poller._waiters):
            self.poller._on_time_up(waiter)

    async def polled(self, *bookies: str) -> None:
        """Wait until exactly these have a request."""
        await until(lambda: tuple(sorted(self.waiting)) == bookies)

    def reply(
        self,
        bookie_id: str,
        *,
        lac: int | None = None,
        status: Status = Status.OK,
        body: bytes | None = None,
        is_lost: bool = False,
    ) -> None:
        _, on_reply = self.waiting[bookie_id].pop(0)
        if not self.waiting[bookie_id]:
            del self.waiting[bookie_id]
        if is_lost:
            on_reply(BookieUnavailableError(f"{bookie_id} is away"))
            return
        if body is None:
            body = encode_lac_reply(b"", b"" if lac is None else CODEC.seal_lac(lac))
        on_reply(Frame(Op.READ_LAC, True, 0, status, 0, LEDGER, -1, body))


class _Channel:
    def __init__(self, polls: Polls, bookie_id: str) -> None:
        self._polls = polls
        self._bookie_id = bookie_id

    def send(
        self, op: int, body: tuple[bytes], on_reply: OnReply, *, ledger_id: int, flags: int
    ) -> None:
        assert (op, ledger_id, flags) == (Op.READ_LAC, LEDGER, Flag.LONG_POLL)
        poll = decode_long_poll(body[0])
        self._polls.sent.append((self._bookie_id, poll))
        self._polls.waiting.setdefault(self._bookie_id, []).append((poll, on_reply))


async def test_e_minus_qa_plus_1_members_are_polled_and_news_of_one_is_enough() -> None:
    polls = Polls()
    waiting = polls.wait()
    await polls.polled("a", "b")
    assert [poll.wait_ms for _, poll in polls.sent] == [100, 100]
    polls.reply("b", lac=3)
    await waiting
    assert polls.bound.last_entry_id == 3


async def test_late_news_count_even_when_nobody_waits() -> None:
    polls = Polls()
    waiting = polls.wait()
    await polls.polled("a", "b")
    polls.reply("b", lac=3)
    await waiting
    polls.reply("a", lac=5)
    assert polls.bound.last_entry_id == 5
    assert polls.waiting == {}
    await polls.poller.wait_beyond(4, 60.0)


async def test_waits_of_a_handle_share_the_polls() -> None:
    polls = Polls()
    first, second = polls.wait(-1), polls.wait(4)
    await polls.polled("a", "b")
    await asyncio.sleep(0)
    assert len(polls.sent) == 2
    polls.reply("a", lac=2)
    await first
    assert not second.done()
    await polls.polled("a", "b")
    assert polls.sent[-1] == ("a", LongPoll(2, 100, SETTINGS.long_poll_entries_bytes))
    polls.reply("b", lac=5)
    await second


async def test_after_nothing_new_a_poll_lasts_twice_as_long_up_to_a_bound() -> None:
    short = SETTINGS.model_copy(update={"long_poll_first_ms": 4, "long_poll_ms_max": 14})
    polls = Polls(short, ack_quorum=1)
    polls.wait(0)
    waits: list[int] = []
    for _ in range(4):
        await polls.polled("a", "b", "c")
        waits.append(polls.waiting["a"][0][0].wait_ms)
        polls.reply("a")
        polls.clock.now_s += 0.014
    assert waits == [4, 8, 14, 14]
    await polls.polled("a", "b", "c")
    polls.reply("a", lac=0)  # news, though not enough
    assert polls.waiting["a"][0][0].wait_ms == 4
    polls.poller.fail(LedgerClosedError("the test is over"))


async def test_a_poll_ends_well_before_its_request_times_out() -> None:
    polls = Polls(LedgerSettings(request_timeout_s=1))
    polls.wait()
    await polls.polled("a", "b")
    assert polls.waiting["a"][0][0].wait_ms == 800
    polls.poller.fail(LedgerClosedError("the test is over"))


async def test_a_bookie_that_allows_less_time_is_not_asked_more_often() -> None:
    polls = Polls()
    polls.wait()
    await polls.polled("a", "b")
    polls.reply("a")  # at once, instead of after 100 ms
    assert "a" not in polls.waiting
    assert "c" in polls.waiting
    polls.reply("c", status=Status.NO_SUCH_LEDGER)
    assert tuple(polls.waiting) == ("b",)
    polls.clock.now_s += 0.1
    await polls.polled("a", "b")
    polls.poller.fail(LedgerClosedError("the test is over"))


@pytest.mark.parametrize("kind", ["lost", "refused", "damaged", "unproven", "malformed"])
async def test_who_cannot_tell_makes_way_for_another(kind: str) -> None:
    polls = Polls()
    polls.wait(9)
    polls.bound.learn(5)
    await polls.polled("a", "b")
    if kind == "lost":
        polls.reply("a", is_lost=True)
    elif kind == "refused":
        polls.reply("a", status=Status.TOO_MANY_REQUESTS)
    elif kind == "damaged":
        polls.reply("a", body=encode_lac_reply(b"", CODEC.seal_lac(9)[:-1] + b"x"))
    elif kind == "unproven":
        polls.reply("a", lac=2)
    else:
        polls.reply("a", body=b"\0\0\0\1")
    await polls.polled("b", "c")
    assert polls.bound.last_entry_id == 5
    polls.poller.fail(LedgerClosedError("the test is over"))


async def test_a_member_that_failed_is_asked_again() -> None:
    polls = Polls()
    polls.wait()
    await polls.polled("a", "b")
    for bookie_id in ("a", "b", "c"):
        polls.reply(bookie_id, is_lost=True)
    assert polls.waiting == {}
    polls.clock.now_s += SETTINGS.reconnect_delay_s
    await polls.polled("a", "b")
    polls.poller.fail(LedgerClosedError("the test is over"))


async def test_entries_that_come_along_are_checked_and_clipped_to_the_lac() -> None:
    polls = Polls()
    waiting = polls.wait()
    await polls.polled("a", "b")
    assert polls.waiting["b"][0][0].entries_bytes_max == 0, "one copy is enough"
    block = encode_block(CODEC.seal(0, -1, 0, [b"0", b"1", b"2", b"3"])).data
    polls.reply("a", body=encode_lac_reply(b"", CODEC.seal_lac(2), block))
    await waiting
    assert polls.entries == [(0, [b"0", b"1", b"2"])]


async def test_a_damaged_entry_that_comes_along_is_not_taken() -> None:
    polls = Polls()
    waiting = polls.wait()
    await polls.polled("a", "b")
    packets = CODEC.seal(0, -1, 0, [b"0", b"1", b"2"])
    packets[1] = packets[1][:-1] + b"x"
    block = encode_block(packets).data
    polls.reply("a", body=encode_lac_reply(b"", CODEC.seal_lac(2), block))
    await waiting
    assert polls.entries == [(0, [b"0"])]


async def test_a_wait_ends_when_enough_members_had_nothing() -> None:
    polls = Polls()
    waiting = polls.wait()
    await polls.polled("a", "b")
    polls.reply("b")
    await polls.polled("a", "c")
    polls.time_is_up()  # those that said nothing yet are asked without waiting
    assert [poll.wait_ms for _, poll in polls.sent[-2:]] == [0, 0]
    assert not waiting.done()
    polls.waiting["c"].pop(0)
    polls.reply("c")
    await waiting
    assert polls.bound.last_entry_id == -1


async def test_a_wait_whose_end_nobody_confirms_is_an_error() -> None:
    polls = Polls()
    waiting = polls.wait(timeout_s=0.01)
    with pytest.raises(BookieUnavailableError, match="only 0 of 3 bookies told, 2 are needed"):
        await waiting


async def test_a_new_ensemble_is_polled_and_the_old_ones_answers_still_count() -> None:
    polls = Polls()
    waiting = polls.wait()
    await polls.polled("a", "b")
    polls.poller.use_ensemble(("c", "d", "e"))
    assert {"c", "d"} <= set(polls.waiting)
    polls.reply("a", lac=1)
    await waiting
    assert polls.bound.last_entry_id == 1


async def test_the_end_of_the_ledger_ends_the_wait() -> None:
    polls = Polls()
    waiting = polls.wait(5)
    await polls.polled("a", "b")
    polls.bound.adopt(replace(METADATA, state=LedgerState.CLOSED, last_entry_id=3, length=9))
    polls.poller.on_bound_moved()
    await waiting


async def test_a_cancelled_wait_leaves_no_timer() -> None:
    polls = Polls()
    waiting = polls.wait()
    await polls.polled("a", "b")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    for bookie_id in ("a", "b"):
        polls.reply(bookie_id)
    assert polls.waiting == {}
