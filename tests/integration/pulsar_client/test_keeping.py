"""What is kept and what goes, as the official client sees it: trimming, retention, TTL, quotas.

The server looks at its topics several times a second, and its ledgers hold ten entries.
"""

import itertools
from collections.abc import Iterator
from functools import partial

import pulsar
import pytest

from tests.http_calls import call, topic_path
from tests.integration.pulsar_client.support import (
    assert_nothing_left,
    publish,
    read_next,
    receive,
    receive_payloads,
)
from tests.standalone import Standalone
from tests.waiting import wait_until

_SETTINGS = {
    "LEDGER_ENTRIES_MAX": "10",
    "LEDGER_AGE_MIN_S": "0",
    "ACK_PERSIST_INTERVAL_MS": "50",
    "RETENTION_CHECK_INTERVAL_S": "0.2",
    "MESSAGE_EXPIRY_CHECK_INTERVAL_S": "0.2",
    "BACKLOG_QUOTA_CHECK_INTERVAL_S": "0.2",
}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("keeping") / "data", settings=_SETTINGS) as standalone:
        yield standalone
        assert standalone.terminate() == 0
        standalone.assert_log_clean()


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/kept-{next(_numbers)}"


def _admin(server: Standalone, method: str, topic: str, path: str, body: object = None) -> None:
    """An admin request about a topic, which must succeed."""
    call(server, method, f"{topic_path(topic)}/{path}", body, expect=204)


