"""When a report is worth sending, and what a bundle costs."""

import json

import pytest

from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.base.settings.scaling import RATES
from magnetar.broker.cluster.balance.load_report import (
    SEGMENTS_REPORTED_MAX,
    BundleCosts,
    BundleLoad,
    LoadReport,
    SegmentLoad,
    heaviest,
    heaviest_segments,
    is_worth_sending,
)
from magnetar.ledger.metadata.store import VALUE_BYTES_MAX

COSTS = BundleCosts(BrokerSettings(bundle_bytes_rate_max=100e6))


def report(
    topics: int, *, cpu: float = 0.0, bundle: str = "a/b/0x00000000_0xffffffff"
) -> LoadReport:
    return LoadReport(cpu_percent=cpu, bundles={bundle: BundleLoad(topics=topics)})


def is_sent(before: LoadReport | None, now: LoadReport, *, age_s: float = 1.0) -> bool:
    return is_worth_sending(before, now, COSTS, age_s=age_s, age_max_s=900.0)


def test_the_first_report_is_sent() -> None:
    assert is_sent(None, LoadReport())


def test_a_change_of_a_tenth_is_sent_and_less_is_not() -> None:
    assert is_sent(report(890), report(1000))
    assert not is_sent(report(910), report(1000))


def test_load_that_went_from_one_bundle_to_another_is_sent() -> None:
    before = {"a/b/1": BundleLoad(topics=500), "a/b/2": BundleLoad(topics=300)}
    after = {"a/b/1": BundleLoad(topics=400), "a/b/2": BundleLoad(topics=400)}
    assert is_sent(LoadReport(bundles=before), LoadReport(bundles=after))


def test_five_points_of_use_are_sent_and_less_is_not() -> None:
    assert is_sent(report(1, cpu=20.0), report(1, cpu=25.0))
    assert not is_sent(report(1, cpu=20.0), report(1, cpu=24.9))


def test_another_set_of_bundles_is_sent() -> None:
    assert is_sent(report(1), report(1, bundle="a/b/0x00000000_0x80000000"))


def of_segment(name: str = "segment://a/b/t/0000-ffff-0", **rates: float) -> LoadReport:
    return LoadReport(segments={name: SegmentLoad(**rates)})


def test_a_segments_rate_is_sent_when_it_has_changed_by_a_quarter() -> None:
    before = of_segment(msg_rate_in=1_000.0)
    assert is_sent(before, of_segment(msg_rate_in=750.0))
    assert not is_sent(before, of_segment(msg_rate_in=751.0))
    assert is_sent(of_segment(bytes_rate_out=7e6), of_segment(bytes_rate_out=1e7))


def test_a_change_that_no_split_or_merge_can_hang_on_is_not_sent() -> None:
    """The threshold of merges is 1,000 messages/s."""
    assert not is_sent(of_segment(), of_segment(msg_rate_in=100.0))
    assert is_sent(of_segment(), of_segment(msg_rate_in=101.0))


def test_another_set_of_segments_is_sent() -> None:
    assert is_sent(of_segment(), of_segment("segment://a/b/t/0000-7fff-1"))


def test_of_too_many_segments_those_with_the_most_traffic_are_reported() -> None:
    segments = {str(each): SegmentLoad(msg_rate_in=float(each)) for each in range(10)}
    assert set(heaviest_segments(segments, COSTS, count=2)) == {"8", "9"}
    assert heaviest_segments(segments, COSTS, count=10) == segments


def test_an_unchanged_report_is_sent_after_a_long_time() -> None:
    assert not is_sent(report(1), report(1), age_s=899.0)
    assert is_sent(report(1), report(1), age_s=900.0)


@pytest.mark.parametrize(
    ("load", "limit"),
    [
        (BundleLoad(topics=1000, producers=500, consumers=500, msg_rate_in=30_000), ""),
        (BundleLoad(topics=1001), "topics"),
        (BundleLoad(producers=500, consumers=501), "sessions"),
        (BundleLoad(msg_rate_in=15_000, msg_rate_out=15_001), "msg_rate"),
        (BundleLoad(bytes_rate_out=101e6), "bytes_rate"),
    ],
)
def test_a_bundle_over_a_limit_is_said_to_be(load: BundleLoad, limit: str) -> None:
    assert COSTS.exceeded_by(load) == limit


def test_of_too_many_bundles_the_heaviest_are_reported() -> None:
    bundles = {f"a/b/{number}": BundleLoad(topics=number) for number in range(10)}
    assert set(heaviest(bundles, COSTS, count=2)) == {"a/b/8", "a/b/9"}
    assert heaviest(bundles, COSTS, count=10) == bundles


def test_a_report_of_a_thousand_bundles_fits_a_node() -> None:
    load = BundleLoad(
        topics=1000,
        producers=1000,
        consumers=1000,
        msg_rate_in=29_999.9,
        msg_rate_out=29_999.9,
        bytes_rate_in=99_999_999.9,
        bytes_rate_out=99_999_999.9,
    )
    bundles = {f"tenant/namespace/0x{n:08x}_0xffffffff": load for n in range(2000)}
    text = LoadReport(bundles=bundles).model_dump_json(exclude_defaults=True)
    assert len(text) < 500_000
    assert LoadReport.model_validate(json.loads(text)).bundles == bundles
    rates = dict.fromkeys(RATES, 99999999.9)
    name = "segment://tenant/namespace/" + "t" * 240 + "/0000-ffff-"
    segments = {f"{name}{n}": SegmentLoad(**rates) for n in range(SEGMENTS_REPORTED_MAX)}
    text = LoadReport(bundles=bundles, segments=segments).model_dump_json(exclude_defaults=True)
    assert len(text) < VALUE_BYTES_MAX
