"""Very many ledger ids, as a compressed bitmap that is made on the event loop, in slices that let
requests run in between."""

import asyncio
from collections.abc import Sequence

from pyroaring import BitMap64

_SLICE_IDS = 4096


async def id_set_of(ids: Sequence[int]) -> BitMap64:
    """All the ids, in any order, each once or more often."""
    found = BitMap64()
    for at in range(0, len(ids), _SLICE_IDS):
        found.update(ids[at : at + _SLICE_IDS])
        await asyncio.sleep(0)
    return found
