"""What happens between clusters, beside what `history.py` and `cluster/events.py` have."""

from typing import NamedTuple

Place = tuple[int, int]
"""Ledger and entry."""


class Listed(NamedTuple):
    """An administrator of the actor names the clusters that topics are copied to."""

    clusters: tuple[str, ...]

    def __str__(self) -> str:
        return f"lists {', '.join(self.clusters) or 'nothing'}"


class Copying(NamedTuple):
    """The actor copies all topics to a cluster: what is published from here on goes there."""

    remote: str

    def __str__(self) -> str:
        return f"copies to {self.remote}"


class Stored(NamedTuple):
    """In the end, an entry of a topic of the actor."""

    topic: str
    place: Place
    origin: str
    """The cluster that it is a copy of; empty: it is none."""
    source: Place
    """Of a copy: its place there."""
    goes_to: tuple[str, ...]
    """The list of clusters in it; empty: it goes everywhere."""
    is_marker: bool
    messages: tuple[bytes, ...]

    def __str__(self) -> str:
        origin = f" from {self.origin} {self.source}" if self.origin else ""
        what = "a marker" if self.is_marker else f"{self.messages}"
        return f"keeps {self.place} of {self.topic}{origin}: {what}"


class Moved(NamedTuple):
    """The actor has moved a subscription because another cluster told it to; to where."""

    topic: str
    subscription: str
    mark: Place

    def __str__(self) -> str:
        return f"moves {self.subscription} of {self.topic} to {self.mark}"


class AckedElsewhere(NamedTuple):
    """The actor has acknowledged single entries because another cluster told it to."""

    topic: str
    subscription: str
    ranges: tuple[tuple[int, int, int], ...]
    """Ledger, first and last entry of each."""

    def __str__(self) -> str:
        return f"acknowledges {self.ranges} of {self.topic} in {self.subscription} for another"


class NotSettled(NamedTuple):
    """Long after everything was healed, something still does not hold."""

    invariant: str
    text: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.text}"


GeoEvent = Listed | Copying | Stored | Moved | AckedElsewhere | NotSettled
