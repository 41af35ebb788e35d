"""Rates and backlogs of the last hour over HTTP, for plots. Not in Pulsar's interface.

A topic's history comes from its owner, which has sampled it. For a partitioned topic, the points of
all partitions are summed. `metrics/history.py` says what is kept, and for how long.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter

from magnetar.broker.base.errors import TopicNotFoundError
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.fan_out import TopicWork, on_each
from magnetar.broker.http.late_routes import late_router
from magnetar.broker.http.metrics.history import History
from magnetar.sdk.wire import TopicName


class _Histories:
    """Routes of the history that this broker keeps."""

    def __init__(self, context: HttpContext, history: History[TopicName], domain: str = "") -> None:
        self._context = context
        self._history = history
        self._domain = domain
        self._work = TopicWork(context)

    async def broker(self) -> dict[str, Any]:
        """Return the history of all topics of this broker together."""
        return self._history.whole().shown()

    async def topic(self, tenant: str, namespace: str, topic: str) -> dict[str, Any]:
        """Return the history of a topic. The request does not load it: a topic that is not loaded
        has no points."""
        name = await self._context.topic(self._domain, tenant, namespace, topic)

        async def one(part: TopicName) -> dict[str, Any]:
            await self._context.check_owner(part)
            return self._history.of(part).shown()

        every = await self._work.partitions(name)
        if every is not None:
            found = await on_each(
                self._context.admin, every, one, "GET", "history", may_be_missing=True
            )
            return added([each for each in found if isinstance(each, dict)])
        if self._context.topics.served(name) is None:
            await self._context.check_owner(name)
            if not await self._context.topics.exists(name):
                raise TopicNotFoundError(f"Topic {name} not found")
        return await one(name)


def added(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum several plots; their last points count as simultaneous."""
    if not parts:
        return {"endedMs": 0, "intervalMs": 0, "points": {}, "isLeftOut": False}
    points: dict[str, list[float]] = {}
    for part in parts:
        for name, values in part["points"].items():
            sums = points.setdefault(name, [])
            sums[:0] = [0.0] * (len(values) - len(sums))
            at = len(sums) - len(values)
            for value in values:
                sums[at] += value
                at += 1
    return {
        "endedMs": max(part["endedMs"] for part in parts),
        "intervalMs": max(part["intervalMs"] for part in parts),
        "points": points,
        "isLeftOut": any(part["isLeftOut"] for part in parts),
    }


def history_router(context: HttpContext, history: History[TopicName]) -> APIRouter:
    """Return the routes of the last hour."""
    router = late_router(tags=["overview"])
    router.get("/magnetar/v1/history", summary="Rates of this broker in the last hour")(
        _Histories(context, history).broker
    )
    for domain in ("persistent", "non-persistent"):
        router.get(
            f"/admin/v2/{domain}/{{tenant}}/{{namespace}}/{{topic}}/history",
            summary=f"Rates and backlogs of a {domain} topic in the last hour",
        )(_Histories(context, history, domain).topic)
    return router
