"""Services of Pulsar that are not in this broker: the answers that its tools understand.

Source: HTTP sheet, section 11.
"""

from fastapi import APIRouter

from magnetar.broker.http.refusals import HttpRefusal

_METHODS = ["GET", "POST", "PUT", "DELETE"]

_ABSENT = (
    ("/admin/v3/functions", 409, "there is no functions worker: run functions as programs"),
    ("/admin/v3/sources", 409, "there is no functions worker: run sources as programs"),
    ("/admin/v3/sinks", 409, "there is no functions worker: run sinks as programs"),
    ("/admin/v3/source", 409, "there is no functions worker: run sources as programs"),
    ("/admin/v3/sink", 409, "there is no functions worker: run sinks as programs"),
    ("/admin/v2/functions", 409, "there is no functions worker: run functions as programs"),
    ("/admin/v3/packages", 404, "there is no package storage"),
    ("/admin/v2/worker", 503, "there is no functions worker"),
    ("/admin/v2/worker-stats", 503, "there is no functions worker"),
)


def absent_router() -> APIRouter:
    """Answers for all paths below what is not there."""
    router = APIRouter(tags=["not here"])
    for prefix, status, reason in _ABSENT:
        _add(router, prefix, status, reason)
    return router


def _add(router: APIRouter, prefix: str, status: int, reason: str) -> None:
    async def refused() -> None:
        raise HttpRefusal(status, reason)

    for path in (prefix, prefix + "/{rest:path}"):
        router.add_api_route(path, refused, methods=_METHODS, include_in_schema=False)
