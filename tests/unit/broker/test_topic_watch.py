"""WATCH_TOPIC_LIST: what matches, what changes, and the bounds of it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from magnetar.broker.base.errors import NotAllowedError
from magnetar.broker.protocol.topic_watchers import TopicPattern, Update, WatchedList
from magnetar.broker.topics.followed_lists import FollowedLists
from magnetar.broker.topics.topic_lists import topics_hash
from magnetar.ledger.metadata.store import WatchEvent
from magnetar.ledger.system import SystemClock
from magnetar.sdk.wire import BaseCommand
from magnetar.sdk.wire import pulsar_pb2 as pb
from tests.dictionary_store import DictionaryStore
from tests.unit.broker.harness import Client, Harness
from tests.waiting import settle, until

_NAMESPACE = "public/default"


def _full(*names: str) -> list[str]:
    return [f"persistent://{_NAMESPACE}/{each}" for each in names]


# Patterns


@pytest.mark.parametrize(
    ("pattern", "matching"),
    [
        ("public/default/a.*", ["a", "ab", "ab-partition-0"]),
        ("persistent://public/default/a.*", ["a", "ab", "ab-partition-0"]),
        ("public/default/a", ["a"]),
        ("public/default/ab", ["ab", "ab-partition-0"]),
        ("default/a", []),
        (".*-partition-0", []),
        (".*", ["a", "ab", "ab-partition-0", "c"]),
    ],
)
def test_a_pattern_is_matched_against_the_whole_name_without_its_partition(
    pattern: str, matching: list[str]
) -> None:
    names = _full("a", "ab", "ab-partition-0", "c")
    assert TopicPattern(pattern, length_max=50).matching(names) == _full(*matching)


def test_a_pattern_has_a_length() -> None:
    TopicPattern("x" * 50, length_max=50)
    with pytest.raises(NotAllowedError, match="51 characters; the limit is 50"):
        TopicPattern("x" * 51, length_max=50)


@pytest.mark.parametrize("pattern", ["(", "a(?=b)", "[", r"(a)\1"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(NotAllowedError, match="is not a valid RE2 pattern"):
        TopicPattern(pattern, length_max=50)


def test_no_pattern_takes_more_than_linear_time() -> None:
    pattern = TopicPattern("(a+)+b", length_max=50)
    assert pattern.matching([f"persistent://{'a' * 5000}"]) == []  # for ever, with backtracking


# What is told


def _watched(*names: str) -> WatchedList:
    return WatchedList(TopicPattern("public/default/a.*", length_max=50), _full(*names))


def test_changes_are_told_once_with_the_hash_that_follows() -> None:
    watched = _watched("a1", "a2")
    watched.change(_full("a3", "b"), _full("a1", "c"))
    assert watched.has_news
    (update,) = watched.take_updates(1000)
    assert update == Update(_full("a3"), _full("a1"), topics_hash(_full("a2", "a3")))
    assert not watched.has_news
    assert watched.names == _full("a2", "a3")


def test_what_came_and_went_untold_is_not_told() -> None:
    watched = _watched("a1")
    watched.change(_full("a2"), _full("a1"))
    watched.change(_full("a1"), _full("a2"))
    assert not watched.has_news


def test_pieces_fit_and_each_has_the_hash_of_the_list_by_then() -> None:
    watched = _watched("a1")
    watched.change(_full("a2", "a3"), _full("a1"))
    size = len(_full("a1")[0]) + 4
    assert len(list(WatchedList.take_updates(_changed(), 3 * size))) == 1
    pieces = list(watched.take_updates(3 * size - 1))
    assert [(each.new, each.deleted) for each in pieces] == [
        (_full("a2", "a3"), []),
        ([], _full("a1")),
    ]
    assert pieces[0].topics_hash == topics_hash(_full("a1", "a2", "a3"))
    assert pieces[1].topics_hash == topics_hash(_full("a2", "a3"))


def _changed() -> WatchedList:
    watched = _watched("a1")
    watched.change(_full("a2", "a3"), _full("a1"))
    return watched


# On the wire


class _Scene:
    """A namespace whose topics the test decides on, and clients that watch it."""

    def __init__(self, **settings: Any) -> None:
        self.harness = Harness(**{"topic_list_pause_ms": 0, **settings})
        self.names: list[str] = []
        self.watches: list[Callable[[WatchEvent], None]] = []
        self.reads = 0
        self._read = asyncio.Event()
        lists = self.harness.services.topic_lists
        lists._list_names = self._list
        self.harness.store.watch = self._watch  # type: ignore[assignment, method-assign]

    async def _list(self, _namespace: str) -> list[str]:
        self.reads += 1
        self._read.set()
        return sorted(self.names)

    async def is_read(self) -> None:
        """The next reading of the list has been done, and everybody heard of it."""
        self._read.clear()
        await self._read.wait()
        await settle()

    def _watch(self, _path: str, callback: Callable[[WatchEvent], None]) -> Any:
        self.watches.append(callback)
        scene = self

        class Watch:
            def close(self) -> None:
                scene.watches.remove(callback)

        return Watch()

    def now(self, *names: str) -> None:
        """Replace the topics that exist, and tell all watches."""
        self.names = _full(*names)
        for callback in list(self.watches):
            callback(WatchEvent.CHILDREN)

    def client(self) -> Client:
        return self.harness.client()


def _ask(client: Client, pattern: str = "public/default/a.*", **fields: Any) -> None:
    known = {"request_id": 7, "watcher_id": 1, "namespace": _NAMESPACE, **fields}
    client.send(
        BaseCommand.WATCH_TOPIC_LIST,
        watchTopicList=pb.CommandWatchTopicList(topics_pattern=pattern, **known),
    )


async def _watch(client: Client, **fields: Any) -> pb.CommandWatchTopicListSuccess:
    _ask(client, **fields)
    command = await client.next()
    assert command.type == BaseCommand.WATCH_TOPIC_LIST_SUCCESS
    return command.watchTopicListSuccess


async def _update(client: Client) -> tuple[list[str], list[str], str]:
    update = (await client.next()).watchTopicUpdate
    assert update.watcher_id == 1
    return list(update.new_topics), list(update.deleted_topics), update.topics_hash


async def test_a_watcher_is_told_what_matches_and_then_what_changes() -> None:
    scene = _Scene()
    scene.now("a1", "b")
    client = scene.client()
    answer = await _watch(client)
    assert (answer.request_id, answer.watcher_id) == (7, 1)
    assert list(answer.topic) == _full("a1")
    assert answer.topics_hash == topics_hash(_full("a1"))
    scene.now("a1", "a2", "b", "b2")
    assert await _update(client) == (_full("a2"), [], topics_hash(_full("a1", "a2")))
    scene.now("a2", "b")
    assert await _update(client) == ([], _full("a1"), topics_hash(_full("a2")))


async def test_a_client_that_knows_the_list_is_not_told_it_again() -> None:
    scene = _Scene()
    scene.now("a1")
    client = scene.client()
    answer = await _watch(client, topics_hash=topics_hash(_full("a1")))
    assert list(answer.topic) == []
    assert answer.topics_hash == topics_hash(_full("a1"))
    scene.now("a1", "a2")
    assert (await _update(client))[0] == _full("a2")


async def test_the_same_watcher_again_begins_anew() -> None:
    scene = _Scene()
    scene.now("a1")
    client = scene.client()
    await _watch(client)
    answer = await _watch(client, request_id=8, pattern="public/default/b.*")
    assert (answer.request_id, list(answer.topic)) == (8, [])
    scene.now("a2", "b2")
    assert (await _update(client))[:2] == (_full("b2"), [])
    assert len(scene.watches) == 1


async def test_one_list_serves_all_watchers_until_the_last_one_leaves() -> None:
    scene = _Scene()
    scene.now("a1")
    first, second = scene.client(), scene.client()
    await _watch(first)
    await _watch(second)
    assert (len(scene.watches), scene.reads) == (1, 1)
    first.send(
        BaseCommand.WATCH_TOPIC_LIST_CLOSE,
        watchTopicListClose=pb.CommandWatchTopicListClose(request_id=9, watcher_id=1),
    )
    assert (await first.next()).success.request_id == 9
    scene.now("a2")
    assert (await _update(second))[:2] == (_full("a2"), _full("a1"))
    assert first.received() == []
    second.connection.lost()
    assert not scene.watches
    assert len(scene.harness.services.topic_lists) == 0


async def test_a_client_that_does_not_read_is_told_all_at_once_later() -> None:
    scene = _Scene()
    scene.now("a1")
    client = scene.client()
    await _watch(client)
    client.connection.on_writable(False)
    for names in (("a1", "a2"), ("a1", "a2", "a3"), ("a2", "a3", "a4")):
        scene.now(*names)
        await scene.is_read()
    assert client.received() == []
    client.connection.on_writable(True)
    assert (await _update(client))[:2] == (_full("a2", "a3", "a4"), _full("a1"))


async def test_closing_a_watcher_that_is_not_there_succeeds() -> None:
    client = Harness().client()
    client.send(
        BaseCommand.WATCH_TOPIC_LIST_CLOSE,
        watchTopicListClose=pb.CommandWatchTopicListClose(request_id=9, watcher_id=4),
    )
    assert (await client.next()).success.request_id == 9


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"pattern": "x" * 51}, pb.ServerError.NotAllowedError),
        ({"pattern": "("}, pb.ServerError.NotAllowedError),
        ({"namespace": "nonsense"}, pb.ServerError.TopicNotFound),
    ],
)
async def test_what_cannot_be_watched_is_refused_and_takes_no_place(
    fields: dict[str, Any], code: pb.ServerError
) -> None:
    scene = _Scene(topic_watchers_per_connection_max=1)
    client = scene.client()
    _ask(client, **fields)
    error = (await client.next()).error
    assert (error.request_id, error.error) == (7, code)
    assert not scene.watches
    assert await _watch(client)


async def test_a_connection_has_so_many_watchers_and_no_more() -> None:
    scene = _Scene(topic_watchers_per_connection_max=2)
    client = scene.client()
    await _watch(client, watcher_id=1)
    await _watch(client, watcher_id=2)
    _ask(client, watcher_id=3)
    error = (await client.next()).error
    assert error.error == pb.ServerError.NotAllowedError
    await _watch(client, watcher_id=2)  # in the place of the former


async def test_a_watcher_that_is_closed_while_it_begins_is_none() -> None:
    scene = _Scene()
    client = scene.client()
    _ask(client)
    client.send(
        BaseCommand.WATCH_TOPIC_LIST_CLOSE,
        watchTopicListClose=pb.CommandWatchTopicListClose(request_id=9, watcher_id=1),
    )
    assert (await client.next()).success.request_id == 9
    assert (await client.next()).error.request_id == 7
    assert not scene.watches


async def test_topics_of_the_cluster_itself_are_not_told() -> None:
    scene = _Scene()
    scene.now("a1", "a__transaction_pending_ack")
    assert list((await _watch(scene.client())).topic) == _full("a1")


class _Hands(SystemClock):
    """A clock that goes on when the test says so."""

    now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s


async def test_thousands_of_listeners_are_told_in_turns_and_each_in_order() -> None:
    clock, store = _Hands(), DictionaryStore()
    names: list[str] = []

    async def list_names(namespace: str) -> list[str]:
        return _full(*names)

    lists = FollowedLists(store, list_names, clock, pause_ms=0)
    heard: dict[int, list[Sequence[str]]] = {number: [] for number in range(1000)}

    def listener(number: int) -> Callable[[Sequence[str], Sequence[str]], None]:
        def hear(new: Sequence[str], deleted: Sequence[str]) -> None:
            clock.now_s += 0.001
            heard[number].append(new)

        return hear

    listeners = [listener(number) for number in heard]
    for each in listeners:
        followed = lists.join(_NAMESPACE, each)
    await followed.names()
    followed._changed([], _full("a"))
    assert sum(map(len, heard.values())) <= 6
    followed._changed(_full("a"), _full("a", "b"))
    lists.leave(_NAMESPACE, listeners[-1])
    await until(lambda: len(heard[998]) == 2, "the last one has heard of both")
    assert {tuple(map(tuple, each)) for each in list(heard.values())[:-1]} == {
        (tuple(_full("a")), tuple(_full("b")))
    }
    assert heard[999] == []
