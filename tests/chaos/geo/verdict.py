"""The verdict of the drill, from what official clients sent, were given, and read in the end. Pure.

- Nothing is lost: what was acknowledged to a producer is in both clusters.
- Nothing is there twice, in neither: so no copy came again, and none came back.
- Order: in every partition the messages of one source and key are in the order in which they were
  sent, and those of one source are in the same order in both clusters.
- The consumers of a cluster's own subscription are first given each message in this order.
- The subscription that both clusters share was given everything, at one or the other.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

PROBLEMS_MAX = 20


class Message(NamedTuple):
    """What a payload says of itself."""

    source: str
    """The cluster that it was published at."""
    topic: str
    """The last part of its name."""
    key: str
    number: int
    """Counted by source, topic and key."""

    def encode(self) -> bytes:
        return f"{self.source} {self.topic} {self.key} {self.number}".encode()

    @classmethod
    def decode(cls, payload: bytes) -> "Message":
        source, topic, key, number = payload.decode().split(" ")
        return cls(source, topic, key, int(number))

    @property
    def stream(self) -> tuple[str, str, str]:
        """Everything that has an order among itself."""
        return self[:3]


@dataclass(slots=True)
class Histories:
    """What the clients saw."""

    acknowledged: set[Message] = field(default_factory=set)
    unsure: set[Message] = field(default_factory=set)
    """Sent, and refused or never answered: may be there once."""
    read: dict[str, dict[str, list[Message]]] = field(default_factory=dict)
    """By cluster and partition: all there is in the end, in its order."""
    delivered: dict[str, list[Message]] = field(default_factory=dict)
    """By cluster: what the consumers of its own subscription were given."""
    moved: list[Message] = field(default_factory=list)
    """What the consumer that moves between the clusters was given."""


def judge(seen: Histories) -> list[str]:
    """Return what is wrong, the first of it; nothing: all promises were kept."""
    found: list[str] = []
    for cluster, partitions in seen.read.items():
        found += _wrong_in(cluster, partitions, seen)
    found += _wrong_between(seen.read)
    for cluster, delivered in seen.delivered.items():
        where = f"the consumers at {cluster}"
        found += _missing(where, seen.acknowledged, delivered)
        found += _disorder(where, dict.fromkeys(delivered))
    found += _missing("the consumer that moves", seen.acknowledged, seen.moved)
    return found[:PROBLEMS_MAX]


def _wrong_in(
    cluster: str, partitions: Mapping[str, Sequence[Message]], seen: Histories
) -> Iterator[str]:
    counts = Counter(each for messages in partitions.values() for each in messages)
    yield from _missing(cluster, seen.acknowledged, counts)
    for message, count in counts.items():
        if count > 1:
            yield f"{cluster} has {count} times {message}"
        if message not in seen.acknowledged and message not in seen.unsure:
            yield f"{cluster} has what nobody sent: {message}"
    for partition, messages in partitions.items():
        yield from _disorder(f"{partition} at {cluster}", messages)


def _missing(where: str, expected: set[Message], found: Iterable[Message]) -> Iterator[str]:
    lost = sorted(expected - set(found))
    if lost:
        yield f"{where}: {len(lost)} of {len(expected)} are lost, the first is {lost[0]}"


def _disorder(where: str, messages: Iterable[Message]) -> Iterator[str]:
    """Tell the first message of each stream that came after a later one of it."""
    last: dict[tuple[str, str, str], int] = {}
    told: set[tuple[str, str, str]] = set()
    for each in messages:
        before = last.get(each.stream, -1)
        if each.number < before and each.stream not in told:
            told.add(each.stream)
            yield f"{where}: {each} comes after number {before}"
        last[each.stream] = max(before, each.number)


def _wrong_between(read: Mapping[str, Mapping[str, Sequence[Message]]]) -> Iterator[str]:
    """Compare the order of each source's messages in all clusters."""
    clusters = sorted(read)
    for partition in sorted({each for found in read.values() for each in found}):
        for source in clusters:
            orders = [
                [each for each in read[cluster].get(partition, ()) if each.source == source]
                for cluster in clusters
            ]
            for cluster, order in zip(clusters, orders, strict=True):
                if order != orders[0]:
                    yield (
                        f"{partition}: the messages of {source} are in another order at {cluster} "
                        f"than at {clusters[0]}, or others: {_first_difference(orders[0], order)}"
                    )


def _first_difference(one: Sequence[Message], other: Sequence[Message]) -> str:
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return f"the {at}th is {right}, and not {left}"
    return f"there are {len(other)}, and not {len(one)}"
