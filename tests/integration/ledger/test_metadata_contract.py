"""What both metadata stores promise; see magnetar/ledger/metadata/store.py."""

import asyncio

import pytest

from magnetar.ledger.errors import (
    BadVersionError,
    InvalidPathError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    ValueTooLargeError,
)
from magnetar.ledger.metadata import MetadataStore, SessionState, Versioned, WatchEvent
from magnetar.ledger.metadata.call_times import TimedStore
from magnetar.ledger.metadata.store import VALUE_BYTES_MAX
from tests.integration.ledger.metadata_stores import (
    SETTINGS,
    WAIT_S,
    Events,
    Stores,
    owner_process,
    wait_deleted,
)
from tests.waiting import until

# --- nodes ---------------------------------------------------------------------------------------


async def test_a_created_node_has_its_value_and_version_zero(store: MetadataStore) -> None:
    assert await store.create("/a", b"one") == "/a"
    assert await store.get("/a") == Versioned(b"one", 0)
    assert await store.exists("/a") == 0


async def test_calls_are_timed_and_refusals_are_no_failures(store: MetadataStore) -> None:
    assert isinstance(store, TimedStore)
    before = store.call_times.calls()
    await store.create("/timed")
    with pytest.raises(NodeExistsError):
        await store.create("/timed")
    await store.get("/timed")
    found = store.call_times.calls()
    assert (found.writes - before.writes, found.reads - before.reads) == (2, 1)
    assert found.failed == 0
    assert 0 < found.last_s <= found.longest_s
    assert store.call_times.session().times_suspended == 0


async def test_a_value_may_be_empty(store: MetadataStore) -> None:
    await store.create("/a")
    assert await store.get("/a") == Versioned(b"", 0)


async def test_create_makes_missing_parents_without_value(store: MetadataStore) -> None:
    await store.create("/a/b/c", b"leaf")
    assert await store.get("/a/b") == Versioned(b"", 0)
    assert await store.children("/a") == ["b"]


async def test_a_child_is_created_below_a_node_that_exists_only(store: MetadataStore) -> None:
    with pytest.raises(NoNodeError):
        await store.create_child("/a/b", b"leaf")
    assert await store.exists("/a") is None
    await store.create("/a")
    assert await store.create_child("/a/b", b"leaf") == "/a/b"
    assert await store.get("/a/b") == Versioned(b"leaf", 0)
    with pytest.raises(NodeExistsError):
        await store.create_child("/a/b", b"other")
    assert await store.create_child("/c") == "/c"
    await store.create("/short", ephemeral=True)
    with pytest.raises(InvalidPathError):
        await store.create_child("/short/a")


async def test_a_child_is_not_created_below_a_node_that_was_deleted(store: MetadataStore) -> None:
    await store.create("/a")
    await store.delete("/a")
    with pytest.raises(NoNodeError):
        await store.create_child("/a/b", b"leaf")
    assert await store.exists("/a") is None


async def test_create_refuses_a_path_that_is_taken(store: MetadataStore) -> None:
    await store.create("/a", b"first")
    with pytest.raises(NodeExistsError):
        await store.create("/a", b"second")
    with pytest.raises(NodeExistsError):
        await store.create("/", b"root")
    assert (await store.get("/a")).value == b"first"


async def test_one_of_many_creators_of_a_path_wins(stores: Stores) -> None:
    handles = [await stores.open() for _ in range(4)]
    results = await asyncio.gather(
        *(handle.create("/a/b", str(n).encode()) for n, handle in enumerate(handles)),
        return_exceptions=True,
    )
    won = [n for n, result in enumerate(results) if result == "/a/b"]
    assert len(won) == 1
    assert sum(isinstance(result, NodeExistsError) for result in results) == 3
    assert (await handles[0].get("/a/b")).value == str(won[0]).encode()


async def test_who_has_caught_up_sees_what_others_have_written(stores: Stores) -> None:
    writer, reader = await stores.open(), await stores.open()
    for number in range(20):
        await writer.create(f"/caught-up-{number}")
        await reader.catch_up()
        assert await reader.exists(f"/caught-up-{number}") == 0


