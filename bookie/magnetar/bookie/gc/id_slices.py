"""Very large sets of ledger ids, made on the event loop in slices that let requests run in
between."""

import asyncio
from collections.abc import Sequence

from pyroaring import BitMap64

_SLICE_IDS = 4096


async def id_set_of(ids: Sequence[int]) -> BitMap64:
    """Return the set of all ids, which may be in any order and repeated, as a compressed bitmap."""
    found = BitMap64()
    for at in range(0, len(ids), _SLICE_IDS):
        found.update(ids[at : at + _SLICE_IDS])
        await asyncio.sleep(0)
    return found
