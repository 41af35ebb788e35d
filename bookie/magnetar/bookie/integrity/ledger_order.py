"""A million ledger ids in order, without holding up anybody for long. Pure.

To sort a list is one call that lets no other thread run. Ids come almost in order, since they are
given in ascending order; so parts are sorted one by one, and the whole only if that was not enough.
"""

from array import array
from collections.abc import Sequence

_PART = 10_000


def in_order(ids: Sequence[int]) -> "array[int]":
    """The ids, ascending. For a worker: other threads run between the parts."""
    ordered = array("q")
    for start in range(0, len(ids), _PART):
        part = sorted(ids[start : start + _PART])
        if ordered and ordered[-1] > part[0]:
            return array("q", sorted(ids))
        ordered.extend(part)
    return ordered
