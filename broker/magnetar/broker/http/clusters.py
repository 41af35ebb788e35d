"""Clusters over HTTP: their addresses, peers and failure domains. Source: HTTP sheet, 3.

Isolation policies and failure domains are only stored and shown: bundles are placed by load alone.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from fastapi import APIRouter, Body, Response
from pydantic import BaseModel, Field, JsonValue

from magnetar.broker.base.errors import ConflictError, InvalidNameError, NotThereError
from magnetar.broker.base.json_values import Flag
from magnetar.broker.http.bodies import RequestBody, done
from magnetar.broker.http.context import HttpContext
from magnetar.broker.http.late_routes import late_router
from magnetar.broker.http.refusals import HttpRefusal
from magnetar.broker.policies.model import ClusterRecord
from magnetar.broker.policies.registry import check_name

_CLUSTER = "/admin/v2/clusters/{cluster}"
_NOTE = "bundles are placed by load alone"
_NO_MIGRATION = "clients are not sent to other clusters"

Names = Annotated[list[str] | None, Body(description="Names of clusters.")]


class ClusterData(RequestBody):
    """Addresses of a cluster, and how brokers connect to it."""

    serviceUrl: str | None = None
    serviceUrlTls: str | None = None
    brokerServiceUrl: str | None = None
    brokerServiceUrlTls: str | None = None
    proxyServiceUrl: str | None = None
    proxyProtocol: Literal["SNI"] | None = None
    authenticationPlugin: str | None = None
    authenticationParameters: str | None = None
    peerClusterNames: list[str] | None = None
    brokerClientTlsEnabled: Flag = False
    tlsAllowInsecureConnection: Flag = False
    brokerClientTlsEnabledWithKeyStore: Flag = False
    brokerClientTlsTrustStoreType: str | None = "JKS"
    brokerClientTlsTrustStore: str | None = None
    brokerClientTlsTrustStorePassword: str | None = None
    brokerClientTlsKeyStoreType: str | None = "JKS"
    brokerClientTlsKeyStore: str | None = None
    brokerClientTlsKeyStorePassword: str | None = None
    brokerClientTrustCertsFilePath: str | None = None
    brokerClientKeyFilePath: str | None = None
    brokerClientCertificateFilePath: str | None = None
    listenerName: str | None = None
    migrated: Flag = False

    def kept(self) -> dict[str, JsonValue]:
        """Return the data to store."""
        return self.model_dump(exclude_none=True)


_STARS = "********"
_PASSWORDS = ("brokerClientTlsTrustStorePassword", "brokerClientTlsKeyStorePassword")
_REFERENCES = ("file:", "env:")
"""Prefixes of parameters that hold the place of a secret instead of the secret itself."""


def without_secrets(data: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return a cluster's record for display: with stars for secrets (rule 15.1)."""
    shown = dict(data)
    parameters = shown.get("authenticationParameters")
    if isinstance(parameters, str) and parameters and not parameters.startswith(_REFERENCES):
        kind = "token:" if parameters.startswith("token:") else ""
        shown["authenticationParameters"] = f"{kind}{_STARS}"
    for name in _PASSWORDS:
        if shown.get(name):
            shown[name] = _STARS
    return shown


def with_secrets(
    data: Mapping[str, JsonValue], before: Mapping[str, JsonValue]
) -> dict[str, JsonValue]:
    """Return the record that replaces `before`. Stars, as they were shown, keep the stored
    secret."""
    shown = without_secrets(before)
    secrets = {
        name: before[name]
        for name in ("authenticationParameters", *_PASSWORDS)
        if name in before and shown[name] != before[name] and data.get(name) == shown[name]
    }
    return {**data, **secrets}


class FailureDomain(RequestBody):
    """Brokers that may fail together."""

    brokers: list[str] = Field(default_factory=list)


class AutoFailover(RequestBody):
    """Condition for the use of the secondary brokers of an isolation policy."""

    policy_type: Literal["min_available"] = "min_available"
    parameters: dict[str, str] = Field(default_factory=dict)


class NamespaceIsolation(RequestBody):
    """Brokers that serve certain namespaces; all fields are regular expressions."""

    namespaces: list[str] = Field(default_factory=list)
    primary: list[str] = Field(default_factory=list)
    secondary: list[str] = Field(default_factory=list)
    auto_failover_policy: AutoFailover | None = None
    unload_scope: str | None = None


class BrokerIsolation(BaseModel):
    """Isolation policies that name a broker."""

    brokerName: str
    policyName: str | None = None
    primary: bool = False
    namespaceRegex: list[str] = Field(default_factory=list)

    @classmethod
    def of(cls, broker: str, policies: Mapping[str, JsonValue]) -> "BrokerIsolation":
        found = cls(brokerName=broker)
        for name, each in policies.items():
            policy = NamespaceIsolation.model_validate(each)
            is_primary = _names_broker(policy.primary, broker)
            if is_primary or _names_broker(policy.secondary, broker):
                found.policyName, found.primary = name, is_primary
                found.namespaceRegex += policy.namespaces
        return found


