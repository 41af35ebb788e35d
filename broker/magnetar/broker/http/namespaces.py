"""Namespaces over HTTP: their bundles and topics, properties, resource groups and backlogs.

Source: HTTP sheet, sections 8.1 and 4 (backlog-quota-check).
"""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Body, Query, Response
from pydantic import BaseModel

from magnetar.broker.base.errors import InvalidNameError, NotThereError
from magnetar.broker.base.json_values import Flag, WholeNumber
from magnetar.broker.base.naming import is_replicator, topic_of
from magnetar.broker.cluster.balance.bundles import BundleId, hash_of
from magnetar.broker.cluster.balance.load_report import BundleLoad
from magnetar.broker.http.bodies import done, text_or_json
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.fan_out import on_each
from magnetar.broker.http.late_routes import late_router
from magnetar.broker.http.refusals import HttpRefusal
from magnetar.broker.http.topics import non_persistent_names, without_system
from magnetar.broker.policies.model import NamespaceRecord
from magnetar.broker.topic.subscription import Subscription
from magnetar.broker.topics import operating
from magnetar.broker.topics.upkeep import Keeping
from magnetar.sdk.wire import TopicName, parse_topic_name

_LEASES_AT_ONCE = 32

DestinationQuery = Annotated[
    str,
    Query(alias="destinationBroker", description="Name or id of the broker that takes the bundle."),
]


class BundlesData(BaseModel):
    """Division of a namespace into bundles."""

    boundaries: list[str]
    numBundles: int


class TopicHashPositions(BaseModel):
    """Hashes of topics, by name."""

    namespace: str
    bundle: str
    hashPositions: dict[str, int]


class OwnedBundle(BaseModel):
    """A bundle with its owner, and the load that the owner last reported; not a shape of
    Pulsar's."""

    bundle: str
    broker: str | None
    load: BundleLoad | None


class _Namespaces:
    """Routes of namespaces and their bundles."""

    def __init__(self, context: HttpContext) -> None:
        self._context = context

    async def bundles(self, tenant: str, namespace: str) -> BundlesData:
        """Return the boundaries of the namespace's bundles."""
        layout = await self._context.admin.layouts.layout_of(
            await self._context.namespace(tenant, namespace)
        )
        return BundlesData(
            boundaries=[f"{each:#010x}" for each in layout.boundaries], numBundles=len(layout)
        )

    async def topics(
        self,
        tenant: str,
        namespace: str,
        mode: Literal["PERSISTENT", "NON_PERSISTENT", "ALL"] = "PERSISTENT",
        includeSystemTopic: bool = False,
    ) -> list[str]:
        """Return the full names of the namespace's topics; for a partitioned topic, of each
        partition."""
        name = await self._context.namespace(tenant, namespace)
        found: list[str] = []
        if mode != "NON_PERSISTENT":
            found += without_system(
                await self._context.topics.names(name), keeps=includeSystemTopic
            )
        if mode != "PERSISTENT":
            found += await non_persistent_names(self._context, name)
        return found

    async def unload(self, tenant: str, namespace: str) -> Response:
        """Have all brokers release the namespace's bundles; clients move with them."""
        name = await self._context.namespace(tenant, namespace, may_be_deleted=True)
        await self._context.admin.unload_namespace(name)
        return Response(status_code=204)

    async def hash_positions(
        self,
        tenant: str,
        namespace: str,
        bundle: str,
        topics: Annotated[list[str] | None, Query()] = None,
    ) -> TopicHashPositions:
        """Return the hashes of the topics of a bundle: of all of them, or of the given ones."""
        whole = await self._context.bundle(tenant, namespace, bundle)
        names = topics or await self._context.topics.names(whole.namespace)
        places = {str(name): hash_of(name) for name in map(topic_of, names)}
        return TopicHashPositions(
            namespace=whole.namespace,
            bundle=str(whole.bundle),
            hashPositions={name: at for name, at in places.items() if at in whole.bundle},
        )

    async def in_anti_affinity_group(self, cluster: str, group: str, tenant: str = "") -> list[str]:
        """Return the namespaces of an anti-affinity group, of one tenant or all, at the path that
        pulsar-admin uses."""
        await self._context.tenants.cluster(cluster)
        found: list[str] = []
        for each in [tenant] if tenant else await self._context.tenants.tenants():
            for name in await self._context.tenants.namespaces(each):
                if (await self._context.tenants.namespace(name)).anti_affinity_group == group:
                    found.append(name)
        return found

    async def unload_bundle(
        self, tenant: str, namespace: str, bundle: str, destination: DestinationQuery = ""
    ) -> Response:
        """Have the owner release a bundle, to `destinationBroker` if it is given.

        A bundle without an owner is acquired by that broker; without a destination nothing happens.
        307 if this broker is not the owner.
        """
        await self._context.admin.unload_bundle(
            await self._context.bundle(tenant, namespace, bundle), destination
        )
        return Response(status_code=204)

    async def split_bundle(
        self,
        tenant: str,
        namespace: str,
        bundle: str,
        unload: bool = False,
        algorithm: Annotated[str, Query(alias="splitAlgorithmName")] = "range_equally_divide",
        positions: Annotated[list[WholeNumber] | None, Body()] = None,
        authoritative: bool = False,
    ) -> Response:
        """Have the owner split a bundle, where the algorithm chooses or at the given hashes.

        Clients do not notice; with `unload`, the owner releases the parts afterwards. 307 if this
        broker is not the owner.
        """
        whole = await self._context.bundle(tenant, namespace, bundle)
        parts = await self._context.admin.split(
            whole, positions or (), algorithm, is_authoritative=authoritative
        )
        if unload:
            for part in parts:
                await self._context.admin.unload_bundle(BundleId(whole.namespace, part), "")
        return Response(status_code=204)

    async def owned_bundles(self, tenant: str, namespace: str) -> list[OwnedBundle]:
        """Return the bundles of a namespace with their owners and loads. Reads one lease per
        bundle."""
        name = await self._context.namespace(tenant, namespace)
        layout = await self._context.admin.layouts.layout_of(name)
        loads: dict[tuple[str, str], BundleLoad] = {}
        for known in self._context.admin.brokers():
            if known.report is not None:
                for bundle, load in known.report.bundles.items():
                    loads[known.record.name, bundle] = load
        at_once = asyncio.Semaphore(_LEASES_AT_ONCE)

        async def describe(bundle: BundleId) -> OwnedBundle:
            async with at_once:
                owner = await self._context.admin.find_owner(bundle)
            load = loads.get((owner, str(bundle))) if owner is not None else None
            return OwnedBundle(bundle=bundle.bundle.name, broker=owner, load=load)

        every = [BundleId(name, bundle) for bundle in layout.bundles]
        return list(await asyncio.gather(*map(describe, every)))


