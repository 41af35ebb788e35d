"""Replicated subscriptions of several clusters, whose links are slow, cut, and repeat markers.

The cores are the product's: which entries are copied, snapshots, progress, and what a peer does not
have. Logs, links, consumers and what survives a restart are a model. Whatever happens, a cluster
acknowledges by what it is told only what a consumer somewhere has acknowledged; and once nothing
fails any more, what one consumer has acknowledged is acknowledged wherever it can be told.

Source: geo-replication sheet, section 20 (G11).
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from magnetar.broker.features.replication.copies import goes_to
from magnetar.broker.features.replication.markers import (
    REQUEST,
    RESPONSE,
    SNAPSHOT,
    UPDATE,
    Marker,
    Request,
    Response,
    Snapshot,
    Update,
)
from magnetar.broker.features.replication.subscriptions.absent import AbsentEntries, is_at_peer
from magnetar.broker.features.replication.subscriptions.counts import SubscriptionCounts
from magnetar.broker.features.replication.subscriptions.progress import Progress
from magnetar.broker.features.replication.subscriptions.snapshots import SnapshotTaking
from magnetar.ledger.position import Position
from magnetar.sdk.wire import MessageMetadata

TYPES: Mapping[type, int] = {
    Request: REQUEST,
    Response: RESPONSE,
    Snapshot: SNAPSHOT,
    Update: UPDATE,
}


def at(index: int) -> Position:
    return Position(1, index)


class Entry(NamedTuple):
    """One entry of a log: a message, known everywhere by its number, or a marker."""

    metadata: MessageMetadata
    number: int = -1
    marker: Marker | None = None


class Cluster:
    """One topic, with one replicated subscription, in one cluster."""

    def __init__(self, name: str, others: Sequence[str]) -> None:
        self.name = name
        self.others = others
        """The clusters that it copies to."""
        self.log: list[Entry] = []
        self.acked: set[int] = set()
        """Indexes of messages."""
        self.copied: dict[str, int] = dict.fromkeys(others, 0)
        """How many entries have been looked at for each other cluster."""
        self.sessions = dict.fromkeys(others, 1)
        self.now_ms = 0
        self.ids = 0
        self.restart()

    def restart(self) -> None:
        """Another owner knows the log and what is acknowledged, and nothing else."""
        self.taking = SnapshotTaking(
            self.name,
            SubscriptionCounts(),
            interval_ms=10,
            timeout_ms=100,
            next_id=self._next_id,
        )
        if self.log:
            self.taking.on_news()
        self.progress = Progress("s", snapshots_max=3)
        self.recent: list[Snapshot] = []
        self.absent: dict[tuple[str, frozenset[str]], AbsentEntries] = {}
        self.passed = 0

    def _next_id(self) -> str:
        self.ids += 1
        return f"{self.name}{self.ids}"

    @property
    def mark(self) -> Position:
        """The mark-delete position; markers are passed by."""
        for index, entry in enumerate(self.log):
            if entry.marker is None and index not in self.acked:
                return at(index - 1)
        return at(len(self.log) - 1)

    def write(self, marker: Marker, *goes: str) -> None:
        metadata = MessageMetadata(marker_type=TYPES[type(marker)], replicate_to=goes)
        self.log.append(Entry(metadata, marker=marker))
        if isinstance(marker, Snapshot):
            self.recent = [*self.recent, marker][-2:]

    def publish(self, number: int, goes: Sequence[str]) -> None:
        self.log.append(Entry(MessageMetadata(replicate_to=goes), number))
        self.taking.on_news()

    def store(self, source: str, entry: Entry) -> None:
        """A copy arrives. Messages are stored once; markers may come again, as Apache's do."""
        if entry.marker is None and any(entry.number == each.number for each in self.log):
            return
        metadata = MessageMetadata()
        metadata.CopyFrom(entry.metadata)
        metadata.replicated_from = source
        self.log.append(Entry(metadata, entry.number, entry.marker))
        here = at(len(self.log) - 1)
        match entry.marker:
            case None:
                self.taking.on_news()
            case Request(snapshot_id):
                self.write(Response(snapshot_id, self.name, here), source)
                self.taking.on_request(source, snapshot_id, self.sessions)
            case Response():
                following = self.taking.on_response(entry.marker, here)
                if isinstance(following, Snapshot):
                    self.write(following, self.name)
                elif following is not None:
                    self.write(following)
            case Update(_, positions):
                heard = frozenset(positions) - {self.name}
                if self.name in positions:
                    self.apply(source, positions[self.name], heard)

    def apply(self, source: str, through: Position, heard: frozenset[str]) -> None:
        """Carry an update out, reading two entries of the log at a time."""
        absent = self.absent.setdefault((source, heard), AbsentEntries())
        mark = self.mark
        while True:
            stop = absent.first_open(mark, through, lambda each: each.entry_id in self.acked)
            if stop is not None:
                through = at(stop.entry_id - 1)
                break
            after = absent.unread_after(mark, through)
            if after is None:
                break
            read = range(after.entry_id + 1, min(after.entry_id + 3, len(self.log)))
            absent.on_read(
                at(read[-1]),
                [
                    at(index)
                    for index in read
                    if not is_at_peer(
                        self.log[index].metadata,
                        peer=source,
                        here=self.name,
                        heard_by_peer=heard,
                    )
                ],
            )
        absent.trim()
        messages = range(mark.entry_id + 1, through.entry_id + 1)
        self.acked.update(each for each in messages if self.log[each].marker is None)
        if self.mark > mark:
            self.progress.moved_by_peer(self.mark)

    def consume(self, count: int) -> None:
        """The dispatcher passes entries, snapshots among them."""
        for entry in self.log[self.passed : self.passed + count]:
            self.passed += 1
            if isinstance(entry.marker, Snapshot):
                self.progress.cache.add(entry.marker)

    def look(self, *, after_ms: int) -> None:
        self.now_ms += after_ms
        request = self.taking.look(self.now_ms, self.sessions)
        if request is not None:
            self.write(request)
        update = self.progress.look(self.mark, self.recent)
        if update is not None:
            self.write(update)