def _names_broker(expressions: list[str], broker: str) -> bool:
    """Whether one of the expressions matches a broker, by its id or by the host in the id."""
    names = (broker, broker.rpartition(":")[0])
    for expression in expressions:
        try:
            pattern = re.compile(expression)
        except re.error:  # Java's syntax has more than Python's.
            pattern = re.compile(re.escape(expression))
        if any(pattern.fullmatch(name) for name in names):
            return True
    return False


class ClusterUrl(RequestBody):
    """Addresses of the cluster that a cluster was migrated to."""

    serviceUrl: str | None = None
    serviceUrlTls: str | None = None
    brokerServiceUrl: str | None = None
    brokerServiceUrlTls: str | None = None


class ClusterPolicies(BaseModel):
    """Whether a cluster was migrated, and to which cluster."""

    migrated: bool = False
    migratedClusterUrl: ClusterUrl | None = None


class _Clusters:
    """Routes of clusters."""

    def __init__(self, context: HttpContext) -> None:
        self._tenants = context.tenants

    async def names(self) -> list[str]:
        return await self._tenants.clusters()

    async def get(self, cluster: str) -> ClusterData:
        data = (await self._tenants.cluster(cluster)).data
        return ClusterData.model_validate(without_secrets(data))

    async def create(self, cluster: str, data: ClusterData) -> Response:
        """Register a cluster. 409 if it exists, 412 if the name is not valid."""
        await self._tenants.create_cluster(cluster, data.kept())
        return Response()

    async def update(self, cluster: str, data: ClusterData) -> Response:
        kept = data.kept()
        await self._tenants.update_cluster(
            cluster,
            lambda record: record.model_copy(update={"data": with_secrets(kept, record.data)}),
        )
        return Response()

    async def delete(self, cluster: str) -> Response:
        """Delete a cluster; 412 if tenants may use it."""
        try:
            await self._tenants.delete_cluster(cluster)
        except ConflictError as error:
            raise HttpRefusal(412, str(error)) from error
        return done()

    async def migration(self, cluster: str) -> ClusterPolicies:
        return ClusterPolicies.model_validate((await self._tenants.cluster(cluster)).migration)

    async def set_migration(
        self,
        cluster: str,
        isMigrated: bool = False,
        url: Annotated[ClusterUrl | None, Body()] = None,
    ) -> Response:
        """Store the migration. It has no effect: clients are not sent to other clusters."""
        told = ClusterPolicies(migrated=isMigrated, migratedClusterUrl=url)
        kept = told.model_dump(exclude_none=True)
        await self._tenants.update_cluster(
            cluster, lambda record: record.model_copy(update={"migration": kept})
        )
        return Response(headers=done(note=_NO_MIGRATION).headers)

    async def peers(self, cluster: str) -> list[str]:
        found = ClusterData.model_validate((await self._tenants.cluster(cluster)).data)
        return found.peerClusterNames or []

    async def set_peers(self, cluster: str, names: Names = None) -> Response:
        """Set the peers; 412 if one of them does not exist, or is the cluster itself."""
        known = await self._tenants.clusters()
        for name in names or ():
            if name == cluster or name not in known:
                why = (
                    "is the cluster itself"
                    if name == cluster
                    else "does not exist: create it first"
                )
                raise InvalidNameError(f"{name!r} cannot be a peer of {cluster}: it {why}")
        await self._tenants.update_cluster(
            cluster,
            lambda record: record.model_copy(
                update={"data": {**record.data, "peerClusterNames": names or []}}
            ),
        )
        return done()


def clusters_router(context: HttpContext) -> APIRouter:
    """Return the routes below /admin/v2/clusters."""
    router = late_router(tags=["clusters"])
    routes = _Clusters(context)
    router.get("/admin/v2/clusters", summary="The names of all clusters")(routes.names)
    router.get(_CLUSTER, summary="A cluster", response_model_exclude_none=True)(routes.get)
    router.put(_CLUSTER, summary="Register a cluster", response_class=Response)(routes.create)
    router.post(_CLUSTER, summary="Update a cluster", response_class=Response)(routes.update)
    router.delete(_CLUSTER, status_code=204, summary="Delete a cluster")(routes.delete)
    router.get(
        _CLUSTER + "/migrate",
        summary="Whether a cluster was migrated to another one",
        response_model_exclude_none=True,
    )(routes.migration)
    router.post(
        _CLUSTER + "/migrate",
        summary="Mark a cluster as migrated to another one",
        response_class=Response,
    )(routes.set_migration)
    router.get(_CLUSTER + "/peers", summary="The peers of a cluster")(routes.peers)
    router.post(_CLUSTER + "/peers", status_code=204, summary="Set the peers of a cluster")(
        routes.set_peers
    )
    _add_failure_domains(router, context)
    _add_isolation(router, context)
    return router


