"""The clusters that a topic is copied to, and the cursors that keep how far each has come."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any, cast

import pytest

from magnetar.broker.base.errors import BrokerMetadataError
from magnetar.broker.features.replication import Replication, ReplicationSurroundings
from magnetar.broker.features.replication.remotes import RemoteClusters
from magnetar.broker.features.replication.sending import SendingSurroundings
from magnetar.broker.features.replication.subscriptions import ReplicatedSubscriptionsSurroundings
from magnetar.broker.policies.model import Policies
from magnetar.cursors import CursorUnavailableError
from magnetar.ledger.position import EARLIEST, Position
from magnetar.sdk.wire import TopicName
from tests.unit.broker.harness import Harness, entry
from tests.unit.broker.memory_parts import TOPIC
from tests.unit.broker.replication.sending_parts import MemoryCursor, There
from tests.waiting import settle, until


class _Remotes:
    def __init__(self) -> None:
        self.there = There()

    def cluster(self, name: str) -> There:
        self.there.name = name
        return self.there


class World:
    """A topic of the cluster `east` that is opened with the replication feature."""

    def __init__(self, *clusters: str, **settings: Any) -> None:
        self.harness = Harness(**settings)
        self.clusters = clusters
        self.stored: list[str] = []
        """Clusters whose cursors a former owner has made."""
        self.later: tuple[str, ...] | None = None
        """Clusters of the policies that are stored, if those of the topic are older."""
        self.made: dict[str, Position] = {}
        self.holds: list[bool] = []
        """Holds of publishes, and releases."""
        self.error: CursorUnavailableError | None = None
        self.is_stuck = False
        """Whether the metadata store never answers."""
        self.remotes = _Remotes()

    async def open(self) -> None:
        """Open the topic."""
        self.topic = await self.harness.services.topics.get(TopicName.parse(TOPIC))
        self.topic.policies = self.topic.policies.with_values(replicated_to=self.clusters)
        around = self.around = ReplicationSurroundings(
            cast(RemoteClusters, self.remotes),
            SendingSurroundings(
                "east",
                self.harness.clock,
                cast(Any, None),
                cast(Any, None),
                self.harness.settings,
            ),
            random.Random(1),
            starts_at_earliest=False,
            subscriptions=ReplicatedSubscriptionsSurroundings(
                "east", self.harness.clock, random.Random(1), self.harness.settings
            ),
        )
        self.feature = Replication(
            self.topic,
            cast(Any, self.harness.log),
            around,
            stored_cursors=self._stored,
            open_cursor=cast(Any, self._open_cursor),
            read_policies=self._read_policies,
            changed=lambda: None,
            published=lambda: (0, 0),
            hold=lambda: self.holds.append(True),
            release=lambda: self.holds.append(False),
        )
        await self.feature.restore()

    async def close(self) -> None:
        self.feature.close()
        await self.feature.stopped()

    async def _stored(self) -> Sequence[str]:
        return [f"pulsar.repl.{each}" for each in self.stored]

    async def _read_policies(self) -> Policies:
        await asyncio.sleep(0)
        if self.error is not None:
            raise BrokerMetadataError("the metadata store is away")
        if self.later is None:
            return self.topic.policies
        return self.topic.policies.with_values(replicated_to=self.later)

    async def _open_cursor(
        self, name: str, position: Position, properties: dict[str, str]
    ) -> MemoryCursor:
        await asyncio.sleep(0)
        if self.is_stuck:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        self.made[name] = position
        cursor = MemoryCursor(self.harness.log, self.harness.log.last_confirmed)
        cursor.name = name
        cursor.properties = properties
        return cursor

    def set(self, *clusters: str) -> None:
        """Change the topic's list."""
        before: Policies = self.topic.policies
        self.topic.policies = before.with_values(replicated_to=clusters)
        self.feature.policies_changed(before)


async def test_a_topic_is_not_open_before_it_has_a_cursor_for_each_cluster() -> None:
    world = World("east", "west", "north")
    await world.open()
    assert world.made == {"pulsar.repl.north": EARLIEST, "pulsar.repl.west": EARLIEST}
    world.harness.log.store(entry())
    assert [each.cursor.backlog_entries for each in world.feature.backlogs()] == [1, 1]
    await world.close()


async def test_a_topic_whose_cursor_cannot_be_made_is_not_opened() -> None:
    world = World("west")
    world.error = CursorUnavailableError("the bookies are away")
    with pytest.raises(CursorUnavailableError):
        await world.open()
    await world.close()


async def test_a_topic_that_is_copied_nowhere_makes_nothing() -> None:
    world = World("east")
    await world.open()
    assert (world.made, list(world.feature.backlogs()), dict(world.feature.shown())) == ({}, [], {})
    assert not world.harness.log.properties
    await world.close()


