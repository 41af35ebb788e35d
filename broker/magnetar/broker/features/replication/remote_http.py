"""Requests to the REST interface of another cluster.

The binary protocol has no command that creates a partitioned topic or gives it more partitions. The
cluster's record has the address of the interface (`serviceUrl`, `serviceUrlTls`). This broker
authenticates there with the same token and certificate as on its connections.

Source: geo-replication sheet, sections 1 and 8.
"""

import json
from collections.abc import Callable, Sequence

from magnetar.broker.base.errors import BrokerMetadataError, NotAllowedError
from magnetar.broker.base.http_client import Answer, HttpCallError, Outgoing, call

HOPS_MAX = 5
"""Redirects that are followed, at most: more suggest that the brokers redirect in circles."""


class RemoteHttp:
    """The REST interface of one other cluster."""

    def __init__(
        self,
        cluster: str,
        field: str,
        url: str,
        network: Outgoing,
        token: Callable[[], bytes] | None,
        *,
        timeout_ms: int,
    ) -> None:
        """Create the client of one cluster.

        Args:
            field: field of the cluster's record that has the address.
            url: value of the field: addresses separated by commas; empty if there is none.
        """
        self._cluster = cluster
        self._field = field
        self._urls = addresses_in(url)
        self._network = network
        self._token = token
        self._timeout_s = timeout_ms / 1000

    async def ask(self, method: str, path: str, body: bytes = b"") -> Answer:
        """Return the answer of the first address that answers; follow redirects.

        Raises:
            NotAllowedError: the cluster's record has no address.
            BrokerMetadataError: no address answers.
        """
        if not self._urls:
            raise NotAllowedError(
                f"cluster {self._cluster} has no {self._field}: set it by "
                f"`clusters update {self._cluster}`"
            )
        failure: HttpCallError | None = None
        for url in self._urls:
            try:
                return await self._follow(method, f"{url}{path}", body)
            except HttpCallError as error:
                failure = error
        raise BrokerMetadataError(
            f"the brokers of cluster {self._cluster} do not answer at its {self._field}: {failure}"
        )

    async def _follow(self, method: str, url: str, body: bytes) -> Answer:
        token = self._token() if self._token is not None else b""
        for _ in range(HOPS_MAX):
            answer = await call(
                self._network, method, url, timeout_s=self._timeout_s, body=body, token=token
            )
            if answer.status != 307:
                return answer
            url = answer.headers.get("location", "")
        raise HttpCallError(f"{method} {url}: redirected {HOPS_MAX} times")


def addresses_in(url: str) -> Sequence[str]:
    """Return the addresses of a service URL, each with its scheme: `http://a:1,b:2` has two."""
    scheme, separator, hosts = url.strip().partition("://")
    if not separator:
        return [url] if url.strip() else []
    return [f"{scheme}://{each.strip().rstrip('/')}" for each in hosts.split(",") if each.strip()]


def reason_in(answer: Answer) -> str:
    """Return the reason of a refusal in words."""
    try:
        told = json.loads(answer.body)
    except ValueError:
        told = None
    reason = told.get("reason") if isinstance(told, dict) else None
    return f"HTTP status {answer.status}" + (f", {reason}" if reason else "")
