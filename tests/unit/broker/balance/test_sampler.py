"""From counters to a load report."""

import pytest

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.cluster.balance.bundles import BundleId, Layout, halves, hash_of
from magnetar.broker.cluster.balance.load_report import BundleCosts, LoadReport
from magnetar.broker.cluster.balance.sampler import (
    Capacity,
    LoadSampler,
    ProcessUsage,
    TopicCounts,
    split_point,
)
from magnetar.sdk.wire import TopicName

COSTS = BundleCosts(BrokerSettings(bundle_bytes_rate_max=100e6))
CAPACITY = Capacity(cpu_cores=1.0, bandwidth_bytes_per_s=1e6, topics_max=10_000)
OWNED = [BundleId("acme/orders", bundle) for bundle in Layout.even(4).bundles]


def topic(
    number: int,
    *,
    namespace: str = "orders",
    producers: int = 0,
    consumers: int = 0,
    counters: tuple[int, int, int, int] = (0, 0, 0, 0),
) -> TopicCounts:
    name = TopicName("persistent", "acme", namespace, f"t-{number}")
    return TopicCounts(name, producers, consumers, *counters)


def sample(
    sampler: LoadSampler,
    topics: list[TopicCounts],
    *,
    now_s: float,
    cpu_s: float = 0.0,
    owned: list[BundleId] = OWNED,
    is_base: bool = True,
) -> LoadReport:
    sampling = sampler.begin(owned, now_s=now_s, is_base=is_base)
    sampling.add(topics)
    return sampling.finish(ProcessUsage(cpu_s, 1 << 20), wall_ms=5, connections=3)


def test_each_topic_counts_for_its_bundle() -> None:
    report = sample(
        LoadSampler(CAPACITY, COSTS),
        [topic(number, producers=1, consumers=2) for number in range(100)],
        now_s=0.0,
    )
    assert report.topics == 100
    assert report.connections == 3
    assert set(report.bundles) == {str(bundle) for bundle in OWNED}
    for bundle in OWNED:
        load = report.bundles[str(bundle)]
        held = sum(
            hash_of(TopicName("persistent", "acme", "orders", f"t-{number}")) in bundle.bundle
            for number in range(100)
        )
        assert (load.topics, load.producers, load.consumers) == (held, held, 2 * held)


def test_a_topic_of_a_bundle_that_is_not_ours_counts_in_the_totals_only() -> None:
    report = sample(
        LoadSampler(CAPACITY, COSTS), [topic(1, namespace="other")], now_s=0.0, owned=OWNED[:1]
    )
    assert report.topics == 1
    assert [load.topics for load in report.bundles.values()] == [0]


def test_rates_are_growth_over_time() -> None:
    sampler = LoadSampler(CAPACITY, COSTS)
    sample(sampler, [topic(1, counters=(100, 1000, 0, 0))], now_s=10.0)
    report = sample(sampler, [topic(1, counters=(150, 6000, 25, 2500))], now_s=15.0)
    total = [load for load in report.bundles.values() if load.topics]
    assert [(each.msg_rate_in, each.bytes_rate_in) for each in total] == [(10.0, 1000.0)]
    assert [(each.msg_rate_out, each.bytes_rate_out) for each in total] == [(5.0, 500.0)]
    assert report.network_in_percent == pytest.approx(0.1)


def test_segments_are_reported_one_by_one_whoever_owns_their_bundle() -> None:
    def segment(*counters: int) -> TopicCounts:
        name = TopicName.parse("segment://acme/other/t/0000-7fff-1")
        return TopicCounts(name, 0, 0, *counters)

    sampler = LoadSampler(CAPACITY, COSTS)
    first = sample(sampler, [segment(0, 0, 0, 0), topic(1)], now_s=10.0)
    assert list(first.segments) == ["segment://acme/other/t/0000-7fff-1"]
    report = sample(sampler, [segment(50, 5000, 25, 2500)], now_s=15.0)
    (load,) = report.segments.values()
    assert (load.msg_rate_in, load.bytes_rate_in) == (10.0, 1000.0)
    assert (load.msg_rate_out, load.bytes_rate_out) == (5.0, 500.0)
    assert report.segments_left_off == 0


def test_a_look_in_between_changes_no_rate_of_the_next_sample() -> None:
    sampler = LoadSampler(CAPACITY, COSTS)
    sample(sampler, [], now_s=0.0)
    look = sample(sampler, [topic(1, counters=(60, 0, 0, 0))], now_s=6.0, cpu_s=6.0, is_base=False)
    assert (sum(each.msg_rate_in for each in look.bundles.values()), look.cpu_percent) == (10, 100)
    after = sample(sampler, [topic(1, counters=(100, 0, 0, 0))], now_s=10.0, cpu_s=5.0)
    assert (sum(each.msg_rate_in for each in after.bundles.values()), after.cpu_percent) == (10, 50)


def test_samples_that_overlap_count_the_same_growth_once_each() -> None:
    sampler = LoadSampler(CAPACITY, COSTS)
    sample(sampler, [], now_s=0.0)
    first = sampler.begin(OWNED, now_s=10.0, is_base=True)
    second = sampler.begin(OWNED, now_s=10.001, is_base=False)
    for each in (first, second):
        each.add([topic(1, counters=(100, 0, 0, 0))])
        report = each.finish(ProcessUsage(5.0, 0), wall_ms=5, connections=0)
        assert sum(each.msg_rate_in for each in report.bundles.values()) == 10
        assert report.cpu_percent == 50


def test_a_first_sample_has_no_rates() -> None:
    report = sample(LoadSampler(CAPACITY, COSTS), [topic(1, counters=(9, 9, 9, 9))], now_s=1.0)
    assert all(load.msg_rate == 0 for load in report.bundles.values())


def test_a_topic_that_was_loaded_anew_counts_from_zero() -> None:
    sampler = LoadSampler(CAPACITY, COSTS)
    sample(sampler, [topic(1, counters=(100, 1000, 100, 1000))], now_s=0.0)
    report = sample(sampler, [topic(1, counters=(10, 100, 0, 0))], now_s=1.0)
    assert [load.msg_rate_in for load in report.bundles.values() if load.topics] == [10.0]


def test_processor_time_is_a_share_of_what_may_be_used() -> None:
    sampler = LoadSampler(CAPACITY, COSTS)
    sample(sampler, [], now_s=0.0, cpu_s=7.0)
    assert sample(sampler, [], now_s=10.0, cpu_s=11.0).cpu_percent == 40.0


def test_a_bundle_is_divided_by_the_load_of_its_topics() -> None:
    sampler = LoadSampler(CAPACITY, COSTS)
    whole = [BundleId("acme/orders", Layout.even(1).bundles[0])]
    names = sorted(range(11), key=lambda number: hash_of(topic(number).name))
    hot = names[0]
    for second in range(2):
        rates = [
            topic(each, counters=(30_000 * second if each == hot else 0, 0, 0, 0)) for each in names
        ]
        sample(sampler, rates, now_s=float(second), owned=whole)
    at = split_point(whole[0].bundle, sampler.weights_of(whole[0]))
    assert at == hash_of(topic(names[1]).name)


def test_while_a_bundle_is_being_split_its_topics_count_once() -> None:
    parent = OWNED[0]
    owned = [parent, *(BundleId(parent.namespace, half) for half in halves(parent.bundle, 0x1000))]
    topics = [each for each in map(topic, range(50)) if parent.holds(each.name)]
    report = sample(LoadSampler(CAPACITY, COSTS), topics, now_s=0.0, owned=owned)
    assert sum(load.topics for load in report.bundles.values()) == len(topics)
