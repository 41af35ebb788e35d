"""The plan of a random run: everything that will happen, known before it begins.

It is drawn from a seed (`drawing.py`), and plain data, so that a failing one can be made shorter
(`shrink.py`) and kept as a file (`regressions/`). What it does not say, the latency of each frame,
comes from streams of random numbers that belong to one link or one disk each: leaving out a step
disturbs the others little.
"""

import json
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

RECOVERERS = ("r1", "r2", "r3")
READERS = ("t1", "t2")
WRITER = "w"
MOVER = "m"
LOG_OWNERS = (WRITER, "o2", "o3")


Setting = bool | int | float | str
"""The value of a setting."""


class Step(NamedTuple):
    """One thing that happens, `at_s` after the writer has begun.

    `what` names a method of `run.Runner` or `faults.Faults`; what `who`, `other`, `for_s` and
    `number` mean is its business. A bookie named "@1" is the one at index 1 of the ensemble that is
    written to at that moment.
    """

    at_s: float
    what: str
    who: str = ""
    other: str = ""
    for_s: float = 0.0
    number: int = 0

    def __str__(self) -> str:
        parts = [f"{self.at_s:.4f} s: {self.what}", self.who, self.other]
        if self.for_s:
            parts.append(f"for {self.for_s:.4f} s")
        if self.number:
            parts.append(f"({self.number})")
        return " ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything about a run. A field that is added needs a default, for the files that lack it."""

    seed: int
    quorum: tuple[int, int, int]
    bookies: int
    entries: int
    window: int
    """Entries that the writer leaves unconfirmed at most."""
    think_s: float
    """How long it waits before it appends again."""
    batch: int
    """Entries per append, at most."""
    closes: bool
    """Whether the writer closes the ledger in the end."""
    net_jitter_s: float
    net_skew_s: float
    disk_jitter_s: float
    store_jitter_s: float
    watch_jitter_s: float
    keeps_frames: bool
    keeps_torn_writes: bool
    flush_interval_s: float
    delayed_changes: bool
    explicit_lac_ms: float
    recovery_window: int
    steps: tuple[Step, ...]
    log_owners: int = 0
    """Owners of a managed log, one after the other; 0: the workload is one ledger."""
    ledger_entries: int = 3
    """Entries of a ledger of the log before the next one is begun."""
    digest: str = "CRC32C"
    password: str = ""
    settings: tuple[tuple[str, Setting], ...] = ()
    """Settings of the clients that are not as usual."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        value = json.loads(text)
        value["quorum"] = tuple(value["quorum"])
        value["settings"] = tuple((name, each) for name, each in value.get("settings", ()))
        value["steps"] = tuple(Step(*step) for step in value["steps"])
        return cls(**value)

    def without(self, *dropped: int) -> "Plan":
        """The plan without some of its steps."""
        steps = tuple(step for at, step in enumerate(self.steps) if at not in dropped)
        return replace(self, steps=steps)

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {self.quorum} on {self.bookies} bookies, {self.entries} entries, "
            f"window {self.window}, up to {self.batch} per append, every {self.think_s:.4f} s"
            + (", then close" if self.closes else "")
            + (f", {self.log_owners} log owners" if self.log_owners else "")
            + "".join(f", {name}={value}" for name, value in self.settings)
        ]
        return "\n".join([*lines, *(f"  {step}" for step in self.steps)])
