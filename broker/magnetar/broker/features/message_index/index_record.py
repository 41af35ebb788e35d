"""What a log's node says of the message index: a property of the managed log. Pure.

While `is_written`, each entry that is appended has an index, and the last entry of the log tells
where the next one goes on. `next` counts where no entry can tell: after the log was trimmed to its
end, and after entries without an index. Bytes: docs/formats/entry-metadata.md.
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
    """No message up to the time of writing has this index or a higher one, but for entries that
    are still in the log."""
    is_written: bool

    def encode(self) -> str:
        """The value of the property."""
        return json.dumps({"next": self.next, "is_written": self.is_written})


def record_in(properties: Mapping[str, str]) -> IndexRecord | None:
    """Return what the properties of a log say; None: it has never had an index, or nobody can read
    what is there, in which case its entries tell."""
    try:
        found = json.loads(properties[PROPERTY])
        record = IndexRecord(found["next"], found["is_written"])
    except (KeyError, TypeError, ValueError):
        return None
    is_number = type(record.next) is int and record.next >= 0
    return record if is_number and isinstance(record.is_written, bool) else None
