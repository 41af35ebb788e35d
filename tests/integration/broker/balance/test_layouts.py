"""The layouts of namespaces in a real metadata store: created once, followed, changed by CAS."""

import asyncio
import json
from collections.abc import Callable

import pytest

from magnetar.broker.base.errors import BrokerMetadataError, NotAllowedError
from magnetar.broker.cluster.balance.bundles import BundleError, Layout, middle_of_range
from magnetar.broker.cluster.balance.layouts import Layouts, layout_path
from magnetar.broker.policies.model import NamespaceRecord, namespace_path
from magnetar.ledger.metadata import MetadataStore
from tests.integration.ledger.metadata_stores import WAIT_S, Stores

NAMESPACE = "acme/orders"


@pytest.fixture
async def stores(stores: Stores) -> Stores:
    """With the namespace in them."""
    store = await stores.open()
    await store.create(namespace_path(NAMESPACE), NamespaceRecord().encode())
    return stores


def layouts_on(store: MetadataStore, *, bundles: int = 4, most: int = 128) -> Layouts:
    return Layouts(store, bundles_default=bundles, bundles_max=most)


async def wait_until(holds: Callable[[], bool], changed: asyncio.Event) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():
            changed.clear()
            await changed.wait()


async def test_all_who_ask_first_at_the_same_time_get_one_layout(stores: Stores) -> None:
    asked = [layouts_on(await stores.open(), bundles=count) for count in (2, 3, 4, 5)]
    found = await asyncio.gather(*(each.layout_of(NAMESPACE) for each in asked for _ in range(3)))
    assert len({layout.boundaries for layout in found}) == 1
    stored = json.loads((await (await stores.open()).get(layout_path(NAMESPACE))).value)
    assert stored["format"] == 1
    assert [int(each, 16) for each in stored["boundaries"]] == list(found[0].boundaries)


async def test_a_layout_that_is_known_is_not_read_again(store: MetadataStore) -> None:
    layouts = layouts_on(store)
    await layouts.layout_of(NAMESPACE)
    await layouts.verified(NAMESPACE)  # by now the event of our own creation has come
    await layouts.layout_of(NAMESPACE)
    reads = layouts.reads
    for _ in range(100):
        await layouts.layout_of(NAMESPACE)
    assert layouts.reads <= reads + 1


async def test_a_split_reaches_everybody(stores: Stores) -> None:
    mine, other = layouts_on(await stores.open()), layouts_on(await stores.open())
    changed = asyncio.Event()
    other.on_change(lambda namespace: changed.set())
    await other.layout_of(NAMESPACE)
    bundle = (await mine.layout_of(NAMESPACE)).bundles[1]
    after = await mine.split(NAMESPACE, bundle, middle_of_range(bundle))
    assert await mine.layout_of(NAMESPACE) == after
    assert await mine.verified(NAMESPACE) == after
    async with asyncio.timeout(WAIT_S):
        while await other.layout_of(NAMESPACE) != after:
            changed.clear()
            await changed.wait()


async def test_of_splits_at_the_same_time_none_is_lost(stores: Stores) -> None:
    splitters = [layouts_on(await stores.open()) for _ in range(4)]
    before = await splitters[0].layout_of(NAMESPACE)
    await asyncio.gather(
        *(
            splitter.split(NAMESPACE, bundle, middle_of_range(bundle))
            for splitter, bundle in zip(splitters, before.bundles, strict=True)
        )
    )
    after = await splitters[0].verified(NAMESPACE)
    assert len(after) == 8
    assert set(before.boundaries) <= set(after.boundaries)


