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
