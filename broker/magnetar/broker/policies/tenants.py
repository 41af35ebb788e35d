"""Clusters, tenants and namespaces: list, create, change and delete them."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import unquote_plus

from magnetar.broker.base import naming
from magnetar.broker.base.errors import (
    BrokerMetadataError,
    ConflictError,
    InvalidNameError,
    NamespaceNotFoundError,
    NotThereError,
    TenantNotFoundError,
)
from magnetar.broker.cluster.balance.bundles import LEASES_ROOT
from magnetar.broker.cluster.balance.layouts import POLICIES_ROOT, layout_path
from magnetar.broker.cluster.partitions.record import (
    PARTITIONED_TOPICS_ROOT,
    partitioned_topics_root,
)
from magnetar.broker.policies.model import (
    CLUSTERS_ROOT,
    TENANTS_ROOT,
    TOPIC_POLICIES_ROOT,
    ClusterRecord,
    NamespaceRecord,
    Record,
    TenantRecord,
    cluster_path,
    namespace_path,
    tenant_path,
    topic_policies_root,
)
from magnetar.broker.policies.records import asked, change_record, read_record
from magnetar.broker.policies.registry import check_name
from magnetar.broker.schemas.record import SCHEMAS_ROOT
from magnetar.ledger.errors import (
    BadVersionError,
    MetadataError,
    NoNodeError,
    NotEmptyError,
)
from magnetar.ledger.metadata.store import MetadataStore

R = TypeVar("R", bound=Record)

_DOMAINS = ("persistent", "non-persistent")
_PARENT_ROOTS = (
    naming.ROOT,
    naming.SCALABLE_ROOT,
    LEASES_ROOT,
    SCHEMAS_ROOT,
    PARTITIONED_TOPICS_ROOT,
    TOPIC_POLICIES_ROOT,
    POLICIES_ROOT,
)
"""Roots of nodes whose children are tenants; the children of these are namespaces."""


class Tenants:
    """The records above topics. Reads the store each time, since these records are read seldom."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def _names(self, root: str, kind: type[Record]) -> list[str]:
        try:
            names = await asked(self._store.children(root), f"list {root}")
        except NoNodeError:
            return []
        # A node without a value is only the parent of another one.
        return [name for name in names if await read_record(self._store, kind, f"{root}/{name}")]

    async def _record(self, kind: type[R], path: str, what: str) -> R:
        found = await read_record(self._store, kind, path, is_sure=True)
        if found is None:
            missing = TenantNotFoundError if kind is TenantRecord else NotThereError
            raise missing(f"{what} does not exist")
        return found[0]

    async def _create(self, record: R, path: str, what: str) -> None:
        def create(before: R | None) -> R:
            if before is not None:
                raise ConflictError(f"{what} already exists")
            return record

        check_name(path.rpartition("/")[2])
        await change_record(self._store, type(record), path, create)

    async def _update(self, path: str, what: str, record: R) -> None:
        def update(before: R | None) -> R:
            if before is None:
                missing = TenantNotFoundError if isinstance(record, TenantRecord) else NotThereError
                raise missing(f"{what} does not exist")
            return record

        await change_record(self._store, type(record), path, update)

    async def _delete(
        self, kind: type[Record], path: str, what: str, in_it: str, *, version: int | None = None
    ) -> None:
        await self._record(kind, path, what)
        try:
            await self._store.delete(path, version=version)
        except NoNodeError:
            pass
        except BadVersionError as error:
            raise ConflictError(f"{what} was changed by another request: try again") from error
        except NotEmptyError as error:
            raise ConflictError(f"{what} still has {in_it}") from error
        except MetadataError as error:
            raise BrokerMetadataError(f"cannot delete {path}: {error}") from error

    # Clusters

    async def clusters(self) -> list[str]:
        """Return the names of all clusters, sorted.

        Raises:
            BrokerMetadataError
        """
        return await self._names(CLUSTERS_ROOT, ClusterRecord)

    async def cluster(self, name: str) -> ClusterRecord:
        """Return the record of a cluster.

        Raises:
            NotThereError, InvalidNameError, BrokerMetadataError
        """
        check_name(name)
        return await self._record(ClusterRecord, cluster_path(name), f"cluster {name}")

    async def create_cluster(self, name: str, data: dict[str, Any]) -> None:
        """Create a cluster.

        Raises:
            ConflictError, InvalidNameError, BrokerMetadataError
        """
        check_name(name)
        await self._create(ClusterRecord(data=data), cluster_path(name), f"cluster {name}")

    async def update_cluster(
        self, name: str, change: Callable[[ClusterRecord], ClusterRecord]
    ) -> None:
        """Replace the record of a cluster by the result of `change`.

        Raises:
            NotThereError, InvalidNameError, BrokerMetadataError
        """

        def changed(before: ClusterRecord | None) -> ClusterRecord:
            if before is None:
                raise NotThereError(f"cluster {name} does not exist")
            return change(before)

        check_name(name)
        await change_record(self._store, ClusterRecord, cluster_path(name), changed)

    async def delete_cluster(self, name: str) -> None:
        """Delete a cluster that no tenant may use.

        Raises:
            NotThereError, ConflictError, BrokerMetadataError
        """
        check_name(name)
        for tenant in await self.tenants():
            if name in (await self.tenant(tenant)).allowed_clusters:
                raise ConflictError(f"cluster {name} is allowed to tenant {tenant}")
        await self._delete(ClusterRecord, cluster_path(name), f"cluster {name}", "children")

    # Tenants

    async def tenants(self) -> list[str]:
        """Return the names of all tenants, sorted.

        Raises:
            BrokerMetadataError
        """
        return await self._names(TENANTS_ROOT, TenantRecord)

    async def tenant(self, name: str) -> TenantRecord:
        """Return the record of a tenant.

        Raises:
            NotThereError, InvalidNameError, BrokerMetadataError
        """
        check_name(name)
        return await self._record(TenantRecord, tenant_path(name), f"tenant {name}")

    async def create_tenant(self, name: str, record: TenantRecord) -> None:
        """Create a tenant.

        Raises:
            ConflictError, InvalidNameError: also for clusters that do not exist.
            BrokerMetadataError
        """
        check_name(name)
        await self._check_clusters(record.allowed_clusters)
        await self._create(record, tenant_path(name), f"tenant {name}")

    async def update_tenant(self, name: str, record: TenantRecord) -> None:
        """Replace the record of a tenant.

        Raises:
            NotThereError, InvalidNameError, BrokerMetadataError
        """
        await self.tenant(name)
        await self._check_clusters(record.allowed_clusters)
        await self._update(tenant_path(name), f"tenant {name}", record)

    async def delete_tenant(self, name: str) -> None:
        """Delete a tenant without namespaces.

        Raises:
            NotThereError, ConflictError: it has namespaces.
            BrokerMetadataError
        """
        check_name(name)
        await self._delete(TenantRecord, tenant_path(name), f"tenant {name}", "namespaces")
        for root in _PARENT_ROOTS:
            await self._remove(f"{root}/{name}")

    async def _check_clusters(self, names: Sequence[str]) -> None:
        if not names or not all(names):
            raise InvalidNameError("a tenant needs one or more allowedClusters")
        known = await self.clusters()
        for name in names:
            if name not in known:
                raise InvalidNameError(f"there is no cluster {name!r}, only {', '.join(known)}")

    # Namespaces

    async def namespaces(self, tenant: str) -> list[str]:
        """Return the namespaces of a tenant as tenant/namespace, sorted.

        Raises:
            NotThereError: there is no such tenant.
            BrokerMetadataError
        """
        await self.tenant(tenant)
        names = await self._names(tenant_path(tenant), NamespaceRecord)
        return [f"{tenant}/{name}" for name in names]

    async def namespace(self, namespace: str) -> NamespaceRecord:
        """Return the record that is in the store.

        Raises:
            NamespaceNotFoundError, InvalidNameError, BrokerMetadataError
        """
        tenant, _, name = namespace.partition("/")
        check_name(tenant)
        check_name(name)
        path = namespace_path(namespace)
        found = await read_record(self._store, NamespaceRecord, path, is_sure=True)
        if found is None:
            await self.tenant(tenant)
            raise NamespaceNotFoundError(f"namespace {namespace} does not exist")
        return found[0]

    async def check_new_namespace(self, namespace: str, record: NamespaceRecord) -> None:
        """Refuse a namespace that cannot be created.

        Raises:
            NotThereError: there is no such tenant.
            ConflictError, InvalidNameError, BrokerMetadataError
        """
        tenant, _, name = namespace.partition("/")
        check_name(name)
        allowed = (await self.tenant(tenant)).allowed_clusters
        for cluster in record.replication_clusters:
            if allowed and cluster not in allowed:
                raise InvalidNameError(f"cluster {cluster} is not allowed to tenant {tenant}")
        path = namespace_path(namespace)
        if await read_record(self._store, NamespaceRecord, path, is_sure=True) is not None:
            raise ConflictError(f"namespace {namespace} already exists")

    async def create_namespace(self, namespace: str, record: NamespaceRecord) -> None:
        """Create a namespace of an existing tenant.

        If the tenant is deleted at the same time, either it has this namespace and stays, or both
        are gone: each of the two requests checks for the other after its own change.

        Raises:
            TenantNotFoundError: the tenant was deleted meanwhile.
            ConflictError, BrokerMetadataError; see `check_new_namespace`
        """
        path, tenant = namespace_path(namespace), namespace.partition("/")[0]
        await self._create(record, path, f"namespace {namespace}")
        try:
            await self.tenant(tenant)
        except TenantNotFoundError:
            # While the record exists, no other request creates a namespace of this name.
            await self._remove(layout_path(namespace))
            await self._remove(path)
            for root in (TENANTS_ROOT, *_PARENT_ROOTS):
                await self._remove_empty(f"{root}/{tenant}")
            raise

    async def topics_in(self, namespace: str) -> list[str]:
        """Return the names of all topics in a namespace; if there are none, it can be deleted.

        Raises:
            BrokerMetadataError
        """
        await asked(self._store.catch_up(), f"list {namespace}")
        found = [
            naming.topic_at(namespace, node)
            for node in await self._children(naming.topics_path(namespace))
        ]
        for domain in _DOMAINS:
            nodes = await self._children(partitioned_topics_root(namespace, domain))
            found += [f"{domain}://{namespace}/{unquote_plus(node)}" for node in nodes]
        scalable = await self._children(naming.scalable_topics_path(namespace))
        found += [naming.scalable_topic_at(namespace, node) for node in scalable]
        return found

    async def marked_version(self, namespace: str) -> int | None:
        """Return the version of a record that marks its namespace as being deleted; None if it does
        not.

        While the version is the same, the mark was not taken back, and nothing new was created.

        Raises:
            NamespaceNotFoundError, BrokerMetadataError
        """
        path = namespace_path(namespace)
        found = await read_record(self._store, NamespaceRecord, path, is_sure=True)
        if found is None:
            raise NamespaceNotFoundError(f"namespace {namespace} does not exist")
        record, version = found
        return version if record.is_deleted else None

    async def delete_namespace(self, namespace: str, *, version: int) -> None:
        """Delete the records of a namespace that is empty, and marked in this version.

        Raises:
            ConflictError: it has changed since, or has children.
            NotThereError, BrokerMetadataError
        """
        for domain in _DOMAINS:
            root = topic_policies_root(namespace, domain)
            for node in await self._children(root):
                await self._remove(f"{root}/{node}")
            await self._remove(root)
            await self._remove(partitioned_topics_root(namespace, domain))
        await self._remove(topic_policies_root(namespace, "").rstrip("/"))
        await self._remove(f"{PARTITIONED_TOPICS_ROOT}/{namespace}")
        await self._remove(layout_path(namespace))
        # Nodes without a value, which were the parents of topics and leases.
        await self._remove(naming.topics_path(namespace))
        await self._remove(naming.segments_path(namespace))
        for root in _PARENT_ROOTS:
            await self._remove(f"{root}/{namespace}")
        await self._delete(
            NamespaceRecord,
            namespace_path(namespace),
            f"namespace {namespace}",
            "children",
            version=version,
        )

    async def _children(self, path: str) -> list[str]:
        try:
            return await asked(self._store.children(path), f"list {path}")
        except NoNodeError:
            return []

    async def _remove_empty(self, path: str) -> None:
        """Remove a node that has neither a value nor children. A record that was written there
        meanwhile stays."""
        try:
            node = await self._store.get(path)
            if not node.value:
                await self._store.delete(path, version=node.version)
        except (NoNodeError, NotEmptyError, BadVersionError):
            pass
        except MetadataError as error:
            raise BrokerMetadataError(f"cannot delete {path}: {error}") from error

    async def _remove(self, path: str) -> None:
        try:
            await self._store.delete(path)
        except (NoNodeError, NotEmptyError):
            pass
        except MetadataError as error:
            raise BrokerMetadataError(f"cannot delete {path}: {error}") from error
