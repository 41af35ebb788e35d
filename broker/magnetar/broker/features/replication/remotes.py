"""Connections to other clusters: one connection pool per cluster, shared by all topics of a broker.

A cluster's record (`clusters create`) has its address and the credentials of this broker there. It
is read again before each connection, because addresses and tokens change (rule 17.25).

Source: geo-replication sheet, sections 1, 4 and 15.
"""

import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar.broker.base.errors import NotAllowedError
from magnetar.broker.base.http_client import Answer
from magnetar.broker.features.replication.remote_http import RemoteHttp
from magnetar.sdk.errors import InvalidUrlError, SdkError
from magnetar.sdk.wire import TopicName
from magnetar.sdk.wire.errors import TopicNotFoundError

if TYPE_CHECKING:
    from magnetar.sdk.connection import Connection, ConnectionPool
    from magnetar.sdk.lookup import Lookup
    from magnetar.sdk.ports import Network

ReadCluster = Callable[[str], Awaitable[Mapping[str, Any]]]
"""Function that reads the record of a cluster: the fields of Pulsar's `ClusterData`."""


class RemoteCluster:
    """Connections to one other cluster."""

    def __init__(
        self,
        name: str,
        read: ReadCluster,
        *,
        timeout_ms: int,
        network: "Network | None" = None,
    ) -> None:
        """Create the object; it connects at first use.

        `network`: for addresses without TLS; None = the system's sockets.
        """
        self.name = name
        self._read = read
        self._timeout_ms = timeout_ms
        self._network = network
        self._data: Mapping[str, Any] = {}
        self._proof = b""
        """Token with which the connections were opened."""
        self._pool: ConnectionPool | None = None
        self._lookup: Lookup | None = None
        self._http: RemoteHttp | None = None
        self._next_producer_id = 0

    def next_producer_id(self) -> int:
        """Return an id that no other producer has on any connection to the cluster."""
        self._next_producer_id += 1
        return self._next_producer_id

    async def lookup(self) -> "Lookup":
        """Return the lookup for topics of the cluster, by its present record and token.

        If the record or the token has changed, close the old connections: they authenticate only
        once.

        Raises:
            NotAllowedError: the record has no usable address, or the token cannot be read.
            RequestError: the record is missing, or cannot be read.
        """
        data = await self._read(self.name)
        token = _token_of(self.name, data)
        try:
            proof = token() if token is not None else b""
        except OSError as error:
            raise NotAllowedError(f"cluster {self.name}: its token: {error}") from error
        if token is not None and not proof:
            place = data["authenticationParameters"]
            raise NotAllowedError(
                f"cluster {self.name}: its token: {place} is empty: put the token there, or name "
                f"another place (`clusters update {self.name}`)"
            )
        lookup = self._lookup
        if lookup is not None and data == self._data and proof == self._proof:
            return lookup
        # No await until the new pool is in place: another topic would open one more meanwhile.
        pool, self._pool, self._lookup = self._pool, None, None
        try:
            lookup = self._lookup = self._open(data, token)
            self._data, self._proof = data, proof
        finally:
            if pool is not None:
                await pool.close()
        return lookup

    def _open(self, data: Mapping[str, Any], token: Callable[[], bytes] | None) -> "Lookup":
        # Imported here, so that only brokers that copy topics load the client.
        from magnetar.sdk.connection import ConnectionPool
        from magnetar.sdk.lookup import Lookup
        from magnetar.sdk.ports import SystemNetwork
        from magnetar.sdk.service_url import ServiceUrl
        from magnetar.sdk.settings import ClientSettings
        from magnetar.sdk.tls import renewed_tls_context

        over_tls = bool(data.get("brokerClientTlsEnabled"))
        field = "brokerServiceUrlTls" if over_tls else "brokerServiceUrl"
        url = data.get(field)
        if not url:
            raise NotAllowedError(
                f"cluster {self.name} has no {field}: set it by `clusters update {self.name}`"
            )
        try:
            service_url = ServiceUrl.parse(str(url))
        except (InvalidUrlError, SdkError) as error:
            raise NotAllowedError(f"cluster {self.name}: {field} {url!r}: {error}") from error
        if data.get("brokerClientTlsEnabledWithKeyStore"):
            raise NotAllowedError(
                f"cluster {self.name}: key stores of Java are not read here; give certificates in "
                f"PEM files (`clusters update {self.name} --tls-trust-certs-filepath`)"
            )
        settings = ClientSettings(
            operation_timeout_ms=self._timeout_ms,
            auth_method_name="token" if token is not None else "none",
            auth_supplier=token,
            is_replicator=True,
            tls_trust_file=str(data.get("brokerClientTrustCertsFilePath") or ""),
            tls_certificate_file=str(data.get("brokerClientCertificateFilePath") or ""),
            tls_key_file=str(data.get("brokerClientKeyFilePath") or ""),
            tls_checks_host=not data.get("tlsAllowInsecureConnection"),
        )
        plain = SystemNetwork() if self._network is None else self._network
        tls = SystemNetwork(lambda: renewed_tls_context(settings))
        self._pool = ConnectionPool(settings, tls if service_url.is_tls else plain)
        http_field = "serviceUrlTls" if over_tls else "serviceUrl"
        http_url = str(data.get(http_field) or "")
        self._http = RemoteHttp(
            self.name,
            http_field,
            http_url,
            tls if http_url.startswith("https:") else plain,
            token,
            timeout_ms=self._timeout_ms,
        )
        return Lookup(service_url, self._pool, listener_name=str(data.get("listenerName") or ""))

    async def find(self, topic: str) -> "Connection":
        """Return a connection to the broker that owns a topic there.

        Raises:
            SdkError: no broker owns it now, or the owner cannot be reached.
            RequestError: the cluster's record is missing or not usable (`lookup`).
        """
        return await (await self.lookup()).connection_for(topic)

    async def partitions_of(self, topic: TopicName) -> int:
        """Return the number of partitions of a topic there; 0 if it has none, or does not exist.

        The request creates no topic.

        Raises:
            SdkError: the brokers there do not answer.
            RequestError: the cluster's record is missing or not usable (`lookup`).
        """
        try:
            return await (await self.lookup()).partitions(str(topic), may_create=False)
        except TopicNotFoundError:
            return 0

    async def ask(self, method: str, path: str, body: bytes = b"") -> Answer:
        """Send one request to the cluster's REST interface.

        Raises:
            RequestError: no address answers, or the cluster's record is missing or not usable
                (`lookup`).
        """
        await self.lookup()
        assert self._http is not None, "it is there with the lookup"
        return await self._http.ask(method, path, body)

    async def close(self) -> None:
        """Close all connections."""
        pool, self._pool, self._lookup = self._pool, None, None
        if pool is not None:
            await pool.close()


