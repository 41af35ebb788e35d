"""Makes a failing plan of a cluster shorter, as long as it fails in the same way."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.simulation.cluster.plan import ClusterPlan
from tests.simulation.cluster.run import ClusterOutcome, execute

RUNS_MAX = 200


def shrink(
    plan: ClusterPlan,
    *,
    run: Callable[[ClusterPlan], ClusterOutcome] = execute,
    runs_max: int = RUNS_MAX,
) -> ClusterPlan:
    """The shortest plan found within `runs_max` runs; `plan` itself if it does not fail."""
    reasons = run(plan).reasons
    runs = 1
    is_shorter = bool(reasons)
    while is_shorter:
        is_shorter = False
        for candidate in _shorter(plan):
            if runs == runs_max:
                return plan
            runs += 1
            if run(candidate).reasons & reasons:
                plan = candidate
                is_shorter = True
                break
    return plan


def _shorter(plan: ClusterPlan) -> Iterator[ClusterPlan]:
    """Plans with a little less in them, the boldest first."""
    size = len(plan.steps)
    part = size // 2
    while part:
        for start in range(0, size, part):
            yield plan.without(*range(start, min(size, start + part)))
        part //= 2
    if plan.messages > 1:
        yield replace(plan, messages=plan.messages // 2)
        yield replace(plan, messages=plan.messages - 1)
    simple: dict[str, object] = {
        "batching": False,
        "consumers": 1,
        "ack_share": 1.0,
        "has_reader": False,
        "recoveries": 0,
        "net_jitter_s": 0.0,
        "front_jitter_s": 0.0,
        "disk_jitter_s": 0.0,
        "store_jitter_s": 0.0,
        "watch_jitter_s": 0.0,
        "keeps_frames": True,
        "flush_interval_s": 5.0,
        "brokers": 2,
    }
    for name, value in simple.items():
        if getattr(plan, name) != value:
            yield replace(plan, **{name: value})  # type: ignore[arg-type]
