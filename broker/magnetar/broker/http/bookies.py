"""Bookies over HTTP. Source: HTTP sheet, section 6.

Bookies register with a rack and a zone, by which they are placed. Racks that are set here are only
stored and shown.
"""

from collections.abc import Callable, Mapping
from random import Random

from fastapi import APIRouter, Response
from pydantic import BaseModel

from magnetar.broker.base.errors import NotThereError
from magnetar.broker.http.bodies import RequestBody, done
from magnetar.broker.http.bookie_disks import BookieDisks
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.late_routes import late_router
from magnetar.broker.http.refusals import HttpRefusal
from magnetar.ledger.autorecovery.controls import Controls, election_path
from magnetar.ledger.autorecovery.status import BookieReport, report_bookies
from magnetar.ledger.autorecovery.work_items import WorkItems
from magnetar.ledger.metadata.election import read_leader
from magnetar.ledger.registration import BookieInfo as Registered

_RACK = "/admin/v2/bookies/racks-info/{bookie:path}"
_ROOT = "/ledgers"
_NOTE = "bookies are placed by the racks that they register with"


class RawBookieInfo(BaseModel):
    """A registered bookie."""

    bookieId: str


class BookiesClusterInfo(BaseModel):
    """All registered bookies."""

    bookies: list[RawBookieInfo]


class BookieInfo(RequestBody):
    """Location of a bookie."""

    rack: str
    hostname: str | None = None


class BookieView(BaseModel):
    """A bookie with all that the metadata says of it; not a shape of Pulsar's."""

    id: str
    state: str
    """`writable`, `readonly`, or `lost`: ledgers name the bookie, but it is not registered."""
    address: str
    rack: str
    zone: str


class RecoveryView(BaseModel):
    """State of re-replication; not a shape of Pulsar's."""

    auditor: str | None
    """Bookie that is the elected auditor, which looks for missing copies; null if there is none."""
    enabled: bool
    """Whether re-replication is on; an operator may switch it off."""
    ledgers_waiting: int
    """Number of ledgers that lack copies."""
    ledgers_lost: int
    """Number of ledgers with entries that no bookie has."""


class StorageView(BaseModel):
    """All bookies, and the state of re-replication."""

    bookies: list[BookieView]
    recovery: RecoveryView


class _Bookies:
    """Routes of bookies and their racks."""

    def __init__(
        self,
        context: HttpContext,
        registered: Callable[[], Mapping[str, Registered]],
        random: Random,
    ) -> None:
        self._context = context
        self._registered = registered
        self._resources = context.resources
        self._items = WorkItems(context.store, clock=context.clock, random=random, root=_ROOT)

    async def storage(self) -> StorageView:
        """Return all bookies and the state of re-replication, from the metadata store: no bookie is
        asked."""
        known = self._registered()
        store = self._context.store
        reports = await report_bookies(store, _ROOT)
        recovery = RecoveryView(
            auditor=await read_leader(store, election_path(_ROOT)),
            enabled=await Controls(store, _ROOT).is_enabled(),
            ledgers_waiting=len(await self._items.ids()),
            ledgers_lost=len(await self._items.lost_ids()),
        )
        return StorageView(
            bookies=[_view(each, known.get(each.bookie_id)) for each in reports],
            recovery=recovery,
        )

    async def all_bookies(self) -> BookiesClusterInfo:
        return BookiesClusterInfo(
            bookies=[RawBookieInfo(bookieId=name) for name in sorted(self._registered())]
        )

    async def racks(self) -> dict[str, dict[str, BookieInfo]]:
        """Return the racks that were set here. All other bookies are in `default` with the rack of
        their registration."""
        known = await self._resources.racks()
        placed = {name for bookies in known.values() for name in bookies}
        own = {
            name: {"rack": each.rack, "hostname": f"{each.host}:{each.port}"}
            for name, each in self._registered().items()
            if each.rack and name not in placed
        }
        merged = {**known, "default": {**own, **known.get("default", {})}} if own else known
        return {
            group: {name: BookieInfo.model_validate(each) for name, each in bookies.items()}
            for group, bookies in merged.items()
        }

    async def rack(self, bookie: str) -> BookieInfo:
        """Return the rack of a bookie; 404 if it is unknown."""
        for bookies in (await self.racks()).values():
            if bookie in bookies:
                return bookies[bookie]
        raise NotThereError(f"no rack is known for bookie {bookie!r}")

    async def set_rack(self, bookie: str, info: BookieInfo, group: str = "default") -> Response:
        """Store the rack. It has no effect: bookies are placed by the racks they register with."""
        if not info.rack or not group:
            raise HttpRefusal(412, "give a rack and a group")

        def change(groups: dict[str, dict[str, dict[str, str]]]) -> None:
            for bookies in groups.values():
                bookies.pop(bookie, None)
            groups.setdefault(group, {})[bookie] = info.model_dump(exclude_none=True)

        await self._resources.change_racks(change)
        return done(note=_NOTE)

    async def remove_rack(self, bookie: str) -> Response:
        """Remove the rack of a bookie; 404 if none was set here."""

        def change(groups: dict[str, dict[str, dict[str, str]]]) -> None:
            if not any(bookies.pop(bookie, None) for bookies in groups.values()):
                raise NotThereError(f"no rack was set for bookie {bookie!r}")

        await self._resources.change_racks(change)
        return done()


def bookies_router(
    context: HttpContext,
    registered: Callable[[], Mapping[str, Registered]],
    *,
    random: Random,
    disks: BookieDisks,
) -> APIRouter:
    """Return the routes below /admin/v2/bookies and /magnetar/v1/bookies. `registered` returns the
    registered bookies by id."""
    router = late_router(tags=["bookies"])
    routes = _Bookies(context, registered, random)
    router.get("/magnetar/v1/bookies", summary="Bookies, and the status of re-replication")(
        routes.storage
    )
    router.get("/magnetar/v1/bookies/disks", summary="Directories of bookies, and their space")(
        disks.shown
    )
    router.get("/admin/v2/bookies/all", summary="The bookies that are registered")(
        routes.all_bookies
    )
    router.get(
        "/admin/v2/bookies/racks-info",
        summary="The racks of bookies, by group and bookie",
        response_model_exclude_none=True,
    )(routes.racks)
    router.get(_RACK, summary="The rack of one bookie", response_model_exclude_none=True)(
        routes.rack
    )
    router.post(_RACK, status_code=204, summary="Set the rack of a bookie")(routes.set_rack)
    router.delete(_RACK, status_code=204, summary="Remove the rack of a bookie")(routes.remove_rack)
    return router


def _view(report: BookieReport, info: Registered | None) -> BookieView:
    return BookieView(
        id=report.bookie_id,
        state=report.state,
        address=f"{info.host}:{info.port}" if info is not None else "",
        rack=info.rack if info is not None else "",
        zone=info.zone if info is not None else "",
    )
