"""Problems that need an operator, and the traffic of a namespace, over HTTP. Not in Pulsar's
interface.

Any broker answers for all: it inspects its own loaded topics and asks the other brokers for theirs.
A broker that does not answer in time is named and left out. Topics that are not loaded are in no
row: they have no producers and no consumers.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query

from magnetar.broker.base import naming
from magnetar.broker.base.errors import BrokerMetadataError
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.http.admin import KnownBroker
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.late_routes import late_router
from magnetar.broker.http.members import Members
from magnetar.broker.http.overview import (
    ITEMS_MAX,
    KINDS,
    Row,
    largest_backlogs,
    row_of,
    troubles_in,
)
from magnetar.broker.topic import Topic

ASK_S_MAX: Final = 3.0
"""Seconds that another broker may take to answer. The console shows the other answers meanwhile."""
KEPT_MS: Final = 2_000
"""Shortest lifetime of a cached answer, so that many consoles cause one pass over all topics."""
SHARE_OF_TIME: Final = 20
"""Lifetime of a cached answer as a multiple of the time it took: passes cost 5 % of the time at
most."""
TOPICS_AT_ONCE: Final = 200
"""Topics inspected before the event loop gets its turn: some milliseconds."""

Own = Annotated[
    bool, Query(description="Only topics of this broker; brokers set it among themselves.")
]


class _Attention:
    """Routes over all loaded topics."""

    def __init__(self, context: HttpContext, wall_ms: Callable[[], int], members: Members) -> None:
        self._context = context
        self._members = members
        self._wall_ms = wall_ms
        self._looking = asyncio.Lock()
        self._kept: tuple[float, dict[str, Any]] | None = None
        """Time until which an answer is valid, by the monotonic clock; and the answer."""

    async def attention(self, own: Own = False) -> dict[str, Any]:
        """Return what needs an operator: stuck subscriptions, consumers that hoard messages,
        backlogs near their quota, topics that retain much data without subscriptions. Also the
        largest backlogs, and servers that came and went. At most 50 of each kind, and 100 events.
        `quorum` is that of ledgers of topics without a policy of their own."""
        found = await self._own_attention()
        if own:
            return found
        answers, unanswered = await self._of_others("/magnetar/v1/attention?own=true")
        events = self._members.shown()
        return {
            **merged([found, *answers]),
            "unanswered": unanswered,
            "events": events,
            "quorum": quorum_of(self._context.settings),
        }

    async def _own_attention(self) -> dict[str, Any]:
        async with self._looking:
            if self._kept is None or self._context.clock.monotonic_s() >= self._kept[0]:
                self._kept = await self._look()
            return self._kept[1]

    async def _look(self) -> tuple[float, dict[str, Any]]:
        """Inspect all loaded topics; return the time until which the answer is valid, and the
        answer."""
        begun_s = self._context.clock.monotonic_s()
        topics = self._context.topics.loaded
        rows = await self._rows(
            [each for each in topics if not naming.is_system_topic(str(each.name))]
        )
        found = {**troubles_in(rows), "largest": largest_backlogs(rows), "topics": len(rows)}
        ended_s = self._context.clock.monotonic_s()
        return ended_s + kept_s(ended_s - begun_s), found

    async def topics(self, tenant: str, namespace: str, own: Own = False) -> dict[str, Any]:
        """Return a row for each loaded topic of a namespace, up to `overview_topics_max`."""
        name = await self._context.namespace(tenant, namespace)
        loaded = [each for each in self._context.topics.loaded if each.name.namespace_name == name]
        limit = self._context.settings.overview_topics_max
        rows: list[Any] = [each.shown() for each in await self._rows(loaded[:limit])]
        found = {"topics": rows, "leftOut": max(0, len(loaded) - limit)}
        if own:
            return found
        where = f"/magnetar/v1/namespaces/{name}/topics?own=true"
        answers, unanswered = await self._of_others(where)
        for answer in answers:
            room = limit - len(rows)
            rows += answer["topics"][:room]
            found["leftOut"] += answer["leftOut"] + max(0, len(answer["topics"]) - room)
        return {**found, "unanswered": unanswered}

    async def _rows(self, topics: Sequence[Topic]) -> list[Row]:
        now_ms, rows = self._wall_ms(), []
        for at, topic in enumerate(topics, start=1):
            rows.append(row_of(topic, now_ms))
            if at % TOPICS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return rows

    async def _of_others(self, path: str) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the answers of the other brokers, and the ids of those that gave none."""
        others = [each for each in self._context.admin.brokers() if not each.is_self]

        async def ask(broker: KnownBroker) -> dict[str, Any] | None:
            try:
                async with asyncio.timeout(ASK_S_MAX):
                    answer = await self._context.admin.ask(broker.record.http_url, "GET", path)
                value = json.loads(answer.body) if answer.is_success else None
            except (BrokerMetadataError, TimeoutError, ValueError):
                return None
            return value if isinstance(value, dict) else None

        answers = await asyncio.gather(*map(ask, others))
        silent = [
            each.broker_id for each, found in zip(others, answers, strict=True) if found is None
        ]
        return [each for each in answers if each is not None], silent


def quorum_of(settings: BrokerSettings) -> dict[str, int]:
    """Return how many bookies a ledger has, and how many have an entry when it is confirmed."""
    return {
        "ensemble": settings.ensemble_size,
        "write": settings.write_quorum,
        "ack": settings.ack_quorum,
    }


def kept_s(took_s: float) -> float:
    """Return how long an answer is good for, by how long it took to make."""
    return max(KEPT_MS / 1000, SHARE_OF_TIME * took_s)


def merged(answers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the answers of several brokers into one list of what needs an operator."""
    answers = list(answers)
    found: dict[str, Any] = {"topics": sum(each["topics"] for each in answers)}
    for kind in KINDS:
        # A broker of an earlier release does not know all kinds.
        items = [item for each in answers for item in each.get(kind, ())]
        found[kind] = sorted(items, key=lambda item: -item["backlog"])[:ITEMS_MAX]
    largest = [item for each in answers for item in each["largest"]]
    found["largest"] = sorted(largest, key=lambda item: -item["msgBacklog"])[:ITEMS_MAX]
    return found


def attention_router(
    context: HttpContext, *, wall_ms: Callable[[], int], members: Members
) -> APIRouter:
    """Return the routes over all topics of a cluster or a namespace, for the console."""
    router = late_router(tags=["overview"])
    routes = _Attention(context, wall_ms, members)
    router.get("/magnetar/v1/attention", summary="What needs a person")(routes.attention)
    router.get(
        "/magnetar/v1/namespaces/{tenant}/{namespace}/topics",
        summary="The loaded topics of a namespace, a row each",
    )(routes.topics)
    return router
