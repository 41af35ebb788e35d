"""Namespaces over HTTP: their bundles, unload, split, topics. Source: HTTP sheet, section 8.1."""

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Body, Query, Response
from pydantic import BaseModel

from magnetar.broker.cluster.balance.bundles import BundleId, hash_of
from magnetar.broker.cluster.balance.load_report import BundleLoad
from magnetar.broker.http.answers import done
from magnetar.broker.http.bodies import WholeNumber
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.fan_out import on_each
from magnetar.broker.http.listing import non_persistent_names, without_system
from magnetar.broker.http.refusals import HttpRefusal
from magnetar.sdk.wire import TopicName, parse_topic_name

_LEASES_AT_ONCE = 32

DestinationQuery = Annotated[
    str, Query(alias="destinationBroker", description="Name or id of the broker that gets it.")
]


class BundlesData(BaseModel):
    """How a namespace is cut."""

    boundaries: list[str]
    numBundles: int


class TopicHashPositions(BaseModel):
    """Hashes of topics, by their names."""

    namespace: str
    bundle: str
    hashPositions: dict[str, int]


class OwnedBundle(BaseModel):
    """A bundle, who has it, and its load as that broker last told it; not a shape of Pulsar's."""

    bundle: str
    broker: str | None
    load: BundleLoad | None


def namespaces_router(context: HttpContext) -> APIRouter:
    """The routes below /admin/v2/namespaces and /magnetar/v1/namespaces."""
    router = APIRouter(tags=["namespaces"])
    prefix = "/admin/v2/namespaces/{tenant}/{namespace}"

    @router.get(prefix + "/bundles")
    async def bundles(tenant: str, namespace: str) -> BundlesData:
        """The boundaries of its bundles."""
        layout = await context.admin.layouts.layout_of(await context.namespace(tenant, namespace))
        return BundlesData(
            boundaries=[f"{each:#010x}" for each in layout.boundaries], numBundles=len(layout)
        )

    @router.get(prefix + "/topics")
    async def topics(
        tenant: str,
        namespace: str,
        mode: Literal["PERSISTENT", "NON_PERSISTENT", "ALL"] = "PERSISTENT",
        includeSystemTopic: bool = False,
    ) -> list[str]:
        """Full names of its topics; of a partitioned topic, of each partition."""
        name = await context.namespace(tenant, namespace)
        found: list[str] = []
        if mode != "NON_PERSISTENT":
            found += without_system(await context.topics.names(name), keeps=includeSystemTopic)
        if mode != "PERSISTENT":
            found += await non_persistent_names(context, name)
        return found

    @router.put(prefix + "/unload", status_code=204)
    async def unload(tenant: str, namespace: str) -> Response:
        """Have all brokers give up its bundles; clients move with them."""
        name = await context.namespace(tenant, namespace, may_be_deleted=True)
        await context.admin.unload_namespace(name)
        return Response(status_code=204)

    @router.get(prefix + "/{bundle}/topicHashPositions")
    async def hash_positions(
        tenant: str,
        namespace: str,
        bundle: str,
        topics: Annotated[list[str] | None, Query()] = None,
    ) -> TopicHashPositions:
        """Where the topics of a bundle lie in its range: all of them, or the given ones."""
        whole = await context.bundle(tenant, namespace, bundle)
        names = topics or await context.topics.names(whole.namespace)
        places = {str(name): hash_of(name) for name in map(parse_topic_name, names)}
        return TopicHashPositions(
            namespace=whole.namespace,
            bundle=str(whole.bundle),
            hashPositions={name: at for name, at in places.items() if at in whole.bundle},
        )

    @router.get("/admin/namespaces/{cluster}/antiAffinity/{group}")
    async def in_anti_affinity_group(cluster: str, group: str, tenant: str = "") -> list[str]:
        """The namespaces of a group, of one tenant or all; where pulsar-admin asks for them."""
        await context.tenants.cluster(cluster)
        found: list[str] = []
        for each in [tenant] if tenant else await context.tenants.tenants():
            for name in await context.tenants.namespaces(each):
                if (await context.tenants.namespace(name)).anti_affinity_group == group:
                    found.append(name)
        return found

    @router.put(prefix + "/{bundle}/unload", status_code=204)
    async def unload_bundle(
        tenant: str, namespace: str, bundle: str, destination: DestinationQuery = ""
    ) -> Response:
        """Have the owner give up a bundle; nothing happens if nobody has it. 307: not the owner."""
        await context.admin.unload_bundle(
            await context.bundle(tenant, namespace, bundle), destination
        )
        return Response(status_code=204)

    @router.put(prefix + "/{bundle}/split", status_code=204)
    async def split_bundle(
        tenant: str,
        namespace: str,
        bundle: str,
        unload: bool = False,
        algorithm: Annotated[str, Query(alias="splitAlgorithmName")] = "range_equally_divide",
        positions: Annotated[list[WholeNumber] | None, Body()] = None,
        authoritative: bool = False,
    ) -> Response:
        """Have the owner split a bundle: where the algorithm says, or at the given hashes.

        No client notices; with `unload` the parts are given up afterwards. 307: not the owner.
        """
        whole = await context.bundle(tenant, namespace, bundle)
        parts = await context.admin.split(
            whole, positions or (), algorithm, is_authoritative=authoritative
        )
        if unload:
            for part in parts:
                await context.admin.unload_bundle(BundleId(whole.namespace, part), "")
        return Response(status_code=204)

    @router.get("/magnetar/v1/namespaces/{tenant}/{namespace}/bundles")
    async def owned_bundles(tenant: str, namespace: str) -> list[OwnedBundle]:
        """Its bundles with their owners and loads. Reads one lease per bundle."""
        name = await context.namespace(tenant, namespace)
        layout = await context.admin.layouts.layout_of(name)
        loads: dict[tuple[str, str], BundleLoad] = {}
        for known in context.admin.brokers():
            if known.report is not None:
                for bundle, load in known.report.bundles.items():
                    loads[known.record.name, bundle] = load
        at_once = asyncio.Semaphore(_LEASES_AT_ONCE)

        async def describe(bundle: BundleId) -> OwnedBundle:
            async with at_once:
                owner = await context.admin.find_owner(bundle)
            load = loads.get((owner, str(bundle))) if owner is not None else None
            return OwnedBundle(bundle=bundle.bundle.name, broker=owner, load=load)

        every = [BundleId(name, bundle) for bundle in layout.bundles]
        return list(await asyncio.gather(*map(describe, every)))

    return router