async def test_a_split_that_is_heard_of_before_ones_own_is_answered_is_not_forgotten(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await stores.open()
    mine, other = layouts_on(store), layouts_on(await stores.open())
    changed = asyncio.Event()
    mine.on_change(lambda namespace: changed.set())
    first, second, *_ = (await mine.layout_of(NAMESPACE)).bundles
    store_set = store.set

    async def slow(path: str, value: bytes, *, version: int) -> int:
        done = await store_set(path, value, version=version)
        after = await other.split(NAMESPACE, second, middle_of_range(second))
        async with asyncio.timeout(WAIT_S):
            while await mine.layout_of(NAMESPACE) != after:
                changed.clear()
                await changed.wait()
        return done

    monkeypatch.setattr(store, "set", slow)
    await mine.split(NAMESPACE, first, middle_of_range(first))
    assert await mine.layout_of(NAMESPACE) == await other.verified(NAMESPACE)


async def test_a_split_that_was_made_already_is_made(store: MetadataStore) -> None:
    layouts = layouts_on(store)
    bundle = (await layouts.layout_of(NAMESPACE)).bundles[0]
    once = await layouts.split(NAMESPACE, bundle, 0x1000)
    assert await layouts.split(NAMESPACE, bundle, 0x1000) == once
    with pytest.raises(BundleError):
        await layouts.split(NAMESPACE, bundle, 0x2000)


async def test_a_namespace_has_no_more_bundles_than_it_may(store: MetadataStore) -> None:
    layouts = layouts_on(store, bundles=2, most=3)
    first, second = (await layouts.layout_of(NAMESPACE)).bundles
    await layouts.split(NAMESPACE, first, middle_of_range(first))
    with pytest.raises(NotAllowedError, match="3 bundles"):
        await layouts.split(NAMESPACE, second, middle_of_range(second))


async def test_who_looks_while_a_namespace_is_deleted_leaves_no_layout_behind(
    store: MetadataStore,
) -> None:
    """A layout left behind would be that of the next namespace of that name."""
    layouts = layouts_on(store)
    before = await layouts.layout_of(NAMESPACE)
    marked = NamespaceRecord(is_deleted=True)
    await store.set(namespace_path(NAMESPACE), marked.encode(), version=0)
    await store.delete(layout_path(NAMESPACE))
    assert await layouts.verified(NAMESPACE) == before
    with pytest.raises(BrokerMetadataError, match="is being deleted"):
        await layouts.split(NAMESPACE, before.bundles[0], 5)
    await store.delete(namespace_path(NAMESPACE))
    assert await layouts.verified(NAMESPACE) == before
    assert await store.exists(layout_path(NAMESPACE)) is None
    again = layouts_on(store)
    await again.layout_of(NAMESPACE)
    await store.create(namespace_path(NAMESPACE), NamespaceRecord().encode())
    await again.layout_of(NAMESPACE)
    assert await store.exists(layout_path(NAMESPACE)) == 0


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"no json",
        b'{"boundaries": ["0x00000000", "0xffffffff"]}',
        b'{"format": 2, "boundaries": ["0x00000000", "0xffffffff"]}',
        b'{"format": 1, "boundaries": ["0x00000000", "0x80000000"]}',
        b'{"format": 1, "boundaries": ["0x00000000", "0x9", "0xffffffff"]}',
        b'{"format": 1, "boundaries": ["0x00000000", "0x5000_000", "0xffffffff"]}',
    ],
)
async def test_what_is_no_layout_is_refused_in_one_line_and_left_as_it_is(
    value: bytes, store: MetadataStore
) -> None:
    path = layout_path(NAMESPACE)
    await store.create(path, value)
    layouts = layouts_on(store)
    for attempt in (
        layouts.layout_of(NAMESPACE),
        layouts.verified(NAMESPACE),
        layouts.split(NAMESPACE, Layout.even(4).bundles[0], 5),
    ):
        with pytest.raises(BrokerMetadataError) as refused:
            await attempt
        assert path in str(refused.value)
        assert "\n" not in str(refused.value)
    assert (await store.get(path)).value == value


async def test_a_layout_that_is_repaired_is_used_at_once(store: MetadataStore) -> None:
    path = layout_path(NAMESPACE)
    await store.create(path, b"spoiled")
    layouts = layouts_on(store)
    with pytest.raises(BrokerMetadataError):
        await layouts.layout_of(NAMESPACE)
    await store.set(path, b'{"format":1,"boundaries":["0x00000000","0xffffffff"]}', version=0)
    assert len(await layouts.layout_of(NAMESPACE)) == 1
