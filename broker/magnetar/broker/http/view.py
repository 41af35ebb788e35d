"""The broker as the HTTP interface and the metrics see it: values to show, and a few operations.

The view is built once, when the broker listens for the binary protocol: its name and address are
known then. Callables return what changes later. The holder of a view cannot start the broker, and
reaches none of its parts beyond this.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from magnetar.broker.cluster.balance.sampler import ProcessUsage
from magnetar.broker.cluster.composition import Cluster
from magnetar.broker.cluster.health import BrokerHealth
from magnetar.broker.cluster.ownership.records import BrokerRecord
from magnetar.broker.features.scalable import AutoScaling
from magnetar.broker.security.audit import Audit
from magnetar.broker.topics.at_rest.walk import TopicsAtRest
from magnetar.broker.topics.services import Services
from magnetar.broker.topics.upkeep import Upkeep
from magnetar.broker.websocket.session import SessionStats
from magnetar.ledger.bookie_facts import BookieFacts
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.ports import Network
from magnetar.ledger.registration import BookieInfo

if TYPE_CHECKING:
    from prometheus_client.registry import Collector


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerView:
    """View of one broker."""

    name: str
    """Name of the broker in its cluster."""
    version: str
    service_url: str
    """Address that lookups return to clients that name no listener."""
    metadata_url: str
    """URL of the metadata store, for operators."""
    services: Services
    cluster: Cluster | None
    """Cluster that the broker belongs to; None if it is the only broker."""
    store: MetadataStore
    network: Network
    """Network to other brokers."""
    health: BrokerHealth
    upkeep: Upkeep
    at_rest: TopicsAtRest
    auto_scaling: AutoScaling
    audit: Audit
    collectors: "Sequence[Collector]"
    """Further collectors of this process for `/metrics`."""
    certificate_roles: Mapping[tuple[str, int], str]
    """Names in the certificates of clients of the HTTPS port, by the client's address and port."""
    status: Callable[[], str]
    """Returns `ok` while clients are served, else the reason."""
    connections: Callable[[], int]
    """Returns the number of clients of the binary protocol."""
    websocket_sessions: Callable[[], int]
    """Returns the number of open WebSocket sessions."""
    websocket_stats: Callable[[], Sequence[SessionStats]]
    """Returns the statistics of all open WebSocket sessions."""
    bookies: Callable[[], Mapping[str, BookieInfo]]
    """Returns the registered bookies by id."""
    bookie_facts: Callable[[str], Awaitable[BookieFacts]]
    """Asks a bookie for its facts, by its id. Raises: BookieUnavailableError,
    BookieProtocolError."""
    usage: Callable[[], ProcessUsage]
    """Returns the resources that this process has used so far."""
    client_token: Callable[[], bytes]
    """Returns the token by which the broker authenticates at others; empty if it needs none."""
    describe: Callable[[], BrokerRecord]
    """Returns the record that the broker would register with."""
    request_stop: Callable[[], None]
    """Makes this process stop in order. Raises: NotAllowedError: the process is not the broker's
    alone."""