async def test_set_replaces_the_value_and_counts_the_version(store: MetadataStore) -> None:
    await store.create("/a", b"0")
    assert await store.set("/a", b"1", version=0) == 1
    assert await store.set("/a", b"2", version=1) == 2
    assert await store.get("/a") == Versioned(b"2", 2)


async def test_set_with_an_old_version_changes_nothing(store: MetadataStore) -> None:
    await store.create("/a", b"0")
    await store.set("/a", b"1", version=0)
    with pytest.raises(BadVersionError):
        await store.set("/a", b"lost", version=0)
    with pytest.raises(BadVersionError):
        await store.set("/a", b"lost", version=7)
    assert await store.get("/a") == Versioned(b"1", 1)


async def test_compare_and_set_loses_no_update_of_several_writers(stores: Stores) -> None:
    handles = [await stores.open() for _ in range(3)]
    await handles[0].create("/counter", b"0")

    async def count(handle: MetadataStore) -> None:
        for _ in range(10):
            while True:
                node = await handle.get("/counter")
                try:
                    await handle.set(
                        "/counter", b"%d" % (int(node.value) + 1), version=node.version
                    )
                    break
                except BadVersionError:
                    continue

    await asyncio.gather(*map(count, handles))
    assert await handles[0].get("/counter") == Versioned(b"30", 30)


async def test_delete_removes_a_node_and_a_new_one_starts_at_version_zero(
    store: MetadataStore,
) -> None:
    await store.create("/a")
    await store.set("/a", b"1", version=0)
    await store.delete("/a")
    assert await store.exists("/a") is None
    await store.create("/a")
    assert await store.exists("/a") == 0


async def test_delete_with_an_old_version_removes_nothing(store: MetadataStore) -> None:
    await store.create("/a")
    await store.set("/a", b"1", version=0)
    with pytest.raises(BadVersionError):
        await store.delete("/a", version=0)
    await store.delete("/a", version=1)
    assert await store.exists("/a") is None


async def test_delete_refuses_a_node_with_children(store: MetadataStore) -> None:
    await store.create("/a/b")
    with pytest.raises(NotEmptyError):
        await store.delete("/a")
    assert await store.exists("/a/b") == 0


async def test_what_is_not_there_is_reported_as_such(store: MetadataStore) -> None:
    with pytest.raises(NoNodeError):
        await store.get("/a")
    with pytest.raises(NoNodeError):
        await store.set("/a", b"", version=0)
    with pytest.raises(NoNodeError):
        await store.delete("/a")
    with pytest.raises(NoNodeError):
        await store.children("/a")
    assert await store.exists("/a") is None


async def test_children_are_sorted_names_of_the_next_level(store: MetadataStore) -> None:
    for path in ("/a/c", "/a/b/deeper", "/a/é", "/a/B", "/ab"):
        await store.create(path)
    assert await store.children("/a") == ["B", "b", "c", "é"]
    assert await store.children("/") == ["a", "ab"]
    assert await store.children("/a/c") == []


@pytest.mark.parametrize("path", ["", "a", "/a/", "//a", "/a//b", "/a/./b", "/..", "/a\0", "/\n"])
async def test_a_bad_path_is_refused(store: MetadataStore, path: str) -> None:
    for call in (store.get, store.create, store.exists, store.children, store.delete):
        with pytest.raises(InvalidPathError):
            await call(path)
    with pytest.raises(InvalidPathError):
        store.watch(path, print)


async def test_the_root_is_there_and_stays(store: MetadataStore) -> None:
    assert await store.exists("/") is not None
    with pytest.raises(InvalidPathError):
        await store.delete("/")


async def test_the_largest_value_fits_and_one_byte_more_does_not(store: MetadataStore) -> None:
    await store.create("/a", bytes(VALUE_BYTES_MAX))
    assert len((await store.get("/a")).value) == VALUE_BYTES_MAX
    with pytest.raises(ValueTooLargeError):
        await store.set("/a", bytes(VALUE_BYTES_MAX + 1), version=0)
    with pytest.raises(ValueTooLargeError):
        await store.create("/b", bytes(VALUE_BYTES_MAX + 1))