async def test_a_cluster_that_is_added_later_is_copied_to_once() -> None:
    world = World("east")
    await world.open()
    world.set("east", "west")
    world.set("east", "west", "north")
    await settle()
    world.feature.look()
    await settle()
    assert sorted(each.name for each in world.feature.backlogs()) == [
        "pulsar.repl.north",
        "pulsar.repl.west",
    ]
    await world.close()


async def test_what_is_published_while_the_cursor_of_a_new_cluster_is_made_is_copied() -> None:
    """G9: it is acknowledged under the list that names the cluster."""
    world = World("east")
    await world.open()
    world.harness.log.store(entry(), entry())
    world.set("east", "west")
    world.harness.log.store(entry())
    await settle()
    assert world.made == {"pulsar.repl.west": Position(7, 2)}
    assert [world.feature.is_copied("west", Position(7, at)) for at in range(3)] == [
        False,
        False,
        True,
    ]
    await world.close()


async def test_copying_begins_where_the_list_changed_though_the_cursor_is_made_later() -> None:
    world = World("east")
    await world.open()
    world.error = CursorUnavailableError("the bookies are away")
    world.set("east", "west")
    await settle()
    world.harness.log.store(entry())
    world.error = None
    world.feature.look()
    await settle()
    assert world.made == {"pulsar.repl.west": EARLIEST}, "the log was empty"
    await world.close()


async def test_nothing_is_stored_between_the_new_list_and_its_cursors() -> None:
    """The next owner could not know that it was published for the new cluster."""
    world = World("east", "west")
    await world.open()
    assert world.holds == []
    world.error = CursorUnavailableError("the metadata store is away")
    world.set("east", "west", "north")
    assert world.holds == [True], "at once"
    await settle()
    world.feature.look()
    await settle()
    assert world.holds == [True]
    world.error = None
    world.feature.look()
    await settle()
    assert world.holds == [True, False]
    assert "pulsar.repl.north" in world.made
    world.set("east", "north")
    await settle()
    assert world.holds == [True, False], "a cluster that leaves needs nothing"
    await world.close()


async def test_publishes_are_held_no_longer_than_a_load_may_take() -> None:
    """Even while the metadata store does not answer, and without a look."""
    world = World("east", topic_load_timeout_ms=1)
    await world.open()
    world.is_stuck = True
    world.set("east", "west")
    assert world.holds == [True]
    await until(lambda: world.holds == [True, False], "publishes are released")
    world.feature.look()
    await settle()
    assert (world.holds, list(world.feature.cursors())) == ([True, False], [])
    await world.close()


async def test_a_closed_topic_releases_no_publishes() -> None:
    """The publish line is closed by then, or about to be."""
    world = World("east", topic_load_timeout_ms=1)
    await world.open()
    world.is_stuck = True
    world.set("east", "west")
    await world.close()
    later = asyncio.Event()
    asyncio.get_running_loop().call_later(0.002, later.set)
    await later.wait()
    assert world.holds == [True]


async def test_publishes_go_on_when_the_cluster_leaves_the_list_before_it_has_a_cursor() -> None:
    world = World("east")
    await world.open()
    world.error = CursorUnavailableError("the metadata store is away")
    world.set("east", "west")
    await settle()
    world.set("east")
    await settle()
    assert world.holds == [True, False]
    await world.close()


async def test_the_cursor_is_tried_again_soon_while_publishes_are_held() -> None:
    world = World("east")
    await world.open()
    world.error = CursorUnavailableError("the metadata store is away")
    world.set("east", "west")
    await settle()
    world.error = None
    await until(lambda: world.holds == [True, False], "the cursor is there without a look")
    await world.close()


async def test_only_so_many_topics_of_a_broker_change_their_cursors_at_once() -> None:
    """The list of a namespace may change with thousands of loaded topics."""
    world = World("east")
    await world.open()
    others = 0
    while not world.around.changes.locked():
        await world.around.changes.acquire()
        others += 1
    world.set("east", "west")
    await settle()
    assert (world.holds, world.made) == ([True], {})
    for _ in range(others):
        world.around.changes.release()
    await settle()
    assert world.holds == [True, False]
    assert "pulsar.repl.west" in world.made
    await world.close()


async def test_publishes_are_held_for_a_cluster_that_is_back_while_its_cursor_is_deleted() -> None:
    world = World("east", "west")
    await world.open()
    (cursor,) = world.feature.cursors()
    deleting, may_end = asyncio.Event(), asyncio.Event()

    async def delete() -> None:
        deleting.set()
        await may_end.wait()

    cast(MemoryCursor, cursor).delete = delete  # type: ignore[method-assign]
    world.set("east")
    await deleting.wait()
    world.set("east", "west")
    assert world.holds == [True]
    may_end.set()
    await settle()
    assert world.holds == [True, False]
    assert list(world.feature.cursors()) != [cursor]
    await world.close()


