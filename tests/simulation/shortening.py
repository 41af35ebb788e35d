"""Makes a failing plan shorter, as long as it fails in the same way; of whatever kind the plan is.

"The same way" means: at least one of the invariants, or the kind of error, that the plan violated
at first.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, Self, TypeVar


class _Plan(Protocol):
    @property
    def steps(self) -> tuple[object, ...]: ...

    def without(self, *dropped: int) -> Self: ...


class _Outcome(Protocol):
    @property
    def reasons(self) -> frozenset[str]: ...


P = TypeVar("P", bound=_Plan)


def shortest(
    plan: P,
    *,
    run: Callable[[P], _Outcome],
    shorter: Callable[[P], Iterable[P]],
    runs_max: int,
) -> P:
    """The shortest plan found within `runs_max` runs; `plan` itself if it does not fail.

    Args:
        shorter: plans with a little less in them, the boldest first.
    """
    reasons = run(plan).reasons
    runs = 1
    is_shorter = bool(reasons)
    while is_shorter:
        is_shorter = False
        for candidate in shorter(plan):
            if runs == runs_max:
                return plan
            runs += 1
            if run(candidate).reasons & reasons:
                plan = candidate
                is_shorter = True
                break
    return plan


def with_fewer_steps(plan: P) -> Iterator[P]:
    """Halves of the steps left out first, then single ones."""
    size = len(plan.steps)
    part = size // 2
    while part:
        for start in range(0, size, part):
            yield plan.without(*range(start, min(size, start + part)))
        part //= 2
