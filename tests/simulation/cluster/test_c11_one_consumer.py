"""Exclusive subscriptions have one consumer (C11)."""

import pytest

from magnetar.sdk.errors import SdkError
from tests.simulation.cluster.cluster import Cluster, story


@story(brokers=1)
async def test_c11_a_second_consumer_is_refused(sim: Cluster) -> None:
    await sim.user("c").consumer("t")
    with pytest.raises(SdkError, match="exclusive"):
        await sim.user("d").consumer("t")
    await sim.inspect()