async def test_a_cluster_that_is_back_gets_no_cursor_that_may_be_deleted() -> None:
    """Only the answer to the deletion may be lost. What is saved by that cursor is fenced, and the
    next owner would begin at the end of the log."""
    world = World("east", "west")
    await world.open()
    (old,) = world.feature.cursors()
    cast(MemoryCursor, old).error = CursorUnavailableError("no answer")
    world.set("east")
    await settle()
    world.harness.log.store(entry())
    world.set("east", "west")
    assert world.holds == [True]
    await settle()
    assert (world.holds, list(world.feature.backlogs())) == ([True], [])
    cast(MemoryCursor, old).error = None
    world.feature.look()
    await settle()
    assert world.holds == [True, False]
    (new,) = world.feature.cursors()
    assert new is not old
    assert [each.cursor for each in world.feature.backlogs()] == [new]
    assert world.made["pulsar.repl.west"] == Position(7, 1), "behind what it was not listed for"
    await world.close()


async def test_a_cluster_that_left_the_list_and_came_back_begins_anew() -> None:
    world = World("east")
    await world.open()
    world.error = CursorUnavailableError("the bookies are away")
    world.harness.log.store(entry())
    world.set("east", "west")
    world.set("east")
    await settle()
    world.harness.log.store(entry())
    world.error = None
    world.set("east", "west")
    await settle()
    assert world.made == {"pulsar.repl.west": Position(7, 2)}
    await world.close()


async def test_entries_that_were_dropped_are_not_copied() -> None:
    world = World("east", "west")
    await world.open()
    world.harness.log.store(*(entry() for _ in range(3)))
    (copies,) = world.feature.backlogs()
    first = world.harness.log.first_position()
    assert world.feature.is_copied("west", first)
    copies.drop_through(first)
    assert not world.feature.is_copied("west", first)
    assert world.feature.is_copied("west", Position(first.ledger_id, first.entry_id + 1))
    await world.close()


async def test_a_cluster_that_is_back_while_copying_to_it_ends_is_copied_to_again() -> None:
    """At once, and with the cursor that it had: nothing is left out."""
    world = World("east", "west")
    await world.open()
    world.set("east")
    await asyncio.sleep(0)
    (cursor,) = world.feature.cursors()
    assert list(world.feature.backlogs()) == [], "it is being ended"
    world.set("east", "west")
    await settle()
    assert [each.name for each in world.feature.backlogs()] == ["pulsar.repl.west"]
    assert list(world.feature.cursors()) == [cursor]
    await world.close()


async def test_a_cursor_that_could_not_be_deleted_is_deleted_at_a_later_look() -> None:
    world = World("east", "west")
    await world.open()
    (cursor,) = world.feature.cursors()
    cast(MemoryCursor, cursor).error = CursorUnavailableError("the metadata store is away")
    world.set("east")
    await settle()
    assert list(world.feature.cursors()) == [cursor], "it may still be stored"
    cast(MemoryCursor, cursor).error = None
    world.feature.look()
    await settle()
    assert list(world.feature.cursors()) == []
    await world.close()


async def test_a_cursor_of_later_policies_than_the_topic_was_opened_with_stays() -> None:
    """A former owner knew that the cluster was added, and made its cursor."""
    world = World("east", "west")
    world.stored, world.later = ["eu", "west"], ("east", "eu", "west")
    await world.open()
    await settle()
    world.feature.look()
    await settle()
    cursors = {each.name: each for each in world.feature.cursors()}
    assert sorted(cursors) == ["pulsar.repl.eu", "pulsar.repl.west"]
    assert [each.name for each in world.feature.backlogs()] == ["pulsar.repl.west"]
    world.set("east", "eu", "west")
    await settle()
    assert {each.name: each for each in world.feature.cursors()} == cursors
    assert len(list(world.feature.backlogs())) == 2
    await world.close()


async def test_a_cursor_that_was_found_is_deleted_when_the_stored_policies_lack_its_cluster() -> (
    None
):
    world = World("east", "west")
    world.stored, world.later = ["eu", "west"], ("east", "west")
    await world.open()
    world.error = CursorUnavailableError("the metadata store is away")
    await settle()
    assert len(list(world.feature.cursors())) == 2, "the policies cannot be read"
    world.error = None
    world.feature.look()
    await settle()
    assert [cast(MemoryCursor, each).name for each in world.feature.cursors()] == [
        "pulsar.repl.west"
    ]
    await world.close()


async def test_a_cluster_whose_cursor_cannot_be_deleted_holds_up_no_other() -> None:
    world = World("east", "north", "west")
    await world.open()
    north, _ = world.feature.cursors()
    cast(MemoryCursor, north).error = CursorUnavailableError("the metadata store is away")
    world.set("east")
    await settle()
    assert list(world.feature.cursors()) == [north]
    world.set("east", "south")
    await settle()
    assert "pulsar.repl.south" in world.made
    await world.close()
