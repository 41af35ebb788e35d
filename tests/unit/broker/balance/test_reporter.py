"""The shell around a broker's own load: what must not end it."""

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import cast

from pydantic import JsonValue

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.balance.bundles import BundleError, BundleId, Layout
from magnetar.broker.cluster.balance.layouts import Layouts
from magnetar.broker.cluster.balance.reporter import LoadReporter
from magnetar.broker.cluster.balance.sampler import ProcessUsage
from magnetar.broker.topic import Topic
from magnetar.ledger.system import SystemClock
from magnetar.sdk.wire import TopicName
from tests.dictionary_store import DictionaryStore

FIRST, OTHER = [BundleId("public/default", bundle) for bundle in Layout.even(2).bundles]
WAIT_S = 10.0


class Subscriptions(dict[str, object]):
    def sent(self) -> tuple[int, int]:
        return 0, 0


def topic(name: str) -> Topic:
    made = SimpleNamespace(
        name=TopicName.parse(f"persistent://public/default/{name}"),
        producers={},
        subscriptions=Subscriptions(),
        line=SimpleNamespace(messages_in=0, bytes_in=0),
    )
    return cast(Topic, made)


class SplitMeanwhile:
    """Owns two bundles, of which somebody else has split the first."""

    def __init__(self) -> None:
        self.tried: asyncio.Queue[BundleId] = asyncio.Queue()

    def owned(self) -> Sequence[BundleId]:
        return [FIRST, OTHER]

    async def update_load(self, load: Mapping[str, JsonValue]) -> None: ...

    async def split_lease(self, bundle: BundleId, at: int) -> object:
        self.tried.put_nowait(bundle)
        if bundle == FIRST:
            raise BundleError(f"there is no bundle {bundle} in this layout")
        return None


async def test_a_bundle_that_was_split_meanwhile_ends_neither_reports_nor_other_splits() -> None:
    holder = SplitMeanwhile()
    topics = [topic(f"t-{number}") for number in range(20)]
    reporter = LoadReporter(
        holder,
        Layouts(DictionaryStore(), bundles_default=2, bundles_max=8),
        lambda: topics,
        settings=BrokerSettings(bundle_topics_max=1, load_sample_interval_ms=10),
        usage=lambda: ProcessUsage(0.0, 0),
        connections=lambda: 0,
        clock=SystemClock(),
    )
    reporter.start()
    async with asyncio.timeout(WAIT_S):
        assert [await holder.tried.get() for _ in range(4)] == [FIRST, OTHER] * 2
    await reporter.close()


async def test_an_unexpected_error_does_not_end_the_samples() -> None:
    samples: asyncio.Queue[None] = asyncio.Queue()

    def usage() -> ProcessUsage:
        samples.put_nowait(None)
        raise KeyError("a defect")

    reporter = LoadReporter(
        SplitMeanwhile(),
        Layouts(DictionaryStore(), bundles_default=2, bundles_max=8),
        list,
        settings=BrokerSettings(load_sample_interval_ms=10),
        usage=usage,
        connections=lambda: 0,
        clock=SystemClock(),
    )
    reporter.start()
    async with asyncio.timeout(WAIT_S):
        for _ in range(3):
            await samples.get()
    await reporter.close()