def namespaces_router(context: HttpContext) -> APIRouter:
    """Return the routes below /admin/v2/namespaces and /magnetar/v1/namespaces."""
    router = late_router(tags=["namespaces"])
    prefix = "/admin/v2/namespaces/{tenant}/{namespace}"
    routes = _Namespaces(context)
    router.get(prefix + "/bundles")(routes.bundles)
    router.get(prefix + "/topics")(routes.topics)
    router.put(prefix + "/unload", status_code=204)(routes.unload)
    router.get(prefix + "/{bundle}/topicHashPositions")(routes.hash_positions)
    router.get("/admin/namespaces/{cluster}/antiAffinity/{group}")(routes.in_anti_affinity_group)
    router.put(prefix + "/{bundle}/unload", status_code=204)(routes.unload_bundle)
    router.put(prefix + "/{bundle}/split", status_code=204)(routes.split_bundle)
    router.get("/magnetar/v1/namespaces/{tenant}/{namespace}/bundles")(routes.owned_bundles)
    return router


def bundles_router(context: HttpContext) -> APIRouter:
    """Return the routes to add after all other routes of namespaces: the path of a bundle matches
    any name."""
    router = late_router(tags=["namespaces"])

    @router.delete(
        "/admin/v2/namespaces/{tenant}/{namespace}/{bundle}",
        status_code=204,
        summary="Delete a bundle's topics and unload it",
    )
    async def delete_bundle(
        tenant: str, namespace: str, bundle: str, force: bool = False
    ) -> Response:
        """Have the owner release the bundle. 409 if it has topics; with `force` they are
        deleted."""
        if not bundle.startswith("0x"):
            raise HttpRefusal(
                404, f"{bundle!r} is not a bundle: give a hash range, as 0x00000000_0x40000000"
            )
        held = await context.bundle(tenant, namespace, bundle)
        names = [parse_topic_name(each) for each in await context.topics.names(held.namespace)]
        inside = [name for name in names if held.holds(name)]
        if inside and not force:
            raise HttpRefusal(
                409,
                f"bundle {bundle} has {len(inside)} topics, such as {inside[0]}: give force to "
                "delete them, too",
            )

        async def delete(topic: TopicName) -> None:
            await context.admin.here(topic)
            await context.topics.removal.delete(topic, is_forced=True)

        await on_each(context.admin, inside, delete, "DELETE", "?force=true", may_be_missing=True)
        await context.admin.unload_bundle(held, "")
        return done()

    return router


_NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
_NO_LIMITS = "resource groups limit nothing"
_NO_MIGRATION = "clients are not sent to other clusters"


def namespace_details_router(context: HttpContext) -> APIRouter:
    """Return the routes of properties, resource group and migration of a namespace."""
    router = late_router(tags=["namespaces"])
    _add_properties(router, context)
    _add_resource_group(router, context)
    _add_migration(router, context)
    return router


