"""The packets of a closed ledger in order, with requests for the next ones under way."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.reading.entry_fetcher import Packets

Read = Callable[[int, int], Awaitable[Packets]]
"""Function that returns packets of entries from its first argument on: at least one, at most up to
its second argument, as many as fit into one request."""

_ENTRIES_MAX = 4_096
"""Most entries of one request."""


@dataclass(frozen=True, slots=True)
class _Part:
    first: int
    last: int
    packets: "asyncio.Future[Packets]"
    """Result: the packets of the first entries of the part, usually of all."""


async def packets_ahead(
    read: Read, metadata: LedgerMetadata, *, read_bytes: int, reads_at_once: int
) -> AsyncGenerator[Packets]:
    """Yield all packets of a ledger, entry 0 first.

    The ledger is cut into parts of as many entries as fit into a request by their mean size. If
    entries are larger than that, the rest of a part is read when its turn comes. So no more than
    `reads_at_once` requests, of `read_bytes` each, are in memory.

    Raises:
        Every error of `read`. Close the generator: it then leaves no request behind.
    """
    last = metadata.last_entry_id
    step = _entries_per_read(metadata, read_bytes)
    under_way: deque[_Part] = deque()
    begun = 0
    try:
        while begun <= last or under_way:
            while begun <= last and len(under_way) < reads_at_once:
                until = min(begun + step - 1, last)
                under_way.append(_Part(begun, until, asyncio.ensure_future(read(begun, until))))
                begun = until + 1
            packets = await under_way[0].packets
            part = under_way.popleft()
            yield packets
            next_id = part.first + len(packets.payloads)
            while next_id <= part.last:
                packets = await read(next_id, part.last)
                yield packets
                next_id += len(packets.payloads)
    finally:
        for each in under_way:
            each.packets.cancel()
        # Their results and errors are no longer needed.
        await asyncio.gather(*(each.packets for each in under_way), return_exceptions=True)


def _entries_per_read(metadata: LedgerMetadata, read_bytes: int) -> int:
    mean_bytes = max(1, metadata.length // max(1, metadata.last_entry_id + 1))
    return max(1, min(_ENTRIES_MAX, read_bytes // mean_bytes))
