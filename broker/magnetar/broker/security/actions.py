"""What somebody can be allowed to do, and with what. Pure.

Actions that can be granted carry the names that Pulsar's interfaces use. The others follow from
them, or belong to administrators:

    LOOKUP       where a topic is, its partitions, its statistics: who may produce or consume
    LIST_TOPICS  the names in a namespace: who may consume in all of it
    ADMINISTER   everything else: of a topic, a namespace or a tenant the tenant's administrators;
                 of the cluster (brokers, tenants) super users
"""

from dataclasses import dataclass
from enum import StrEnum

from magnetar.sdk.wire import TopicName


class Action(StrEnum):
    """Something that somebody wants to do."""

    PRODUCE = "produce"
    CONSUME = "consume"
    FUNCTIONS = "functions"
    SOURCES = "sources"
    SINKS = "sinks"
    PACKAGES = "packages"
    LOOKUP = "lookup"
    LIST_TOPICS = "list topics"
    ADMINISTER = "administer"


GRANTABLE = frozenset(
    {
        Action.PRODUCE,
        Action.CONSUME,
        Action.FUNCTIONS,
        Action.SOURCES,
        Action.SINKS,
        Action.PACKAGES,
    }
)
"""What a role can be given in a namespace or on a topic."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Brokers, tenants, everything that belongs to no tenant."""

    def __str__(self) -> str:
        return "the cluster"


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant and the list of its namespaces."""

    name: str

    def __str__(self) -> str:
        return f"tenant {self.name}"


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace, its policies and the list of its topics. `name` is tenant/namespace."""

    name: str

    def __str__(self) -> str:
        return f"namespace {self.name}"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic; a partition stands for the topic it is a part of."""

    name: TopicName

    def __str__(self) -> str:
        return str(self.name)


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription of a topic, whether it exists or not."""

    topic: TopicName
    name: str

    def __str__(self) -> str:
        return f"subscription {self.name} of {self.topic}"


Resource = Cluster | Tenant | Namespace | Topic | Subscription


def tenant_of(resource: Resource) -> str | None:
    """The tenant that a resource belongs to; None: to no tenant."""
    match resource:
        case Cluster():
            return None
        case Tenant(name):
            return name
        case Namespace(name):
            return name.partition("/")[0]
        case Topic(name) | Subscription(name, _):
            return name.tenant


def namespace_of(resource: Resource) -> str | None:
    """The namespace that a resource is in, as tenant/namespace; None: in none."""
    match resource:
        case Cluster() | Tenant(_):
            return None
        case Namespace(name):
            return name
        case Topic(name) | Subscription(name, _):
            return name.namespace_name
