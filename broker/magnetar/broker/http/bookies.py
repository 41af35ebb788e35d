"""Bookies over HTTP. Source: HTTP sheet, section 6.

Bookies say themselves in which rack and zone they are; racks that are set here are kept and shown.
"""

from collections.abc import Callable, Mapping

from fastapi import APIRouter, Response
from pydantic import BaseModel

from magnetar.broker.errors import NotThereError
from magnetar.broker.http.answers import done
from magnetar.broker.http.bodies import RequestBody
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.refusals import HttpRefusal
from magnetar.ledger.registration import BookieInfo as Registered

_RACK = "/admin/v2/bookies/racks-info/{bookie:path}"
_NOTE = "bookies are placed by the racks that they register with"


class RawBookieInfo(BaseModel):
    """A bookie."""

    bookieId: str


class BookiesClusterInfo(BaseModel):
    """All of them."""

    bookies: list[RawBookieInfo]


class BookieInfo(RequestBody):
    """Where a bookie stands."""

    rack: str
    hostname: str | None = None


def bookies_router(
    context: HttpContext, registered: Callable[[], Mapping[str, Registered]]
) -> APIRouter:
    """The routes below /admin/v2/bookies. `registered`: the bookies that there are, by id."""
    router = APIRouter(tags=["bookies"])
    resources = context.resources

    @router.get("/admin/v2/bookies/all", summary="The bookies that are registered")
    async def all_bookies() -> BookiesClusterInfo:
        return BookiesClusterInfo(
            bookies=[RawBookieInfo(bookieId=name) for name in sorted(registered())]
        )

    @router.get(
        "/admin/v2/bookies/racks-info",
        summary="The racks of bookies, by group and bookie",
        response_model_exclude_none=True,
    )
    async def racks() -> dict[str, dict[str, BookieInfo]]:
        """Those that were set here; of all others what they registered with, in `default`."""
        known = await resources.racks()
        placed = {name for bookies in known.values() for name in bookies}
        own = {
            name: {"rack": each.rack, "hostname": f"{each.host}:{each.port}"}
            for name, each in registered().items()
            if each.rack and name not in placed
        }
        merged = {**known, "default": {**own, **known.get("default", {})}} if own else known
        return {
            group: {name: BookieInfo.model_validate(each) for name, each in bookies.items()}
            for group, bookies in merged.items()
        }

    @router.get(_RACK, summary="The rack of one bookie", response_model_exclude_none=True)
    async def rack(bookie: str) -> BookieInfo:
        """404: nothing is known of it."""
        for bookies in (await racks()).values():
            if bookie in bookies:
                return bookies[bookie]
        raise NotThereError(f"nothing is known of the rack of bookie {bookie!r}")

    @router.post(_RACK, status_code=204, summary="Set the rack of a bookie")
    async def set_rack(bookie: str, info: BookieInfo, group: str = "default") -> Response:
        """It is kept and has no effect: bookies are placed by the racks they register with."""
        if not info.rack or not group:
            raise HttpRefusal(412, "a rack and a group are needed")

        def change(groups: dict[str, dict[str, dict[str, str]]]) -> None:
            for bookies in groups.values():
                bookies.pop(bookie, None)
            groups.setdefault(group, {})[bookie] = info.model_dump(exclude_none=True)

        await resources.change_racks(change)
        return done(note=_NOTE)

    @router.delete(_RACK, status_code=204, summary="Forget the rack of a bookie")
    async def remove_rack(bookie: str) -> Response:
        """404: none was set here."""

        def change(groups: dict[str, dict[str, dict[str, str]]]) -> None:
            if not any(bookies.pop(bookie, None) for bookies in groups.values()):
                raise NotThereError(f"no rack was set for bookie {bookie!r}")

        await resources.change_racks(change)
        return done()

    return router
