"""Policies, permissions and properties: set at the target in the last step, and compared.

A policy that the target refuses or does not know stops nothing: it is reported in one line, and
counts as a difference.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote

from magnetar.deploy.admin_client import RequestRefusedError, topic_path
from magnetar.deploy.migration.creating import Inventory
from magnetar.deploy.migration.policies import (
    PROPERTIES,
    QUOTAS,
    REPLICATION,
    TOPIC_ONLY_AT_SOURCE,
    TOPIC_POLICIES,
    Permissions,
    Setting,
    cluster_lists,
    comparable,
    namespace_plan,
    permissions_in,
    properties_setting,
    quota_settings,
    removed_property,
    topic_setting,
)
from magnetar.deploy.migration.report import Report
from magnetar.deploy.migration.selection import Clusters, TopicPlan, tenant_body
from magnetar.deploy.migration.sides import Side, is_refusal, is_unsupported
from magnetar.sdk.wire import TopicName

_OFF: Final = 405
"""HTTP status of a cluster whose topic policies are switched off."""
_OFF_NOTE: Final = "the source has policies of topics switched off"
_DISPATCH_RATE: Final = "dispatchRate"


class PolicyMove:
    """Sets policies at the target as they are at the source, and compares them."""

    def __init__(self, source: Side, target: Side, clusters: Clusters, report: Report) -> None:
        self._source = source
        self._target = target
        self._clusters = clusters
        self._report = report
        self._noted: set[str] = set()
        """Objects that the report has a note of, which is not repeated."""

    async def move(self, found: Inventory) -> None:
        """Set and compare everything but messages, topics, schemas and subscriptions.

        Raises:
            BrokerUnreachableError: one of the clusters does not answer, or refuses.
        """
        for tenant, info in found.tenants.items():
            await self._compare_tenant(tenant, info)
        for namespace, document in found.namespaces.items():
            await self._move_namespace(namespace, document)
        for plan in found.topics:
            await self._move_properties(plan)
        for plan in found.topics:
            if plan.name.is_persistent and not await self._move_topic(plan):
                self._note_once(_OFF_NOTE)
                return

    async def _compare_tenant(self, tenant: str, info: dict[str, Any]) -> None:
        wanted, _ = tenant_body(info, self._clusters)
        there = await self._target.get(f"tenants/{tenant}") or {}
        for field, value in wanted.items():
            self._report.compare("tenant", f"{tenant} {field}", value, there.get(field) or [])

    # Namespaces

    async def _move_namespace(self, namespace: str, document: dict[str, Any]) -> None:
        report, clusters = self._report, self._clusters
        plan = namespace_plan(document, clusters)
        report.notes += [f"{namespace}: {each}" for each in plan.notes]
        for each in plan.unknown:
            report.compare(
                "policy", f"{namespace} {each}", each, None, "the target has none", same=False
            )
        base = f"namespaces/{namespace}"
        refused = await self._set(base, plan.settings)
        permissions = permissions_in(document)
        await self._set(base, _grants(permissions))
        for topic, grants in permissions.topics.items():
            await self._set(_path_of(topic), _role_settings("permissions", grants))
        there = await self._target.get(base) or {}
        if PROPERTIES in document:
            known = there.get(PROPERTIES) or {}
            refusal = await self._remove_properties(
                namespace, base, document[PROPERTIES] or {}, known, is_topic=False
            )
            if refusal is not None:
                there = await self._target.get(base) or {}
                refused.setdefault(PROPERTIES, refusal)
        ones = comparable(document, clusters.source)
        others = comparable(there, clusters.target)
        for name in sorted({*ones, *others}):
            report.compare(
                "policy",
                f"{namespace} {name}",
                ones.get(name),
                others.get(name),
                refused.get(name, ""),
            )
        lists = cluster_lists(there, clusters.target)
        for name, wanted in plan.clusters.items():
            report.compare(
                "policy",
                f"{namespace} {name}",
                list(wanted),
                list(lists[name]),
                refused.get(name, ""),
            )
        self._compare_properties(
            namespace,
            document.get(PROPERTIES) or {},
            there.get(PROPERTIES) or {},
            refused.get(PROPERTIES, ""),
        )
        self._compare_permissions(namespace, permissions, permissions_in(there))

    def _compare_permissions(self, namespace: str, one: Permissions, other: Permissions) -> None:
        kinds: Iterable[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = (
            ("role", one.namespace, other.namespace),
            ("topic", one.topics, other.topics),
            ("subscription", one.subscriptions, other.subscriptions),
        )
        for kind, ones, others in kinds:
            for name in sorted({*ones, *others}):
                self._report.compare(
                    "permission", f"{namespace} {kind} {name}", ones.get(name), others.get(name)
                )

    def _compare_properties(
        self, name: str, one: Mapping[str, str], other: Mapping[str, str], detail: str
    ) -> None:
        # Not as policies are compared: an empty text is a value.
        self._report.compare(PROPERTIES, name, dict(one), dict(other), detail, same=one == other)

    async def _remove_properties(
        self,
        name: str,
        base: str,
        wanted: Mapping[str, str],
        there: Mapping[str, str],
        *,
        is_topic: bool,
    ) -> str | None:
        """Remove properties that only the target has: the source has dropped them, or the target
        had them before.

        Returns:
            The target's reason for refusing, empty if it removed all; None if there are none.
        """
        rest = {key: value for key, value in there.items() if key not in wanted}
        settings = [removed_property(key, is_topic=is_topic) for key in rest]
        refused = await self._set(base, settings)
        self._report.notes += [
            f"{name}: property {key} = {value!r} is removed: the source has none"
            for key, value in rest.items()
            if key not in refused
        ]
        return next(iter(refused.values()), "") if rest else None

    async def _set(self, base: str, settings: Iterable[Setting]) -> dict[str, str]:
        """Set policies; return the target's reasons for refusing some, by name."""
        refused = {}
        for each in settings:
            try:
                await self._target.ask(each.method, f"{base}/{each.path}", each.body, each.query)
            except RequestRefusedError as error:
                refused[each.name] = str(error)
        return refused

    # Topics

    async def _move_properties(self, plan: TopicPlan) -> None:
        """Set the properties of a topic, which may have changed since it was created, and compare
        them."""
        path, name = topic_path(plan.name), str(plan.name)
        wanted = plan.properties
        refusal = ""
        there = await self._properties_there(path, plan)
        if wanted and there != wanted:
            refused = await self._set(path, [properties_setting(wanted)])
            refusal = refused.get(PROPERTIES, "")
            there = await self._properties_there(path, plan)
        if plan.tells_properties:
            kept = await self._remove_properties(name, path, wanted, there, is_topic=True)
            if kept is not None:
                refusal = refusal or kept
                there = await self._properties_there(path, plan)
        self._compare_properties(name, wanted, there, refusal)

    async def _properties_there(self, path: str, plan: TopicPlan) -> dict[str, str]:
        if not plan.partitions:
            return dict(await self._target.get(f"{path}/{PROPERTIES}") or {})
        shown = await self._target.get(f"{path}/partitions") or {}
        return dict(shown.get(PROPERTIES) or {})

    async def _move_topic(self, plan: TopicPlan) -> bool:
        """Set the policies of one topic; return whether the source has topic policies at all."""
        path = topic_path(plan.name)
        try:
            wanted = await self._of_topic(plan.name, path)
        except RequestRefusedError as error:
            if is_refusal(error, _OFF):
                return False
            raise
        refused = await self._set(path, wanted.values())
        for name, setting in wanted.items():
            there = await self._target.get(_reading(path, setting))
            value = setting.body if setting.body is not None else _query_value(setting)
            if setting.path == "backlogQuota":
                there = (there or {}).get(setting.query["backlogQuotaType"])
            self._report.compare(
                "topic policy", f"{plan.name} {name}", value, there, refused.get(name, "")
            )
        for name in TOPIC_ONLY_AT_SOURCE:
            found = await self._optional(f"{path}/{name}", _of_topics(name))
            if found:
                self._report.compare(
                    "topic policy",
                    f"{plan.name} {name}",
                    found,
                    None,
                    "the target has none",
                    same=False,
                )
        return True

    async def _of_topic(self, topic: TopicName, path: str) -> dict[str, Setting]:
        """Return the policies that a topic has at the source, by name."""
        found: dict[str, Setting] = {}
        for policy in TOPIC_POLICIES:
            value = await self._optional(f"{path}/{policy.topic}", _of_topics(policy.topic))
            setting = topic_setting(policy, value, self._clusters)
            if policy.topic == REPLICATION:
                what = f"{topic} {REPLICATION}"
                _, missing = self._clusters.names(value or ())
                self._report.notes += [self._clusters.left_out_note(what, each) for each in missing]
            if setting is not None:
                found[policy.topic] = setting
        for quota in quota_settings(await self._optional(f"{path}/{QUOTAS}", _of_topics(QUOTAS))):
            found[quota.name] = quota
        return found

    async def move_subscription_rate(self, topic: TopicPlan, subscription: str) -> None:
        """Set a subscription's own dispatch rate, if it has one.

        Raises:
            BrokerUnreachableError: one of the clusters does not answer.
        """
        path = f"{topic_path(topic.name)}/{quote(subscription, safe='')}/{_DISPATCH_RATE}"
        try:
            rate = await self._optional(path, f"{_DISPATCH_RATE} of subscriptions")
        except RequestRefusedError as error:
            if not is_refusal(error, _OFF):
                raise
            self._note_once(_OFF_NOTE)
            return
        if not rate:
            return
        name = f"{subscription} {_DISPATCH_RATE}"
        base, _, rest = path.rpartition(f"/{quote(subscription, safe='')}/")
        setting = Setting(name, "POST", f"{quote(subscription, safe='')}/{rest}", rate)
        refused = await self._set(base, [setting])
        self._report.compare(
            "topic policy",
            f"{topic.name} {name}",
            rate,
            await self._target.get(path),
            refused.get(name, ""),
        )

    async def _optional(self, path: str, what: str) -> Any:
        """Return the value at a path of the source; None if there is none, or the source does not
        know the path.

        Args:
            what: name of the policy, for the report.

        Raises:
            RequestRefusedError: the source cannot tell now.
        """
        try:
            return await self._source.get(path)
        except RequestRefusedError as error:
            if not is_unsupported(error, 400, 412):
                raise
            self._note_once(what, f"{what} is not moved, the source refuses it: {error}")
            return None

    def _note_once(self, what: str, note: str = "") -> None:
        if what not in self._noted:
            self._noted.add(what)
            self._report.notes.append(note or what)


def _of_topics(policy: str) -> str:
    return f"{policy} of topics"


def _reading(path: str, setting: Setting) -> str:
    return f"{path}/{QUOTAS if setting.path == 'backlogQuota' else setting.path}"


def _query_value(setting: Setting) -> Any:
    text = next(iter(setting.query.values()))
    return int(text) if text.lstrip("-").isdecimal() else text


def _grants(permissions: Permissions) -> Iterable[Setting]:
    yield from _role_settings("permissions", permissions.namespace)
    yield from _role_settings("permissions/subscription", permissions.subscriptions)


def _role_settings(path: str, grants: Mapping[str, Any]) -> Iterable[Setting]:
    for name, values in grants.items():
        yield Setting(name, "POST", f"{path}/{quote(name, safe='')}", list(values))


def _path_of(topic: str) -> str:
    domain, _, rest = topic.partition("://")
    namespace, _, name = rest.rpartition("/")
    return f"{domain}/{namespace}/{quote(name, safe='')}"
