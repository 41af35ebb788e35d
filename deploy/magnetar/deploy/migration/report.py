"""The differences between source and target after everything is moved. Pure."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

LINES_MAX: Final = 1_000
"""Most differences that are listed; all are counted."""

_EMPTY: Final[tuple[Any, ...]] = (None, 0, -1, False, "", [], {})
"""Values that are equivalent to a missing value."""


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values of a policy mean the same."""
    if isinstance(one, Mapping) or isinstance(other, Mapping):
        ones, others = one or {}, other or {}
        if not (isinstance(ones, Mapping) and isinstance(others, Mapping)):
            return False
        return all(is_same(ones.get(key), others.get(key)) for key in {*ones, *others})
    if isinstance(one, list) and isinstance(other, list):
        return sorted(map(str, one)) == sorted(map(str, other))
    if one is None:
        return any(each == other for each in _EMPTY)
    if other is None:
        return is_same(other, one)
    return bool(one == other)


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between source and target."""

    kind: str
    """tenant, policy, topic policy, properties, permission, topic, schema, messages, subscription,
    backlog, position, batch holes"""
    name: str
    source: Any
    target: Any
    detail: str = ""

    def __str__(self) -> str:
        values = f"source {_short(self.source)}, target {_short(self.target)}"
        told = f"{self.kind} {self.name}: {values}"
        return f"{told} ({self.detail})" if self.detail else told


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= 200 else f"{text[:200]}…"


@dataclass(slots=True)
class Report:
    """Counts of what was compared, and what differs."""

    counts: dict[str, int] = field(default_factory=dict)
    """Number of comparisons, by kind."""
    differences: list[Difference] = field(default_factory=list)
    differing: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """Facts that an operator should know, but that are no differences."""
    messages: int = 0
    entries: int = 0

    def compare(
        self,
        kind: str,
        name: str,
        source: Any,
        target: Any,
        detail: str = "",
        *,
        same: bool | None = None,
    ) -> None:
        """Count one comparison. `same` says whether the two are the same; None compares the
        values."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if is_same(source, target) if same is None else same:
            return
        self.differing[kind] = self.differing.get(kind, 0) + 1
        if len(self.differences) < LINES_MAX:
            self.differences.append(Difference(kind, name, source, target, detail))

    def differs(self, *kinds: str) -> bool:
        """Return whether anything of these kinds differs; of any kind, if none is given."""
        return any(self.differing.get(kind) for kind in kinds or tuple(self.differing))

    def lines(self) -> list[str]:
        """Return the report for people."""
        found = [f"{self.messages} messages in {self.entries} entries are copied"]
        width = max((len(kind) for kind in self.counts), default=0)
        found += [
            f"{kind:<{width}}  {count:>8} compared  {self.differing.get(kind, 0):>6} different"
            for kind, count in self.counts.items()
        ]
        found += [f"different: {each}" for each in self.differences]
        more = sum(self.differing.values()) - len(self.differences)
        if more > 0:
            found.append(f"different: {more} more")
        found += [f"note: {each}" for each in self.notes]
        found.append(
            "source and target differ" if self.differs() else "source and target do not differ"
        )
        return found

    def to_json(self) -> str:
        """Return the report for programs."""
        return json.dumps(
            {
                "messages": self.messages,
                "entries": self.entries,
                "compared": self.counts,
                "different": self.differing,
                "differences": [asdict(each) for each in self.differences],
                "notes": self.notes,
            },
            indent=2,
        )
