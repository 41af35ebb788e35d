"""What a run of the perf tool tells: one JSON object, the same keys for every kind of load."""

import json
from dataclasses import dataclass, field

from magnetar.sdk.perf.histogram import LatencyHistogram


@dataclass(frozen=True, slots=True)
class PerfResult:
    """The figures of one run."""

    messages: int
    seconds: float
    payload_bytes: int
    latency: LatencyHistogram = field(repr=False)
    extra: dict[str, int | float | str] = field(default_factory=dict)
    """Further keys of the JSON object: the load that was asked for, processor time, failures."""

    @property
    def msgs_per_s(self) -> float:
        return self.messages / self.seconds if self.seconds > 0 else 0.0

    @property
    def mb_per_s(self) -> float:
        """Payload in millions of bytes per second."""
        return self.payload_bytes / 1e6 / self.seconds if self.seconds > 0 else 0.0

    def to_dict(self) -> dict[str, object]:
        return {
            "messages": self.messages,
            "seconds": round(self.seconds, 4),
            "msgs_per_s": round(self.msgs_per_s, 1),
            "mb_per_s": round(self.mb_per_s, 3),
            "latency_ms": self.latency.summary_ms(),
            **self.extra,
        }

    def to_json(self) -> str:
        """One line."""
        return json.dumps(self.to_dict())

    def to_text(self) -> str:
        """For people."""
        latency = self.latency.summary_ms()
        return (
            f"{self.messages:,} messages in {self.seconds:.2f} s: "
            f"{self.msgs_per_s:,.0f} msg/s, {self.mb_per_s:,.1f} MB/s; latency ms "
            f"p50 {latency['p50']:.2f}  p99 {latency['p99']:.2f}  "
            f"p99.9 {latency['p999']:.2f}  max {latency['max']:.2f}"
        )
