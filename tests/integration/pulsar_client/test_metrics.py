"""What `/metrics` shows after a known load by the official client."""

from collections.abc import Callable, Iterator

import pulsar
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.http_calls import call
from tests.integration.pulsar_client.support import connect, receive
from tests.standalone import Standalone
from tests.waiting import wait_until

_SETTINGS = {
    "METRICS_TOPICS_MAX": "2",
    "METRICS_RATE_INTERVAL_MS": "300",
    "EXPOSE_CONSUMER_LEVEL_METRICS": "true",
    "ACK_PERSIST_INTERVAL_MS": "50",
}
_PREFIX = "persistent://public/default/"
_CLUSTER = {"cluster": "standalone"}
_NAMESPACE = _CLUSTER | {"namespace": "public/default"}
_MESSAGES, _ACKED, _BYTES = 20, 5, 300


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("metrics") / "data", settings=_SETTINGS) as standalone:
        yield standalone
        assert standalone.terminate() == 0
        standalone.assert_log_clean()


class _Page:
    """The samples of one page, which Prometheus' own parser could read."""

    def __init__(self, server: Standalone) -> None:
        text = call(server, "GET", "/metrics", expect=200).text
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def value(self, name: str, labels: dict[str, str]) -> float:
        return self.samples[name, frozenset(labels.items())]

    def of(self, labels: dict[str, str]) -> dict[str, float]:
        """Everything with exactly these labels."""
        wanted = frozenset(labels.items())
        return {name: value for (name, found), value in self.samples.items() if found == wanted}


def _page_with(server: Standalone, holds: Callable[[_Page], bool], what: str) -> _Page:
    pages: list[_Page] = []

    def is_so() -> bool:
        pages.append(_Page(server))
        return holds(pages[-1])

    wait_until(is_so, what)
    return pages[-1]


def test_values_after_a_load_and_the_bound_on_topics(server: Standalone) -> None:
    client = connect(server.url, log_path=server.log_path.with_suffix(".client.log"))
    try:
        _load_and_look(server, client)
        _look_at_the_bound(server, client)
    finally:
        client.close()


def _load_and_look(server: Standalone, client: pulsar.Client) -> None:
    topic = _PREFIX + "loaded"
    labels = _NAMESPACE | {"topic": topic}
    of_s, of_late = labels | {"subscription": "s"}, labels | {"subscription": "late"}
    client.subscribe(topic, "late").close()
    consumer = client.subscribe(
        topic, "s", consumer_type=pulsar.ConsumerType.Shared, consumer_name="c"
    )
    producer = client.create_producer(topic, batching_enabled=False)
    for _ in range(_MESSAGES):
        producer.send(b"x" * _BYTES)
    received = [receive(consumer) for _ in range(_MESSAGES)]
    for message in received[:_ACKED]:
        consumer.acknowledge(message)
    left = _MESSAGES - _ACKED
    page = _page_with(
        server,
        lambda page: page.value("pulsar_subscription_back_log", of_s) == left,
        "the acknowledgements are counted",
    )

    assert page.value("pulsar_topics_count", _NAMESPACE) == 1
    found = page.of(labels)
    stored = found["pulsar_storage_logical_size"]
    assert {name: found[name] for name in _EXPECTED} == _EXPECTED
    assert _MESSAGES * _BYTES < found["pulsar_in_bytes_total"] == found["pulsar_out_bytes_total"]
    assert stored >= found["pulsar_in_bytes_total"]
    assert found["pulsar_storage_size"] == stored, "there is one copy"
    assert 0 < found["pulsar_storage_backlog_size"] <= stored

    subscription = page.of(of_s)
    assert subscription["pulsar_subscription_unacked_messages"] == left
    assert subscription["pulsar_subscription_back_log_no_delayed"] == left
    assert subscription["pulsar_subscription_blocked_on_unacked_messages"] == 0
    assert subscription["pulsar_subscription_delayed"] == 0
    assert subscription["pulsar_subscription_consumers_count"] == 1
    late = page.of(of_late)
    assert late["pulsar_subscription_back_log"] == _MESSAGES
    assert late["pulsar_subscription_consumers_count"] == 0
    (of_consumer,) = [
        dict(each) for name, each in page.samples if name == "pulsar_consumer_available_permits"
    ]
    assert of_consumer | {"consumer_id": ""} == of_s | {"consumer_name": "c", "consumer_id": ""}
    assert page.value("pulsar_consumer_unacked_messages", of_consumer) == left

    broker = page.of(_CLUSTER)
    assert broker["pulsar_broker_topics_count"] == 1
    assert broker["pulsar_broker_msg_backlog"] == _MESSAGES + left
    assert broker["pulsar_broker_storage_logical_size"] == stored
    assert broker["pulsar_ml_cache_inserted_entries_total"] == _MESSAGES
    assert page.value("bookie_ledgers_count", {"bookie": "bookie-1"}) >= 1

    def has_rates(page: _Page) -> bool:
        producer.send(b"x" * _BYTES)
        return (
            page.value("pulsar_rate_in", labels) > 0
            and page.value("pulsar_subscription_msg_rate_out", of_s) > 0
            and page.value("pulsar_broker_throughput_out", _CLUSTER) > 0
            and page.value("pulsar_storage_write_latency_count", _CLUSTER) > 0
            and page.value("pulsar_entry_size_le_512", _CLUSTER) > 0
        )

    _page_with(server, has_rates, "rates of what is being sent")


_EXPECTED = {
    "pulsar_subscriptions_count": 2,
    "pulsar_producers_count": 1,
    "pulsar_consumers_count": 1,
    "pulsar_in_messages_total": _MESSAGES,
    "pulsar_out_messages_total": _MESSAGES,
    "pulsar_msg_backlog": 2 * _MESSAGES - _ACKED,
    "pulsar_publish_rate_limit_times": 0,
    "pulsar_delayed_message_index_size_bytes": 0,
    "magnetar_topic_publish_failures_total": 0,
}


def _look_at_the_bound(server: Standalone, client: pulsar.Client) -> None:
    for number in range(4):
        client.create_producer(f"{_PREFIX}more-{number}", batching_enabled=False).send(b"x")
    page = _Page(server)
    topics = {
        dict(labels).get("topic")
        for name, labels in page.samples
        if name == "pulsar_in_messages_total"
    }
    assert topics == {_PREFIX + "loaded", _PREFIX + "more-0", None}
    assert page.value("magnetar_metrics_topics_left_out", {}) == 3
    assert page.value("pulsar_in_messages_total", _NAMESPACE) == 3
    assert page.value("pulsar_topics_count", _NAMESPACE) == 5
    assert page.value("pulsar_broker_topics_count", _CLUSTER) == 5
