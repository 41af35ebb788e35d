"""The invariants of several clusters, judged from the history of a run.

A message is known by its cluster and its place there, which its copies name: what a producer has
stored twice, because a receipt was lost, is two messages.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from typing import Final

from magnetar.ledger.managed_log.log_metadata import LogMetadata
from tests.simulation.cluster.events import (
    AckCalled,
    Backlog,
    Confirmed,
    CursorSaved,
    NodeWrote,
    Published,
    Unreadable,
)
from tests.simulation.cluster.topics import covers, log_path
from tests.simulation.geo.events import (
    AckedElsewhere,
    Copying,
    Listed,
    Moved,
    NotSettled,
    Place,
    Stored,
)
from tests.simulation.geo.plan import GeoPlan, cluster_of
from tests.simulation.history import History
from tests.simulation.record import Violation

INVARIANTS: Final = {
    "G1": "Every message is at each cluster that it goes to",
    "G2": "No cluster has a copy twice",
    "G3": "Copies of a cluster are in the order that they have there",
    "G4": "Copies do not travel on, and do not come back",
    "G5": "A message is nowhere where no list sends it",
    "G6": "A copy has the messages of its original",
    "G7": "The topics of all clusters can be read",
    "GL1": "When nothing is wrong any more, everything is copied and consumed in bounded time",
    "GL2": "A topic that nobody uses gets no markers",
    "GS1": "A subscription has acknowledged nothing that no consumer has acknowledged",
    "GS2": "What consumers have acknowledged at one cluster is acknowledged at the others",
    "GS3": "So is what they have acknowledged behind messages that they keep",
}

SUBSCRIPTION = "s"
_EXAMPLES = 3

Identity = tuple[str, Place]
"""Cluster where a message was published, and its place there."""


def identity_of(cluster: str, entry: Stored) -> Identity:
    """Return which message an entry of a cluster holds."""
    return (entry.origin, entry.source) if entry.origin else (cluster, entry.place)


def judge_geo(history: History, plan: GeoPlan) -> list[Violation]:
    """What does not hold; a few examples for each invariant."""
    run = _Run(history, plan)
    found: list[Violation] = []
    for name, check in _CHECKS:
        found += [Violation(name, text) for text in islice(check(run), _EXAMPLES)]
    found += [
        Violation(each.invariant, each.text)
        for _, _, each in islice(history.of(NotSettled), _EXAMPLES)
    ]
    return found


class _Run:
    """What the history says, found once for all invariants."""

    def __init__(self, history: History, plan: GeoPlan) -> None:
        self.history = history
        self.plan = plan
        self.stored: dict[tuple[str, str], list[Stored]] = {}
        """By cluster and topic, in the order of the log."""
        for _, actor, stored in history.of(Stored):
            self.stored.setdefault((actor, stored.topic), []).append(stored)
        self.published = {
            event.payload: place for place, _, event in reversed([*history.of(Published)])
        }
        """Where in the history a message was given to its producer."""
        self.listed = {name: set(listed) for name, listed in plan.lists.items()}
        """The clusters that were ever in the list of a cluster."""
        for _, actor, event in history.of(Listed):
            self.listed[actor] |= set(event.clusters)
        self.begun = self._first_confirmed()
        self.copied_since = self._copied_since()

    def _copied_since(self) -> dict[tuple[str, str, str], int]:
        """From where in the history on a cluster copies a topic to another one, up to the end.

        An empty list leaves the cursors that there are. A topic that nobody has published to by
        then may be loaded first while the list is empty, and has none.
        """
        found: dict[tuple[str, str, str], int] = {}
        topics = {topic for _, topic in (*self.stored, *self.begun)}
        events: list[tuple[int, str, Listed | Copying]] = [
            *self.history.of(Listed),
            *self.history.of(Copying),
        ]
        for place, actor, event in sorted(events, key=lambda each: each[0]):
            if isinstance(event, Copying):
                for topic in topics:
                    found.setdefault((actor, event.remote, topic), place)
                continue
            for key in [key for key in found if key[0] == actor]:
                _, remote, topic = key
                is_there = self.begun.get((actor, topic), place) < place
                if remote not in event.clusters and (event.clusters or not is_there):
                    del found[key]
        return found

    def _first_confirmed(self) -> dict[tuple[str, str], int]:
        """Where in the history the first message of a topic was confirmed at a cluster."""
        found: dict[tuple[str, str], int] = {}
        for place, actor, event in self.history.of(Confirmed):
            found.setdefault((cluster_of(actor), event.topic), place)
        return found

    def topics_of(self, cluster: str) -> list[str]:
        """Return those that have entries, and those that had some: all may be trimmed."""
        known = dict.fromkeys((*self.stored, *self.begun))
        return [topic for name, topic in known if name == cluster]

    def entries(self, cluster: str, topic: str) -> list[Stored]:
        """Return what a topic holds in the end, without markers."""
        return [each for each in self.stored.get((cluster, topic), []) if not each.is_marker]

    def originals(self, cluster: str, topic: str) -> list[Stored]:
        """Return the messages that were published at a cluster; of a trimmed one, those whose
        producers have heard of them as well."""
        found = {each.place: each for each in self.entries(cluster, topic) if not each.origin}
        if self.plan.is_trimmed(cluster):
            told: dict[Place, list[bytes]] = {}
            for _, actor, event in self.history.of(Confirmed):
                if cluster_of(actor) == cluster and event.topic == topic:
                    told.setdefault((event.ledger_id, event.entry_id), []).append(event.payload)
            for place, messages in told.items():
                found.setdefault(
                    place, Stored(topic, place, "", (-1, -1), (), False, tuple(messages))
                )
        return [found[place] for place in sorted(found)]

    def is_required(self, cluster: str, remote: str, original: Stored) -> bool:
        """Return whether a message must be at another cluster in the end."""
        since = self.copied_since.get((cluster, remote, original.topic))
        if since is None or not _sends_to(original, remote):
            return False
        if all(self.published.get(each, -1) > since for each in original.messages):
            return True
        return self.plan.starts_at_earliest and self._is_there_at(since, cluster, original)

    def _is_there_at(self, place: int, cluster: str, original: Stored) -> bool:
        """Return whether a message that was published before some place of the history was not
        trimmed by then: of a log, ledgers go as a whole."""
        if not self.plan.is_trimmed(cluster) or original in self.entries(cluster, original.topic):
            return True
        return original.place[0] in self._ledgers_at(place, cluster, original.topic)

    def _ledgers_at(self, place: int, cluster: str, topic: str) -> set[int]:
        """Return the ledgers of a topic at some place of the history."""
        path, value = log_path(topic), b""
        for at, actor, wrote in self.history.of(NodeWrote):
            if at < place and cluster_of(actor) == cluster and wrote.path == path:
                value = wrote.value or b""
        if not value:
            return set()
        return {each.ledger_id for each in LogMetadata.from_json(value, path=path).ledgers}


def _sends_to(original: Stored, remote: str) -> bool:
    return not original.goes_to or remote in original.goes_to


def _nothing_lost(run: _Run) -> Iterator[str]:
    for cluster, remote in _ways(run):
        for topic in run.topics_of(cluster):
            there = {each.source for each in run.entries(remote, topic) if each.origin == cluster}
            for original in run.originals(cluster, topic):
                is_required = run.is_required(cluster, remote, original)
                if is_required and original.place not in there:
                    yield f"{remote} lacks {original.messages} of {cluster}, {original.place}"
    for _, actor, event in run.history.of(Confirmed):
        cluster, place = cluster_of(actor), (event.ledger_id, event.entry_id)
        if run.plan.is_trimmed(cluster):
            continue
        kept = {each.place: each for each in run.entries(cluster, event.topic)}
        if place not in kept or event.payload not in kept[place].messages:
            yield f"{cluster} lacks {event.payload!r} of its own, {place}"


def _ways(run: _Run) -> Iterator[tuple[str, str]]:
    for cluster, listed in run.plan.lists.items():
        for remote in listed:
            if remote != cluster:
                yield cluster, remote


def _nothing_twice(run: _Run) -> Iterator[str]:
    for (cluster, topic), entries in run.stored.items():
        counted = Counter(identity_of(cluster, each) for each in entries if each.origin)
        for (origin, source), count in counted.items():
            if count > 1:
                yield f"{cluster} has {count} copies of {source} of {origin} in {topic}"


def _in_order(run: _Run) -> Iterator[str]:
    for (cluster, topic), entries in run.stored.items():
        for origin in run.plan.clusters:
            copies = [each for each in entries if each.origin == origin]
            for before, after in pairwise(copies):
                if after.source < before.source:
                    yield (
                        f"{cluster} has {after.source} of {origin} behind {before.source} "
                        f"in {topic}"
                    )


def _no_loops(run: _Run) -> Iterator[str]:
    for (cluster, topic), entries in run.stored.items():
        for each in entries:
            if each.origin == cluster:
                yield f"{cluster} has a copy of its own: {each}"
            published_at = {cluster_of(message.decode()) for message in each.messages}
            if published_at - {each.origin or cluster}:
                yield f"{cluster} has {each} in {topic}, which was published at {published_at}"


def _lists_hold(run: _Run) -> Iterator[str]:
    for (cluster, topic), entries in run.stored.items():
        for each in entries:
            if not each.origin:
                continue
            if cluster not in run.listed[each.origin]:
                yield f"{cluster} has {each} in {topic}: {each.origin} never listed it"
            if not _sends_to(each, cluster):
                yield f"{cluster} has {each} in {topic}, which is for {each.goes_to}"


def _copies_are_equal(run: _Run) -> Iterator[str]:
    for cluster in run.plan.clusters:
        for topic in run.topics_of(cluster):
            originals = {each.place: each for each in run.originals(cluster, topic)}
            for remote in run.plan.clusters:
                for copy in run.entries(remote, topic):
                    original = originals.get(copy.source)
                    if copy.origin != cluster or original is None:
                        continue
                    if copy.messages != original.messages and not run.plan.is_trimmed(cluster):
                        yield f"{remote} has {copy}, and {cluster} has {original}"


def _readable(run: _Run) -> Iterator[str]:
    for _, actor, event in run.history.of(Unreadable):
        yield f"{actor}: {event}"


def _only_what_was_acked(run: _Run) -> Iterator[str]:
    acked = _acked(run)
    for place, cluster, topic, covered in _states(run):
        for entry in covered:
            identity = identity_of(cluster, entry)
            if acked.get(identity, 1 << 60) > place:
                yield (
                    f"{cluster} has {entry.messages}, {entry.place} of {topic}, as acknowledged "
                    f"(line {place})"
                )
                break


def _acked(run: _Run) -> dict[Identity, int]:
    """Where in the history a consumer of some cluster has acknowledged a message first. All topics
    have the same identities, and one consumer each: its own are looked at."""
    found: dict[Identity, int] = {}
    for place, actor, event in run.history.of(AckCalled):
        cluster, target = cluster_of(actor), (event.ledger_id, event.entry_id)
        for entry in run.entries(cluster, event.topic):
            is_meant = entry.place <= target if event.is_cumulative else entry.place == target
            if is_meant:
                found.setdefault(identity_of(cluster, entry), place)
    return found


def _states(run: _Run) -> Iterator[tuple[int, str, str, Iterable[Stored]]]:
    """Every state of the subscription that was stored, or that another cluster has led to, and the
    last one: where in the history,
    cluster, topic, and the entries that it has as acknowledged."""
    topics = {log_path(topic): topic for _, topic in run.stored}
    for place, actor, saved in run.history.of(CursorSaved):
        topic = topics.get(saved.log_path)
        if saved.subscription == SUBSCRIPTION and topic is not None:
            cluster = cluster_of(actor)
            yield (
                place,
                cluster,
                topic,
                [
                    each
                    for each in run.entries(cluster, topic)
                    if covers(saved.mark_delete, saved.ranges, each.place)
                ],
            )
    for place, actor, moved in run.history.of(Moved):
        if moved.subscription == SUBSCRIPTION:
            cluster = cluster_of(actor)
            entries = run.entries(cluster, moved.topic)
            yield (
                place,
                cluster,
                moved.topic,
                [each for each in entries if each.place <= moved.mark],
            )
    for place, actor, acked in run.history.of(AckedElsewhere):
        if acked.subscription == SUBSCRIPTION:
            cluster = cluster_of(actor)
            yield (
                place,
                cluster,
                acked.topic,
                [
                    each
                    for each in run.entries(cluster, acked.topic)
                    if covers((-1, -1), acked.ranges, each.place)
                ],
            )
    for place, actor, backlog in run.history.of(Backlog):
        if backlog.subscription == SUBSCRIPTION:
            cluster, known = cluster_of(actor), set(backlog.acked)
            entries = run.entries(cluster, backlog.topic)
            yield place, cluster, backlog.topic, [each for each in entries if each.place in known]


_CHECKS = (
    ("G1", _nothing_lost),
    ("G2", _nothing_twice),
    ("G3", _in_order),
    ("G4", _no_loops),
    ("G5", _lists_hold),
    ("G6", _copies_are_equal),
    ("G7", _readable),
    ("GS1", _only_what_was_acked),
)
