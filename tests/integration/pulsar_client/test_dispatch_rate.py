"""Dispatch rates, set over HTTP, with the official client; and why nothing flows meanwhile."""

import time

import pulsar
import pytest

from tests.http_calls import admin
from tests.integration.pulsar_client.support import publish, receive
from tests.standalone import Standalone


@pytest.mark.parametrize("policy", ["dispatchRate", "subscriptionDispatchRate"])
@pytest.mark.parametrize("batched", [False, True], ids=["plain", "batched"])
@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "KeyShared"])
def test_messages_come_at_the_rate_of_the_policy_and_not_faster(
    server: Standalone, client: pulsar.Client, topic: str, policy: str, batched: bool, kind: str
) -> None:
    path = topic.replace("://", "/")
    consumer_type = getattr(pulsar.ConsumerType, kind)
    client.subscribe(topic, "slow", consumer_type=consumer_type).close()
    producer = client.create_producer(
        topic, batching_enabled=batched, batching_max_messages=5, block_if_queue_full=True
    )
    payloads = [b"%d" % number for number in range(60)]
    # Forty at once, the rest at forty a second; a batch may be ahead of its time.
    takes_s = (60 - 40 - 5) / 40
    publish(producer, payloads)
    rate = {
        "dispatchThrottlingRateInMsg": 40,
        "dispatchThrottlingRateInByte": -1,
        "ratePeriodInSecond": 1,
        "relativeToPublishRate": False,
    }
    admin(server, "POST", f"{path}/{policy}", rate)
    started_s = time.monotonic()
    consumer = client.subscribe(topic, "slow", consumer_type=consumer_type)
    got = []
    for number in range(len(payloads)):
        message = receive(consumer)
        got.append(message.data())
        consumer.acknowledge(message)
        if number == 35:
            reason = admin(server, "GET", f"{path}/stats")["subscriptions"]["slow"]["whyIdle"]
            # After a pause of the machine nothing may be left that the rate holds back.
            assert reason in {"rate_limit", None} or time.monotonic() - started_s >= takes_s
    assert time.monotonic() - started_s >= takes_s
    assert got == payloads
    stops = f"dispatchThrottledMsgEventsBy{'Topic' if policy == 'dispatchRate' else 'Subscription'}"
    stats = admin(server, "GET", f"{path}/stats")["subscriptions"]["slow"]
    assert stats[f"{stops}Limit"] > 0
    admin(server, "DELETE", f"{path}/{policy}")
    publish(producer, payloads * 3)
    for payload in payloads * 3:
        message = receive(consumer)
        assert message.data() == payload
        consumer.acknowledge(message)
    consumer.close()