class World(RuleBasedStateMachine):
    """Clusters that copy to each other."""

    links: ClassVar[Mapping[str, Sequence[str]]]

    def __init__(self) -> None:
        super().__init__()
        self.clusters = {name: Cluster(name, others) for name, others in self.links.items()}
        self.names = list(self.clusters)
        self.published = 0
        self.consumed: set[int] = set()
        """Numbers of messages that a consumer has acknowledged, anywhere."""

    def pick(self, which: int) -> Cluster:
        return self.clusters[self.names[which % len(self.names)]]

    def other_of(self, here: Cluster, which: int) -> str:
        return here.others[which % len(here.others)]

    @rule(which=st.integers(0, 11), only=st.sampled_from([None, None, None, 0, 1, 2]))
    def publish(self, which: int, only: int | None) -> None:
        here = self.pick(which)
        goes = [] if only is None else ["__local__"] if only == 2 else [self.other_of(here, only)]
        here.publish(self.published, goes)
        self.published += 1

    @rule(which=st.integers(0, 11), to=st.integers(0, 2), count=st.integers(1, 6))
    def copy(self, which: int, to: int, count: int) -> None:
        here = self.pick(which)
        name = self.other_of(here, to)
        if not here.sessions[name]:
            return
        for _ in range(count):
            at_index = here.copied[name]
            if at_index >= len(here.log):
                break
            here.copied[name] += 1
            entry = here.log[at_index]
            if goes_to(name, entry.metadata):
                self.clusters[name].store(here.name, entry)

    @rule(which=st.integers(0, 11), to=st.integers(0, 2), back=st.integers(0, 4))
    def cut(self, which: int, to: int, back: int) -> None:
        """A connection is lost; what had no receipt goes again."""
        here = self.pick(which)
        name = self.other_of(here, to)
        here.sessions[name] = 0
        here.copied[name] = max(0, here.copied[name] - back)

    @rule(which=st.integers(0, 11), to=st.integers(0, 2))
    def connect(self, which: int, to: int) -> None:
        here = self.pick(which)
        name = self.other_of(here, to)
        if not here.sessions[name]:
            here.ids += 1
            here.sessions[name] = here.ids + 1

    @rule(which=st.integers(0, 11), after_ms=st.sampled_from([1, 10, 10, 10, 200]))
    def look(self, which: int, after_ms: int) -> None:
        self.pick(which).look(after_ms=after_ms)

    @rule(which=st.integers(0, 11), skip=st.integers(0, 2), count=st.integers(1, 4))
    def acknowledge(self, which: int, skip: int, count: int) -> None:
        """A consumer acknowledges some of what is open, not always the oldest."""
        here = self.pick(which)
        here.consume(count + 2)
        self._acknowledge(here, skip, count)

    def _acknowledge(self, here: Cluster, skip: int, count: int) -> None:
        unacked = [
            index
            for index, entry in enumerate(here.log)
            if entry.marker is None and index not in here.acked
        ]
        for index in unacked[skip : skip + count]:
            here.acked.add(index)
            self.consumed.add(here.log[index].number)

    @rule(which=st.integers(0, 11), lost=st.integers(0, 3))
    def restart(self, which: int, lost: int) -> None:
        """The topic has another owner; the newest acknowledgements are lost."""
        here = self.pick(which)
        here.acked -= set(sorted(here.acked)[len(here.acked) - lost :])
        here.restart()

    @rule(which=st.integers(0, 11), to=st.integers(0, 11))
    def seek(self, which: int, to: int) -> None:
        """A consumer goes back."""
        here = self.pick(which)
        here.acked = {index for index in here.acked if index < to}

    @invariant()
    def nothing_is_acknowledged_that_nobody_has_acknowledged(self) -> None:
        for here in self.clusters.values():
            assert {here.log[index].number for index in here.acked} <= self.consumed

    def teardown(self) -> None:
        for which in range(len(self.names)):
            for to in range(len(self.pick(which).others)):
                self.connect(which, to)
        self._settle()
        first = self.pick(0)
        first.consume(len(first.log))
        self._acknowledge(first, 0, len(first.log))
        self._settle()
        self.nothing_is_acknowledged_that_nobody_has_acknowledged()
        known = {entry.number for entry in first.log}
        for name in first.others:
            there = self.clusters[name]
            for index, entry in enumerate(there.log):
                if entry.marker is None and index not in there.acked:
                    assert entry.number not in known, f"{name} was not told of {index}"
                    break

    def _settle(self) -> None:
        """Until nothing moves, and nothing is due: a topic without news is idle in the end."""
        for _ in range(400):
            before = [len(each.log) for each in self.clusters.values()]
            for which in range(len(self.names)):
                self.pick(which).look(after_ms=10)
                for to in range(len(self.pick(which).others)):
                    self.copy(which, to, 1_000)
            is_due = any(
                each.taking.pause_ms(each.now_ms) is not None for each in self.clusters.values()
            )
            if before == [len(each.log) for each in self.clusters.values()] and not is_due:
                return
        raise AssertionError("markers without end")


