"""One of the two clusters: its HTTP interface, and connections to its brokers."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import quote

from magnetar.deploy.admin_client import AdminClient, RequestRefusedError, topic_path
from magnetar.deploy.credentials import ClientCredentials
from magnetar.deploy.errors import BrokerUnreachableError, SettingsError
from magnetar.sdk.connection import Connection, ConnectionPool
from magnetar.sdk.errors import InvalidUrlError, SdkError
from magnetar.sdk.lookup import Lookup
from magnetar.sdk.ports import SystemNetwork
from magnetar.sdk.service_url import ServiceUrl
from magnetar.sdk.tls import renewed_tls_context
from magnetar.sdk.wire import TopicName

_OPERATION_TIMEOUT_MS: Final = 30_000
_NOT_THERE: Final = 404
_CONFLICT: Final = 409
_SERVER: Final = "Magnetar"
"""First word of the server version that Magnetar brokers report."""
_NO_OWNER: Final = "find owner"
"""In Pulsar's refusals with 412 while no broker owns a topic: `Failed to find ownership for topic`,
`Can't find owner for topic`. No field of the answer tells them from lasting ones."""


class Side:
    """A cluster, addressed by its URLs. Call `check` first, and `close` at the end."""

    def __init__(self, what: str, url: str, admin_url: str, credentials: ClientCredentials) -> None:
        """Prepare the clients of a cluster; makes no request.

        Args:
            what: `source` or `target`, for messages.

        Raises:
            SettingsError: a URL has a wrong form.
        """
        self.what = what
        self.url = url
        self.admin_url = admin_url
        try:
            service = ServiceUrl.parse(url)
        except InvalidUrlError as error:
            raise SettingsError(f"the URL of the {what}: {error}") from error
        settings = credentials.client_settings(
            operation_timeout_ms=_OPERATION_TIMEOUT_MS, is_replicator=True
        )
        network = (
            SystemNetwork(lambda: renewed_tls_context(settings))
            if service.is_tls
            else SystemNetwork()
        )
        self._pool = ConnectionPool(settings, network)
        self._lookup = Lookup(service, self._pool, listener_name="")
        self._admin = AdminClient(admin_url, credentials=credentials)
        self._thread = ThreadPoolExecutor(1, f"admin-of-{what}")
        self._next_id = 0
        self.server_version = ""
        """Version that a broker reports; set by `check`."""
        self.cluster = ""
        """Name of the cluster; set by `check`."""

    def next_id(self) -> int:
        """Return an id for a producer or consumer, unique on all connections."""
        self._next_id += 1
        return self._next_id

    async def check(self) -> None:
        """Make one request to each interface, and learn the name of the cluster.

        Raises:
            BrokerUnreachableError: one of them does not answer, or refuses the credentials.
        """
        try:
            connection = await self._lookup.service_connection()
            self.server_version = connection.server_version
        except SdkError as error:
            raise BrokerUnreachableError(
                f"the {self.what} {self.url} cannot be used: {' '.join(str(error).split())}"
            ) from error
        try:
            self.cluster = await self._cluster_name()
        except BrokerUnreachableError as error:
            raise BrokerUnreachableError(
                f"the HTTP interface of the {self.what} cannot be used: {error}"
            ) from error

    async def _cluster_name(self) -> str:
        clusters = await self.get("clusters")
        names = [each for each in clusters or () if each != "global"]
        if len(names) == 1:
            return str(names[0])
        settings = await self.settings()
        found = settings.get("clusterName") or settings.get("cluster_name")
        if not found:
            raise BrokerUnreachableError(
                f"{self.admin_url} does not tell its cluster's name: use a role that may read "
                "brokers/configuration/runtime"
            )
        return found

    async def settings(self) -> dict[str, str]:
        """Return the settings of a broker; empty if the role may not read them."""
        try:
            return dict(await self.get("brokers/configuration/runtime") or {})
        except RequestRefusedError:
            return {}

    async def connection_for(self, topic: TopicName) -> Connection:
        """Return a connection to the broker that owns a topic.

        Raises:
            SdkError: no broker owns it at present, or the owner is not reachable.
        """
        return await self._lookup.connection_for(str(topic))

    # Over HTTP, below /admin/v2/

    async def ask(
        self,
        method: str,
        path: str,
        body: object | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Any:
        """Send a request, and return the JSON of the answer.

        Raises:
            RequestRefusedError: it is refused, with the status.
            BrokerUnreachableError: no server answers.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._thread,
            lambda: self._admin.ask(method, f"/admin/v2/{path}", dict(query or {}), body),
        )

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        """Return the JSON of a GET; None if the resource does not exist, or is not set.

        Raises:
            BrokerUnreachableError: no server answers, or it is refused.
        """
        try:
            found = await self.ask("GET", path, query=query)
        except RequestRefusedError as error:
            if error.status == _NOT_THERE:
                return None
            raise
        return None if found == "" else found

    async def create(
        self,
        path: str,
        body: object | None = None,
        query: Mapping[str, str] | None = None,
    ) -> bool:
        """Create a resource by a PUT; return False if it exists already.

        Raises:
            BrokerUnreachableError: no server answers, or it is refused.
        """
        try:
            await self.ask("PUT", path, body, query)
        except RequestRefusedError as error:
            if error.status == _CONFLICT:
                return False
            raise
        return True

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.close()
        self._thread.shutdown(wait=False, cancel_futures=True)


def is_magnetar(side: Side) -> bool:
    """Return whether a cluster is a Magnetar; `check` must have been called."""
    return side.server_version.startswith(_SERVER)


def subscription_path(topic: TopicName, name: str) -> str:
    """Return the path of a subscription below /admin/v2/."""
    return f"{topic_path(topic)}/subscription/{quote(name, safe='')}"


def is_refusal(error: Exception, *statuses: int) -> bool:
    """Return whether an error is a refusal with one of these statuses."""
    return isinstance(error, RequestRefusedError) and error.status in statuses


def is_unsupported(error: Exception, *statuses: int) -> bool:
    """Return whether an error is a refusal with one of these statuses, of a cluster whose release
    does not have the resource.

    A Pulsar also answers 412 while no broker owns the topic, which passes.
    """
    return is_refusal(error, *statuses) and _NO_OWNER not in str(error)
