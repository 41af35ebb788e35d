"""Bookies are asked for their disks together, within a time limit, once for all who look."""

import asyncio

from magnetar.broker.http.bookie_disks import KEPT_S, BookieDisks
from magnetar.ledger.bookie_facts import BookieFacts
from magnetar.ledger.errors import BookieProtocolError, BookieUnavailableError
from magnetar.ledger.registration import BookieInfo
from tests.unit.broker.memory_log import ManualClock

NAMES = ("b1", "b2", "b3")


def registered() -> dict[str, BookieInfo]:
    return {name: BookieInfo(name, "127.0.0.1", 1, readonly=False) for name in NAMES}


async def test_a_bookie_that_hangs_or_fails_hides_no_other() -> None:
    async def ask(name: str) -> BookieFacts:
        if name == "b1":
            await asyncio.Event().wait()
        if name == "b2":
            raise BookieUnavailableError("bookie b2: cannot connect")
        return BookieFacts(writable=False, read_only_reasons=("a disk of the bookie is full",))

    found = await BookieDisks(registered, ask, clock=ManualClock(), answer_s_max=0.05).shown()
    assert [each.id for each in found] == list(NAMES)
    assert [each.problem for each in found] == [
        "no answer within 0.05 s",
        "bookie b2: cannot connect",
        "",
    ]
    assert [each.writable for each in found] == [None, None, False]
    assert found[2].read_only_reasons == ("a disk of the bookie is full",)


async def test_however_many_look_bookies_are_asked_once_in_a_while() -> None:
    asked: list[str] = []

    async def ask(name: str) -> BookieFacts:
        asked.append(name)
        await asyncio.sleep(0)
        raise BookieProtocolError("not an answer")

    clock = ManualClock()
    disks = BookieDisks(registered, ask, clock=clock)
    await asyncio.gather(*(disks.shown() for _ in range(5)))
    assert sorted(asked) == list(NAMES)
    clock.advance(int(KEPT_S * 1000))
    await disks.shown()
    assert len(asked) == 2 * len(NAMES)


async def test_without_bookies_nobody_is_asked() -> None:
    async def ask(name: str) -> BookieFacts:
        raise AssertionError(name)

    assert await BookieDisks(dict, ask, clock=ManualClock()).shown() == []
