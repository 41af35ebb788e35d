"""Actions that a role can be allowed, and the resources that they act on. Pure.

Grantable actions carry the names that Pulsar's interfaces use. The others follow from them, or
belong to administrators:

    LOOKUP       owner, partitions and statistics of a topic: for roles that may produce or consume
    LIST_TOPICS  the names in a namespace: for roles that may consume in all of it
    ADMINISTER   everything else: of a topic, a namespace or a tenant for the tenant's
                 administrators; of the cluster (brokers, tenants) for super users
"""

from dataclasses import dataclass
from enum import StrEnum

from magnetar.sdk.wire import TopicName


class Action(StrEnum):
    """An action that a client wants to perform."""

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
"""Actions that can be granted to a role in a namespace or on a topic."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The brokers, the tenants, and everything else that belongs to no tenant."""

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
    """A topic. A partition counts as the topic that it belongs to."""

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
    """Return the tenant that a resource belongs to; None for the cluster."""
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
    """Return the namespace of a resource as tenant/namespace; None for a cluster or a tenant."""
    match resource:
        case Cluster() | Tenant(_):
            return None
        case Namespace(name):
            return name
        case Topic(name) | Subscription(name, _):
            return name.namespace_name
