"""Routes that are made in full when the first request for them comes.

FastAPI looks at the parameters of a route, and makes validators for them, when the route is
declared: for hundreds of routes that takes half a second of processor time, and a broker is asked
for a few of them. A late route knows its path and its methods, by which requests are matched; the
first request that it is for pays for the rest, a millisecond or two. The description of the
interface needs all of them, and makes them in its thread.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter, FastAPI, params
from fastapi.routing import APIRoute
from starlette.routing import compile_path

_making = threading.RLock()
"""A request and the description may need the same route at the same time."""


class _LateRoute(APIRoute):
    """Looks like the whole route: what is asked for first and is missing makes it."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        self.path = path
        self.endpoint = endpoint
        self.path_regex, self.path_format, self.param_convertors = compile_path(path)
        self.methods = {method.upper() for method in options["methods"]}
        self.late_options: dict[str, Any] | None = options

    def __getattr__(self, name: str) -> Any:
        """Called for what is not there.

        Raises:
            AttributeError: nor is it when the route is whole.
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
    """A router whose routes are late, for `add_late`."""
    return APIRouter(route_class=_LateRoute, **options)


def add_late(app: FastAPI, router: APIRouter, dependencies: Sequence[params.Depends]) -> None:
    """Include a router's late routes without making them. `app.include_router` would make them all
    at the first request for one of them. `dependencies` come before those of the routes."""
    for route in router.routes:
        assert isinstance(route, _LateRoute)
        assert route.late_options is not None
        own = route.late_options.get("dependencies") or ()
        route.late_options["dependencies"] = [*dependencies, *own]
        app.router.routes.append(route)
