"""Topic names: the full form, the short forms, partitions, segments, and names for storage.

Full form `persistent://tenant/namespace/name` or `non-persistent://…`; short forms are `name` (in
`public/default`) and `tenant/namespace/name`. Partition i of a topic is the topic
`<name>-partition-<i>`, i without leading zeros.

A segment of a scalable topic is a persistent topic of its own,
`segment://tenant/namespace/<topic>/<start>-<end>-<id>`: first and last hash of its range as four
hexadecimal digits each, and its id. Its own name here is `<topic>/<start>-<end>-<id>`.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Self
from urllib.parse import quote_plus

from magnetar.sdk.wire.errors import TopicNameError

PERSISTENT = "persistent"
NON_PERSISTENT = "non-persistent"
SEGMENT = "segment"

NAME_CHARACTERS_MAX = 1024
"""Longest topic name, in characters; longer ones would not fit the metadata store's paths."""

_NAMES_MAX = 1024
"""Parsed names that are cached, 0.5 KB each. Names of deleted topics stay in the cache, too."""
_DOTS = (".", "..")
"""Names that have a special meaning in paths."""
_PART = re.compile(r"(?!\.\.?\Z)[-=:.\w]+", re.ASCII)
_PARTITION = re.compile(r"(.+)-partition-(0|[1-9][0-9]{0,8})", re.DOTALL)
_DESCRIPTOR = re.compile(r"([0-9a-f]{4})-([0-9a-f]{4})-(0|[1-9][0-9]{0,17})", re.ASCII)


@dataclass(frozen=True, slots=True)
class TopicName:
    """A parsed topic name. `str()` gives the full form."""

    domain: str
    tenant: str
    namespace: str
    local_name: str

    @classmethod
    def parse(cls, name: str) -> Self:
        """Parse a full or short name.

        Raises:
            TopicNameError: the name has another form, or is blank, too long, or with bad
                characters.
        """
        # protobuf returns fields that are not UTF-8 as bytes: refuse them here, once.
        if not isinstance(name, str):
            raise TopicNameError("the topic name is not valid UTF-8")
        if len(name) > NAME_CHARACTERS_MAX:
            raise TopicNameError(f"the topic name is too long: {len(name)} characters")
        domain, separator, rest = name.partition("://")
        if not separator:
            domain, rest = PERSISTENT, name
            if "/" not in rest:
                rest = f"public/default/{rest}"
        elif domain not in (PERSISTENT, NON_PERSISTENT, SEGMENT):
            raise TopicNameError(f"{name!r}: the domain must be persistent or non-persistent")
        descriptor = ""
        if domain == SEGMENT:
            rest, _, descriptor = rest.rpartition("/")
            _check_descriptor(name, descriptor)
        parts = rest.split("/")
        if len(parts) != 3:
            raise TopicNameError(f"{name!r} is not of the form domain://tenant/namespace/name")
        tenant, namespace, local_name = parts
        if not _PART.fullmatch(tenant) or not _PART.fullmatch(namespace):
            raise TopicNameError(
                f"{name!r}: tenant and namespace may only have characters of [-=:.\\w]"
            )
        if not local_name.strip() or not local_name.isprintable():
            raise TopicNameError(f"{name!r}: the topic's own name is blank or not printable")
        if local_name in _DOTS:
            raise TopicNameError(f"{name!r}: the topic's own name must not be . or ..")
        if descriptor:
            local_name = f"{local_name}/{descriptor}"
        return cls(domain, tenant, namespace, local_name)

    def __str__(self) -> str:
        return f"{self.domain}://{self.tenant}/{self.namespace}/{self.local_name}"

    @property
    def is_persistent(self) -> bool:
        """Whether the topic's messages are stored; those of a segment are."""
        return self.domain != NON_PERSISTENT

    @property
    def is_segment(self) -> bool:
        """Whether the topic is a segment of a scalable topic."""
        return self.domain == SEGMENT

    @property
    def namespace_name(self) -> str:
        """Namespace as `tenant/namespace`, the form of GET_TOPICS_OF_NAMESPACE."""
        return f"{self.tenant}/{self.namespace}"

    @property
    def partition_index(self) -> int:
        """Index of the partition; -1 if the topic is not one."""
        match = _PARTITION.fullmatch(self.local_name)
        return int(match[2]) if match else -1

    @property
    def partitioned(self) -> Self:
        """The whole topic that a partition or segment belongs to; the topic itself if it is
        neither.

        The whole of a segment is a scalable topic. It has its `persistent://` name here, under
        which policies, permissions and schemas are stored.
        """
        if self.is_segment:
            name = self.local_name.rpartition("/")[0]
            return type(self)(PERSISTENT, self.tenant, self.namespace, name)
        match = _PARTITION.fullmatch(self.local_name)
        if match is None:
            return self
        return type(self)(self.domain, self.tenant, self.namespace, match[1])

    def partition(self, index: int) -> Self:
        """Return partition `index` of this topic."""
        assert index >= 0
        name = f"{self.local_name}-partition-{index}"
        return type(self)(self.domain, self.tenant, self.namespace, name)

    def segment(self, segment_id: int, *, start: int, end: int) -> Self:
        """Return a segment of this topic. `start`, `end`: first and last hash of its range."""
        assert 0 <= start <= end <= 0xFFFF
        assert segment_id >= 0
        name = f"{self.local_name}/{start:04x}-{end:04x}-{segment_id}"
        return type(self)(SEGMENT, self.tenant, self.namespace, name)

    @property
    def segment_id(self) -> int:
        """Id of the segment; -1 if the topic is not one."""
        return int(self.local_name.rpartition("-")[2]) if self.is_segment else -1

    @property
    def storage_name(self) -> str:
        """Path-safe name `tenant/namespace/domain/name`, with the own name percent-encoded.

        The encoding is that of HTML forms, which REST paths and the ledger store's nodes use.
        """
        quoted = quote_plus(self.local_name, safe="*").replace("~", "%7E")
        return f"{self.tenant}/{self.namespace}/{self.domain}/{quoted}"


def _check_descriptor(name: str, descriptor: str) -> None:
    match = _DESCRIPTOR.fullmatch(descriptor)
    if match is None or match[1] > match[2]:
        raise TopicNameError(
            f"{name!r} is not of the form segment://tenant/namespace/topic/<start>-<end>-<id>: "
            "hashes of four hexadecimal digits each, in order, and a number"
        )


@lru_cache(maxsize=_NAMES_MAX)
def parse_topic_name(name: str) -> TopicName:
    """Parse a topic name, with a cache: every lookup, producer and consumer parses the same
    names."""
    return TopicName.parse(name)
