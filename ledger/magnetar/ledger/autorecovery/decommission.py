"""Decommissions a bookie that was stopped for good: no ledger needs it, then its cookie is deleted.

Every ledger that names the bookie is published as lacking it, as an audit would do; the auditor is
asked for an audit, too. Workers make the copies. When neither a ledger nor a work item names the
bookie any more, the cookie is deleted. The cluster has then forgotten the bookie, and its id must
not come back with empty disks (defect D16). Safe to interrupt and to run again at any moment.
Source: auto-recovery, section 8 (BP-68).
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from magnetar.ledger.autorecovery.checker import names_any
from magnetar.ledger.autorecovery.ledger_scan import PacedReads, scan_ledgers
from magnetar.ledger.autorecovery.recover import check_not_registered
from magnetar.ledger.autorecovery.work_items import WorkItems
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import (
    BadVersionError,
    BookieRegisteredError,
    InvalidLedgerMetadataError,
    NoNodeError,
    NoSuchBookieError,
    NoSuchLedgerError,
)
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Clock
from magnetar.ledger.under_replication import EVERYTHING

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DecommissionPace:
    """How often to check whether the copies are made."""

    poll_s: float = 3.0
    """Seconds between two checks, per ledger that is left."""
    poll_s_max: float = 300.0


class Decommission:
    """Takes bookies out of the cluster for ever."""

    def __init__(
        self,
        client: LedgerClient,
        store: MetadataStore,
        *,
        clock: Clock,
        random: random.Random,
        reads: PacedReads,
        ask_for_audit: Callable[[], Awaitable[None]],
        on_left: Callable[[int], None] = lambda left: None,
        pace: DecommissionPace | None = None,
        root: str = "/ledgers",
    ) -> None:
        """Make the decommissioning tool of one cluster.

        Args:
            on_left: gets the number of ledgers that still need the bookie, before each wait.
        """
        self._client = client
        self._store = store
        self._reads = reads
        self._ask_for_audit = ask_for_audit
        self._on_left = on_left
        self._pace = pace or DecommissionPace()
        self._root = root
        self._items = WorkItems(store, clock=clock, random=random, root=root)

    async def run(self, bookie_id: str) -> int:
        """Wait until no ledger needs the bookie, and delete its cookie; return the number of
        ledgers that named it at the start.

        Raises:
            InvalidLedgerMetadataError: some ledger's metadata cannot be read; the cookie stays.
            NoSuchBookieError: the cluster has no cookie of it.
            BookieRegisteredError: it runs, or came back meanwhile; its cookie stays.
            MetadataError: run it again.
        """
        if await self._client.registry.read_cookie(bookie_id) is None:
            raise NoSuchBookieError(
                f"the cluster has no cookie of a bookie {bookie_id}: check the id; or it was "
                f"decommissioned already. Nothing was changed"
            )
        await check_not_registered(self._store, [bookie_id], root=self._root)
        named = await self._publish(bookie_id)
        await self._ask_for_audit()
        left = set(named)
        while left or (left := set(await self._publish(bookie_id))):
            left = await self._still_naming(bookie_id, left)
            if left:
                self._on_left(len(left))
                pace = self._pace
                await asyncio.sleep(min(pace.poll_s_max, pace.poll_s * len(left)))
                # A bookie that came back needs no decommission, and workers would wait for nothing.
                await check_not_registered(self._store, [bookie_id], root=self._root)
        self._check_all_readable(bookie_id)
        await self._delete_cookie(bookie_id)
        return len(named)

    async def _publish(self, bookie_id: str) -> list[int]:
        """Publish every ledger that names the bookie; return these ledgers."""
        named: list[int] = []
        async for ledger in scan_ledgers(self._reads):
            metadata = ledger.metadata
            if names_any(metadata, [bookie_id]):
                await self._items.publish(metadata.ledger_id, {bookie_id: [EVERYTHING]})
                named.append(metadata.ledger_id)
        return named

    def _check_all_readable(self, bookie_id: str) -> None:
        """Check that the metadata of every ledger could be read.

        Raises:
            InvalidLedgerMetadataError: a ledger with unreadable metadata may name the bookie.
        """
        unreadable = self._reads.unreadable
        if unreadable:
            first = min(unreadable)
            raise InvalidLedgerMetadataError(
                f"bookie {bookie_id} keeps its cookie: the metadata of {len(unreadable)} ledgers "
                f"cannot be read, and may name it. The first is ledger {first}: "
                f"{unreadable[first]}"
            )

    async def _still_naming(self, bookie_id: str, ledger_ids: set[int]) -> set[int]:
        """Return those ledgers whose metadata or work item still names the bookie."""
        left: set[int] = set()
        for ledger_id in sorted(ledger_ids):
            try:
                metadata = (await self._client.manager.read(ledger_id)).metadata
            except NoSuchLedgerError:
                continue
            item = await self._items.read(ledger_id)
            if names_any(metadata, [bookie_id]) or (item is not None and bookie_id in item.missing):
                left.add(ledger_id)
        return left

    async def _delete_cookie(self, bookie_id: str) -> None:
        cookie = await self._client.registry.read_cookie(bookie_id)
        # As late as possible: a bookie that starts now finds its cookie, or none and refuses.
        await check_not_registered(self._store, [bookie_id], root=self._root)
        if cookie is None:
            return
        try:
            await self._store.delete(f"{self._root}/cookies/{bookie_id}", version=cookie.version)
        except NoNodeError:
            pass  # an earlier attempt deleted it
        except BadVersionError as error:
            raise BookieRegisteredError(
                f"bookie {bookie_id} is running: it has just written its cookie, which was not "
                f"deleted. Stop the bookie, then decommission it again"
            ) from error
        _log.warning("bookie_decommissioned", bookie=bookie_id)
