"""The property of a managed log that records its message index. Pure.

While `is_written`, each appended entry has an index, and the last entry of the log tells the next
one. `next` counts if no entry can tell: after the log was trimmed to its end, and after entries
without an index. Bytes: docs/formats/entry-metadata.md.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

PROPERTY: Final = "magnetar.message-index"
"""Name of the property. Stored, never rename."""


@dataclass(frozen=True, slots=True)
class IndexRecord:
    """The property, decoded."""

    next: int
    """Index that no message had when the property was written, nor any higher one, except for
    entries that are still in the log."""
    is_written: bool

    def encode(self) -> str:
        """Return the value of the property."""
        return json.dumps({"next": self.next, "is_written": self.is_written})


def record_in(properties: Mapping[str, str]) -> IndexRecord | None:
    """Return the record among the properties of a log.

    Return None if the log never had an index, or if the value cannot be read; then its entries
    tell.
    """
    try:
        found = json.loads(properties[PROPERTY])
        record = IndexRecord(found["next"], found["is_written"])
    except (KeyError, TypeError, ValueError):
        return None
    is_number = type(record.next) is int and record.next >= 0
    return record if is_number and isinstance(record.is_written, bool) else None
