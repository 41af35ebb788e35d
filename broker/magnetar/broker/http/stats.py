"""Statistics of topics over HTTP. Source: HTTP sheet, section 9.5."""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter

from magnetar.broker.http.context import HttpContext
from magnetar.broker.stats import topic_stats


def stats_router(context: HttpContext, *, wall_ms: Callable[[], int]) -> APIRouter:
    """The routes below /admin/v2/persistent."""
    router = APIRouter(tags=["topics"])

    @router.get("/admin/v2/persistent/{tenant}/{namespace}/{topic}/stats")
    async def stats(tenant: str, namespace: str, topic: str) -> dict[str, Any]:
        """What a topic does, and why its subscriptions deliver nothing; asks its owner."""
        name = await context.topic("persistent", tenant, namespace, topic)
        served = await context.served(name)
        own = next((each for each in context.admin.brokers() if each.is_self), None)
        return topic_stats(served, now_ms=wall_ms(), owner=own.broker_id if own is not None else "")

    return router
