"""Decide whether an identity may do something: collect the current grants and pass them to
`decide`.

Grants are in the records of tenants and namespaces, which the broker follows by watches. So a
decision costs no read if the records are known, and a change takes effect everywhere a moment
later. If the grants cannot be read now, the result is an error that a retry may mend, and never a
yes.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from magnetar.broker.base.errors import AuthorizationError, NamespaceNotFoundError
from magnetar.broker.policies.model import AuthMode, NamespaceRecord, TenantRecord, tenant_path
from magnetar.broker.policies.records import Followed, read_record
from magnetar.broker.security.actions import Action, Resource, namespace_of, tenant_of
from magnetar.broker.security.audit import Audit
from magnetar.broker.security.decide import ALLOWED, Decision, Denied, Grants, decide
from magnetar.broker.security.identity import Identity
from magnetar.ledger.metadata.store import MetadataStore

_log = structlog.get_logger()

_READS_AT_ONCE = 32

TENANTS_FOLLOWED_MAX = 10_000
"""Tenants whose administrators are kept in memory, at most."""


class Namespaces(Protocol):
    """Source of namespace records; `PolicyRegistry` is one."""

    async def check_namespace(
        self, namespace: str, *, may_be_deleted: bool = False
    ) -> NamespaceRecord: ...


class Authorizer:
    """Answers yes or no. While it is off, it answers yes at once."""

    def __init__(
        self,
        namespaces: Namespaces,
        store: MetadataStore,
        *,
        is_on: bool,
        super_users: frozenset[str],
        audit: Audit,
    ) -> None:
        self.is_on = is_on
        self._namespaces = namespaces
        self._store = store
        self._super_users = super_users
        self._audit = audit
        self._on_tenant_change: list[Callable[[str], None]] = []
        self._tenants: dict[str, Followed[TenantRecord | None]] = {}
        self._at_once = asyncio.Semaphore(_READS_AT_ONCE)

    def close(self) -> None:
        """Stop following all tenants."""
        for followed in self._tenants.values():
            followed.close()
        self._tenants.clear()

    def on_tenant_change(self, callback: Callable[[str], None]) -> None:
        """Call `callback` on the loop with the tenant's name when a tenant that was read has
        changed."""
        self._on_tenant_change.append(callback)

    def _tell(self, tenant: str) -> None:
        for callback in self._on_tenant_change:
            callback(tenant)

    def is_super_user(self, identity: Identity) -> bool:
        """Whether an identity may do everything. Each of its roles, a proxy's too, must be a super
        user."""
        return not self.is_on or all(role in self._super_users for role in identity.roles)

    async def may(self, identity: Identity, action: Action, resource: Resource) -> bool:
        """Whether an identity may do something.

        Raises:
            BrokerMetadataError: the grants cannot be read now.
        """
        return (await self.decision(identity, action, resource)).is_allowed

    async def check(
        self, identity: Identity, action: Action, resource: Resource, *, address: str = ""
    ) -> None:
        """Refuse an action that is not allowed. `address` of the client is for the audit log.

        Raises:
            AuthorizationError: the role has no grant for it.
            BrokerMetadataError: the grants cannot be read now.
        """
        decision = await self.decision(identity, action, resource)
        if isinstance(decision, Denied):
            self._audit.denied(identity, action, resource, address=address)
            raise AuthorizationError(decision.reason)

    async def decision(self, identity: Identity, action: Action, resource: Resource) -> Decision:
        """Decide for all roles of the identity. The first refusal counts.

        Raises:
            BrokerMetadataError: the grants cannot be read now.
        """
        if not self.is_on or all(role in self._super_users for role in identity.roles):
            return ALLOWED
        grants = await self._grants(resource)
        for role in identity.roles:
            decision = decide(role, action, resource, grants)
            if not decision.is_allowed:
                return decision
        return ALLOWED

    async def _grants(self, resource: Resource) -> Grants:
        tenant, namespace = tenant_of(resource), namespace_of(resource)
        admins = await self._admins_of(tenant) if tenant is not None else frozenset()
        record: NamespaceRecord | None = None
        if namespace is not None:
            try:
                record = await self._namespaces.check_namespace(namespace, may_be_deleted=True)
            except NamespaceNotFoundError:
                record = None  # A namespace that does not exist grants nothing.
        if record is None:
            return Grants(self._super_users, admins)
        return Grants(
            self._super_users,
            admins,
            record.permissions,
            record.topic_permissions,
            record.subscription_permissions,
            wants_prefix=record.subscription_auth_mode is AuthMode.PREFIX,
        )

    async def _admins_of(self, tenant: str) -> frozenset[str]:
        followed = self._tenants.get(tenant)
        if followed is None:
            followed = self._follow(tenant)
        record = await followed.latest()
        if record is None:
            # Absence is not remembered: it would take memory for each name that a client makes up.
            if self._tenants.get(tenant) is followed:
                del self._tenants[tenant]
                followed.close()
            return frozenset()
        return frozenset(record.admin_roles)

    def _follow(self, tenant: str) -> Followed[TenantRecord | None]:
        while len(self._tenants) >= TENANTS_FOLLOWED_MAX:
            self._tenants.pop(next(iter(self._tenants))).close()
        path = tenant_path(tenant)

        async def read() -> TenantRecord | None:
            found = await read_record(self._store, TenantRecord, path, is_sure=True)
            return found[0] if found is not None else None

        followed = self._tenants[tenant] = Followed(
            self._store, path, read, lambda before, after: self._tell(tenant), self._at_once
        )
        return followed
