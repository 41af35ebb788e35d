"""Which topics of a namespace a pattern means. Pure; no I/O.

A pattern is a regular expression for whole topic names, partitions under the name of their topic:
`persistent://tenant/namespace/orders-.*`, or shorter as topic names are. The namespace is literal;
without `non-persistent://` only persistent topics fit.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from magnetar.sdk.wire.errors import TopicNameError
from magnetar.sdk.wire.topic_name import NON_PERSISTENT, PERSISTENT, TopicName

_NAMESPACE_PART = re.compile(r"[-=:.\w]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """A parsed pattern."""

    domain: str
    namespace: str
    """`tenant/namespace`"""
    local: re.Pattern[str]

    @classmethod
    def parse(cls, pattern: "re.Pattern[str]") -> "TopicPattern":
        """Raises: TopicNameError: of another shape, or no literal tenant and namespace."""
        text = pattern.pattern
        domain, separator, rest = text.partition("://")
        if not separator:
            domain, rest = PERSISTENT, text if text.count("/") >= 2 else f"public/default/{text}"
        parts = rest.split("/", 2)
        if domain not in (PERSISTENT, NON_PERSISTENT) or len(parts) != 3 or not parts[2]:
            raise TopicNameError(
                f"pattern {text!r} is not of the form domain://tenant/namespace/expression"
            )
        if not all(_NAMESPACE_PART.fullmatch(part) for part in parts[:2]):
            raise TopicNameError(f"pattern {text!r}: tenant and namespace are no expressions")
        return cls(domain, f"{parts[0]}/{parts[1]}", re.compile(parts[2], pattern.flags))

    @property
    def watched(self) -> str:
        """What a broker is asked to watch: `tenant/namespace/expression`."""
        return f"{self.namespace}/{self.local.pattern}"

    def matching(self, names: Iterable[str]) -> list[TopicName]:
        """Those of a namespace's topics that fit, in the order of their names."""
        found = []
        for name in names:
            try:
                topic = TopicName.parse(name)
            except TopicNameError:
                continue  # a broker may know names that nobody can use
            if topic.domain == self.domain and self.local.fullmatch(topic.partitioned.local_name):
                found.append(topic)
        return sorted(found, key=str)
