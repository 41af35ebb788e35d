"""What other clusters are told of a subscription, and which entries a peer does not have."""

from itertools import pairwise

import pytest

from magnetar.broker.features.replication.markers import Snapshot, Update
from magnetar.broker.features.replication.subscriptions.absent import (
    ABSENT_MAX,
    AbsentEntries,
    is_at_peer,
)
from magnetar.broker.features.replication.subscriptions.progress import Progress, SnapshotCache
from magnetar.ledger.position import Position
from magnetar.sdk.wire import MessageMetadata


def at(entry_id: int) -> Position:
    return Position(1, entry_id)


def snapshot(local: int, there: int | None = None) -> Snapshot:
    there = local + 1_000 if there is None else there
    return Snapshot(f"id{local}", at(local), {"west": at(there)})


def told(local: int) -> Update:
    return Update("s", {"west": at(local + 1_000)})


# The cache


def test_the_newest_snapshot_that_was_passed_counts() -> None:
    cache = SnapshotCache(10)
    for local in (3, 1, 2):
        cache.add(snapshot(local))
    assert cache.take_through(at(0)) is None
    assert cache.take_through(at(2)) == snapshot(2)
    assert cache.take_through(at(2)) is None
    assert cache.take_through(at(9)) == snapshot(3)


def test_a_snapshot_that_is_passed_again_is_kept_once() -> None:
    cache = SnapshotCache(10)
    cache.add(snapshot(1))
    cache.add(snapshot(1, there=7))
    assert len(cache) == 1
    assert cache.take_through(at(1)) == snapshot(1, there=7)


@pytest.mark.parametrize("snapshots_max", [2, 3, 10])
def test_of_too_many_the_oldest_and_the_newest_stay(snapshots_max: int) -> None:
    """17.21: what the mark needs next is never the one that was evicted."""
    cache = SnapshotCache(snapshots_max)
    for local in range(snapshots_max):
        cache.add(snapshot(local))
    assert len(cache) == snapshots_max
    for local in range(snapshots_max, 200):
        cache.add(snapshot(local))
        assert len(cache) <= snapshots_max
    assert cache.take_through(at(0)) == snapshot(0)
    assert cache.take_through(at(500)) == snapshot(199)


def test_thinned_snapshots_stay_spread() -> None:
    cache = SnapshotCache(8)
    for local in range(100):
        cache.add(snapshot(local))
    found = [local for local in range(100) if cache.take_through(at(local))]
    assert len(found) == 8
    assert max(later - one for one, later in pairwise(found)) <= 32


# Telling


def test_others_are_told_when_the_mark_has_passed_a_snapshot_and_once() -> None:
    progress = Progress("s", snapshots_max=10)
    progress.cache.add(snapshot(5))
    assert progress.look(at(4), []) is None
    assert progress.look(at(5), []) == told(5)
    assert progress.look(at(6), []) is None
    progress.cache.add(snapshot(5))
    assert progress.look(at(6), []) is None, "the position must grow"


def test_snapshots_that_no_dispatcher_has_passed_count_while_they_are_recent() -> None:
    progress = Progress("s", snapshots_max=10)
    recent = [snapshot(3), snapshot(6), snapshot(9)]
    assert progress.look(at(7), recent) == told(6)
    progress.cache.add(snapshot(8))
    assert progress.look(at(8), recent) == told(8)
    assert progress.look(at(9), recent) == told(9)


def test_a_mark_that_another_cluster_has_moved_is_no_news_to_it() -> None:
    progress = Progress("s", snapshots_max=10)
    progress.moved_by_peer(at(7))
    assert progress.look(at(7), [snapshot(6)]) is None
    assert progress.look(at(8), [snapshot(6)]) == told(6), "consumers here have acknowledged more"


def test_markers_that_are_passed_are_no_news_either() -> None:
    progress = Progress("s", snapshots_max=10)
    progress.moved_by_peer(at(7))
    progress.passed_markers(at(7), at(9))
    assert progress.look(at(9), [snapshot(8)]) is None
    progress.passed_markers(at(10), at(12))
    assert progress.look(at(12), [snapshot(8)]) == told(8)