class Pair(World):
    links: ClassVar = {"east": ["west"], "west": ["east"]}


class Mesh(World):
    links: ClassVar = {
        "east": ["west", "north"],
        "west": ["east", "north"],
        "north": ["east", "west"],
    }


class Ring(World):
    """Each copies to its neighbours alone, and copies do not travel on."""

    links: ClassVar = {
        "east": ["south", "north"],
        "south": ["west", "east"],
        "west": ["north", "south"],
        "north": ["east", "west"],
    }


class OneWayRound(World):
    """Nobody can answer: nothing is told, and nothing breaks."""

    links: ClassVar = {"east": ["west"], "west": ["north"], "north": ["east"]}

    def teardown(self) -> None:
        for which in range(len(self.names)):
            self.connect(which, 0)
        for here in self.clusters.values():
            assert not any(isinstance(entry.marker, Snapshot | Update) for entry in here.log)


@pytest.mark.parametrize("slow_round", [1, 2])
def test_a_copy_between_two_others_that_is_late_here_is_not_acknowledged(slow_round: int) -> None:
    """West has a message of north's when it answers, and north's copies to east are slow."""
    world = Mesh()
    east, west, north = (world.clusters[name] for name in ("east", "west", "north"))

    def copy(here: Cluster, to: str) -> None:
        world.copy(world.names.index(here.name), here.others.index(to), 100)

    east.publish(0, [])
    world.published = 1
    east.look(after_ms=10)
    for each in range(1, slow_round + 1):
        copy(east, "north")
        copy(north, "east")
        if each == slow_round:
            north.publish(1, [])
            copy(north, "west")
        copy(east, "west")
        copy(west, "east")
    assert all(entry.number != 1 for entry in east.log)
    for _ in range(3):
        east.consume(100)
        world._acknowledge(east, 0, 100)
        east.look(after_ms=10)
        copy(east, "west")
    assert {entry.number for entry in west.log if entry.marker is None} == {0, 1}
    world.nothing_is_acknowledged_that_nobody_has_acknowledged()


def test_a_copy_that_another_cluster_gets_late_is_acknowledged_there_in_the_end() -> None:
    """North's copies to west come when everybody is idle, and east has told all that it has."""
    world = Mesh()
    east, west, north = (world.clusters[name] for name in ("east", "west", "north"))
    north.publish(0, [])
    world.published = 1
    for _ in range(20):
        for which, here in enumerate(world.clusters.values()):
            here.look(after_ms=10)
            for to, other in enumerate(here.others):
                if (here.name, other) != ("north", "west"):
                    world.copy(which, to, 100)
        east.consume(100)
        world._acknowledge(east, 0, 100)
    assert east.taking.pause_ms(east.now_ms) is None
    assert north.copied["west"] == 0
    world.teardown()
    told = [
        entry.marker.positions["west"]
        for entry in east.log
        if isinstance(entry.marker, Update) and not entry.metadata.replicated_from
    ]
    late = next(index for index, entry in enumerate(west.log) if entry.number == 0)
    assert max(told) >= at(late)


for _world in (Pair, Mesh, Ring, OneWayRound):
    _world.TestCase.settings = settings(max_examples=200, stateful_step_count=50)
TestPair = Pair.TestCase
TestMesh = Mesh.TestCase
TestRing = Ring.TestCase
TestOneWayRound = OneWayRound.TestCase
