"""Selection of the namespaces, topics and clusters to move. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.broker.base.naming import is_system_topic
from magnetar.deploy.errors import SettingsError
from magnetar.sdk.wire import TopicName, TopicNameError

_SYSTEM_TENANTS: Final = ("pulsar",)
_SYSTEM_NAMESPACES: Final = ("public/functions",)
_PARTS_OF_NAMESPACE: Final = 2


def namespaces_wanted(text: str) -> tuple[str, ...]:
    """Parse `tenant/namespace,…`; an empty text means all namespaces.

    Raises:
        SettingsError: a name is of another form.
    """
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in names:
        if len([part for part in name.split("/") if part]) != _PARTS_OF_NAMESPACE:
            raise SettingsError(f"bad --namespaces {name!r}: give tenant/namespace, with commas")
    return names


def chosen_namespaces(found: Iterable[str], wanted: Sequence[str]) -> Sequence[str]:
    """Return the namespaces to move: the wanted ones, or all but the cluster's own.

    Raises:
        SettingsError: the source has no such namespace.
    """
    known = sorted(found)
    missing = [name for name in wanted if name not in known]
    if missing:
        raise SettingsError(
            f"--namespaces: the source has no namespace {missing[0]}; it has {', '.join(known)}"
        )
    return [name for name in known if (name in wanted if wanted else not is_own(name))]


def is_own(namespace: str) -> bool:
    """Return whether a namespace is the cluster's own, or of an obsolete form."""
    tenant, _, rest = namespace.partition("/")
    is_heartbeat = ":" in rest
    return (
        tenant in _SYSTEM_TENANTS or namespace in _SYSTEM_NAMESPACES or "/" in rest or is_heartbeat
    )


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic of the source, with all its partitions."""

    name: TopicName
    partitions: int = 0
    """Number of partitions; 0 if it is not partitioned."""
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def parts(self) -> Sequence[TopicName]:
        """The topics that hold its messages; empty if it is not persistent."""
        if not self.name.is_persistent:
            return ()
        if not self.partitions:
            return (self.name,)
        return [self.name.partition(index) for index in range(self.partitions)]


def plain_topics(
    names: Iterable[str], partitioned: Iterable[str]
) -> tuple[Sequence[TopicName], Sequence[str]]:
    """Return the topics of a namespace that are not partitioned, and lines about those that cannot
    be moved.

    Args:
        names: full names of all topics, partitions one by one.
        partitioned: full names of the partitioned topics.
    """
    parents = set(partitioned)
    found, refused = [], []
    for text in sorted(names):
        if is_hidden(text):
            continue
        try:
            name = TopicName.parse(text)
        except TopicNameError as error:
            refused.append(f"topic {text} is not moved: {error}")
            continue
        if str(name.partitioned) in parents:
            continue
        if name.partition_index >= 0:
            refused.append(
                f"topic {text} is not moved: it is called like a partition, and there is no "
                f"partitioned topic {name.partitioned}"
            )
            continue
        found.append(name)
    return found, refused


def is_hidden(topic: str) -> bool:
    """Return whether a topic is internal to the cluster."""
    return is_system_topic(topic) or topic.rpartition("/")[2].startswith("__")


@dataclass(frozen=True, slots=True)
class Clusters:
    """Translation of cluster names from the source to the target."""

    source: str
    target: str
    known: frozenset[str]
    """Clusters that the target knows."""

    def names(self, names: Iterable[str]) -> tuple[Sequence[str], Sequence[str]]:
        """Translate a list; return it, and the names that the target does not know."""
        found: list[str] = []
        unknown: list[str] = []
        for name in names:
            here = self.target if name == self.source else name
            (found if here in self.known else unknown).append(here)
        return list(dict.fromkeys(found)), unknown

    @staticmethod
    def left_out_note(what: str, cluster: str) -> str:
        """Return the line about a cluster that the target does not know.

        Args:
            what: the list of clusters.
        """
        return f"{what}: cluster {cluster} is left out: the target does not know it"


def tenant_body(
    info: Mapping[str, Any], clusters: Clusters
) -> tuple[dict[str, Any], Sequence[str]]:
    """Return a tenant's record for the target, and the clusters that are left out."""
    allowed, unknown = clusters.names(info.get("allowedClusters") or ())
    body = {
        "adminRoles": sorted(info.get("adminRoles") or ()),
        "allowedClusters": allowed or [clusters.target],
    }
    return body, unknown
