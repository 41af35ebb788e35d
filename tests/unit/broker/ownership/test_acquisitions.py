"""Waiting for the right to load: one look for all topics of a bundle, and none that is too old."""

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

from magnetar.broker.base.errors import BrokerMetadataError, ServiceNotReadyError
from magnetar.broker.cluster.balance.bundles import Bundle, BundleId
from magnetar.broker.cluster.ownership.acquisitions import Acquisitions, NotYet
from magnetar.broker.cluster.ownership.changes import Changes
from tests.waiting import settle

BUNDLE = BundleId("public/default", Bundle(0, 0x80000000))
OTHER = BundleId("public/default", Bundle(0x80000000, 0xFFFFFFFF))
NEVER_S = 60.0
"""Nothing that a test waits for takes this long."""


class Looks:
    """Looks that a test answers, one after the other."""

    def __init__(self) -> None:
        self.begun: list[BundleId] = []
        self._answers: asyncio.Queue[Callable[[], str | NotYet]] = asyncio.Queue()

    async def __call__(self, bundle: BundleId) -> str | NotYet:
        self.begun.append(bundle)
        return (await self._answers.get())()

    def answer(self, found: str | NotYet | Exception) -> None:
        def give() -> str | NotYet:
            if isinstance(found, Exception):
                raise found
            return found

        self._answers.put_nowait(give)


@pytest.fixture
def looks() -> Looks:
    return Looks()


@pytest.fixture
def changes() -> Changes:
    return Changes()


@pytest.fixture
def acquisitions(looks: Looks, changes: Changes) -> Acquisitions[str]:
    return Acquisitions[str](looks, changes=changes, retry_s=NEVER_S)


def ask(acquisitions: Acquisitions[str], times: int) -> list["asyncio.Task[str | NotYet]"]:
    return [asyncio.create_task(acquisitions.get(BUNDLE, timeout_s=NEVER_S)) for _ in range(times)]


async def test_one_look_serves_all_who_asked_before_it(
    looks: Looks, acquisitions: Acquisitions[str]
) -> None:
    asked = ask(acquisitions, 1000)
    looks.answer("ours")
    assert await asyncio.gather(*asked) == ["ours"] * 1000
    assert looks.begun == [BUNDLE]


async def test_m20_who_asks_during_a_look_gets_the_next_one(
    looks: Looks, acquisitions: Acquisitions[str]
) -> None:
    early = ask(acquisitions, 1)
    await settle()
    late = ask(acquisitions, 2)
    await settle()
    looks.answer("first")
    await settle()
    assert early[0].result() == "first"
    assert not any(each.done() for each in late)
    looks.answer("second")
    assert await asyncio.gather(*late) == ["second"] * 2
    assert looks.begun == [BUNDLE] * 2


async def test_a_change_has_all_who_wait_looked_after_once(
    looks: Looks, acquisitions: Acquisitions[str], changes: Changes
) -> None:
    asked = ask(acquisitions, 100)
    looks.answer(NotYet("not handed over yet"))
    await settle()
    asked += ask(acquisitions, 100)
    await settle()
    assert len(looks.begun) == 1
    looks.answer("ours")
    changes.tell()
    assert await asyncio.gather(*asked) == ["ours"] * 200
    assert len(looks.begun) == 2


async def test_without_a_change_it_is_looked_again_after_the_retry_time(
    looks: Looks, changes: Changes
) -> None:
    acquisitions = Acquisitions[str](looks, changes=changes, retry_s=0.001)
    asked = ask(acquisitions, 2)
    looks.answer(NotYet("not yet"))
    looks.answer(BrokerMetadataError("the store does not answer"))
    looks.answer("ours")
    assert await asyncio.gather(*asked) == ["ours"] * 2


async def test_a_refusal_reaches_everybody_who_asked(
    looks: Looks, acquisitions: Acquisitions[str]
) -> None:
    asked = ask(acquisitions, 3)
    looks.answer(ServiceNotReadyError("it is elsewhere"))
    results = await asyncio.gather(*asked, return_exceptions=True)
    assert [str(result) for result in results] == ["it is elsewhere"] * 3


async def test_a_bug_in_a_look_leaves_nobody_waiting(
    looks: Looks, acquisitions: Acquisitions[str]
) -> None:
    asked = ask(acquisitions, 2)
    looks.answer(KeyError("bug"))
    results = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(result) for result in results] == [KeyError] * 2
    looks.answer("ours")
    assert await acquisitions.get(BUNDLE, timeout_s=NEVER_S) == "ours"


async def test_who_has_waited_long_enough_hears_why(
    looks: Looks, acquisitions: Acquisitions[str]
) -> None:
    looks.answer(NotYet("b2 has not handed it over yet"))
    found = await acquisitions.get(BUNDLE, timeout_s=0.01)
    assert found == "b2 has not handed it over yet"
    assert isinstance(found, NotYet)


async def test_one_look_is_waited_for_however_short_the_time(
    looks: Looks, changes: Changes
) -> None:
    acquisitions = Acquisitions[str](looks, changes=changes, retry_s=0.001)
    for answer in (NotYet("not handed over yet"), "ours"):
        asked = asyncio.create_task(acquisitions.get(BUNDLE, timeout_s=0.0))
        await settle()
        await asyncio.sleep(0.01)
        assert not asked.done()
        looks.answer(answer)
        assert await asked == answer
        await settle()


async def test_an_error_that_comes_after_a_waiter_gave_up_is_reported_by_nobody(
    looks: Looks, changes: Changes
) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: reported.append(about))
    acquisitions = Acquisitions[str](looks, changes=changes, retry_s=0.001)
    looks.answer(NotYet("not handed over yet"))
    gave_up = asyncio.create_task(acquisitions.get(BUNDLE, timeout_s=0.05))
    cancelled = ask(acquisitions, 1)[0]
    assert await gave_up == "not handed over yet"  # the second look has begun
    cancelled.cancel()
    await settle()
    looks.answer(ServiceNotReadyError("no contact with the metadata store"))
    await settle()
    del gave_up, cancelled
    gc.collect()
    await settle()
    assert reported == []


async def test_bundles_do_not_wait_for_each_other(
    looks: Looks, acquisitions: Acquisitions[str]
) -> None:
    waiting = ask(acquisitions, 1)
    looks.answer(NotYet("not yet"))
    await settle()
    looks.answer("ours")
    assert await acquisitions.get(OTHER, timeout_s=NEVER_S) == "ours"
    assert not waiting[0].done()
    acquisitions.close()
    assert isinstance(
        (await asyncio.gather(*waiting, return_exceptions=True))[0], asyncio.CancelledError
    )