# --- sequential nodes ----------------------------------------------------------------------------


async def test_sequential_nodes_get_growing_ten_digit_names(store: MetadataStore) -> None:
    paths = [await store.create("/ids/ID-", sequential=True) for _ in range(3)]
    numbers = [int(path.removeprefix("/ids/ID-")) for path in paths]
    assert all(len(path) == len("/ids/ID-") + 10 for path in paths)
    assert numbers == sorted(set(numbers))
    assert await store.children("/ids") == [path.rpartition("/")[2] for path in paths]


async def test_a_sequential_name_may_be_the_digits_alone(store: MetadataStore) -> None:
    path = await store.create("/ids/", sequential=True)
    assert path.removeprefix("/ids/").isdecimal()


async def test_the_sequence_never_goes_back_when_nodes_are_deleted(store: MetadataStore) -> None:
    first = await store.create("/ids/ID-", sequential=True)
    await store.delete(first)
    assert await store.create("/ids/ID-", sequential=True) > first


async def test_sequential_names_that_somebody_took_are_passed_over(store: MetadataStore) -> None:
    """An operator who puts nodes back, say: nobody could vote, or create a ledger, for ever."""
    taken = [f"/ids/ID-{number:010d}" for number in (4, 5, 9)]
    for path in taken:
        await store.create(path, b"an operator's")
    made = [await store.create("/ids/ID-", b"", sequential=True) for _ in range(10)]
    assert made == sorted(set(made) - set(taken))
    assert made[-1] > taken[-1]
    assert await store.children("/ids") == sorted(path[5:] for path in (*made, *taken))
    assert (await store.get(taken[0])).value == b"an operator's"


async def test_sequential_names_are_unique_among_several_creators(stores: Stores) -> None:
    handles = [await stores.open() for _ in range(4)]
    paths = await asyncio.gather(
        *(handle.create("/ids/ID-", sequential=True) for handle in handles for _ in range(10))
    )
    assert len(set(paths)) == 40


# --- sessions ------------------------------------------------------------------------------------


async def test_closing_a_handle_deletes_its_ephemeral_nodes_and_no_others(stores: Stores) -> None:
    mine, other = await stores.open(), await stores.open()
    await mine.create("/mine", ephemeral=True)
    await mine.create("/stays")
    await other.create("/others", ephemeral=True)
    assert await other.exists("/mine") == 0
    await mine.close()
    assert await other.children("/") == ["others", "stays"]


async def test_a_node_tells_whether_it_goes_with_a_session(stores: Stores) -> None:
    mine, other = await stores.open(), await stores.open()
    await mine.create("/goes", b"1", ephemeral=True)
    await mine.create("/stays", b"1")
    await mine.set("/goes", b"2", version=0)
    assert await other.get("/goes") == Versioned(b"2", 1, is_ephemeral=True)
    assert await other.get("/stays") == Versioned(b"1", 0, is_ephemeral=False)


async def test_an_ephemeral_node_has_no_children(store: MetadataStore) -> None:
    await store.create("/a", ephemeral=True)
    with pytest.raises(InvalidPathError):
        await store.create("/a/b")


async def test_an_ephemeral_node_can_be_set_and_deleted(store: MetadataStore) -> None:
    await store.create("/a", b"0", ephemeral=True)
    assert await store.set("/a", b"1", version=0) == 1
    await store.delete("/a", version=1)
    assert await store.exists("/a") is None


async def test_an_ephemeral_node_goes_with_a_killed_process(stores: Stores) -> None:
    store = await stores.open()
    with owner_process(stores.url, "/owned") as owner:
        assert (await store.get("/owned")).value == b"owner"
        owner.kill()
        await wait_deleted(store, "/owned")


