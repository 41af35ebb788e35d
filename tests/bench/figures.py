"""Measurements in the same form for every system: rates, latencies, machine."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds from handing a message to the client to its acknowledgement."""

    p50: float
    p99: float
    p999: float
    max: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Latency":
        ordered = sorted(seconds)
        last = len(ordered) - 1

        def at(share: float) -> float:
            return round(ordered[min(last, int(len(ordered) * share))] * 1000, 3)

        return cls(at(0.5), at(0.99), at(0.999), at(1))


@dataclass(frozen=True, slots=True)
class Rate:
    """One run of a load. `latency_ms` is None where nothing is acknowledged, as in consuming."""

    messages: int
    seconds: float
    msgs_per_s: float
    mb_per_s: float
    latency_ms: Latency | None

    @classmethod
    def of(
        cls, *, messages: int, size: int, seconds: float, latencies_s: Sequence[float] = ()
    ) -> "Rate":
        return cls(
            messages=messages,
            seconds=round(seconds, 3),
            msgs_per_s=round(messages / seconds, 1),
            mb_per_s=round(messages * size / seconds / 1e6, 2),
            latency_ms=Latency.of(latencies_s) if latencies_s else None,
        )


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine on which the figures were measured."""

    cpu: str
    cores: int
    memory_gb: float
    system: str
    python: str


def describe_machine() -> Machine:
    """Describe this machine, as far as its system reports it."""
    cpu = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    return Machine(
        cpu=cpu,
        cores=len(os.sched_getaffinity(0)),
        memory_gb=round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
    )
