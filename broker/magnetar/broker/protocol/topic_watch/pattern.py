"""The pattern of a client that watches topics. Pure.

It is matched against the whole of `tenant/namespace/name`: a scheme in the pattern is left out, and
the partitions of a topic go by the topic's name. The engine is RE2, as Pulsar's: its time is linear
in the text whatever the pattern is, so a client cannot stop the broker with one.

Source: protocol sheet, section 13.
"""

import re
from collections.abc import Iterable

import re2

from magnetar.broker.base.errors import NotAllowedError

_PARTITION = re.compile(r"-partition-(?:0|[1-9][0-9]*)$")
_MEMORY_BYTES_MAX = 1 << 20
"""Of one compiled pattern. What needs more is refused, or matched slower, but in linear time."""


class TopicPattern:
    """A compiled pattern."""

    def __init__(self, pattern: str, *, length_max: int) -> None:
        """
        Raises:
            NotAllowedError: it is too long, or none.
        """
        if len(pattern) > length_max:
            raise NotAllowedError(
                f"the pattern has {len(pattern)} characters, and may have {length_max}"
            )
        options = re2.Options()
        options.max_mem = _MEMORY_BYTES_MAX
        options.log_errors = False
        try:
            self._matches = re2.compile(pattern.rpartition("://")[2], options).fullmatch
        except re2.error as error:
            raise NotAllowedError(f"{pattern!r} is no pattern of RE2: {error}") from error

    def matching(self, names: Iterable[str]) -> list[str]:
        """Those of the full names that match, in the same order."""
        matches = self._matches
        return [each for each in names if matches(_PARTITION.sub("", each.partition("://")[2]))]
