"""The broker's services that all connections share, and its counters."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from magnetar.broker.base.latency import LatencyHistogram, SizeHistogram
from magnetar.broker.base.settings.broker import BrokerSettings
from magnetar.broker.base.turn_gate import TurnGate
from magnetar.broker.cluster.ownership import Ownership
from magnetar.broker.features.scalable import Layouts, SegmentCoordinators
from magnetar.broker.features.transactions.coordinator_places import CoordinatorPlaces
from magnetar.broker.features.transactions.coordinators import Coordinators
from magnetar.broker.policies.registry import PolicyRegistry
from magnetar.broker.schemas.registry import SchemaRegistry
from magnetar.broker.security import Authenticator, Authorizer
from magnetar.broker.topic.publish_limits import PublishBudget
from magnetar.broker.topics import Topics
from magnetar.broker.topics.followed_lists import FollowedLists
from magnetar.broker.topics.upkeep import Keeping
from magnetar.ledger.ports import Clock
from magnetar.ledger.turns import TurnShares


@dataclass(slots=True)
class Counters:
    """Counts since the broker started; plain numbers, so that the hot path pays nothing."""

    connections_opened: int = 0
    connections_refused: int = 0
    connections_timed_out: int = 0
    protocol_violations: int = 0
    requests_failed: int = 0
    authentications_failed: int = 0
    checksum_errors: int = 0
    publish_pauses: int = 0
    publish_latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    """Time from the arrival of a batch to its durability, counted per entry."""
    entry_sizes: SizeHistogram = field(default_factory=SizeHistogram)
    """Mean entry size of a batch, counted per entry."""


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Services:
    """The broker, as a connection sees it."""

    settings: BrokerSettings
    topics: Topics
    topic_lists: FollowedLists
    scalable_lists: FollowedLists
    policies: PolicyRegistry
    schemas: SchemaRegistry
    ownership: Ownership
    budget: PublishBudget
    shares: TurnShares
    keeping: Keeping
    coordinators: Coordinators
    coordinator_places: CoordinatorPlaces
    layouts: Layouts
    segment_coordinators: SegmentCoordinators
    authenticator: Authenticator
    authorizer: Authorizer
    clock: Clock
    random: random.Random
    server_version: str
    next_producer_name: Callable[[], str]
    is_serving: Callable[[], bool] = _always
    """Whether the broker may own anything now; sent in the handshake, to other brokers, too."""
    counters: Counters = field(default_factory=Counters)
    gate: TurnGate = field(default_factory=TurnGate)
    """Resumes requests that have waited for a topic."""