def _add_properties(router: APIRouter, context: HttpContext) -> None:
    async def change(name: str, properties: dict[str, str | None], *, clears: bool = False) -> None:
        def changed(record: NamespaceRecord) -> NamespaceRecord:
            after = {**({} if clears else record.properties), **properties}
            kept = {key: value for key, value in after.items() if value is not None}
            return record.model_copy(update={"properties": kept})

        await context.policies.update_namespace(name, changed)

    async def value_of(name: str, key: str) -> str:
        properties = (await context.tenants.namespace(name)).properties
        if key not in properties:
            raise NotThereError(f"namespace {name} has no property {key!r}")
        return properties[key]

    @router.get(_NAMESPACE + "/properties", summary="Properties of a namespace")
    async def properties(tenant: str, namespace: str) -> dict[str, str]:
        return (await context.tenants.namespace(f"{tenant}/{namespace}")).properties

    @router.put(
        _NAMESPACE + "/properties",
        status_code=204,
        summary="Add or replace properties of a namespace",
    )
    async def set_properties(tenant: str, namespace: str, values: dict[str, str]) -> Response:
        await change(f"{tenant}/{namespace}", dict(values))
        return done()

    @router.delete(
        _NAMESPACE + "/properties", status_code=204, summary="Remove all properties of a namespace"
    )
    async def clear_properties(tenant: str, namespace: str) -> Response:
        await change(f"{tenant}/{namespace}", {}, clears=True)
        return done()

    @router.get(
        _NAMESPACE + "/property/{key}",
        summary="One property of a namespace, as plain text",
        response_class=Response,
    )
    async def get_property(tenant: str, namespace: str, key: str) -> Response:
        return text_or_json(await value_of(f"{tenant}/{namespace}", key), is_text=True)

    @router.put(
        _NAMESPACE + "/property/{key}/{value:path}",
        status_code=204,
        summary="Set one property of a namespace",
    )
    async def put_property(tenant: str, namespace: str, key: str, value: str) -> Response:
        await change(f"{tenant}/{namespace}", {key: value})
        return done()

    @router.delete(
        _NAMESPACE + "/property/{key}",
        summary="Remove one property of a namespace; its last value",
        response_class=Response,
    )
    async def remove_property(tenant: str, namespace: str, key: str) -> Response:
        value = await value_of(f"{tenant}/{namespace}", key)
        await change(f"{tenant}/{namespace}", {key: None})
        return text_or_json(value, is_text=True)


def _add_migration(router: APIRouter, context: HttpContext) -> None:
    @router.post(
        _NAMESPACE + "/migration",
        status_code=204,
        summary="Mark a namespace as migrated to another cluster",
    )
    async def set_migrated(
        tenant: str, namespace: str, migrated: Annotated[Flag, Body()]
    ) -> Response:
        """Store the flag. It has no effect: clients are not sent to other clusters."""

        def changed(record: NamespaceRecord) -> NamespaceRecord:
            return record.model_copy(update={"migrated": migrated})

        await context.policies.update_namespace(f"{tenant}/{namespace}", changed)
        return done(note=_NO_MIGRATION)


def _add_resource_group(router: APIRouter, context: HttpContext) -> None:
    async def change(name: str, group: str | None) -> None:
        def changed(record: NamespaceRecord) -> NamespaceRecord:
            return record.model_copy(update={"resource_group": group})

        await context.policies.update_namespace(name, changed)

    @router.get(
        _NAMESPACE + "/resourcegroup",
        summary="The resource group of a namespace, as plain text",
        response_class=Response,
    )
    async def get_group(tenant: str, namespace: str) -> Response:
        """Return the name of the group; 204 if the namespace has none."""
        group = (await context.tenants.namespace(f"{tenant}/{namespace}")).resource_group
        return text_or_json(group, is_text=True) if group is not None else done()

    @router.post(
        _NAMESPACE + "/resourcegroup/{name}",
        status_code=204,
        summary="Put a namespace into a resource group",
    )
    async def set_group(tenant: str, namespace: str, name: str) -> Response:
        """Store the group's name. It has no effect. 412 if there is no such group."""
        await context.namespace(tenant, namespace)
        if name not in await context.resources.group_names():
            raise InvalidNameError(f"there is no resource group {name!r}: create it first")
        await change(f"{tenant}/{namespace}", name)
        return done(note=_NO_LIMITS)

    @router.delete(
        _NAMESPACE + "/resourcegroup",
        status_code=204,
        summary="Take a namespace out of its resource group",
    )
    async def remove_group(tenant: str, namespace: str) -> Response:
        await change(f"{tenant}/{namespace}", None)
        return done()