def _first(client: pulsar.Client, topic: str) -> bytes:
    """What a reader from the beginning is given first."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    data: bytes = read_next(reader).data()
    reader.close()
    return data


def _begins_later(client: pulsar.Client, topic: str) -> bool:
    """Whether the first message of the topic is gone."""
    return _first(client, topic) > b"0000"


def _backlog(server: Standalone, topic: str) -> float:
    labels = f'cluster="standalone",namespace="public/default",topic="{topic}",subscription="s"'
    line = f"pulsar_subscription_back_log{{{labels}}} "
    for each in call(server, "GET", "/metrics", expect=200).text.splitlines():
        if each.startswith(line):
            return float(each.removeprefix(line))
    raise AssertionError(f"no metric of {topic}")


def _payloads(count: int, *, begin: int = 0) -> list[bytes]:
    return [b"%04d" % number for number in range(begin, begin + count)]


def _fill(producer: pulsar.Producer, ledgers: int, *, begin: int = 0) -> list[list[bytes]]:
    """Publish until messages are in so many ledgers; the payloads, ledger by ledger.

    Two at a time: ledgers become full one by one, however slow it is to begin the next.
    """
    filled: dict[int, list[bytes]] = {}
    for number in itertools.count(begin, 2):
        payloads = _payloads(2, begin=number)
        ids = publish(producer, payloads)
        for message_id, payload in zip(ids, payloads, strict=True):
            filled.setdefault(message_id.ledger_id(), []).append(payload)
        if len(filled) >= ledgers:
            return list(filled.values())
    raise AssertionError


@pytest.mark.parametrize("batching", [False, True])
def test_consumed_ledgers_go_and_readers_begin_at_what_is_left(
    server: Standalone, client: pulsar.Client, topic: str, batching: bool
) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic,
        batching_enabled=batching,
        batching_max_messages=2,
        batching_max_publish_delay_ms=1,
    )
    filled = _fill(producer, 5)
    payloads = list(itertools.chain(*filled))
    assert receive_payloads(consumer, len(payloads)) == payloads
    wait_until(lambda: _first(client, topic) >= filled[3][0], "consumed ledgers go")
    # What is not consumed stays, wherever the topic is served.
    consumer.close()
    more = list(itertools.chain(*_fill(producer, 3, begin=len(payloads))))
    _admin(server, "PUT", topic, "unload")
    assert _first(client, topic) <= more[0]
    consumer = client.subscribe(topic, "s")
    assert receive_payloads(consumer, len(more)) == more
    assert_nothing_left(client, consumer, topic)


def test_a_subscription_keeps_what_it_has_not_acknowledged_over_restarts(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    slow = client.subscribe(topic, "slow")
    fast = client.subscribe(topic, "s")
    filled = _fill(client.create_producer(topic), 5)
    payloads = list(itertools.chain(*filled))
    passed = len(filled[0]) + len(filled[1]) + 1
    receive_payloads(fast, len(payloads))
    assert receive_payloads(slow, passed) == payloads[:passed]
    wait_until(lambda: _first(client, topic) == filled[2][0], "what both have consumed goes")
    slow.close()
    assert server.terminate() == 0
    server.start()
    assert _first(client, topic) == filled[2][0]
    slow = client.subscribe(topic, "slow")
    assert receive_payloads(slow, len(payloads) - passed) == payloads[passed:]


def test_what_is_retained_stays_although_it_is_consumed(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    kept, dropped = f"{topic}-kept", f"{topic}-dropped"
    for each in (kept, dropped):
        consumer = client.subscribe(each, "s")
        if each == kept:
            forever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
            _admin(server, "POST", kept, "retention", forever)
        filled = _fill(client.create_producer(each), 3)
        receive_payloads(consumer, sum(map(len, filled)))
    wait_until(lambda: _first(client, dropped) > b"0000", "what is not retained goes")
    assert _first(client, kept) == b"0000"
    _admin(server, "DELETE", kept, "retention")
    wait_until(lambda: _first(client, kept) > b"0000", "without retention it goes, too")


def test_messages_older_than_the_ttl_are_not_delivered_any_more(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    client.subscribe(topic, "s").close()
    producer = client.create_producer(topic)
    publish(producer, _payloads(25))
    _admin(server, "POST", topic, "messageTTL?messageTTL=1")
    wait_until(lambda: _backlog(server, topic) == 0, "the backlog expires")
    _admin(server, "PUT", topic, "unload")
    _admin(server, "POST", topic, "messageTTL?messageTTL=3600")
    consumer = client.subscribe(topic, "s")
    producer.send(b"fresh")
    assert receive(consumer).data() == b"fresh"


_REFUSALS = {
    "producer_request_hold": pulsar.ProducerBlockedQuotaExceededError,
    "producer_exception": pulsar.ProducerBlockedQuotaExceededException,
}


@pytest.mark.parametrize("policy", sorted(_REFUSALS))
def test_above_its_quota_a_topic_refuses_producers_until_the_backlog_is_consumed(
    server: Standalone, client: pulsar.Client, topic: str, policy: str
) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    publish(producer, _payloads(50))
    producer.close()
    _admin(server, "POST", topic, "backlogQuota", {"limitSize": 1000, "policy": policy})
    with pytest.raises(_REFUSALS[policy]):
        client.create_producer(topic)
    consumer.close()
    _admin(server, "PUT", topic, "unload")
    with pytest.raises(_REFUSALS[policy]):
        client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    assert receive_payloads(consumer, 50) == _payloads(50)
    wait_until(lambda: _backlog(server, topic) == 0, "everything is acknowledged")
    client.create_producer(topic).send(b"again")
    assert receive(consumer).data() == b"again"


def test_above_its_quota_a_topic_may_drop_the_oldest_messages(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    client.subscribe(topic, "s").close()
    producer = client.create_producer(topic)
    publish(producer, _payloads(100))
    whole = _backlog(server, topic)
    quota = {"limitSize": 1000, "policy": "consumer_backlog_eviction"}
    _admin(server, "POST", topic, "backlogQuota", quota)
    wait_until(lambda: _backlog(server, topic) < whole, "the oldest messages go")
    producer.send(b"last")
    consumer = client.subscribe(topic, "s")
    first = receive(consumer).data()
    assert first > b"0000"
    if first != b"last":
        while receive(consumer).data() != b"last":
            pass


def test_an_operator_truncates_and_resets(
    server: Standalone, client: pulsar.Client, topic: str
) -> None:
    client.subscribe(topic, "s").close()
    producer = client.create_producer(topic)
    _fill(producer, 3)
    _admin(server, "POST", topic, "subscription/s/skip_all")
    consumer = client.subscribe(topic, "s")
    assert_nothing_left(client, consumer, topic)
    _admin(server, "DELETE", topic, "truncate")
    producer.send(b"new")
    assert receive(consumer).data() == b"new"
    assert _first(client, topic) == b"new"
    _admin(server, "POST", topic, "subscription/s/resetcursor/0")
    assert receive(consumer).data() == b"new"
    assert consumer.subscription_name() == "s"


@pytest.mark.parametrize("batching", [False, True])
def test_partitions_are_trimmed_expire_and_have_quotas_of_their_own(
    server: Standalone, client: pulsar.Client, topic: str, batching: bool
) -> None:
    _admin(server, "PUT", topic, "partitions", 2)
    parts = [f"{topic}-partition-{index}" for index in range(2)]
    consumer = client.subscribe(topic, "s")
    producers = [client.create_producer(each, batching_enabled=batching) for each in parts]
    filled = [_fill(producer, 3) for producer in producers]
    count = sum(len(payloads) for ledgers in filled for payloads in ledgers)
    receive_payloads(consumer, count)
    for part in parts:
        wait_until(partial(_begins_later, client, part), "consumed ledgers of partitions go")
    consumer.close()
    quota = {"limitSize": 100, "policy": "producer_exception"}
    _admin(server, "POST", topic, "backlogQuota", quota)
    publish(producers[0], _payloads(50))
    _admin(server, "PUT", topic, "unload")
    with pytest.raises(pulsar.ProducerBlockedQuotaExceededException):
        client.create_producer(parts[0])
    client.create_producer(parts[1]).close()
    _admin(server, "POST", topic, "messageTTL?messageTTL=1")
    wait_until(lambda: _backlog(server, parts[0]) == 0, "the backlog of the partition expires")
    client.create_producer(parts[0]).close()
