"""The brokers that serve the transaction coordinators, for clients that watch them.

While there are watchers, one task of the broker looks up all coordinators at intervals. The lookups
are answered from memory, unless an owner has just changed. A coordinator whose owner cannot be
found within one interval is left out until it can.
"""

import asyncio
from dataclasses import dataclass
from typing import Protocol

import structlog

from magnetar.broker.base.errors import NotAllowedError, RequestError
from magnetar.broker.cluster.ownership.protocol import Owner, Ownership
from magnetar.broker.features.transactions.coordinators import Coordinators
from magnetar.broker.features.transactions.ids import coordinator_topic

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Places:
    """Locations of the coordinators."""

    count: int
    places: tuple["Place", ...]
    """Coordinators whose owners are known."""


@dataclass(frozen=True, slots=True)
class Place:
    """Location of one coordinator."""

    number: int
    service_url: str
    service_url_tls: str
    """TLS address of the broker; empty if it has no TLS port."""


class Watcher(Protocol):
    """A client connection that follows the owners of the coordinators."""

    @property
    def listener(self) -> str:
        """Name of the addresses that the client can reach; empty for the default ones."""
        ...

    def tell(self, places: Places) -> None: ...


class CoordinatorPlaces:
    """Locations of all coordinators, as one broker reports them to its watchers."""

    def __init__(
        self, coordinators: Coordinators, ownership: Ownership, *, interval_ms: int
    ) -> None:
        self._coordinators = coordinators
        self._ownership = ownership
        self._interval_s = interval_ms / 1000
        self._watchers: dict[Watcher, None] = {}
        self._looking: asyncio.Task[None] | None = None

    async def places(self, listener: str) -> Places:
        """Return the current locations of the coordinators.

        Raises:
            NotAllowedError: transactions are off, or no owner has the listener.
            BrokerMetadataError
        """
        self._coordinators.check_enabled()
        count = await self._coordinators.prepare()
        found = await asyncio.gather(*(self._owner(each, listener) for each in range(count)))
        places = tuple(
            Place(number, owner.service_url, owner.service_url_tls)
            for number, owner in enumerate(found)
            if isinstance(owner, Owner)
        )
        refusal = next((each for each in found if isinstance(each, NotAllowedError)), None)
        if refusal is not None and not places:
            raise refusal
        return Places(count, places)

    async def _owner(self, number: int, listener: str) -> Owner | NotAllowedError | None:
        """Return the owner of a coordinator, why the client may not learn it, or None if it cannot
        be found now."""
        try:
            async with asyncio.timeout(self._interval_s):
                return await self._ownership.owner_of(coordinator_topic(number), listener=listener)
        except NotAllowedError as error:
            return error
        except (TimeoutError, RequestError):
            return None

    def join(self, watcher: Watcher) -> None:
        """Add a watcher, which gets the result of every lookup and skips what it already knows."""
        self._watchers[watcher] = None
        if self._looking is None:
            loop = asyncio.get_running_loop()
            self._looking = loop.create_task(self._look(), name="look-at-coordinator-places")

    def leave(self, watcher: Watcher) -> None:
        """Remove a watcher, if it is there; the lookups stop when none is left."""
        self._watchers.pop(watcher, None)
        if not self._watchers and self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def close(self) -> None:
        """Remove all watchers and stop the lookups."""
        for watcher in list(self._watchers):
            self.leave(watcher)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            for listener in dict.fromkeys(each.listener for each in self._watchers):
                try:
                    await self._look_for(listener)
                except RequestError as error:
                    _log.info("coordinator_places_not_read", listener=listener, error=str(error))
                except Exception:  # noqa: BLE001
                    # A defect must not end all further lookups.
                    _log.exception("coordinator_places_not_read", listener=listener)

    async def _look_for(self, listener: str) -> None:
        places = await self.places(listener)
        for watcher in [each for each in self._watchers if each.listener == listener]:
            watcher.tell(places)