class _Backlogs:
    """Routes for the backlogs of many topics."""

    def __init__(self, context: HttpContext, keeping: Keeping) -> None:
        self._context = context
        self._keeping = keeping

    async def _topics_of(self, tenant: str, namespace: str) -> list[TopicName]:
        name = await self._context.namespace(tenant, namespace)
        return [parse_topic_name(each) for each in await self._context.topics.names(name)]

    async def _topics_in(self, tenant: str, namespace: str, bundle: str) -> list[TopicName]:
        held = await self._context.bundle(tenant, namespace, bundle)
        return [each for each in await self._topics_of(tenant, namespace) if held.holds(each)]

    async def _durable(self, topic: TopicName) -> list[Subscription]:
        there = await self._context.served(topic)
        return [each for each in there.subscriptions.values() if each.is_durable and each.is_open]

    async def _clear(self, topics: Sequence[TopicName], wanted: str | None) -> None:
        if wanted is not None and is_replicator(wanted):
            for topic in topics:
                await self._clear_one(topic, wanted)
            return

        async def names(topic: TopicName) -> list[str]:
            return [each.name for each in await self._durable(topic)]

        found = await on_each(
            self._context.admin, topics, names, "GET", "subscriptions", may_be_missing=True
        )
        for topic, subscriptions in zip(topics, found, strict=True):
            for name in subscriptions if isinstance(subscriptions, list) else ():
                if wanted in (None, name):
                    await self._clear_one(topic, str(name))

    async def _clear_one(self, topic: TopicName, name: str) -> None:
        async def skip_all(of: TopicName) -> None:
            there = await self._context.served(of)
            for each in await self._durable(of):
                if each.name == name:
                    await operating.skip_all(there, each)
            copies = there.feature_backlogs().get(name)
            if copies is not None:
                await operating.skip_all(there, copies)

        action = f"subscription/{quote(name, safe='')}/skip_all"
        await on_each(self._context.admin, [topic], skip_all, "POST", action, may_be_missing=True)

    async def clear_all(self, tenant: str, namespace: str) -> Response:
        """Clear the backlogs of all subscriptions of a namespace."""
        await self._clear(await self._topics_of(tenant, namespace), None)
        return Response(status_code=204)

    async def clear_subscription(self, tenant: str, namespace: str, sub: str) -> Response:
        """Clear the backlogs of one subscription, or of copies to one cluster, on all topics of a
        namespace."""
        await self._clear(await self._topics_of(tenant, namespace), sub)
        return Response(status_code=204)

    async def clear_bundle(self, tenant: str, namespace: str, bundle: str) -> Response:
        """Clear the backlogs of all subscriptions of one bundle."""
        await self._clear(await self._topics_in(tenant, namespace, bundle), None)
        return Response(status_code=204)

    async def clear_subscription_of_bundle(
        self, tenant: str, namespace: str, bundle: str, sub: str
    ) -> Response:
        """Clear the backlogs of one subscription on all topics of one bundle."""
        await self._clear(await self._topics_in(tenant, namespace, bundle), sub)
        return Response(status_code=204)

    async def unsubscribe(self, tenant: str, namespace: str, sub: str) -> Response:
        """Delete a subscription on all topics of a namespace. 412 if it has consumers on one of
        them."""

        async def delete(topic: TopicName) -> None:
            there = await self._context.served(topic)
            for each in await self._durable(topic):
                if each.name == sub:
                    await there.subscriptions.delete(each, is_forced=False)

        action = f"subscription/{quote(sub, safe='')}"
        topics = await self._topics_of(tenant, namespace)
        await on_each(self._context.admin, topics, delete, "DELETE", action, may_be_missing=True)
        return Response(status_code=204)

    async def check_quotas(self) -> Response:
        """Check the quotas of the topics of this broker now."""
        for topic in self._context.topics.loaded:
            work = self._keeping.quotas.look_at(topic)
            if work is not None and topic.tenure.holds():
                await work
        return Response(status_code=204)


def backlogs_router(context: HttpContext, keeping: Keeping) -> APIRouter:
    """Return the routes for the backlogs of many topics."""
    router = late_router(tags=["backlogs"])
    routes = _Backlogs(context, keeping)
    router.post(_NAMESPACE + "/clearBacklog", status_code=204)(routes.clear_all)
    router.post(_NAMESPACE + "/clearBacklog/{sub:path}", status_code=204)(routes.clear_subscription)
    router.post(_NAMESPACE + "/{bundle}/clearBacklog", status_code=204)(routes.clear_bundle)
    router.post(_NAMESPACE + "/{bundle}/clearBacklog/{sub:path}", status_code=204)(
        routes.clear_subscription_of_bundle
    )
    router.post(_NAMESPACE + "/unsubscribe/{sub:path}", status_code=204)(routes.unsubscribe)
    router.get("/admin/v2/brokers/backlog-quota-check", status_code=204)(routes.check_quotas)
    return router
