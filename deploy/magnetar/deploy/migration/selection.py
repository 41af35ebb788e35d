"""Selection of the namespaces, topics and clusters to move. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.broker.base.naming import is_system_topic
from magnetar.deploy.errors import SettingsError
from magnetar.sdk.wire import TopicName, TopicNameError

_SYSTEM_TENANTS: Final = ("pulsar",)
_SYSTEM_NAMESPACES: Final = ("public/functions",)
_PARTS_OF_NAMESPACE: Final = 2
_PARTITION: Final = re.compile(r"-partition-(0|[1-9][0-9]*)\Z")


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
    if wanted:
        return [name for name in known if name in wanted]
    return [name for name in known if not is_own(name) and not _is_obsolete(name)]


def users_tenants(found: Iterable[str]) -> Sequence[str]:
    """Return the tenants that are not the cluster's own."""
    return [tenant for tenant in found if tenant not in _SYSTEM_TENANTS]


def obsolete_namespaces(found: Iterable[str]) -> Sequence[str]:
    """Return lines about namespaces of a form that cannot be moved."""
    return [
        f"namespace {name} is not moved: the form tenant/cluster/namespace is obsolete"
        for name in sorted(found)
        if _is_obsolete(name) and not is_own(name)
    ]


def is_own(namespace: str) -> bool:
    """Return whether a namespace is the cluster's own."""
    return namespace.partition("/")[0] in _SYSTEM_TENANTS or namespace in _SYSTEM_NAMESPACES


def _is_obsolete(namespace: str) -> bool:
    return "/" in namespace.partition("/")[2]


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic of the source, with all its partitions."""

    name: TopicName
    partitions: int = 0
    """Number of partitions; 0 if it is not partitioned."""
    properties: Mapping[str, str] = field(default_factory=dict)
    tells_properties: bool = True
    """Whether the source tells the properties; if not, they are unknown rather than none."""

    @property
    def parts(self) -> Sequence[TopicName]:
        """The topics that hold its messages; empty if it is not persistent."""
        if not self.name.is_persistent:
            return ()
        if not self.partitions:
            return (self.name,)
        return [self.name.partition(index) for index in range(self.partitions)]


def plain_topics(
    names: Iterable[str], partitioned: Mapping[str, int]
) -> tuple[list[TopicName], list[str]]:
    """Return the topics of a namespace that are not partitioned, and lines about those that cannot
    be moved.

    Args:
        names: full names of all topics, partitions one by one.
        partitioned: numbers of partitions by full name; 0 for topics that are not moved.
    """
    rest, left_over = [], []
    for text in sorted(names):
        whole, index = _PARTITION.sub("", text), _PARTITION.search(text)
        count = partitioned.get(whole)
        if count is None:
            rest.append(text)
        elif index is None and count > 0:
            left_over.append(
                f"topic {text} is not moved: a partitioned topic has the same name; its partitions "
                "are moved"
            )
        elif index is not None and int(index[1]) >= count > 0:
            left_over.append(f"topic {text} is not moved: {whole} has {count} partitions only")
    movable, refused = movable_topics(rest)
    found = []
    for name in movable:
        if name.partition_index >= 0:
            refused.append(
                f"topic {name} is not moved: it is called like a partition, and there is no "
                f"partitioned topic {name.partitioned}"
            )
            continue
        found.append(name)
    return found, left_over + refused


def movable_topics(names: Iterable[str]) -> tuple[list[TopicName], list[str]]:
    """Return topics without the cluster's own, and lines about the others that cannot be moved."""
    found, refused = [], []
    for text in sorted(names):
        if is_system_topic(text):
            continue
        if text.rpartition("/")[2].startswith("__"):
            refused.append(
                f"topic {text} is not moved: names that begin with __ are for topics of the "
                "cluster itself"
            )
            continue
        try:
            found.append(TopicName.parse(text))
        except TopicNameError as error:
            refused.append(f"topic {text} is not moved: {error}")
    return found, refused


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
