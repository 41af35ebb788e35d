"""The bookie registry on both stores: registrations, cookies, the cluster's id."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from magnetar.ledger.errors import (
    BadVersionError,
    InvalidPathError,
    NodeExistsError,
    NoNodeError,
)
from magnetar.ledger.metadata import MetadataStore, Versioned
from magnetar.ledger.registration import BookieInfo, BookieRegistry
from tests.integration.ledger.metadata_stores import WAIT_S, Stores

B1 = BookieInfo("b1", "127.0.0.1", 3181, readonly=False)
B2 = BookieInfo("b2", "127.0.0.1", 3182, readonly=False)


class View:
    """A started registry, and its changes."""

    def __init__(self, store: MetadataStore) -> None:
        self.registry = BookieRegistry(store)
        self._changed = asyncio.Event()

    async def start(self) -> None:
        self.registry.on_change(self._changed.set)
        await self.registry.start()

    async def wait_writable(self, *names: str) -> None:
        await self.wait_until(lambda: set(self.registry.writable()) == set(names))

    async def wait_until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not is_so():
                self._changed.clear()
                await self._changed.wait()


@pytest.fixture
async def view(stores: Stores) -> View:
    view = View(await stores.open())
    await view.start()
    return view


async def test_bookies_come_and_go_with_their_registrations(stores: Stores, view: View) -> None:
    one, two = await stores.open(), await stores.open()
    assert view.registry.writable() == {}
    await BookieRegistry(one).register(B1)
    await BookieRegistry(two).register(B2)
    await view.wait_writable("b1", "b2")
    assert view.registry.resolve("b1") == B1
    await one.close()
    await view.wait_writable("b2")
    assert view.registry.resolve("b1") is None
    await BookieRegistry(two).unregister("b2")
    await view.wait_writable()
    await view.registry.close()


async def test_a_registry_knows_at_start_who_was_there_before(stores: Stores) -> None:
    store = await stores.open()
    await BookieRegistry(store).register(B1)
    view = View(await stores.open())
    await view.start()
    assert view.registry.writable() == {"b1": B1}
    await view.registry.close()


async def test_a_readonly_bookie_can_be_reached_but_takes_no_new_ledgers(
    stores: Stores, view: View
) -> None:
    registry = BookieRegistry(await stores.open())
    await registry.register(B1)
    await view.wait_writable("b1")
    readonly = BookieInfo("b1", "127.0.0.1", 3181, readonly=True)
    await registry.register(readonly)
    await view.wait_writable()
    await view.wait_until(lambda: view.registry.resolve("b1") == readonly)
    await registry.register(B1)
    await view.wait_writable("b1")
    await view.registry.close()


@pytest.mark.parametrize("readonly", [True, False])
async def test_b22_a_reader_never_misses_a_bookie_that_changes_its_kind(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch, readonly: bool
) -> None:
    """The kind changes between any two steps of the listing: the bookie is in the result."""
    registry = BookieRegistry(store)
    before, after = replace(B1, readonly=not readonly), replace(B1, readonly=readonly)
    for moment in range(10):
        await registry.register(before)
        calls = 0

        async def change_at_the_moment() -> None:
            nonlocal calls
            calls += 1
            if calls == moment:  # noqa: B023
                monkeypatch.undo()
                await registry.register(after)

        def with_a_change(name: str) -> None:
            call: Callable[..., Awaitable[object]] = getattr(store, name)

            async def changed(*args: object) -> object:
                await change_at_the_moment()
                return await call(*args)

            monkeypatch.setattr(store, name, changed)

        with_a_change("children")
        with_a_change("get")
        view = BookieRegistry(store)
        await view.start()
        assert view.resolve("b1") is not None, moment
        await view.close()
        monkeypatch.undo()


async def test_a_restarted_bookie_replaces_its_own_registration_at_once(
    stores: Stores, view: View
) -> None:
    before, after = await stores.open(), await stores.open()
    await BookieRegistry(before).register(B1)
    await BookieRegistry(after).register(B1)
    await before.close()
    await view.wait_writable("b1")
    assert await after.exists("/ledgers/available/b1") == 0
    await view.registry.close()


async def test_a_bookie_waits_for_another_of_its_name_to_go(stores: Stores) -> None:
    before, after = await stores.open(), await stores.open()
    await BookieRegistry(before).register(B1)
    moved = BookieInfo("b1", "127.0.0.1", 4000, readonly=False)
    registering = asyncio.ensure_future(BookieRegistry(after).register(moved, wait_s=WAIT_S))
    assert await after.exists("/ledgers/available/b1") == 0
    await before.close()
    await registering
    assert b"4000" in (await after.get("/ledgers/available/b1")).value


async def test_a_bookie_that_runs_twice_is_refused(stores: Stores) -> None:
    before, after = await stores.open(), await stores.open()
    await BookieRegistry(before).register(B1)
    with pytest.raises(NodeExistsError, match="running twice"):
        await BookieRegistry(after).register(
            BookieInfo("b1", "127.0.0.1", 4000, readonly=False), wait_s=0.1
        )
    assert b"3181" in (await before.get("/ledgers/available/b1")).value


@pytest.mark.parametrize("name", ["", "readonly", "a/b", "b 1", "é", "x" * 256])
async def test_a_bad_bookie_id_is_refused(store: MetadataStore, name: str) -> None:
    with pytest.raises(InvalidPathError):
        await BookieRegistry(store).register(BookieInfo(name, "h", 1, readonly=False))


async def test_a_registration_nobody_can_read_hides_no_other(stores: Stores, view: View) -> None:
    store = await stores.open()
    await store.create("/ledgers/available/bad", b"not json", ephemeral=True)
    await BookieRegistry(store).register(B1)
    await view.wait_writable("b1")
    await view.registry.close()


@pytest.mark.parametrize("readonly", [True, False])
async def test_a_registration_nobody_can_read_is_replaced_even_if_it_goes_meanwhile(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch, readonly: bool
) -> None:
    path = "/ledgers/available/readonly/b1" if readonly else "/ledgers/available/b1"
    await store.create(path, b"not json")
    get = store.get

    async def get_just_before_it_goes(path: str) -> Versioned:
        node = await get(path)
        if node.value == b"not json":
            await store.delete(path)
        return node

    monkeypatch.setattr(store, "get", get_just_before_it_goes)
    await BookieRegistry(store).register(replace(B1, readonly=readonly))
    assert (await get(path)).value != b"not json"


async def test_cookies_are_created_once_and_replaced_by_version(store: MetadataStore) -> None:
    registry = BookieRegistry(store)
    assert await registry.read_cookie("b1") is None
    assert await registry.write_cookie("b1", b"one", None) == 0
    with pytest.raises(NodeExistsError):
        await registry.write_cookie("b1", b"two", None)
    assert await registry.write_cookie("b1", b"two", 0) == 1
    with pytest.raises(BadVersionError):
        await registry.write_cookie("b1", b"three", 0)
    with pytest.raises(NoNodeError):
        await registry.write_cookie("b2", b"x", 0)
    cookie = await registry.read_cookie("b1")
    assert cookie is not None
    assert cookie.value == b"two"


async def test_a_cookie_outlives_its_bookie(stores: Stores) -> None:
    one = await stores.open()
    await BookieRegistry(one).write_cookie("b1", b"one", None)
    await one.close()
    assert await BookieRegistry(await stores.open()).read_cookie("b1") is not None


async def test_all_agree_on_the_clusters_id(stores: Stores) -> None:
    handles = [await stores.open() for _ in range(4)]
    ids = await asyncio.gather(*(BookieRegistry(handle).instance_id() for handle in handles))
    assert len(set(ids)) == 1
    assert len(ids[0]) == 32


async def test_a_bookie_that_takes_too_small_requests_is_known_and_gets_no_new_ledgers(
    stores: Stores,
) -> None:
    store = await stores.open()
    registry = BookieRegistry(store, frame_bytes_min=2000)
    await BookieRegistry(store).register(B1)
    await BookieRegistry(store).register(replace(B2, frame_bytes_max=1999))
    await BookieRegistry(store).register(replace(B2, bookie_id="b3", frame_bytes_max=2000))
    await registry.start()
    assert set(registry.writable()) == {"b1", "b3"}
    assert set(registry.too_narrow()) == {"b2"}
    assert registry.resolve("b2") == replace(B2, frame_bytes_max=1999)
    await registry.close()
