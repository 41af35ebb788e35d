"""Makes a failing plan shorter, as long as it fails in the same way.

Tried are, again and again until nothing helps: leaving out steps (halves first, then one by one),
fewer entries, a smaller window and batch, no waits, no jitter, no close.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.simulation.plan import Plan
from tests.simulation.run import Outcome, execute
from tests.simulation.shortening import shortest, with_fewer_steps

RUNS_MAX = 400


def shrink(
    plan: Plan,
    *,
    run: Callable[[Plan], Outcome] = execute,
    runs_max: int = RUNS_MAX,
) -> Plan:
    """The shortest plan found within `runs_max` runs; `plan` itself if it does not fail."""
    return shortest(plan, run=run, shorter=_shorter, runs_max=runs_max)


def _shorter(plan: Plan) -> Iterator[Plan]:
    """Plans with a little less in them, the boldest first."""
    yield from with_fewer_steps(plan)
    if plan.entries > 1:
        yield replace(plan, entries=plan.entries // 2)
        yield replace(plan, entries=plan.entries - 1)
    simple = {
        "window": 1,
        "batch": 1,
        "closes": False,
        "think_s": 0.0,
        "net_jitter_s": 0.0,
        "net_skew_s": 0.0,
        "disk_jitter_s": 0.0,
        "store_jitter_s": 0.0,
        "watch_jitter_s": 0.0,
        "keeps_frames": True,
        "keeps_torn_writes": False,
        "flush_interval_s": 5.0,
        "delayed_changes": False,
        "explicit_lac_ms": 0.0,
        "recovery_window": 1,
        "settings": (),
        "digest": "CRC32C",
        "password": "",
        "bookies": max(4, plan.quorum[0]),
    }
    for name, value in simple.items():
        if getattr(plan, name) != value:
            candidate = replace(plan, **{name: value})  # type: ignore[arg-type]
            known = {f"b{number}" for number in range(1, candidate.bookies + 1)}
            yield replace(
                candidate,
                steps=tuple(
                    step
                    for step in candidate.steps
                    if not any(
                        each.startswith("b") and each[1:].isdigit() and each not in known
                        for each in (step.who, step.other)
                    )
                ),
            )
