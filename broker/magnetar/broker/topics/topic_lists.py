"""What a client is told of the topics of a namespace: those of the mode it asks for, in one frame.

The pattern that a client may send along with the question is not applied: clients do that
themselves. Watchers (`protocol/topic_watchers.py`) have theirs applied here.
"""

from collections.abc import Awaitable, Sequence
from typing import Protocol

from magnetar.broker.base import naming
from magnetar.broker.base.errors import NamespaceNotFoundError, NotAllowedError
from magnetar.broker.policies.registry import is_namespace
from magnetar.sdk.wire import checksum
from magnetar.sdk.wire.pulsar_pb2 import CommandGetTopicsOfNamespace

NAME_BYTES = 4
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

    A namespace that does not exist has none, and is no error: consumers of a pattern may be there
    before their namespace.

    Raises:
        NamespaceNotFoundError: it is no name of a namespace.
        BrokerMetadataError
        NotAllowedError: they are too many for a frame.
    """
    check_name(namespace)
    names: list[str] = []
    try:
        names = await _names_of(topics, namespace, mode)
    except NamespaceNotFoundError:
        pass
    names = sorted(name for name in names if not naming.is_system_topic(name))
    check_size(names, namespace, bytes_max)
    return names


def check_name(namespace: str) -> None:
    """
    Raises:
        NamespaceNotFoundError: it is no name of a namespace.
    """
    if not is_namespace(namespace):
        raise NamespaceNotFoundError(f"{namespace!r} is not a namespace: give tenant/namespace")


async def _names_of(
    topics: Lists, namespace: str, mode: "CommandGetTopicsOfNamespace.Mode"
) -> list[str]:
    names: list[str] = []
    if mode != CommandGetTopicsOfNamespace.PERSISTENT:
        names += await topics.non_persistent_names(namespace)
    if mode != CommandGetTopicsOfNamespace.NON_PERSISTENT:
        names += await topics.names(namespace)
    return names


def check_size(names: Sequence[str], namespace: str, bytes_max: int) -> None:
    """
    Raises:
        NotAllowedError: they are too many for a frame.
    """
    size = sum(len(name.encode()) + NAME_BYTES for name in names)
    if size > bytes_max:
        raise NotAllowedError(
            f"the names of the {len(names)} topics of {namespace} have {size} bytes, and an answer "
            f"has room for {bytes_max}"
        )


def topics_hash(names: Sequence[str]) -> str:
    """Hash of a sorted topic list: CRC32C, its four bytes in little-endian order as hex digits."""
    if not names:
        return "00000000"
    return checksum(",".join(names).encode()).to_bytes(4, "little").hex()
