"""Makes a failing plan of a scalable topic shorter, as long as it fails in the same way."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.simulation.scalable.plan import ScalablePlan
from tests.simulation.scalable.run import ScalableOutcome, execute
from tests.simulation.shortening import shortest, with_fewer_steps

RUNS_MAX = 120


def shrink(
    plan: ScalablePlan,
    *,
    run: Callable[[ScalablePlan], ScalableOutcome] = execute,
    runs_max: int = RUNS_MAX,
) -> ScalablePlan:
    """The shortest plan found within `runs_max` runs; `plan` itself if it does not fail."""
    return shortest(plan, run=run, shorter=_shorter, runs_max=runs_max)


def _shorter(plan: ScalablePlan) -> Iterator[ScalablePlan]:
    """Plans with a little less in them, the boldest first."""
    yield from with_fewer_steps(plan)
    if plan.messages > 1:
        yield replace(plan, messages=plan.messages // 2)
        yield replace(plan, messages=plan.messages - 1)
    simple: dict[str, object] = {
        "segments": 1,
        "producers": 1,
        "streams": 1,
        "queues": 0,
        "keys": 2,
        "has_reader": False,
        "ack_share": 1.0,
        "net_jitter_s": 0.0,
        "front_jitter_s": 0.0,
        "store_jitter_s": 0.0,
        "watch_jitter_s": 0.0,
        "keeps_frames": True,
        "ledger_entries": 100,
        "brokers": 2,
    }
    for name, value in simple.items():
        if getattr(plan, name) != value:
            yield replace(plan, **{name: value})  # type: ignore[arg-type]