async def test_the_session_of_a_process_that_is_stopped_expires_and_it_is_told(
    stores: Stores,
) -> None:
    store = await stores.open()
    with owner_process(stores.url, "/owned") as owner:
        owner.pause()
        await wait_deleted(store, "/owned")
        owner.resume()
        states = [owner.read_line()]
        while states[-1] != "connected":
            states.append(owner.read_line())
        assert "expired" in states
    assert await store.exists("/owned") is None


async def test_a_session_lives_on_without_any_operation(stores: Stores) -> None:
    owner, observer = await stores.open(SETTINGS), await stores.open()
    events = Events()
    await owner.create("/owned", ephemeral=True)
    observer.watch("/owned", events)
    with owner_process(stores.url, "/clock") as other:
        # Another session, stopped now, expires after the timeout; the one that is well does not.
        other.pause()
        await wait_deleted(observer, "/clock")
    assert await observer.exists("/owned") == 0
    assert events.seen == []
    await until(lambda: owner.session_state is SessionState.CONNECTED)


async def test_a_fresh_handle_is_connected_and_knows_its_timeout(stores: Stores) -> None:
    store = await stores.open()
    assert store.session_state is SessionState.CONNECTED
    assert store.session_timeout_ms == stores.settings.session_timeout_ms


async def test_a_closed_handle_answers_unavailable(stores: Stores) -> None:
    store = await stores.open()
    await store.close()
    await store.close()
    with pytest.raises(MetadataUnavailableError):
        await store.get("/a")
    with pytest.raises(MetadataUnavailableError):
        await store.create("/a")
    with pytest.raises(MetadataUnavailableError):
        store.watch("/a", print)


async def test_calls_under_way_when_the_handle_is_closed_end(stores: Stores) -> None:
    store, other = await stores.open(), await stores.open()
    calls = [asyncio.ensure_future(store.create(f"/a{n}")) for n in range(50)]
    await asyncio.sleep(0)  # They start; nothing is waited for.
    await store.close()
    results = await asyncio.gather(*calls, return_exceptions=True)
    made = {result for result in results if isinstance(result, str)}
    assert made <= {f"/{name}" for name in await other.children("/")}


# --- watches -------------------------------------------------------------------------------------


@pytest.fixture(params=["own handle", "another handle"])
async def writer(
    request: pytest.FixtureRequest, stores: Stores, store: MetadataStore
) -> MetadataStore:
    """The store handle that changes what `store` watches."""
    return store if request.param == "own handle" else await stores.open()


async def test_a_watch_tells_the_whole_life_of_a_node(
    store: MetadataStore, writer: MetadataStore
) -> None:
    events = Events()
    store.watch("/a/b", events)
    assert await store.exists("/a/b") is None
    await writer.create("/a/b")
    await events.wait_for(WatchEvent.CREATED)
    await writer.set("/a/b", b"1", version=0)
    await events.wait_for(WatchEvent.CHANGED)
    await writer.set("/a/b", b"2", version=1)
    await events.wait_for(WatchEvent.CHANGED)
    await writer.create("/a/b/c")
    await events.wait_for(WatchEvent.CHILDREN)
    await writer.delete("/a/b/c")
    await events.wait_for(WatchEvent.CHILDREN)
    await writer.delete("/a/b")
    await events.wait_for(WatchEvent.DELETED)
    await writer.create("/a/b")
    await events.wait_for(WatchEvent.CREATED)


async def test_a_watch_on_the_root_sees_its_children(
    store: MetadataStore, writer: MetadataStore
) -> None:
    events = Events()
    store.watch("/", events)
    assert await store.children("/") == []
    await writer.create("/a")
    await events.wait_for(WatchEvent.CHILDREN)


async def test_nothing_is_missed_after_a_read_that_follows_the_watch(
    store: MetadataStore, writer: MetadataStore
) -> None:
    await store.create("/a", b"0")
    for version in range(20):
        events = Events()
        watch = store.watch("/a", events)
        assert (await store.get("/a")).version == version
        await writer.set("/a", b"x", version=version)
        await events.wait_for(WatchEvent.CHANGED)
        watch.close()


