"""Namespaces and policies, as this broker knows them, and all changes of policies.

A namespace costs two watched nodes: its record, and the list of its topics that have policies of
their own. Only those topics cost a node and a watch each. Values in memory may be slightly
outdated. Absence is never remembered, but read again. Changes compare versions: of two concurrent
ones, the later is made on top of the earlier.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus

import structlog

from magnetar.broker.base.errors import (
    BrokerMetadataError,
    InvalidNameError,
    NamespaceNotFoundError,
    RequestError,
)
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.policies.dynamic import DynamicConfiguration
from magnetar.broker.policies.model import (
    SYSTEM_NAMESPACE,
    ClusterRecord,
    NamespaceRecord,
    Policies,
    TenantRecord,
    TopicPolicyRecord,
    cluster_path,
    namespace_path,
    tenant_path,
    topic_policies_path,
    topic_policies_root,
)
from magnetar.broker.policies.records import Check, Followed, asked, change_record, read_record
from magnetar.broker.policies.table import effective, policies_of_broker
from magnetar.ledger.errors import MetadataError, NoNodeError
from magnetar.ledger.metadata.cell import bytes_cell
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.sdk.wire import TopicName

_log = structlog.get_logger()

_READS_AT_ONCE = 32
_NAME = re.compile(r"[-=:.\w]+", re.ASCII)

Changed = Callable[[str, TopicName | None], None]


@dataclass(frozen=True, slots=True)
class _Merged:
    levels: tuple[Policies, NamespaceRecord, Policies | None]
    """The policies that were merged: those of the broker, the namespace and the topic."""
    policies: Policies


class PolicyRegistry:
    """The policies in force, and changes of them."""

    def __init__(self, store: MetadataStore, settings: BrokerSettings) -> None:
        self.defaults: Policies = policies_of_broker(settings)
        self.dynamic = DynamicConfiguration(store, settings, self._defaults_changed)
        self._store = store
        self._cluster = settings.cluster_name
        self._used = settings.namespaces
        self._initial = tuple(dict.fromkeys([*settings.namespaces, SYSTEM_NAMESPACE]))
        self._has_initial = False
        self._namespaces: dict[str, Followed[NamespaceRecord | None]] = {}
        self._listed: dict[tuple[str, str], Followed[frozenset[str]]] = {}
        """Quoted names of the topics with policies of their own, by namespace and domain."""
        self._topics: dict[TopicName, Followed[Policies]] = {}
        self._merged: dict[str | TopicName, _Merged] = {}
        """Merged policies, by topic with policies of its own, and by namespace for the topics
        without."""
        self._removing_permissions = asyncio.Lock()
        self._callbacks: list[Changed] = []
        self._at_once = asyncio.Semaphore(_READS_AT_ONCE)

    def close(self) -> None:
        """Stop following all records."""
        self.dynamic.close()
        for namespace in self._namespaces.values():
            namespace.close()
        for listed in self._listed.values():
            listed.close()
        for topic in self._topics.values():
            topic.close()

    def on_change(self, callback: Changed) -> None:
        """Call back on the loop, with the namespace and the (base) topic, when policies have
        changed. Without a topic, the policies or the existence of the namespace have changed."""
        self._callbacks.append(callback)

    def _tell(self, namespace: str, topic: TopicName | None) -> None:
        for callback in self._callbacks:
            callback(namespace, topic)

    async def start(self, cluster_data: dict[str, Any]) -> None:
        """Create the broker's own cluster and namespaces, if they do not exist.

        An unavailable store does not fail this: until it has succeeded once, those namespaces are
        created at their first use.
        """
        await self.dynamic.start()
        try:
            cluster = ClusterRecord(data=cluster_data)
            await self._create(cluster_path(self._cluster), cluster.encode())
            for namespace in self._initial:
                await self._create_initial(namespace)
        except MetadataError as error:
            _log.warning("namespaces_not_created", error=str(error))
            return
        self._has_initial = True
        for namespace in self._used:
            try:
                await self.check_namespace(namespace)
            except RequestError as error:
                _log.warning("namespace_not_read", namespace=namespace, error=str(error))

    async def have_namespace(self, namespace: str) -> None:
        """Create a namespace of the brokers' own, and its tenant, if they do not exist.

        Raises:
            BrokerMetadataError: the metadata store does not answer.
        """
        try:
            await self._create_initial(namespace)
        except MetadataError as error:
            raise BrokerMetadataError(f"{namespace} is not created: {error}") from error

    async def _create_initial(self, namespace: str) -> None:
        clusters = (self._cluster,)
        tenant = TenantRecord(allowed_clusters=clusters)
        await self._create(tenant_path(namespace.partition("/")[0]), tenant.encode())
        record = NamespaceRecord(replication_clusters=clusters)
        await self._create(namespace_path(namespace), record.encode())

    async def _create(self, path: str, value: bytes) -> None:
        await bytes_cell(self._store, path).have(value)

    # Existence

    async def check_namespace(
        self, namespace: str, *, may_be_deleted: bool = False
    ) -> NamespaceRecord:
        """Return the record of a namespace, given as tenant/namespace, without a read if it is
        known. `may_be_deleted`: accept one that is being deleted.

        Raises:
            NamespaceNotFoundError: it does not exist, or is being deleted; the text says which.
            BrokerMetadataError: that cannot be found out now.
        """
        followed = self._namespaces.get(namespace)
        if followed is None or (followed.is_fresh and followed.value is None):
            if not is_namespace(namespace):
                raise NamespaceNotFoundError(
                    f"{namespace!r} is not a namespace: give tenant/namespace"
                )
            self._forget(namespace)
            followed = self._namespaces[namespace] = Followed(
                self._store,
                namespace_path(namespace),
                lambda: self._read_namespace(namespace),
                lambda before, after: self._namespace_changed(namespace, after),
                self._at_once,
            )
        record = await followed.latest()
        if record is None:
            if self._namespaces.get(namespace) is followed:
                self._forget(namespace)
            tenant = namespace.partition("/")[0]
            has_tenant = await read_record(self._store, TenantRecord, tenant_path(tenant))
            reason = "" if has_tenant else f": there is no tenant {tenant}"
            raise NamespaceNotFoundError(f"namespace {namespace} does not exist{reason}")
        if record.is_deleted and not may_be_deleted:
            raise NamespaceNotFoundError(f"namespace {namespace} is being deleted")
        return record

    async def _read_namespace(self, namespace: str) -> NamespaceRecord | None:
        path = namespace_path(namespace)
        found = await read_record(self._store, NamespaceRecord, path, is_sure=True)
        if found is None and namespace in self._initial and not self._has_initial:
            await asked(self._create_initial(namespace), f"create {namespace}")
            found = await read_record(self._store, NamespaceRecord, path)
        return found[0] if found is not None else None

    def _forget(self, namespace: str) -> None:
        followed = self._namespaces.pop(namespace, None)
        if followed is not None:
            followed.close()
        self._merged.pop(namespace, None)

    def _namespace_changed(self, namespace: str, record: NamespaceRecord | None) -> None:
        if record is None:  # Its topics are deleted, too.
            for key in [each for each in self._listed if each[0] == namespace]:
                self._listed.pop(key).close()
            for topic in [each for each in self._topics if each.namespace_name == namespace]:
                self._forget_topic(topic)
        self._tell(namespace, None)

    def _forget_topic(self, topic: TopicName) -> None:
        own = self._topics.pop(topic, None)
        if own is not None:
            own.close()
        self._merged.pop(topic, None)

    def _defaults_changed(self) -> None:
        self.defaults = policies_of_broker(self.dynamic.current)
        for namespace in list(self._namespaces):
            self._tell(namespace, None)

    def known_namespaces(self) -> Sequence[str]:
        """Return existing namespaces of the settings, and existing ones that were requested
        here."""
        known = [name for name, each in self._namespaces.items() if each.value is not None]
        return sorted(known)

    # Policies

    async def of(self, topic: TopicName) -> Policies:
        """Return the policies in force for a topic, without a read if they are known.

        Raises:
            NamespaceNotFoundError, BrokerMetadataError
        """
        await self.check_namespace(topic.namespace_name)
        base = topic.partitioned
        listed = await self._listed_in(base.namespace_name, base.domain).latest()
        if _node(base) in listed:
            await self._own(base).latest()
        return self.known(topic)

    async def reread(self, topic: TopicName) -> Policies:
        """Return the policies in force for a topic, with every change that was stored before this
        call, reported or not. For what cannot be undone: `of` may return what was known before.

        Raises:
            NamespaceNotFoundError, BrokerMetadataError
        """
        await self.dynamic.reread()
        await self.check_namespace(topic.namespace_name)
        if (followed := self._namespaces.get(topic.namespace_name)) is not None:
            await followed.reread()
        base = topic.partitioned
        if _node(base) in await self._listed_in(base.namespace_name, base.domain).reread():
            await self._own(base).reread()
        return self.known(topic)

    def known(self, topic: TopicName) -> Policies:
        """Return the policies as last read, without a new read; the broker's defaults if never."""
        namespace = topic.namespace_name
        followed = self._namespaces.get(namespace)
        record = followed.value if followed is not None else None
        own = self._topics.get(topic.partitioned)
        if own is not None and own.value:
            return self._merge(topic.partitioned, record, own.value)
        return self._merge(namespace, record)

    async def of_namespace(self, namespace: str) -> Policies:
        """Return the policies in force for topics of a namespace without policies of their own.

        Raises:
            NamespaceNotFoundError, BrokerMetadataError
        """
        return self._merge(namespace, await self.check_namespace(namespace))

    def _merge(
        self, key: str | TopicName, record: NamespaceRecord | None, own: Policies | None = None
    ) -> Policies:
        """Merge the levels once, until one of them changes: it takes 0.1 ms, and many topics may
        need it at once."""
        if record is None:
            return effective(self.defaults, None, own)
        levels = (self.defaults, record, own)
        found = self._merged.get(key)
        if found is None or any(a is not b for a, b in zip(found.levels, levels, strict=True)):
            found = self._merged[key] = _Merged(levels, effective(*levels))
        return found.policies

    async def own(self, topic: TopicName) -> Policies:
        """Return the policies of a topic itself, as they are in the store.

        Raises:
            BrokerMetadataError
        """
        path = topic_policies_path(topic)
        found = await read_record(self._store, TopicPolicyRecord, path, is_sure=True)
        return found[0].policies if found is not None else Policies()

    def _listed_in(self, namespace: str, domain: str) -> Followed[frozenset[str]]:
        followed = self._listed.get((namespace, domain))
        if followed is None:
            root = topic_policies_root(namespace, domain)

            async def read() -> frozenset[str]:
                try:
                    return frozenset(await asked(self._store.children(root), f"list {root}"))
                except NoNodeError:
                    return frozenset()

            followed = self._listed[namespace, domain] = Followed(
                self._store,
                root,
                read,
                lambda before, after: self._list_changed(namespace, domain, before, after),
                self._at_once,
            )
        return followed

    def _list_changed(
        self, namespace: str, domain: str, before: frozenset[str], after: frozenset[str]
    ) -> None:
        """Follow topics that got policies of their own, and no longer those that lost theirs."""
        tenant, _, name = namespace.partition("/")
        for node in sorted(after ^ before):
            topic = TopicName(domain, tenant, name, unquote_plus(node))
            if node in after:
                self._own(topic).expect(Policies())
            elif (own := self._topics.get(topic)) is not None:
                self._forget_topic(topic)
                if own.value:  # Its own watch has not reported that yet.
                    self._tell(namespace, topic)

    def _own(self, topic: TopicName) -> Followed[Policies]:
        followed = self._topics.get(topic)
        if followed is None:
            followed = self._topics[topic] = Followed(
                self._store,
                topic_policies_path(topic),
                lambda: self.own(topic),
                lambda before, after: self._tell(topic.namespace_name, topic),
                self._at_once,
            )
        return followed

    # Changes

    async def update_namespace(
        self, namespace: str, change: Callable[[NamespaceRecord], NamespaceRecord]
    ) -> NamespaceRecord:
        """Replace the record of a namespace by the result of `change`; in force here at once.

        Raises:
            NamespaceNotFoundError, BrokerMetadataError
        """

        def changed(record: NamespaceRecord | None) -> NamespaceRecord | None:
            if record is None or record.is_deleted:
                raise NamespaceNotFoundError(f"namespace {namespace} does not exist")
            return change(record)

        await self.check_namespace(namespace)
        path = namespace_path(namespace)
        record = await change_record(self._store, NamespaceRecord, path, changed)
        assert record is not None, "a change leaves a namespace where it is"
        followed = self._namespaces.get(namespace)
        if followed is not None:
            followed.wrote(record)
        return record

    async def mark_deleted(self, namespace: str, *, is_deleted: bool) -> None:
        """Mark a namespace as being deleted, or take that back; in force here at once.

        Raises:
            NamespaceNotFoundError, BrokerMetadataError
        """

        def changed(record: NamespaceRecord | None) -> NamespaceRecord:
            if record is None:
                raise NamespaceNotFoundError(f"namespace {namespace} does not exist")
            return record.model_copy(update={"is_deleted": is_deleted})

        path = namespace_path(namespace)
        record = await change_record(self._store, NamespaceRecord, path, changed)
        followed = self._namespaces.get(namespace)
        if followed is not None and record is not None:
            followed.wrote(record)

    async def update_topic(
        self, topic: TopicName, change: Callable[[Policies], Policies]
    ) -> Policies:
        """Replace the policies of a topic itself by the result of `change`; in force here at once.

        Raises:
            NamespaceNotFoundError, BrokerMetadataError
        """

        def changed(record: TopicPolicyRecord | None) -> TopicPolicyRecord | None:
            after = change(record.policies if record is not None else Policies())
            if after == Policies():
                return None
            if record is None:
                return TopicPolicyRecord(policies=after)
            return record.model_copy(update={"policies": after})

        await self.check_namespace(topic.namespace_name)
        base = topic.partitioned
        path = topic_policies_path(base)
        # Followed before the change, so that the change is reported like any other.
        own = self._own(base)
        await own.get()
        record = await change_record(self._store, TopicPolicyRecord, path, changed)
        policies = record.policies if record is not None else Policies()
        own.wrote(policies)
        return policies

    async def remove_topic(self, topic: TopicName, check: Check | None = None) -> None:
        """Remove the policies of a deleted topic and the permissions on it, and stop following it.

        `check`: raises to leave the rest, which is a later topic's.

        Raises:
            BrokerMetadataError
            Every error of `check`.
        """
        base = topic.partitioned
        try:
            async with self._removing_permissions:  # a namespace's topics are deleted concurrently
                await self._remove_permissions(base.namespace_name, str(base), check)
        except NamespaceNotFoundError:
            pass  # The namespace is being deleted, too, or is gone.
        path = topic_policies_path(base)
        await change_record(self._store, TopicPolicyRecord, path, lambda _: None, check=check)
        self._forget_topic(base)

    async def _remove_permissions(self, namespace: str, topic: str, check: Check | None) -> None:
        # A recent grant by another broker may not be in memory yet.
        found = await read_record(self._store, NamespaceRecord, namespace_path(namespace))
        granted = found[0].topic_permissions.get(topic) if found is not None else None
        if granted is None:
            return
        if check is not None:
            await check()

        def without(record: NamespaceRecord) -> NamespaceRecord:
            if record.topic_permissions.get(topic) != granted:
                return record  # They were granted since the check, perhaps on a later topic.
            left = {each: of for each, of in record.topic_permissions.items() if each != topic}
            return record.model_copy(update={"topic_permissions": left})

        await self.update_namespace(namespace, without)


def is_name(name: str) -> bool:
    """Whether a tenant, namespace or cluster may have this name."""
    return _NAME.fullmatch(name) is not None and name not in (".", "..")


def check_name(name: str) -> None:
    """Refuse a name that no tenant, namespace or cluster may have.

    Raises:
        InvalidNameError
    """
    if not is_name(name):
        raise InvalidNameError(f"{name!r}: a name may only have characters of [-=:.\\w]")


def is_namespace(name: str) -> bool:
    """Whether it is tenant/namespace, of valid names."""
    parts = name.split("/") if isinstance(name, str) else []
    return len(parts) == 2 and all(map(is_name, parts))


def _node(topic: TopicName) -> str:
    return topic.storage_name.rpartition("/")[2]
