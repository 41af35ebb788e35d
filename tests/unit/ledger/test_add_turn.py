"""Adds of many ledgers in one frame: who hears what of them."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest

from magnetar.ledger.channel import ChannelPool
from magnetar.ledger.errors import BookieProtocolError, BookieUnavailableError
from magnetar.ledger.settings import LedgerSettings
from magnetar.ledger.system import SystemClock, SystemNetwork
from magnetar.ledger.wire import Frame, Op, Status
from magnetar.ledger.wire_adds import ADD_HEAD, NO_ID, encode_outcome
from magnetar.ledger.writing.add_turn import AddFrame, AddMember, AddTurn, PendingAdd, SharedAdds

LEDGERS = (3, 5, 8)


def an_add(entry_id: int) -> list[PendingAdd]:
    add = PendingAdd(entry_id, entry_id, content=b"", size_bytes=0, length_after=0, callbacks=[])
    return [add]


class Ledgers:
    """One add of each ledger, all in one request; notes what each of them hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, str]] = []
        items = [
            (
                AddMember(
                    ledger,
                    on_stored=partial(self._on_stored, ledger),
                    on_reply=partial(self._on_reply, ledger),
                ),
                an_add(10 * ledger),
            )
            for ledger in LEDGERS
        ]
        self.request = SharedAdds(items, encode_outcome(ids_of(*LEDGERS)))

    def _on_stored(self, ledger: int, adds: list[PendingAdd]) -> None:
        assert adds[0].first_entry_id == 10 * ledger
        self.heard.append((ledger, "OK"))

    def _on_reply(
        self, ledger: int, adds: list[PendingAdd], reply: Frame | BookieUnavailableError
    ) -> None:
        assert adds[0].first_entry_id == 10 * ledger
        if isinstance(reply, BookieUnavailableError):
            self.heard.append((ledger, str(reply)))
        else:
            assert (reply.op, reply.ledger_id, reply.entry_id) == (Op.ADD, ledger, 10 * ledger)
            self.heard.append((ledger, f"{Status(reply.status).name} {reply.body.decode()}"))


def ids_of(*ledgers: int) -> list[int]:
    return [number for ledger in ledgers for number in (ledger, 10 * ledger)]


def reply(ids: Sequence[int], status: Status = Status.OK, text: bytes = b"") -> Frame:
    return Frame(Op.ADDS, True, 0, status, 1, NO_ID, NO_ID, encode_outcome(ids, text))


def test_one_reply_may_tell_of_all() -> None:
    ledgers = Ledgers()
    assert ledgers.request.on_frame(reply(ids_of(*LEDGERS)))
    assert ledgers.heard == [(3, "OK"), (5, "OK"), (8, "OK")]


def test_outcomes_may_come_one_by_one_and_differ() -> None:
    ledgers = Ledgers()
    assert not ledgers.request.on_frame(reply(ids_of(5), Status.FENCED, b"it is"))
    assert not ledgers.request.on_frame(reply(ids_of(8)))
    assert ledgers.request.on_frame(reply(ids_of(3)))
    assert ledgers.heard == [(5, "FENCED it is"), (8, "OK"), (3, "OK")]


def test_those_without_an_answer_hear_of_the_end_and_no_other_does() -> None:
    ledgers = Ledgers()
    ledgers.request.on_frame(reply(ids_of(5)))
    ledgers.request.on_error(BookieUnavailableError("gone"))
    assert ledgers.heard == [(5, "OK"), (3, "gone"), (8, "gone")]


@pytest.mark.parametrize(
    "ids",
    [[], [3, 31], [4, 30], [*ids_of(3, 5), 8, 81], ids_of(3, 3)],
    ids=["none", "other entry", "other ledger", "all but one", "twice"],
)
def test_an_answer_to_another_add_counts_for_nobody(ids: list[int]) -> None:
    ledgers = Ledgers()
    with pytest.raises(BookieProtocolError):
        ledgers.request.on_frame(reply(ids))
    ledgers.request.on_error(BookieUnavailableError("given up"))
    assert ledgers.heard == [(ledger, "given up") for ledger in LEDGERS]


def test_an_add_that_was_answered_is_not_answered_again() -> None:
    ledgers = Ledgers()
    ledgers.request.on_frame(reply(ids_of(5)))
    with pytest.raises(BookieProtocolError):
        ledgers.request.on_frame(reply(ids_of(*LEDGERS)))