async def test_after_the_last_change_there_is_an_event(
    store: MetadataStore, writer: MetadataStore
) -> None:
    """However events merge: whoever looks after each of them ends with the last value."""
    await store.create("/a", b"0")
    looked = asyncio.Queue[WatchEvent]()
    store.watch("/a", looked.put_nowait)
    version = (await store.get("/a")).version

    async def change() -> None:
        for n in range(50):
            await writer.set("/a", b"%d" % n, version=n)

    changing = asyncio.ensure_future(change())
    async with asyncio.timeout(WAIT_S):
        while version < 50:
            await looked.get()
            version = (await store.get("/a")).version
    await changing


async def test_a_node_that_is_deleted_and_created_again_is_noticed(
    store: MetadataStore, writer: MetadataStore
) -> None:
    await store.create("/a", b"0")
    events = Events()
    store.watch("/a", events)
    await store.get("/a")
    await writer.delete("/a")
    await writer.create("/a", b"0")
    await events.wait_for(WatchEvent.DELETED)
    await events.wait_for(WatchEvent.CREATED)


async def test_watches_do_not_hear_of_other_paths_or_grandchildren(store: MetadataStore) -> None:
    await store.create("/a/b")
    near, far = Events(), Events()
    store.watch("/a", far)
    store.watch("/a/b", near)
    await store.get("/a")
    await store.create("/a/b/c")
    await near.wait_for(WatchEvent.CHILDREN)
    await store.create("/ab")
    assert far.seen == []


async def test_a_closed_watch_is_silent_and_its_neighbour_is_not(store: MetadataStore) -> None:
    await store.create("/a")
    closed, kept = Events(), Events()
    watch = store.watch("/a", closed)
    store.watch("/a", kept)
    watch.close()
    watch.close()
    await store.set("/a", b"1", version=0)
    await kept.wait_for(WatchEvent.CHANGED)
    assert closed.seen == []


async def test_a_watch_can_be_closed_from_its_own_callback(store: MetadataStore) -> None:
    await store.create("/a")
    seen = Events()
    kept = Events()

    def once(event: WatchEvent) -> None:
        watch.close()
        seen(event)

    watch = store.watch("/a", once)
    store.watch("/a", kept)
    for version in range(3):
        await store.set("/a", b"", version=version)
        await kept.wait_for(WatchEvent.CHANGED)
    assert seen.seen == [WatchEvent.CHANGED]


async def test_a_callback_that_fails_keeps_no_other_from_its_event(store: MetadataStore) -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: reported.append(context["exception"])
    )

    def fail(event: WatchEvent) -> None:
        raise ZeroDivisionError

    kept = Events()
    await store.create("/a")
    store.watch("/a", fail)
    store.watch("/a", kept)
    await store.set("/a", b"1", version=0)
    await kept.wait_for(WatchEvent.CHANGED)
    assert [type(error) for error in reported] == [ZeroDivisionError]


async def test_the_end_of_a_session_fires_the_watches_on_its_nodes(stores: Stores) -> None:
    store, owner = await stores.open(), await stores.open()
    await owner.create("/owners/one", ephemeral=True)
    node, parent = Events(), Events()
    store.watch("/owners/one", node)
    store.watch("/owners", parent)
    await store.get("/owners/one")
    await owner.close()
    await node.wait_for(WatchEvent.DELETED)
    await parent.wait_for(WatchEvent.CHILDREN)


# --- several handles -----------------------------------------------------------------------------


async def test_handles_see_each_others_changes(stores: Stores) -> None:
    one, two = await stores.open(), await stores.open()
    await one.create("/a", b"one")
    assert (await two.get("/a")).value == b"one"
    await two.set("/a", b"two", version=0)
    assert (await one.get("/a")).value == b"two"
    await one.delete("/a", version=1)
    assert await two.exists("/a") is None


async def test_what_was_written_is_there_when_the_store_is_opened_again(stores: Stores) -> None:
    store = await stores.open()
    await store.create("/a", b"kept")
    await store.create("/ids/ID-", sequential=True)
    await store.close()
    again = await stores.open()
    assert await again.get("/a") == Versioned(b"kept", 0)
    assert len(await again.children("/ids")) == 1
