"""Topic lists for clients: the topics of a namespace, of the requested mode, in one frame.

A pattern that the client may send is not applied: clients do that themselves. Watchers
(`protocol/topic_watchers.py`) have theirs applied here.
"""

from collections.abc import Awaitable, Sequence
from typing import Protocol

from magnetar.broker.base import naming
from magnetar.broker.base.errors import NamespaceNotFoundError, NotAllowedError
from magnetar.broker.policies.registry import is_namespace
from magnetar.sdk.wire import checksum
from magnetar.sdk.wire.pulsar_pb2 import CommandGetTopicsOfNamespace

NAME_BYTES = 4
"""Bytes that a name needs in a frame in addition to its own."""


class Lists(Protocol):
    """Lists topics; `Topics` implements it."""

    def names(self, namespace: str) -> Awaitable[list[str]]: ...

    def non_persistent_names(self, namespace: str) -> Awaitable[list[str]]: ...


async def names_of(
    topics: Lists,
    namespace: str,
    mode: "CommandGetTopicsOfNamespace.Mode",
    bytes_max: int,
) -> list[str]:
    """Return full names, sorted, each partition separately, without the cluster's own topics.

    A namespace that does not exist has an empty list, which is no error: consumers of a pattern may
    connect before their namespace is created.

    Raises:
        NamespaceNotFoundError: the name is not a valid namespace name.
        BrokerMetadataError
        NotAllowedError: the names do not fit in a frame.
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
    """Refuse an invalid namespace name.

    Raises:
        NamespaceNotFoundError: the name is not a valid namespace name.
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
    """Refuse names that do not fit in a frame.

    Raises:
        NotAllowedError: the names do not fit in a frame.
    """
    size = size_of(names)
    if size > bytes_max:
        raise NotAllowedError(
            f"the names of the {len(names)} topics of {namespace} have {size} bytes, and an answer "
            f"has room for {bytes_max}"
        )


def size_of(names: Sequence[str]) -> int:
    """Return about the bytes that names take in a frame."""
    return sum(len(name.encode()) + NAME_BYTES for name in names)


def topics_hash(names: Sequence[str]) -> str:
    """Return the hash of a sorted topic list: CRC32C, four bytes, little-endian, as hex digits."""
    if not names:
        return "00000000"
    return checksum(",".join(names).encode()).to_bytes(4, "little").hex()
