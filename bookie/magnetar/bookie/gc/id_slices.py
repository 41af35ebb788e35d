"""Work on very many ledger ids, on the event loop, in slices that let requests run in between."""

import asyncio
from collections.abc import Sequence

from magnetar.bookie.gc.id_set import IdSet

_SLICE_IDS = 4096


async def id_set_of(ids: Sequence[int]) -> IdSet:
    """All the ids, in any order, each once or more often."""
    found = IdSet()
    for at in range(0, len(ids), _SLICE_IDS):
        found.add(ids[at : at + _SLICE_IDS])
        await asyncio.sleep(0)
    return found


async def give_up(ids: IdSet) -> None:
    """Forget all of them."""
    while ids.shrink():  # noqa: ASYNC110  # this is the work, not a wait for it
        await asyncio.sleep(0)
