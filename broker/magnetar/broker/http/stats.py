"""Statistics of topics over HTTP. Source: HTTP sheet, sections 9.2, 9.5 and 9.6."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from magnetar.broker.base.errors import TopicNotFoundError
from magnetar.broker.features.message_index import exact_backlogs
from magnetar.broker.features.retention.backlog import backlog_age, oldest_publish_ms
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.fan_out import TopicWork, on_each
from magnetar.broker.http.internal_stats import offline_backlog, topic_info, topic_internal_stats
from magnetar.broker.http.late_routes import late_router
from magnetar.broker.http.refusals import HttpRefusal
from magnetar.broker.http.summed_stats import summed, summed_at_rest
from magnetar.broker.http.topic_stats import topic_stats
from magnetar.broker.schemas.errors import SchemaNotFoundError
from magnetar.broker.topic import Topic
from magnetar.broker.topics.at_rest.stored import resting_backlogs
from magnetar.cursors import CursorError
from magnetar.ledger.errors import LedgerError
from magnetar.sdk.wire import TopicName

_DOMAINS = ("persistent", "non-persistent")

Stats = dict[str, Any]
Parted = Annotated[
    bool, Query(alias="perPartition", description="Include the statistics of each partition.")
]
Earliest = Annotated[
    bool,
    Query(
        alias="getEarliestTimeInBacklog",
        description="Include the publish time of the oldest message of each backlog.",
    ),
]
Precise = Annotated[
    bool, Query(alias="getPreciseBacklog", description="Backlogs are always exact, in entries.")
]
Sized = Annotated[
    bool, Query(alias="subscriptionBacklogSize", description="Include the bytes of each backlog.")
]
NoPublishers = Annotated[bool, Query(alias="excludePublishers", description="Leave out producers.")]
OnlyLoaded = Annotated[
    bool,
    Query(
        alias="onlyLoaded",
        description="Do not load the topic. The answer for a topic that is not loaded contains "
        "only `atRest`, its stored state. A policy may delete a loaded topic that is not used. "
        "Pulsar has no such parameter.",
    ),
]
NoConsumers = Annotated[bool, Query(alias="excludeConsumers", description="Leave out consumers.")]


def stats_router(context: HttpContext, *, wall_ms: Callable[[], int]) -> APIRouter:
    """Return the routes below /admin/v2/persistent and /admin/v2/non-persistent."""
    router = late_router(tags=["statistics"])
    for domain in _DOMAINS:
        _Routes(router, context, domain, wall_ms).add()
    return router


class _Routes:
    """Routes of one domain."""

    def __init__(
        self, router: APIRouter, context: HttpContext, domain: str, wall_ms: Callable[[], int]
    ) -> None:
        self._router = router
        self._context = context
        self._domain = domain
        self._prefix = f"/admin/v2/{domain}/{{tenant}}/{{namespace}}/{{topic}}"
        self._wall_ms = wall_ms
        self._work = TopicWork(context)

    def _broker_id(self) -> str:
        own = next((each for each in self._context.admin.brokers() if each.is_self), None)
        return own.broker_id if own is not None else ""

    async def _plain(self, tenant: str, namespace: str, topic: str) -> Topic:
        """Return a topic of this broker; a partitioned topic counts as not found.

        Raises:
            TopicNotFoundError, ElsewhereError
        """
        name = await self._context.topic(self._domain, tenant, namespace, topic)
        if await self._work.partitions(name) is not None:
            raise TopicNotFoundError(f"Topic {name} not found: it is a partitioned topic")
        try:
            return await self._context.served(name)
        except TopicNotFoundError as error:
            raise TopicNotFoundError(f"Topic {name} not found") from error

    async def _at_rest(self, tenant: str, namespace: str, topic: str) -> Stats | None:
        """Return the stored backlogs of a topic of this broker that is not loaded; None if it is
        loaded or partitioned.

        Raises:
            TopicNotFoundError, ElsewhereError
            HttpRefusal: 503, they cannot be read now.
        """
        name = await self._context.topic(self._domain, tenant, namespace, topic)
        if await self._work.partitions(name) is not None:
            return None
        await self._context.check_owner(name)
        if self._context.topics.served(name) is not None:
            return None
        if not await self._context.topics.exists(name):
            raise TopicNotFoundError(f"Topic {name} not found")
        return await self._stored(name)

    async def _stored(self, name: TopicName) -> Stats:
        """Return the stored backlogs of a topic that is not loaded.

        Raises:
            HttpRefusal: 503, they cannot be read now.
        """
        try:
            found = await resting_backlogs(self._context.store, name)
        except (LedgerError, CursorError) as error:
            raise HttpRefusal(503, f"{name} cannot be read now: {error}") from error
        return {} if found is None else {"atRest": found.shown()}

    async def _stats(self, topic: Topic, has_earliest: bool, query: "_Wanted") -> Stats:
        now_ms = self._wall_ms()
        oldest = await backlog_age(topic, now_ms)
        backlogs = await exact_backlogs(topic)
        shown = topic_stats(
            topic, now_ms=now_ms, owner=self._broker_id(), oldest=oldest, backlogs=backlogs
        )
        if has_earliest:
            await _add_earliest(topic, shown)
        query.cut(shown)
        return shown

    async def _internal_stats(self, topic: Topic) -> Stats:
        try:
            index = await self._context.schemas.index(topic.name)
        except SchemaNotFoundError:
            index = ()
        ledgers = [each.ledger_id for each in index if not each.is_deletion]
        return topic_internal_stats(topic, schema_ledgers=ledgers)

    async def _parts(
        self,
        name: TopicName,
        action: str,
        work: Callable[[Topic], Awaitable[Stats]],
        *,
        only_loaded: bool = False,
    ) -> tuple[Stats, dict[str, Stats]]:
        """Return the metadata of a partitioned topic, and the answers of its partitions by name."""
        record = await self._context.topics.partitioned.find(name)
        if record is None:
            raise TopicNotFoundError(f"Partitioned topic {name} not found")
        every = [name.partition(index) for index in range(record.partitions)]

        async def one(partition: TopicName) -> Stats:
            if only_loaded:
                await self._context.check_owner(partition)
                if self._context.topics.served(partition) is None:
                    return await self._stored(partition)
            return await work(await self._context.served(partition))

        found = await on_each(self._context.admin, every, one, "GET", action, may_be_missing=True)
        parts = {
            str(partition): each
            for partition, each in zip(every, found, strict=True)
            if isinstance(each, dict)
        }
        metadata: Stats = {"partitions": len(every), "deleted": record.is_deleted}
        if record.properties:
            metadata["properties"] = dict(record.properties)
        return metadata, parts

    def add(self) -> None:
        """Add the routes to the router."""
        router, prefix = self._router, self._prefix
        of = f"of a {self._domain} topic"

        @router.get(prefix + "/stats", summary=f"Statistics {of}")
        async def stats(
            tenant: str,
            namespace: str,
            topic: str,
            earliest: Earliest = False,
            precise: Precise = False,
            sized: Sized = True,
            no_publishers: NoPublishers = False,
            no_consumers: NoConsumers = False,
            only_loaded: OnlyLoaded = False,
        ) -> Stats:
            """Return the statistics, and why subscriptions deliver nothing, from the owner of the
            topic."""
            stored = await self._at_rest(tenant, namespace, topic) if only_loaded else None
            if stored is not None:
                return stored
            there = await self._plain(tenant, namespace, topic)
            wanted = _Wanted(sized, no_publishers, no_consumers)
            return await self._stats(there, earliest, wanted)

        @router.get(
            prefix + "/partitioned-stats", summary=f"Statistics of all partitions {of}, summed"
        )
        async def partitioned_stats(
            tenant: str,
            namespace: str,
            topic: str,
            parted: Parted = True,
            earliest: Earliest = False,
            precise: Precise = False,
            sized: Sized = True,
            no_publishers: NoPublishers = False,
            no_consumers: NoConsumers = False,
            only_loaded: OnlyLoaded = False,
        ) -> Stats:
            name = await self._context.topic(self._domain, tenant, namespace, topic)
            wanted = _Wanted(sized, no_publishers, no_consumers)

            async def work(there: Topic) -> Stats:
                return await self._stats(there, earliest, wanted)

            action = f"stats?getEarliestTimeInBacklog={str(earliest).lower()}{wanted.query}"
            action += "&onlyLoaded=true" if only_loaded else ""
            metadata, parts = await self._parts(name, action, work, only_loaded=only_loaded)
            resting = [part.pop("atRest") for part in parts.values() if "atRest" in part]
            total = summed(parts.values())
            if resting:
                total["atRest"] = summed_at_rest(resting)
            return {**total, "metadata": metadata, "partitions": parts if parted else {}}

        self._add_internal()
        if self._domain == "persistent":
            self._add_stored()

    def _add_internal(self) -> None:
        router, prefix = self._router, self._prefix
        of = f"of a {self._domain} topic"

        @router.get(
            prefix + "/internalStats", summary=f"Internal statistics {of}: ledgers and cursors"
        )
        async def internal_stats(
            tenant: str,
            namespace: str,
            topic: str,
            metadata: bool = False,
            only_loaded: OnlyLoaded = False,
        ) -> Stats:
            stored = await self._at_rest(tenant, namespace, topic) if only_loaded else None
            if stored is not None:
                return stored
            return await self._internal_stats(await self._plain(tenant, namespace, topic))

        @router.get(
            prefix + "/partitioned-internalStats",
            summary=f"Internal statistics of all partitions {of}",
        )
        async def partitioned_internal_stats(
            tenant: str, namespace: str, topic: str, only_loaded: OnlyLoaded = False
        ) -> Stats:
            name = await self._context.topic(self._domain, tenant, namespace, topic)
            action = "internalStats" + ("?onlyLoaded=true" if only_loaded else "")
            metadata, parts = await self._parts(
                name, action, self._internal_stats, only_loaded=only_loaded
            )
            return {"metadata": metadata, "partitions": parts}

    def _add_stored(self) -> None:
        router, prefix = self._router, self._prefix

        @router.get(prefix + "/internal-info", summary="Metadata of a topic")
        async def internal_info(tenant: str, namespace: str, topic: str) -> Stats:
            """Return the metadata of the topic; for a partitioned topic, of each partition by
            name."""
            name = await self._context.topic(self._domain, tenant, namespace, topic)

            async def work(there: Topic) -> Stats:
                return topic_info(there)

            if await self._work.partitions(name) is not None:
                _, parts = await self._parts(name, "internal-info", work)
                return {"version": 0, "partitions": parts}
            return await work(await self._plain(tenant, namespace, topic))

        @router.get(prefix + "/backlog", summary="Backlogs of a topic's cursors")
        async def backlog(
            tenant: str, namespace: str, topic: str, authoritative: bool = False
        ) -> JSONResponse:
            there = await self._work.single(tenant, namespace, topic, "the backlog")
            shown = offline_backlog(there, broker=self._broker_id(), now_ms=self._wall_ms())
            return JSONResponse(shown)


class _Wanted:
    """Choice of the statistics to return."""

    def __init__(self, sized: bool, no_publishers: bool, no_consumers: bool) -> None:
        self._sized = sized
        self._no_publishers = no_publishers
        self._no_consumers = no_consumers

    @property
    def query(self) -> str:
        """Query string that requests the chosen fields from another broker."""
        flags = {
            "subscriptionBacklogSize": self._sized,
            "excludePublishers": self._no_publishers,
            "excludeConsumers": self._no_consumers,
        }
        return "".join(f"&{name}={str(value).lower()}" for name, value in flags.items())

    def cut(self, stats: Stats) -> None:
        """Leave out the fields that are not wanted."""
        if self._no_publishers:
            stats["publishers"] = []
        for each in stats["subscriptions"].values():
            if self._no_consumers:
                each["consumers"] = []
            if not self._sized:
                each["backlogSize"] = -1


async def _add_earliest(topic: Topic, stats: Mapping[str, Any]) -> None:
    """Add the publish times of the oldest messages to the statistics.

    Raises:
        HttpRefusal: 503, the messages cannot be read now.
    """
    times: list[int] = []
    for name, each in stats["subscriptions"].items():
        subscription = topic.subscriptions.get(name)
        if subscription is None:
            continue
        try:
            found = await oldest_publish_ms(topic, subscription)
        except LedgerError as error:
            raise HttpRefusal(503, f"{topic.name} cannot be read now: {error}") from error
        each["earliestMsgPublishTimeInBacklog"] = found or 0
        if found:
            times.append(found)
    if isinstance(stats, dict):
        stats["earliestMsgPublishTimeInBacklogs"] = min(times, default=0)
