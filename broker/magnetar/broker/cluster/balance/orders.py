"""Orders of the leader to other brokers: to hand a bundle over, or to split it. By HTTP."""

from collections.abc import Callable
from typing import Protocol
from urllib.parse import quote, urlencode

from magnetar.broker.base.errors import BrokerMetadataError
from magnetar.broker.base.http_client import Answer, HttpCallError, call
from magnetar.broker.cluster.balance.bundles import BundleId
from magnetar.broker.cluster.ownership.records import BrokerRecord
from magnetar.ledger.ports import Network

_REASON_CHARACTERS_MAX = 300


class Orders(Protocol):
    """Lets the owner of a bundle carry out what the leader has decided."""

    async def unload(self, owner: BrokerRecord, bundle: BundleId, destination: str) -> None:
        """Make `owner` hand the bundle over to the broker `destination`; return when it has.

        Raises:
            BrokerMetadataError: refused, or the outcome is unknown.
        """
        ...

    async def split(self, owner: BrokerRecord, bundle: BundleId) -> None:
        """Make `owner` split the bundle into halves of the same cost.

        Raises:
            BrokerMetadataError: refused, or the outcome is unknown.
        """
        ...


class HttpOrders:
    """Orders by the admin HTTP interface."""

    def __init__(
        self, network: Network, *, timeout_s: float, token: Callable[[], bytes] = lambda: b""
    ) -> None:
        """`token` returns the credential by which this broker authenticates to others; empty for
        none."""
        self._token = token
        self._network = network
        self._timeout_s = timeout_s

    async def unload(self, owner: BrokerRecord, bundle: BundleId, destination: str) -> None:
        query = urlencode({"destinationBroker": destination, "authoritative": "true"})
        await self._put(owner, f"{_path_of(bundle)}/unload?{query}")

    async def split(self, owner: BrokerRecord, bundle: BundleId) -> None:
        query = urlencode({"splitAlgorithmName": "flow_or_qps_equally_divide"})
        await self._put(owner, f"{_path_of(bundle)}/split?{query}")

    async def _put(self, owner: BrokerRecord, path: str) -> None:
        if not owner.http_url:
            raise BrokerMetadataError(f"{owner.name} has registered no HTTP address")
        answer = await self.ask(owner.http_url, "PUT", path)
        if not answer.is_success:
            reason = answer.body.decode("utf-8", "replace")[:_REASON_CHARACTERS_MAX]
            raise BrokerMetadataError(f"{owner.name} answered {answer.status} to {path}: {reason}")

    async def ask(self, http_url: str, method: str, path: str, body: bytes = b"") -> Answer:
        """Return the answer of the broker at `http_url`, of any status. `body`: JSON, or nothing.

        Raises:
            BrokerMetadataError: no usable answer.
        """
        try:
            return await call(
                self._network,
                method,
                http_url + path,
                timeout_s=self._timeout_s,
                body=body,
                token=self._token(),
            )
        except HttpCallError as error:
            raise BrokerMetadataError(f"cannot reach {http_url}: {error}") from error


def _path_of(bundle: BundleId) -> str:
    return f"/admin/v2/namespaces/{quote(bundle.namespace)}/{bundle.bundle.name}"