def test_a_reply_that_is_too_short_is_an_error() -> None:
    ledgers = Ledgers()
    frame = reply(ids_of(*LEDGERS))
    with pytest.raises(BookieProtocolError):
        ledgers.request.on_frame(frame._replace(body=frame.body[:-1]))


def cut(sizes: list[int], *, frame_bytes_max: int = 1 << 20) -> list[tuple[int, int]]:
    parts: list[bytes] = []
    for number, size in enumerate(sizes):
        parts += (ADD_HEAD.pack(number, 0, size, bytes(20)), bytes(size))
    registry: Any = Mock()
    pool = ChannelPool(registry, SystemNetwork(), SystemClock(), LedgerSettings())
    frames: list[AddFrame] = AddTurn(pool, frame_bytes_max)._cut(parts)
    for frame in frames:
        assert frame.is_alone == (frame.stop - frame.start == 1)
        assert frame.is_alone or sum(map(len, frame.body)) <= frame_bytes_max + 4
    return [(frame.start, frame.stop) for frame in frames]


def test_a_frame_has_a_bound_in_adds_and_in_bytes() -> None:
    assert cut([10] * 128) == [(0, 128)]
    assert cut([10] * 129) == [(0, 128), (128, 129)]
    assert cut([60_000] * 5, frame_bytes_max=200_000) == [(0, 3), (3, 5)]


def test_a_large_add_goes_alone() -> None:
    assert cut([10, 10, 70_000, 10, 70_000]) == [(0, 2), (2, 3), (3, 4), (4, 5)]
    assert cut([70_000]) == [(0, 1)]


class Bookies:
    """Channels to two bookies, which note what they send; the first fails as it is told."""

    def __init__(self) -> None:
        registry: Any = Mock()  # nobody is connected to
        pool = ChannelPool(registry, SystemNetwork(), SystemClock(), LedgerSettings())
        self.turns = AddTurn(pool, LedgerSettings().add_frame_bytes_max)
        self.sent: list[tuple[str, int]] = []
        self.heard: list[tuple[str, int, str]] = []
        self.reported: list[str] = []
        self.first_fails = False
        for name in ("b1", "b2"):
            pool.get(name).send = partial(self._send, name)  # type: ignore[method-assign]
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: self.reported.append(type(context["exception"]).__name__)
        )

    def _send(self, name: str, op: int, *_: object, **__: object) -> None:
        if name == "b1" and self.first_fails:
            raise MemoryError
        self.sent.append((name, op))

    async def turn(self, *, ledgers: int = 2) -> None:
        """Adds of so many ledgers to each bookie."""
        for name in ("b1", "b2"):
            for ledger in range(ledgers):
                on_reply = partial(self._on_reply, name, ledger)
                member = AddMember(ledger, on_stored=lambda adds: None, on_reply=on_reply)
                head = ADD_HEAD.pack(ledger, 0, 0, bytes(20))
                self.turns.queue_to(name).add(member, an_add(0), head, b"")
        await asyncio.sleep(0)

    def _on_reply(self, name: str, ledger: int, adds: list[PendingAdd], reply: object) -> None:
        self.heard.append((name, ledger, type(reply).__name__))


async def test_what_breaks_at_one_bookie_keeps_nothing_from_others_nor_from_later_turns() -> None:
    bookies = Bookies()
    bookies.first_fails = True
    await bookies.turn()
    assert bookies.sent == [("b2", Op.ADDS)]
    assert bookies.reported == ["MemoryError"]
    bookies.first_fails = False
    await bookies.turn()
    assert bookies.sent == [("b2", Op.ADDS), ("b1", Op.ADDS), ("b2", Op.ADDS)]


async def test_adds_of_which_no_frame_can_be_made_are_told() -> None:
    bookies = Bookies()
    cut, failures = bookies.turns._cut, iter([MemoryError()])

    def fail_once(parts: Sequence[bytes]) -> list[AddFrame]:
        for error in failures:
            raise error
        return cut(parts)

    bookies.turns._cut = fail_once  # type: ignore[method-assign]
    await bookies.turn()
    await asyncio.sleep(0)
    unheard = "BookieUnavailableError"
    assert bookies.heard == [("b1", 0, unheard), ("b1", 1, unheard)]
    assert bookies.sent == [("b2", Op.ADDS)]
    assert bookies.reported == ["MemoryError"]
