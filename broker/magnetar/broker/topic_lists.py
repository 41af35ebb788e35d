"""What a client is told of the topics of a namespace: those of the mode it asks for, in one frame.

The pattern that a client may send along is not applied: clients do that themselves, and a pattern
from outside could keep the broker's loop busy for as long as it likes. For the same reason there
are no watchers (WATCH_TOPIC_LIST), whose answers would have to be filtered here: clients poll.
"""

from collections.abc import Awaitable
from typing import Protocol

from magnetar.broker import naming
from magnetar.broker.errors import NotAllowedError
from magnetar.sdk.wire.pulsar_pb2 import CommandGetTopicsOfNamespace

_FIELD_BYTES = 4
"""What a name needs in a frame beside itself."""


class Lists(Protocol):
    """Lists topics; `Topics` does."""

    def names(self, namespace: str) -> Awaitable[list[str]]: ...

    def non_persistent_names(self, namespace: str) -> Awaitable[list[str]]: ...


async def names_of(
    topics: Lists,
    namespace: str,
    mode: "CommandGetTopicsOfNamespace.Mode",
    bytes_max: int,
) -> list[str]:
    """Full names, sorted, each partition by itself, without the cluster's own topics.

    Raises:
        NamespaceNotFoundError, BrokerMetadataError
        NotAllowedError: they are too many for a frame.
    """
    names: list[str] = []
    if mode != CommandGetTopicsOfNamespace.PERSISTENT:
        names += await topics.non_persistent_names(namespace)
    if mode != CommandGetTopicsOfNamespace.NON_PERSISTENT:
        names += await topics.names(namespace)
    names = sorted(name for name in names if not naming.is_system_topic(name))
    size = sum(len(name.encode()) + _FIELD_BYTES for name in names)
    if size > bytes_max:
        raise NotAllowedError(
            f"the names of the {len(names)} topics of {namespace} have {size} bytes, and an answer "
            f"has room for {bytes_max}"
        )
    return names
