"""Routes that are built in full at their first request.

FastAPI inspects a route's parameters and makes validators for them when the route is declared. For
hundreds of routes that takes half a second of processor time, and a broker uses only a few of them.
A late route knows its path and its methods, which match requests. Its first request pays for the
rest, a millisecond or two. The description of the interface needs all routes, and builds them in
its thread.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter, FastAPI, params
from fastapi.routing import APIRoute
from starlette.routing import compile_path

_making = threading.RLock()
"""Lock for building: a request and the description may need the same route at the same time."""


class _LateRoute(APIRoute):
    """A route that is built in full when an attribute that it lacks is first read."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        self.path = path
        self.endpoint = endpoint
        self.path_regex, self.path_format, self.param_convertors = compile_path(path)
        self.methods = {method.upper() for method in options["methods"]}
        self.late_options: dict[str, Any] | None = options

    def __getattr__(self, name: str) -> Any:
        """Build the route, and return an attribute that was missing before.

        Raises:
            AttributeError: the whole route lacks it, too.
        """
        with _making:
            options = self.__dict__.get("late_options")
            if options is not None:
                self.late_options = None
                super().__init__(self.path, self.endpoint, **options)
        try:
            return self.__dict__[name]
        except KeyError:
            raise AttributeError(name) from None


def late_router(**options: Any) -> APIRouter:
    """Return a router whose routes are late, for `add_late`."""
    return APIRouter(route_class=_LateRoute, **options)


def add_late(app: FastAPI, router: APIRouter, dependencies: Sequence[params.Depends]) -> None:
    """Include a router's late routes without building them. `app.include_router` would build them
    all at the first request for one of them. `dependencies` run before those of the routes."""
    for route in router.routes:
        assert isinstance(route, _LateRoute)
        assert route.late_options is not None
        own = route.late_options.get("dependencies") or ()
        route.late_options["dependencies"] = [*dependencies, *own]
        app.router.routes.append(route)