def test_after_a_seek_back_others_are_told_anew() -> None:
    progress = Progress("s", snapshots_max=10)
    assert progress.look(at(9), [snapshot(9)]) == told(9)
    assert progress.look(at(2), [snapshot(9)]) is None
    assert progress.look(at(5), [snapshot(4), snapshot(9)]) == told(4)


def test_what_others_were_told_last_is_told_again_where_it_is_asked_for() -> None:
    progress = Progress("s", snapshots_max=10)
    progress.tell_again()
    assert progress.look(at(4), []) is None, "nothing was told"
    progress.cache.add(snapshot(5))
    assert progress.look(at(5), []) == told(5)
    progress.tell_again()
    assert progress.look(at(6), []) == told(5)
    assert progress.look(at(6), []) is None
    progress.tell_again()
    assert progress.look(at(9), [snapshot(8)]) == told(8), "there is something newer"
    progress.tell_again()
    assert progress.look(at(7), []) is None, "an operator or a consumer went back"


# What a peer does not have


@pytest.mark.parametrize(
    ("metadata", "is_there"),
    [
        ({}, True),
        ({"replicate_to": ["east"]}, True),
        ({"replicate_to": ["__local__"]}, False),
        ({"replicate_to": ["north"]}, False),
        ({"replicated_from": "east"}, True),
        ({"replicated_from": "east", "replicate_to": ["west"]}, True),
        ({"replicated_from": "north"}, True),
        ({"replicated_from": "north", "replicate_to": ["west"]}, False),
        ({"replicated_from": "south"}, False),
        ({"marker_type": 12, "replicate_to": ["west"]}, True),
    ],
)
def test_what_a_peer_has(metadata: dict[str, object], is_there: bool) -> None:
    """East tells; west is here; north copies to east, and south, as in a ring, does not."""
    found = MessageMetadata(**metadata)  # type: ignore[arg-type]
    assert is_at_peer(found, peer="east", here="west", heard_by_peer={"north"}) is is_there


def test_a_peer_does_not_have_what_was_there_before_copying_began() -> None:
    for metadata, is_there in (
        (MessageMetadata(), False),
        (MessageMetadata(replicated_from="east"), True),
        (MessageMetadata(replicated_from="north"), True),
    ):
        found = is_at_peer(
            metadata, peer="east", here="west", heard_by_peer={"north"}, is_copied=False
        )
        assert found is is_there


def never(_position: Position) -> bool:
    return False


def test_what_was_read_once_is_not_read_again() -> None:
    absent = AbsentEntries()
    assert absent.unread_after(at(2), at(9)) == at(2)
    absent.on_read(at(6), [at(4)])
    assert absent.unread_after(at(2), at(9)) == at(6)
    absent.on_read(at(12), [at(8), at(11)])
    assert absent.unread_after(at(2), at(9)) is None
    assert absent.unread_after(at(5), at(12)) is None
    assert absent.unread_after(at(5), at(13)) == at(12)
    assert absent.unread_after(at(1), at(3)) == at(1), "what lies before it was never read"
    assert absent.unread_after(at(40), at(50)) == at(40)


def test_the_first_open_one_is_where_an_update_ends() -> None:
    absent = AbsentEntries()
    absent.unread_after(at(2), at(12))
    absent.on_read(at(12), [at(4), at(8), at(11)])
    assert absent.first_open(at(2), at(12), never) == at(4)
    assert absent.first_open(at(4), at(12), never) == at(8)
    assert absent.first_open(at(2), at(12), lambda position: position == at(4)) == at(8)
    assert absent.first_open(at(2), at(3), never) is None
    assert absent.first_open(at(11), at(12), never) is None


def test_what_is_kept_is_bounded_and_what_is_forgotten_is_read_again() -> None:
    absent = AbsentEntries()
    absent.unread_after(at(0), at(5_000))
    positions = [at(each) for each in range(1, ABSENT_MAX + 1)]
    absent.on_read(at(5_000), positions)
    absent.trim()
    assert absent.unread_after(at(0), at(5_000)) is None
    absent.on_read(at(5_001), [at(5_001)])
    absent.trim()
    assert absent.unread_after(at(1), at(5_001)) is None
    assert absent.unread_after(at(0), at(5_001)) == at(0)