def _add_failure_domains(router: APIRouter, context: HttpContext) -> None:
    path = _CLUSTER + "/failureDomains"
    tenants = context.tenants

    @router.get(path, summary="The failure domains of a cluster, by their names")
    async def domains(cluster: str) -> dict[str, FailureDomain]:
        found = (await tenants.cluster(cluster)).failure_domains
        return {name: FailureDomain.model_validate(each) for name, each in found.items()}

    @router.get(path + "/{name}", summary="One failure domain")
    async def domain(cluster: str, name: str) -> FailureDomain:
        found = (await tenants.cluster(cluster)).failure_domains
        return FailureDomain.model_validate(_one(found, name, f"failure domain of {cluster}"))

    @router.post(path + "/{name}", status_code=204, summary="Create or replace a failure domain")
    async def set_domain(cluster: str, name: str, domain: FailureDomain) -> Response:
        """Store the domain; 409 if one of its brokers is in another domain."""

        def change(record: ClusterRecord) -> ClusterRecord:
            for other, each in record.failure_domains.items():
                if other != name and set(domain.brokers) & set(each["brokers"]):
                    raise ConflictError(f"a broker of {name} is in failure domain {other}")
            known = {**record.failure_domains, name: domain.model_dump()}
            return record.model_copy(update={"failure_domains": known})

        check_name(name)
        await tenants.update_cluster(cluster, change)
        return done(note=_NOTE)

    @router.delete(path + "/{name}", status_code=204, summary="Remove a failure domain")
    async def remove_domain(cluster: str, name: str) -> Response:
        def change(record: ClusterRecord) -> ClusterRecord:
            known = dict(record.failure_domains)
            _one(known, name, f"failure domain of {cluster}")
            del known[name]
            return record.model_copy(update={"failure_domains": known})

        await tenants.update_cluster(cluster, change)
        return done()


def _add_isolation(router: APIRouter, context: HttpContext) -> None:
    path = _CLUSTER + "/namespaceIsolationPolicies"
    tenants = context.tenants
    what = "namespace isolation policy"

    @router.get(path, summary="The isolation policies of a cluster, by their names")
    async def policies(cluster: str) -> dict[str, NamespaceIsolation]:
        found = (await tenants.cluster(cluster)).isolation_policies
        return {name: NamespaceIsolation.model_validate(each) for name, each in found.items()}

    @router.get(
        path + "/brokers",
        summary="The isolation policies that name each broker",
        response_model_exclude_none=True,
    )
    async def isolated_brokers(cluster: str) -> list[BrokerIsolation]:
        found = (await tenants.cluster(cluster)).isolation_policies
        known = [each.broker_id for each in context.admin.brokers()]
        return [BrokerIsolation.of(broker, found) for broker in known]

    @router.get(
        path + "/brokers/{broker}",
        summary="The isolation policies that name a broker",
        response_model_exclude_none=True,
    )
    async def isolated_broker(cluster: str, broker: str) -> BrokerIsolation:
        """Return the policies that name a broker; 404 if there is no such broker."""
        found = (await tenants.cluster(cluster)).isolation_policies
        if broker not in [each.broker_id for each in context.admin.brokers()]:
            raise NotThereError(f"there is no broker {broker}")
        return BrokerIsolation.of(broker, found)

    @router.get(path + "/{name}", summary="One isolation policy")
    async def policy(cluster: str, name: str) -> NamespaceIsolation:
        found = (await tenants.cluster(cluster)).isolation_policies
        return NamespaceIsolation.model_validate(_one(found, name, what))

    @router.post(path + "/{name}", status_code=204, summary="Create or replace an isolation policy")
    async def set_policy(cluster: str, name: str, policy: NamespaceIsolation) -> Response:
        """Store the policy. It has no effect: bundles are placed by load alone."""

        def change(record: ClusterRecord) -> ClusterRecord:
            known = {**record.isolation_policies, name: policy.model_dump(exclude_none=True)}
            return record.model_copy(update={"isolation_policies": known})

        check_name(name)
        if not policy.namespaces or not policy.primary:
            raise HttpRefusal(400, "an isolation policy needs namespaces and primary brokers")
        await tenants.update_cluster(cluster, change)
        return done(note=_NOTE)

    @router.delete(path + "/{name}", status_code=204, summary="Remove an isolation policy")
    async def remove_policy(cluster: str, name: str) -> Response:
        def change(record: ClusterRecord) -> ClusterRecord:
            known = dict(record.isolation_policies)
            _one(known, name, what)
            del known[name]
            return record.model_copy(update={"isolation_policies": known})

        await tenants.update_cluster(cluster, change)
        return done()


def _one(known: dict[str, JsonValue], name: str, what: str) -> JsonValue:
    if name not in known:
        raise NotThereError(f"there is no {what} {name!r}")
    return known[name]
