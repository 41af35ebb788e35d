"""Participants of transactions that do not answer keep no place from others."""

import asyncio
from typing import cast

from magnetar.broker.base.errors import BrokerPersistenceError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.features.transactions.ids import TransactionId
from magnetar.broker.features.transactions.messenger import Messenger
from magnetar.broker.topics import Topics
from magnetar.sdk.connection import Connection
from magnetar.sdk.wire import TopicName

AT_ONCE = 8
BAD, SILENT, GOOD = (f"persistent://public/default/{name}" for name in ("bad", "silent", "good"))


class Place:
    """A topic, its transactions, and their buffer: what is told of ends."""

    def __init__(self, name: str) -> None:
        self.buffer = self
        self.name = name
        self.asked = 0

    def find(self, _kind: object) -> "Place":
        return self

    async def end(self, txn: TransactionId, *, commits: bool, low_watermark: int) -> None:
        self.asked += 1
        if self.name == BAD:
            raise BrokerPersistenceError("not now")
        if self.name == SILENT:
            await asyncio.Event().wait()


class Served:
    """The topics of a broker that owns all of them."""

    def __init__(self) -> None:
        self.places = {name: Place(name) for name in (BAD, SILENT, GOOD)}

    def served(self, name: TopicName) -> Place:
        return self.places[str(name)]


async def nobody(name: TopicName) -> Connection:
    raise AssertionError("all are served here")


async def tell_beside(topic: str, *, retry_ms: int) -> Served:
    """Tell `GOOD` once, while many more ends than there are places wait for another topic."""
    served = Served()
    settings = BrokerSettings(
        transaction_end_timeout_ms=60_000,
        transaction_retry_ms=retry_ms,
        transaction_retry_ms_max=retry_ms,
        transaction_ends_at_once=AT_ONCE,
    )
    messenger = Messenger(cast(Topics, served), nobody, settings)

    async def tell(topic: str, number: int) -> None:
        await messenger.end_on_topic(topic, TransactionId(0, number), commits=True, low_watermark=0)

    others = [asyncio.ensure_future(tell(topic, number)) for number in range(10 * AT_ONCE)]
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        await tell(GOOD, 1000)
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    return served


async def test_one_that_refuses_for_long_stops_nobody_elses_ends() -> None:
    served = await tell_beside(BAD, retry_ms=60_000)
    assert served.places[GOOD].asked == 1


async def test_one_that_does_not_answer_has_a_quarter_of_the_places() -> None:
    served = await tell_beside(SILENT, retry_ms=60_000)
    assert served.places[GOOD].asked == 1
    assert served.places[SILENT].asked == AT_ONCE // 4
