"""The broker as its pages and metrics see it: what they show, and the little that they may do.

Made once, when the broker listens for the binary protocol: its name and address are known then.
What changes later is asked for. Whoever has a view cannot start or stop the broker, nor reach what
it is made of beyond this.
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
    """One broker."""

    name: str
    """Among the brokers of the cluster."""
    version: str
    service_url: str
    """Where lookups send clients that name no listener."""
    metadata_url: str
    """Of the metadata store, for operators."""
    services: Services
    cluster: Cluster | None
    """None: it is the only broker."""
    store: MetadataStore
    network: Network
    """To other brokers."""
    health: BrokerHealth
    upkeep: Upkeep
    at_rest: TopicsAtRest
    auto_scaling: AutoScaling
    audit: Audit
    collectors: "Sequence[Collector]"
    """What else in this process `/metrics` shows."""
    certificate_roles: Mapping[tuple[str, int], str]
    """Names in the certificates of those who are connected to the HTTPS port, by their address."""
    status: Callable[[], str]
    """`ok` while clients are served, otherwise what keeps it from that."""
    connections: Callable[[], int]
    """Clients of the binary protocol."""
    websocket_sessions: Callable[[], int]
    """How many are open."""
    websocket_stats: Callable[[], Sequence[SessionStats]]
    """Of each of them."""
    bookies: Callable[[], Mapping[str, BookieInfo]]
    """Registered bookies, by id."""
    bookie_facts: Callable[[str], Awaitable[BookieFacts]]
    """Asks a bookie, by its id, how it is. Raises: BookieUnavailableError, BookieProtocolError."""
    usage: Callable[[], ProcessUsage]
    """What this process has used so far."""
    client_token: Callable[[], bytes]
    """By which it shows other brokers who it is; empty: it need not."""
    describe: Callable[[], BrokerRecord]
    """How it would register."""
    request_stop: Callable[[], None]
    """Have this process end in order. Raises: NotAllowedError: it is not the broker's alone."""