def _token_of(cluster: str, data: Mapping[str, Any]) -> Callable[[], bytes] | None:
    """Return the source of the token for a cluster, by Pulsar's fields; None if it has no token.

    A secret is best named by its place (`file:`, `env:`), and may be literal (`token:`) (rule
    15.1).

    Raises:
        NotAllowedError: the kind of authentication or parameter is not supported.
    """
    plugin = str(data.get("authenticationPlugin") or "")
    if not plugin:
        return None
    if not plugin.endswith("AuthenticationToken") and plugin != "token":
        raise NotAllowedError(
            f"cluster {cluster}: authenticationPlugin {plugin} is not supported between clusters; "
            "use org.apache.pulsar.client.impl.auth.AuthenticationToken, or certificates"
        )
    kind, _, value = str(data.get("authenticationParameters") or "").partition(":")
    if kind == "token":
        return value.encode
    if kind == "file":
        return lambda: Path(value.removeprefix("//")).read_bytes().strip()
    if kind == "env":
        return partial(_token_in_environment, cluster, value)
    raise NotAllowedError(
        f"cluster {cluster}: authenticationParameters must be token:..., file:... or env:..."
    )


def _token_in_environment(cluster: str, variable: str) -> bytes:
    token = os.environ.get(variable)
    if token is None:
        raise NotAllowedError(
            f"cluster {cluster}: its token: the environment variable {variable} is not set: set it "
            "and start this broker again"
        )
    return token.encode()


class RemoteClusters:
    """The other clusters that topics of this broker are copied to."""

    def __init__(self, read: ReadCluster, *, timeout_ms: int) -> None:
        self._read = read
        self._timeout_ms = timeout_ms
        self.network: Network | None = None
        """Network for addresses without TLS; None = the system's sockets. Existing connections
        stay."""
        self._clusters: dict[str, RemoteCluster] = {}

    def cluster(self, name: str) -> RemoteCluster:
        """Return the cluster of that name. A missing record is reported at first use."""
        found = self._clusters.get(name)
        if found is None:
            found = RemoteCluster(
                name, self._read, timeout_ms=self._timeout_ms, network=self.network
            )
            self._clusters[name] = found
        return found

    async def close(self) -> None:
        """Close all connections."""
        for each in list(self._clusters.values()):
            await each.close()
