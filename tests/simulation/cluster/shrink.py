"""Makes a failing plan of a cluster shorter, as long as it fails in the same way."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.simulation.cluster.plan import ClusterPlan
from tests.simulation.cluster.run import ClusterOutcome, execute
from tests.simulation.shortening import shortest, with_fewer_steps

RUNS_MAX = 200


def shrink(
    plan: ClusterPlan,
    *,
    run: Callable[[ClusterPlan], ClusterOutcome] = execute,
    runs_max: int = RUNS_MAX,
) -> ClusterPlan:
    """The shortest plan found within `runs_max` runs; `plan` itself if it does not fail."""
    return shortest(plan, run=run, shorter=_shorter, runs_max=runs_max)


def _shorter(plan: ClusterPlan) -> Iterator[ClusterPlan]:
    """Plans with a little less in them, the boldest first."""
    yield from with_fewer_steps(plan)
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
