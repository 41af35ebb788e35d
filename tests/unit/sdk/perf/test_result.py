"""The JSON that tools rely on."""

import json

from magnetar.sdk.perf.result import LatencyHistogram, PerfResult


def test_json_has_the_agreed_keys() -> None:
    latency = LatencyHistogram()
    latency.record(1_500, 4)
    result = PerfResult(4, 2.0, 4_000_000, latency, {"size": 1_000_000})
    assert json.loads(result.to_json()) == {
        "messages": 4,
        "seconds": 2.0,
        "msgs_per_s": 2.0,
        "mb_per_s": 2.0,
        "latency_ms": {"p50": 1.5, "p99": 1.5, "p999": 1.5, "max": 1.5},
        "size": 1_000_000,
    }


def test_run_without_messages_has_no_rates() -> None:
    result = PerfResult(0, 0.0, 0, LatencyHistogram())
    assert (result.msgs_per_s, result.mb_per_s) == (0.0, 0.0)
    assert result.to_text().startswith("0 messages")


def test_the_latencies_are_bars_of_bands_that_double() -> None:
    latency = LatencyHistogram()
    latency.record(100, 40)
    latency.record(400, 20)
    shown = PerfResult(60, 1.0, 60, latency).histogram_text().splitlines()
    assert shown[0] == "latency ms, messages:"
    assert [line.split() for line in shown[1:]] == [
        ["<=", "0.128", "40", "#" * 40],
        ["<=", "0.256", "0"],
        ["<=", "0.512", "20", "#" * 20],
    ]
    assert PerfResult(0, 0.0, 0, LatencyHistogram()).histogram_text() == ""


def test_what_waited_before_the_run_has_an_age_and_no_latency() -> None:
    latency = LatencyHistogram()
    latency.record(20_000_000, 3)
    old = PerfResult(3, 1.0, 3, latency, {"waited": 3})
    live = PerfResult(3, 1.0, 3, latency, {"waited": 1})
    assert "age of the backlog ms p50" in old.to_text()
    assert "latency ms p50" in live.to_text()
