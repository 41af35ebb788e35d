"""The inventory of the source, and the creation of its tenants, namespaces and topics at the
target.

Everything here may be repeated: what exists is left as it is. Policies wait for the cut-over, since
quotas, rates and expiry would disturb the copies; but schema compatibility is opened at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from magnetar.deploy.admin_client import RequestRefusedError, topic_path
from magnetar.deploy.errors import MigrationDiffersError
from magnetar.deploy.migration.policies import COMPATIBILITY_PATH, DURING, PROPERTIES
from magnetar.deploy.migration.selection import (
    Clusters,
    TopicPlan,
    chosen_namespaces,
    movable_topics,
    obsolete_namespaces,
    plain_topics,
    tenant_body,
    users_tenants,
)
from magnetar.deploy.migration.sides import (
    Side,
    is_magnetar,
    is_refusal,
    is_unsupported,
    subscription_path,
)
from magnetar.deploy.migration.subscriptions import EARLIEST_BODY, HOLD
from magnetar.sdk.wire import TopicName

_DOMAINS = ("persistent", "non-persistent")


@dataclass(slots=True)
class Inventory:
    """The tenants, namespaces and topics of the source."""

    tenants: dict[str, dict[str, Any]] = field(default_factory=dict)
    namespaces: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Documents of policies, by namespace."""
    topics: list[TopicPlan] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Lines about objects that are not moved, or are moved in another form."""

    @property
    def parts(self) -> list[TopicName]:
        """All topics that hold messages, partitions one by one."""
        return [part for each in self.topics for part in each.parts]


async def inventory(source: Side, wanted: tuple[str, ...]) -> Inventory:
    """Read the inventory of the source.

    Raises:
        BrokerUnreachableError: it does not answer, or refuses the credentials.
        SettingsError: it has no such namespace.
    """
    found = Inventory()
    names: list[str] = []
    tenants = await source.get("tenants") or ()
    for tenant in tenants:
        names += await source.get(f"namespaces/{tenant}") or ()
    if not wanted:
        found.notes += obsolete_namespaces(names)
    chosen = chosen_namespaces(names, wanted)
    # If all namespaces are wanted, so are tenants without any.
    of_chosen = dict.fromkeys(name.partition("/")[0] for name in chosen)
    for tenant in of_chosen if wanted else users_tenants(tenants):
        found.tenants[tenant] = await source.get(f"tenants/{tenant}") or {}
    for name in chosen:
        found.namespaces[name] = await source.get(f"namespaces/{name}") or {}
        for domain in _DOMAINS:
            found.topics += await _topics(source, domain, name, found.notes)
        found.notes += [
            f"topic {each} is not moved: it is scalable" for each in await _scalable(source, name)
        ]
    return found


async def _topics(source: Side, domain: str, namespace: str, notes: list[str]) -> list[TopicPlan]:
    plans: list[TopicPlan] = []
    listed = await source.get(f"{domain}/{namespace}/partitioned") or ()
    partitioned = dict.fromkeys(listed, 0)
    whole, refused = movable_topics(listed)
    notes += refused
    for name in whole:
        shown = await source.get(f"{topic_path(name)}/partitions") or {}
        count = int(shown.get("partitions") or 0)
        if not count:
            # Deleted since it was listed. As a plain topic, it would be another one.
            notes.append(
                f"topic {name} is not moved: the source lists it as partitioned, but does not know "
                "its partitions"
            )
            continue
        partitioned[str(name)] = count
        # A Pulsar without this field may have a release without properties.
        tells = PROPERTIES in shown or is_magnetar(source)
        properties = dict(shown.get(PROPERTIES) or {})
        plans.append(TopicPlan(name, count, properties, tells_properties=tells))
    if domain == "persistent":
        names = await source.get(f"{domain}/{namespace}") or ()
        plain, refused = plain_topics(names, partitioned)
        notes += refused
        for name in plain:
            found = await _properties(source, name, notes)
            plans.append(TopicPlan(name, 0, found or {}, tells_properties=found is not None))
    return plans


async def _scalable(source: Side, namespace: str) -> Sequence[str]:
    """Return the names of the scalable topics, which are not moved."""
    try:
        return await source.get(f"scalable/{namespace}") or ()
    except RequestRefusedError as error:
        if is_unsupported(error, 400, 405, 412):
            return ()
        raise


async def _properties(source: Side, name: TopicName, notes: list[str]) -> dict[str, str] | None:
    """Return the properties of a topic; None if the source refuses to tell them for good."""
    try:
        return dict(await source.get(f"{topic_path(name)}/properties") or {})
    except RequestRefusedError as error:
        if not is_unsupported(error, 400, 405, 412):
            raise
        notes.append(f"topic {name}: its properties are not moved: {error}")
        return None


async def create_all(target: Side, found: Inventory, clusters: Clusters) -> list[str]:
    """Create everything at the target that messages need; return lines about what is left out.

    Raises:
        BrokerUnreachableError: the target does not answer, or refuses.
        MigrationDiffersError: a topic there has another number of partitions.
    """
    notes: list[str] = []
    for tenant, info in found.tenants.items():
        body, unknown = tenant_body(info, clusters)
        notes += [clusters.left_out_note(f"tenant {tenant}", each) for each in unknown]
        await target.create(f"tenants/{tenant}", body)
    for namespace, document in found.namespaces.items():
        await _create_namespace(target, namespace, document)
    for plan in found.topics:
        await create_topic(target, plan)
    return notes


async def _create_namespace(target: Side, namespace: str, document: dict[str, Any]) -> None:
    bundles = int((document.get("bundles") or {}).get("numBundles") or 0)
    body: dict[str, Any] = {"properties": document.get("properties") or {}}
    if bundles:
        body["bundles"] = {"numBundles": bundles}
    await target.create(f"namespaces/{namespace}", body)
    await target.ask("PUT", f"namespaces/{namespace}/{COMPATIBILITY_PATH}", DURING)


async def create_topic(target: Side, plan: TopicPlan) -> None:
    """Create a topic at the target, with a subscription that holds its messages.

    Raises:
        BrokerUnreachableError: the target does not answer, or refuses.
        MigrationDiffersError: it has another number of partitions there.
    """
    path = topic_path(plan.name)
    if plan.partitions:
        body = {"partitions": plan.partitions, "properties": dict(plan.properties)}
        is_new = await target.create(f"{path}/partitions", body, {"createLocalTopicOnly": "true"})
    else:
        is_new = await target.create(path, dict(plan.properties))
    if not is_new:
        await _check_partitions(target, plan)
    for part in plan.parts:
        await target.create(subscription_path(part, HOLD), EARLIEST_BODY)


async def _check_partitions(target: Side, plan: TopicPlan) -> None:
    """Make the target have as many partitions as the source.

    Raises:
        MigrationDiffersError: it has more, or refuses to add some.
    """
    path = f"{topic_path(plan.name)}/partitions"
    there = int((await target.get(path) or {}).get("partitions") or 0)
    if 0 < there < plan.partitions:
        try:
            await target.ask("POST", path, plan.partitions, {"updateLocalTopicOnly": "true"})
        except RequestRefusedError as error:
            if not is_refusal(error, 409):
                raise
        there = int((await target.get(path) or {}).get("partitions") or 0)
    if there != plan.partitions:
        raise MigrationDiffersError(
            f"{plan.name} has {plan.partitions} partitions at the source and {there} at the "
            "target: delete it at the target, or choose other --namespaces"
        )
