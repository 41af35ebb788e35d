"""Registration records: what a bookie writes is read back, all else is passed over and logged.

The registry reads what anybody may have written below its node; one bad record must neither hide
the others nor be taken for an address.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hypothesis import given
from hypothesis import strategies as st

from magnetar.ledger.errors import InvalidPathError
from magnetar.ledger.registration import BookieInfo, BookieRegistry
from tests.dictionary_store import DictionaryStore


@asynccontextmanager
async def view_of(store: DictionaryStore) -> AsyncIterator[BookieRegistry]:
    registry = BookieRegistry(store)
    await registry.start()
    try:
        yield registry
    finally:
        await registry.close()


bookie_ids = st.text("abcXYZ019.-:", min_size=1, max_size=12)
hosts = st.text(min_size=1, max_size=20)
infos = st.builds(BookieInfo, bookie_ids, hosts, st.integers(1, 65_535), st.booleans())


@given(st.lists(infos, max_size=5, unique_by=lambda info: info.bookie_id))
def test_what_bookies_register_is_what_clients_see(registered: list[BookieInfo]) -> None:
    async def run() -> None:
        store = DictionaryStore()
        registry = BookieRegistry(store)
        for info in registered:
            await registry.register(info, wait_s=0)
        async with view_of(store) as view:
            for info in registered:
                assert view.resolve(info.bookie_id) == info
            assert set(view.writable()) == {
                info.bookie_id for info in registered if not info.readonly
            }

    asyncio.run(run())


JSON_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 70_000),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=2),
)
damaged = st.one_of(
    st.binary(max_size=60),
    st.dictionaries(st.sampled_from(["host", "port", "extra"]), JSON_VALUES).map(
        lambda value: json.dumps(value).encode()
    ),
)


@given(st.dictionaries(bookie_ids, damaged, max_size=4))
def test_a_bad_record_is_passed_over_and_hides_nobody(values: dict[str, bytes]) -> None:
    async def run() -> None:
        store = DictionaryStore()
        good = BookieInfo("good", "host", 1, readonly=False)
        for bookie_id, value in values.items():
            store.nodes[f"/ledgers/available/{bookie_id}"] = value
        await BookieRegistry(store).register(good, wait_s=0)
        async with view_of(store) as view:
            assert view.resolve("good") == good
            for bookie_id, value in values.items():
                found = view.resolve(bookie_id)
                if found is not None:
                    said = json.loads(value)
                    assert (found.host, found.port) == (said["host"], said["port"])
                    assert found.host
                    assert 0 < found.port < 65_536

    asyncio.run(run())


@given(st.text(max_size=12))
def test_only_a_bookie_id_can_be_registered(text: str) -> None:
    async def run() -> None:
        store = DictionaryStore()
        try:
            await BookieRegistry(store).register(BookieInfo(text, "host", 1, False), wait_s=0)
        except InvalidPathError:
            assert store.nodes == {}
        else:
            assert list(store.nodes) == [f"/ledgers/available/{text}"]
            assert "/" not in text

    asyncio.run(run())
