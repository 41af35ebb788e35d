"""Metadata requests of garbage collection: throttled, and only to the right cluster's store."""

import asyncio

from magnetar.bookie.errors import ForeignMetadataError
from magnetar.ledger.pace import Pace
from magnetar.ledger.ports import Clock
from magnetar.ledger.registration import BookieRegistry


class MetadataCalls:
    """Pace of one bookie's garbage collection requests, and check of the cluster they go to."""

    def __init__(
        self, registry: BookieRegistry, *, instance_id: str, clock: Clock, calls_per_s: float
    ) -> None:
        """`instance_id` is that of our cookie."""
        self._registry = registry
        self._instance_id = instance_id
        self._clock = clock
        self._pace = Pace(calls_per_s)

    async def check_instance(self) -> None:
        """Check that the metadata store belongs to our cluster.

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
        """Wait until the pace allows another request."""
        await asyncio.sleep(self._pace.take(1, self._clock.monotonic_s()))
