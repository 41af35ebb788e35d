"""Makes a failing plan of several clusters shorter, as long as it fails in the same way."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.simulation.geo.plan import GeoPlan
from tests.simulation.geo.run import GeoOutcome, execute
from tests.simulation.shortening import shortest, with_fewer_steps

RUNS_MAX = 100


def shrink(
    plan: GeoPlan, *, run: Callable[[GeoPlan], GeoOutcome] = execute, runs_max: int = RUNS_MAX
) -> GeoPlan:
    """The shortest plan found within `runs_max` runs; `plan` itself if it does not fail."""
    return shortest(plan, run=run, shorter=_shorter, runs_max=runs_max)


def _shorter(plan: GeoPlan) -> Iterator[GeoPlan]:
    """Plans with a little less in them, the boldest first."""
    yield from with_fewer_steps(plan)
    if plan.messages > 1:
        yield replace(plan, messages=plan.messages // 2)
        yield replace(plan, messages=plan.messages - 1)
    simple: dict[str, object] = {
        "topics": 1,
        "batching": False,
        "limited_share": 0.0,
        "big_share": 0.0,
        "consumers": (),
        "kind": "exclusive",
        "ack_share": 1.0,
        "net_jitter_s": 0.0,
        "front_jitter_s": 0.0,
        "keeps_frames": True,
        "ledger_entries": 100,
        "snapshot_entries": 1000,
        "entries_max": 1000,
        "trims": False,
        "starts_at_earliest": False,
        "store_jitter_s": 0.0,
    }
    for name, value in simple.items():
        if getattr(plan, name) != value:
            yield replace(plan, **{name: value})  # type: ignore[arg-type]
