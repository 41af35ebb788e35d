"""All ledgers of a root, one after the other, at a rate that the metadata store can bear.

Reading the metadata of every ledger is the cost of an audit (defect A12): reads are bounded in
number per second and in parallel.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import structlog

from magnetar.ledger.errors import InvalidLedgerMetadataError, NoNodeError, NoSuchLedgerError
from magnetar.ledger.ledger_manager import LedgerManager, VersionedLedger
from magnetar.ledger.pace import Pace
from magnetar.ledger.ports import Clock

_log = structlog.get_logger(__name__)


class PacedReads:
    """Reads metadata, with a bound on the reads per second and in parallel."""

    def __init__(
        self, manager: LedgerManager, clock: Clock, *, per_s_max: float, at_once_max: int
    ) -> None:
        self.manager = manager
        self.at_once_max = at_once_max
        self._clock = clock
        self._pace = Pace(per_s_max)
        self.unreadable: dict[int, str] = {}
        """Ledgers whose metadata could not be decoded at the last read, and why. A caller that
        concludes something from "no ledger does" must check this. A scan that ends removes those
        that no longer exist."""

    async def read_all(self, ledger_ids: Sequence[int]) -> list[VersionedLedger]:
        """Return the metadata of these ledgers, without deleted and unreadable ones; at most
        `at_once_max` of them.

        Raises:
            MetadataError, LedgerLayoutError
        """
        assert len(ledger_ids) <= self.at_once_max
        if wait_s := self._pace.take(len(ledger_ids), self._clock.monotonic_s()):
            await asyncio.sleep(wait_s)
        read = await asyncio.gather(*(self._read(ledger_id) for ledger_id in ledger_ids))
        return [ledger for ledger in read if ledger is not None]

    async def _read(self, ledger_id: int) -> VersionedLedger | None:
        # Another scan may end during this read: the ledger stays unreadable until an answer proves
        # otherwise.
        read: VersionedLedger | None = None
        try:
            read = await self.manager.read(ledger_id)
        except NoSuchLedgerError:
            pass  # Deleted since it was listed.
        except InvalidLedgerMetadataError as error:
            _log.error("ledger_not_audited", ledger_id=ledger_id, error=str(error))
            self.unreadable[ledger_id] = str(error)
            return None
        self.unreadable.pop(ledger_id, None)
        return read


async def scan_ledgers(reads: PacedReads) -> AsyncIterator[VersionedLedger]:
    """Yield the metadata of every ledger, in the order of their ids. Ledgers created or deleted
    during the scan may or may not be included. Ends normally only when the listing is complete; a
    value that cannot be read is logged and left out, since nothing may be concluded from it.

    Raises:
        LedgerLayoutError, MetadataError: as `LedgerManager.ledger_ranges`; a missing root means
            no ledgers.
    """
    await reads.manager.catch_up()
    waiting: list[int] = []
    gone = set(reads.unreadable)
    try:
        async for ledger_id in reads.manager.ledger_ids():
            waiting.append(ledger_id)
            gone.discard(ledger_id)
            if len(waiting) == reads.at_once_max:
                for found in await reads.read_all(waiting):
                    yield found
                waiting = []
    except NoNodeError:
        pass  # A new cluster: it has no ledger and no registration yet.
    for found in await reads.read_all(waiting):
        yield found
    for ledger_id in gone:
        reads.unreadable.pop(ledger_id, None)


async def for_each_at_once(
    ledgers: AsyncIterator[VersionedLedger],
    work: Callable[[VersionedLedger], Awaitable[None]],
    *,
    at_once_max: int,
) -> None:
    """Call `work` for every ledger, with a bound on concurrent calls. The first failure ends it.

    Raises:
        Every error of `work` and of the scan.
    """
    running: set[asyncio.Future[None]] = set()
    try:
        async for ledger in ledgers:
            running.add(asyncio.ensure_future(work(ledger)))
            if len(running) >= at_once_max:
                running = await _first_done(running)
        while running:
            running = await _first_done(running)
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _first_done(running: set[asyncio.Future[None]]) -> set[asyncio.Future[None]]:
    done, rest = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    for each in done:
        each.result()
    return rest