def bundles_router(context: HttpContext) -> APIRouter:
    """What must come behind all other routes of namespaces: the name of a bundle is any name."""
    router = APIRouter(tags=["namespaces"])

    @router.delete(
        "/admin/v2/namespaces/{tenant}/{namespace}/{bundle}",
        status_code=204,
        summary="Have nothing in a bundle any more",
    )
    async def delete_bundle(
        tenant: str, namespace: str, bundle: str, force: bool = False
    ) -> Response:
        """Its owner gives it up. 409: there are topics in it; with `force` they are deleted."""
        if not bundle.startswith("0x"):
            raise HttpRefusal(404, f"namespaces have nothing that is called {bundle!r}")
        held = await context.bundle(tenant, namespace, bundle)
        names = [parse_topic_name(each) for each in await context.topics.names(held.namespace)]
        inside = [name for name in names if held.holds(name)]
        if inside and not force:
            raise HttpRefusal(409, f"bundle {bundle} has {len(inside)} topics: {inside[0]}")

        async def delete(topic: TopicName) -> None:
            await context.admin.here(topic)
            await context.topics.removal.delete(topic, is_forced=True)

        await on_each(context.admin, inside, delete, "DELETE", "?force=true", may_be_missing=True)
        await context.admin.unload_bundle(held, "")
        return done()

    return router
