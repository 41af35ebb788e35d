"""Routes that are made in full when the first request for them comes."""

import json
from typing import Any

import pytest
from fastapi import Depends, FastAPI
from fastapi.openapi.utils import get_openapi

from magnetar.broker.http.late_routes import add_late, late_router


class _Scene:
    """An application with two late routes, and what a request to it has run."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.app = FastAPI()
        router = late_router(tags=["things"], prefix="/things")

        @router.get("/{number}", dependencies=[Depends(self._noting("own"))])
        async def show(number: int) -> dict[str, int]:
            """One thing."""
            self.ran.append("show")
            return {"number": number}

        @router.put("/{number}", status_code=204)
        async def put(number: int) -> None:
            self.ran.append("put")

        add_late(self.app, router, [Depends(self._noting("first"))])

    async def ask(self, method: str, path: str) -> tuple[int, Any]:
        """Status and JSON of the answer."""
        said: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b""}

        async def send(message: Any) -> None:
            said.append(message)

        scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}
        await self.app(scope, receive, send)
        content = b"".join(each.get("body", b"") for each in said)
        return said[0]["status"], json.loads(content) if content else None

    def _noting(self, what: str) -> Any:
        return lambda: self.ran.append(what)

    def made(self) -> list[bool]:
        """For each route, whether it is whole."""
        return [each.__dict__.get("late_options") is None for each in self.app.routes[-2:]]


async def test_a_route_is_made_by_the_first_request_for_it_and_alone() -> None:
    scene = _Scene()
    assert scene.made() == [False, False]
    assert await scene.ask("PUT", "/things/7") == (204, None)
    assert scene.made() == [False, True]
    assert await scene.ask("GET", "/things/7") == (200, {"number": 7})
    assert scene.made() == [True, True]


async def test_dependencies_of_all_routes_come_before_those_of_one() -> None:
    scene = _Scene()
    await scene.ask("GET", "/things/7")
    assert scene.ran == ["first", "own", "show"]


async def test_values_are_checked_and_other_methods_refused_as_ever() -> None:
    scene = _Scene()
    assert (await scene.ask("GET", "/things/seven"))[0] == 422
    assert (await scene.ask("DELETE", "/things/7"))[0] == 405
    assert (await scene.ask("GET", "/things"))[0] == 404
    assert "show" not in scene.ran


def test_the_description_holds_routes_that_nobody_has_asked_for() -> None:
    scene = _Scene()
    found = get_openapi(title="t", version="1", routes=scene.app.routes)["paths"]
    assert found["/things/{number}"]["get"]["description"] == "One thing."
    assert found["/things/{number}"]["get"]["tags"] == ["things"]
    assert set(found["/things/{number}"]) == {"get", "put"}
    assert scene.made() == [True, True]


def test_what_a_whole_route_does_not_have_is_no_attribute() -> None:
    route = _Scene().app.routes[-1]
    with pytest.raises(AttributeError, match="nothing"):
        route.nothing  # type: ignore[attr-defined]  # noqa: B018
