"""Policies: limits, rates, quotas, TTL and retention hold on, whoever serves the topic."""

from collections.abc import Iterator

import pulsar

from tests.integration.broker.matrix.setting import (
    Case,
    Setting,
    acknowledge,
    assert_exact,
    is_refused,
    must_fail,
    of_one_key,
    send,
    take,
)
from tests.integration.pulsar_client.support import read_next
from tests.waiting import wait_until

RATE = 100
"""Messages a second."""


def limits(setting: Setting) -> Iterator[None]:
    """As many producers, consumers and subscriptions as may be; theirs stay."""
    shared = pulsar.ConsumerType.Shared
    setting.have_policies(maxProducers=1, maxConsumers=1, maxSubscriptionsPerTopic=1)
    consumer = setting.subscribe(shared)
    producer = setting.producer()

    def check() -> None:
        must_fail(pulsar.ProducerBusy, setting.producer)
        must_fail(pulsar.ConsumerBusy, lambda: setting.subscribe(shared))
        must_fail(pulsar.PulsarException, lambda: setting.subscribe(shared, name="other"))

    check()
    yield
    send(producer, range(10))
    acknowledge(consumer, take(consumer, 10))
    check()


def rates(setting: Setting) -> Iterator[None]:
    """Publishing and delivery are held up, and everything comes."""
    setting.have_policies(
        publishRate={"publishThrottlingRateInMsg": RATE, "publishThrottlingRateInByte": -1},
        dispatchRate={
            "dispatchThrottlingRateInMsg": RATE,
            "dispatchThrottlingRateInByte": -1,
            "ratePeriodInSecond": 1,
            "relativeToPublishRate": False,
        },
    )
    consumer = setting.subscribe()
    producer = setting.producer()
    numbers = of_one_key(RATE + RATE // 2)

    def are_held_up() -> bool:
        stats = setting.stats()
        stops = "dispatchThrottledMsgEventsByTopicLimit"
        return any(each["publishRateLimitedTimes"] for each in stats) and any(
            each["subscriptions"]["s"][stops] for each in stats
        )

    def publish_until_held_up() -> None:
        while True:
            send(producer, numbers)
            messages = take(consumer, len(numbers))
            acknowledge(consumer, messages)
            assert_exact(messages, numbers)
            if are_held_up():
                setting.settle()
                return

    publish_until_held_up()
    yield
    publish_until_held_up()  # The counters have begun anew.


def backlog_quota(setting: Setting) -> Iterator[None]:
    """Above it, producers are refused until the backlog is consumed."""
    setting.subscribe().close()
    producer = setting.producer()
    numbers = of_one_key(60)
    send(producer, numbers)
    producer.close()
    setting.have_policies(backlogQuota={"limitSize": 500, "policy": "producer_exception"})

    def refused() -> bool:
        return is_refused(pulsar.ProducerBlockedQuotaExceededException, setting.producer)

    wait_until(refused, "the quota counts")
    yield
    wait_until(refused, "the quota counts")
    consumer = setting.subscribe()
    messages = take(consumer, len(numbers))
    acknowledge(consumer, messages)
    assert_exact(messages, numbers)
    wait_until(lambda: not refused(), "there is room again")


def time_to_live(setting: Setting) -> Iterator[None]:
    """What nobody consumed in time is not delivered any more."""
    setting.have_policies(messageTTL=1)
    setting.subscribe().close()
    producer = setting.producer()
    send(producer, range(20))
    wait_until(lambda: not setting.backlog(), "the backlog expires")
    yield
    send(producer, range(20, 40))
    wait_until(lambda: not setting.backlog(), "the backlog expires")
    setting.admin("DELETE", "/messageTTL")
    setting.admin("PUT", "/unload")
    send(producer, range(40, 45))
    consumer = setting.subscribe()
    assert_exact(take(consumer, 5), range(40, 45))


def retention(setting: Setting) -> Iterator[None]:
    """What is consumed stays for readers, also when the topic is trimmed."""
    setting.have_policies(retention={"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
    consumer = setting.subscribe()
    producer = setting.producer()
    send(producer, range(20))
    acknowledge(consumer, take(consumer, 20))
    setting.settle()
    yield
    send(producer, range(20, 40))  # in the next ledger
    acknowledge(consumer, take(consumer, 20))
    setting.settle()
    for part in setting.parts:
        setting.admin("POST", "/trim", topic=part)
    reader = setting.reader()
    assert_exact([read_next(reader) for _ in range(40)], range(40))


CASES: dict[str, Case] = {
    case.__name__: case for case in (limits, rates, backlog_quota, time_to_live, retention)
}
