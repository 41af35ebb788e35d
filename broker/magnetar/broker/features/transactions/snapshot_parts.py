"""Snapshots in several entries, since they may be larger than the largest entry. Pure.

An entry has a part of the snapshot's JSON text. The entries are appended together, one after the
other. A crash may leave only the first of them, which then count for nothing.

Layout: docs/formats/transactions.md.
"""

import json
from typing import Any, Final

_FRAME_BYTES: Final = 100
"""More than an entry takes beside its part of the text."""


def encode_parts(snapshot: str, *, bytes_max: int) -> list[bytes]:
    """Return the entries of a snapshot, each of at most `bytes_max`.

    `snapshot` is JSON in ASCII: as a string in JSON, none of its characters takes more than two.
    """
    size = max(1, (bytes_max - _FRAME_BYTES) // 2)
    parts = [snapshot[at : at + size] for at in range(0, len(snapshot), size)]
    return [
        json.dumps({"kind": "part", "at": at, "of": len(parts), "text": part}).encode()
        for at, part in enumerate(parts)
    ]


class SnapshotParts:
    """Joins the parts of snapshots, in the order of the log."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def join(self, record: dict[str, Any]) -> dict[str, Any] | None:
        """Return the snapshot for the last part of one, None for another part, and any other record
        as it is."""
        if record["kind"] != "part":
            return record
        # What a crash left of an earlier snapshot is dropped by part 0 of the next one.
        del self._texts[record["at"] :]
        self._texts.append(record["text"])
        if len(self._texts) < record["of"]:
            return None
        snapshot: dict[str, Any] = json.loads("".join(self._texts))
        self._texts.clear()
        return snapshot
