"""What a server takes of its machine: samples over time, and whether they level off."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.processes import resident_bytes_of

_MIB = 1 << 20
_JUDGED_SHARE = 0.5
"""Of the time, the last part of it: until then caches fill and pools grow."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at one server."""

    at_s: float
    memory_mib: float
    descriptors: float
    threads: float
    files: float
    """In its data directory."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much more there may be at the end of the judged time than at its begin, by a straight
    line through the samples."""

    memory_mib: float = 2.0
    descriptors: float = 5.0
    threads: float = 2.0
    files: float = 5.0


def look(pid: int, directory: Path, *, began_s: float) -> Sample:
    """
    Raises:
        OSError: the process is gone.
    """
    process = Path(f"/proc/{pid}")
    status = (process / "status").read_text()
    (threads,) = (line.split()[1] for line in status.splitlines() if line.startswith("Threads:"))
    return Sample(
        at_s=time.monotonic() - began_s,
        memory_mib=resident_bytes_of(pid) / _MIB,
        descriptors=float(sum(1 for _ in (process / "fd").iterdir())),
        threads=float(threads),
        files=float(sum(1 for path in directory.rglob("*") if path.is_file())),
    )


def growth(times: Sequence[float], values: Sequence[float]) -> float:
    """By how much a straight line through the values, least squares, rises over the times."""
    count = len(times)
    if count < 2:
        return 0.0
    middle_s, middle = sum(times) / count, sum(values) / count
    spread = sum((at_s - middle_s) ** 2 for at_s in times)
    if not spread:
        return 0.0
    slope = sum(
        (at_s - middle_s) * (value - middle) for at_s, value in zip(times, values, strict=True)
    )
    return slope / spread * (times[-1] - times[0])


def judged(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Samples of the last part of the time."""
    from_s = samples[-1].at_s * (1 - _JUDGED_SHARE)
    return [sample for sample in samples if sample.at_s >= from_s]


_GAUGES: dict[str, Callable[[Sample], float]] = {
    "memory_mib": lambda sample: sample.memory_mib,
    "descriptors": lambda sample: sample.descriptors,
    "threads": lambda sample: sample.threads,
    "files": lambda sample: sample.files,
}


def levels(samples: Sequence[Sample]) -> dict[str, dict[str, float]]:
    """Of each gauge: at first, at most, at last, and by how much it grows in the judged time."""
    last = judged(samples)
    times = [sample.at_s for sample in last]
    return {
        name: {
            "first": round(of(samples[0]), 1),
            "most": round(max(map(of, samples)), 1),
            "last": round(of(samples[-1]), 1),
            "growth": round(growth(times, [of(sample) for sample in last]), 2),
        }
        for name, of in _GAUGES.items()
    }


def rising(samples: Sequence[Sample], bounds: Bounds) -> list[str]:
    """The gauges that do not level off."""
    allowed = asdict(bounds)
    return [
        f"{name} grows by {found['growth']} in the last {_JUDGED_SHARE:.0%} of the time; "
        f"{allowed[name]} is allowed"
        for name, found in levels(samples).items()
        if found["growth"] > allowed[name]
    ]
