"""Asking the metadata store on behalf of garbage collection: slowly, and only the right one."""

import asyncio

from magnetar.bookie.errors import ForeignMetadataError
from magnetar.ledger.pace import Pace
from magnetar.ledger.ports import Clock
from magnetar.ledger.registration import BookieRegistry


class MetadataCalls:
    """The pace of all calls of one bookie's garbage collection, and whose metadata it reads."""

    def __init__(
        self, registry: BookieRegistry, *, instance_id: str, clock: Clock, calls_per_s: float
    ) -> None:
        """`instance_id` is the one of our cookie."""
        self._registry = registry
        self._instance_id = instance_id
        self._clock = clock
        self._pace = Pace(calls_per_s)

    async def check_instance(self) -> None:
        """
        Raises:
            ForeignMetadataError: this is the metadata of another cluster, or of none.
            LedgerError: it could not be found out.
        """
        found = await self._registry.find_instance_id()
        if found != self._instance_id:
            raise ForeignMetadataError(
                f"the metadata store belongs to cluster {found or '(none)'}, this bookie's data to "
                f"{self._instance_id}: nothing is deleted"
            )

    async def wait_turn(self) -> None:
        """Before, or after, a call."""
        await asyncio.sleep(self._pace.take(1, self._clock.monotonic_s()))
