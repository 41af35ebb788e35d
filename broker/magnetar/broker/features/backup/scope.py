"""The scope of a backup or a restore: a tenant, a namespace, a topic, or everything. Pure."""

from dataclasses import dataclass
from urllib.parse import unquote_plus

from magnetar.broker.base import naming
from magnetar.broker.base.errors import InvalidNameError
from magnetar.sdk.wire import TopicName

_PARTS = 3
_DOMAIN = "persistent"


@dataclass(frozen=True, slots=True)
class Scope:
    """A tenant, a namespace, or a topic with all its partitions; everything if all are empty."""

    tenant: str = ""
    namespace: str = ""
    """Namespace as tenant/namespace."""
    topic: str = ""
    """Full name of the topic."""

    @classmethod
    def of(cls, *, tenant: str = "", namespace: str = "", topic: str = "") -> "Scope":
        """Return the scope that the arguments name; at most one may be given.

        Raises:
            InvalidNameError: several are given, or a name is not valid.
            InvalidTopicNameError: the topic's name has no known form.
        """
        if sum(map(bool, (tenant, namespace, topic))) > 1:
            raise InvalidNameError("give one of a tenant, a namespace and a topic")
        if namespace and len(namespace.split("/")) != _PARTS - 1:
            raise InvalidNameError(f"{namespace!r} is no namespace: give tenant/namespace")
        if tenant and "/" in tenant:
            raise InvalidNameError(f"{tenant!r} is no tenant")
        if topic:
            parsed = naming.topic_of(topic)
            if not parsed.is_persistent:
                raise InvalidNameError(f"{topic} is not persistent: there is nothing to back up")
            topic = str(parsed)
        return cls(tenant, namespace, topic)

    def __str__(self) -> str:
        return self.topic or self.namespace or self.tenant

    def has_tenant(self, tenant: str) -> bool:
        """Whether the scope may contain something of a tenant."""
        wanted = self.tenant or self.namespace.partition("/")[0]
        if self.topic:
            wanted = naming.topic_of(self.topic).tenant
        return wanted in ("", tenant)

    def has_namespace(self, namespace: str) -> bool:
        """Whether the scope may contain something of a namespace, given as tenant/namespace."""
        if self.topic:
            return naming.topic_of(self.topic).namespace_name == namespace
        if self.namespace:
            return self.namespace == namespace
        return not self.tenant or namespace.partition("/")[0] == self.tenant

    def has_topic(self, topic: TopicName) -> bool:
        """Whether the scope contains a topic or partition."""
        if self.topic:
            return self.topic in (str(topic), str(topic.partitioned))
        return self.has_namespace(topic.namespace_name)


def topic_of_log(path: str) -> TopicName | None:
    """Return the topic whose log's node has this path; None if it is no topic's."""
    root, _, rest = path.partition(f"{naming.ROOT}/")
    parts = rest.split("/")
    if root or len(parts) != _PARTS + 1 or parts[2] != _DOMAIN:
        return None
    return TopicName(_DOMAIN, parts[0], parts[1], unquote_plus(parts[3]))


def is_backed_up(topic: TopicName) -> bool:
    """Whether a topic belongs to users, and is no system topic."""
    return not naming.is_system_topic(str(topic))
