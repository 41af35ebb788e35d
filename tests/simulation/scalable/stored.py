"""The record of the topic as it lies in the metadata store, read by rules of its own: what the
product takes for valid is a part of what is judged."""

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from magnetar.broker.base import naming
from magnetar.sdk.wire import parse_topic_name
from tests.simulation.scalable.plan import SCALABLE, TOPIC

RECORD_PATH = naming.scalable_topic_path(parse_topic_name(TOPIC))
SEGMENTS = SCALABLE.replace("topic://", "segment://")


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A segment of the record."""

    id: int
    start: int
    end: int
    """Inclusive."""
    is_sealed: bool
    parents: tuple[int, ...]
    children: tuple[int, ...]
    sealed_ms: int | None

    @classmethod
    def of(cls, value: dict[str, Any]) -> Self:
        return cls(
            value["id"],
            value["hash_start"],
            value["hash_end"],
            value["state"] == "SEALED",
            tuple(value["parents"]),
            tuple(value["children"]),
            value.get("sealed_ms"),
        )

    @property
    def name(self) -> str:
        return f"{SEGMENTS}/{self.start:04x}-{self.end:04x}-{self.id}"

    @property
    def shape(self) -> tuple[int, int, int, bool]:
        """What clients are told of it."""
        return self.id, self.start, self.end, self.is_sealed


@dataclass(frozen=True)
class StoredRecord:
    """The record at one version."""

    epoch: int
    segments: tuple[StoredSegment, ...]
    change: tuple[tuple[int, ...], tuple[StoredSegment, ...]] | None
    """Parents and children of what is under way."""
    pruned: tuple[StoredSegment, ...]

    @classmethod
    def of(cls, raw: bytes) -> Self:
        value = json.loads(raw)
        change = value.get("change")
        return cls(
            value["epoch"],
            tuple(map(StoredSegment.of, value["segments"])),
            change and (tuple(change["parents"]), tuple(map(StoredSegment.of, change["children"]))),
            tuple(map(StoredSegment.of, value.get("pruned", ()))),
        )

    @cached_property
    def active(self) -> tuple[StoredSegment, ...]:
        """In the order of their ranges."""
        found = (each for each in self.segments if not each.is_sealed)
        return tuple(sorted(found, key=lambda each: each.start))

    @cached_property
    def by_id(self) -> dict[int, StoredSegment]:
        return {each.id: each for each in self.segments}

    @cached_property
    def shape(self) -> tuple[tuple[int, int, int, bool], ...]:
        """What clients are told of the segments, in the order of their ids."""
        return tuple(sorted(each.shape for each in self.segments))
