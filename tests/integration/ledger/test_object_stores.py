"""The promises of `ObjectStore`, for each kind of store: a directory, memory, a server that speaks
S3."""

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from magnetar.ledger.errors import (
    ObjectDamagedError,
    ObjectMissingError,
    ObjectStoreRefusedError,
)
from magnetar.ledger.offloading.object_store import (
    KEY_BYTES_MAX,
    FolderStore,
    ObjectStore,
    ObjectTail,
    create_or_match,
)
from magnetar.ledger.offloading.settings import ObjectStoreSettings
from magnetar.ledger.offloading.stores import check_store, open_object_store
from tests.s3_server import S3Server

BUCKET = "ledgers"
PART_BYTES = 5 << 20
MIB = 1 << 20


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(tmp_path_factory.mktemp("moto"))
    server.create_bucket(BUCKET)
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "anybody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "anything")


def s3_settings(server: S3Server, url: str) -> ObjectStoreSettings:
    return ObjectStoreSettings(
        name="cold", url=url, endpoint=server.endpoint, allow_http=True, part_bytes=PART_BYTES
    )


@pytest.fixture(params=["directory", "memory", "s3"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FolderStore]:
    """An empty store of each kind."""
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3")
        settings = s3_settings(server, f"s3://{BUCKET}/{tmp_path.name}")
    elif request.param == "memory":
        settings = ObjectStoreSettings(name="cold", url="memory://", part_bytes=PART_BYTES)
    else:
        settings = ObjectStoreSettings(name="cold", url=f"file://{tmp_path}/objects")
    opened = open_object_store(settings)
    yield opened
    await opened.close()


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for each in data:
        yield each


async def keys(store: ObjectStore, prefix: str = "") -> list[str]:
    return [each.key async for some in store.list(prefix) for each in some]


async def put_many(store: ObjectStore, names: Sequence[str]) -> None:
    for at in range(0, len(names), 50):
        some = names[at : at + 50]
        await asyncio.gather(*(store.put(name, pieces(b"x")) for name in some))


async def test_an_object_is_what_its_pieces_were(store: ObjectStore) -> None:
    assert await store.put("a/b/1.mgo", pieces(b"one", b"", b"two")) == 6
    assert await store.get("a/b/1.mgo", 0, 6) == b"onetwo"
    assert await store.get("a/b/1.mgo", 2, 4) == b"et"
    assert await store.get("a/b/1.mgo", 3, 3) == b""
    assert await store.tail("a/b/1.mgo", 3) == ObjectTail(b"two", 6)
    assert await store.tail("a/b/1.mgo", 6) == ObjectTail(b"onetwo", 6)
    assert await store.tail("a/b/1.mgo", 100) == ObjectTail(b"onetwo", 6)
    assert await store.tail("a/b/1.mgo", 0) == ObjectTail(b"", 6)


async def test_an_object_may_be_empty(store: ObjectStore) -> None:
    assert await store.put("a", pieces()) == 0
    assert await store.tail("a", 100) == ObjectTail(b"", 0)
    with pytest.raises(ObjectDamagedError):
        await store.get("a", 0, 1)


@pytest.mark.parametrize("piece_bytes", [MIB, 7 * MIB, 20 * MIB])
async def test_a_large_object_is_what_its_pieces_were(store: ObjectStore, piece_bytes: int) -> None:
    data = random.Random(piece_bytes).randbytes(20 * MIB + 1)
    cut = [data[at : at + piece_bytes] for at in range(0, len(data), piece_bytes)]
    assert await store.put("large", pieces(*cut), expected_bytes=len(data)) == len(data)
    whole = await store.get("large", 0, len(data))
    assert hashlib.sha256(whole).digest() == hashlib.sha256(data).digest()
    assert (
        await store.get("large", PART_BYTES - 1, PART_BYTES + 1)
        == data[PART_BYTES - 1 : PART_BYTES + 1]
    )
    assert await store.tail("large", 100) == ObjectTail(data[-100:], len(data))


@pytest.mark.parametrize("made_bytes", [0, MIB, 12 * MIB])
async def test_what_fails_on_the_way_leaves_nothing(
    store: ObjectStore, s3: S3Server, made_bytes: int
) -> None:
    async def failing() -> AsyncIterator[bytes]:
        for _ in range(made_bytes // MIB):
            yield bytes(MIB)
        raise ConnectionResetError("no more")

    with pytest.raises(ConnectionResetError, match="no more"):
        await store.put("a/1", failing())
    assert await keys(store) == []
    assert s3.unfinished_uploads(BUCKET) == 0


async def test_what_is_cancelled_on_the_way_leaves_nothing(
    store: ObjectStore, s3: S3Server
) -> None:
    reached = asyncio.Event()

    async def stuck() -> AsyncIterator[bytes]:
        for _ in range(12):
            yield bytes(MIB)
        reached.set()
        await asyncio.Event().wait()

    writing = asyncio.ensure_future(store.put("a/1", stuck()))
    await reached.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    await store.close()
    assert await keys(store) == []
    assert s3.unfinished_uploads(BUCKET) == 0


async def test_an_object_is_not_listed_before_it_is_whole(store: ObjectStore) -> None:
    seen: list[list[str]] = []

    async def watched() -> AsyncIterator[bytes]:
        for _ in range(12):
            yield bytes(MIB)
        seen.append(await keys(store))

    await store.put("a/1", watched())
    assert seen == [[]]
    assert await keys(store) == ["a/1"]


async def test_pieces_are_made_in_the_task_of_the_writer(store: ObjectStore) -> None:
    tasks = set()

    async def made() -> AsyncIterator[bytes]:
        async with asyncio.timeout(60):
            for _ in range(12):
                tasks.add(asyncio.current_task())
                yield bytes(MIB)

    await store.put("a/1", made())
    assert tasks == {asyncio.current_task()}


async def test_only_the_first_creates(store: ObjectStore) -> None:
    created = await asyncio.gather(*(store.create("owner.json", b"%d" % n) for n in range(5)))
    assert sorted(created) == [False, False, False, False, True]
    assert await store.get("owner.json", 0, 1) == b"%d" % created.index(True)
    assert not await store.create("owner.json", b"another")
    assert await keys(store) == ["owner.json"]


async def test_an_object_that_exists_is_compared_with_what_was_to_be_created(
    store: ObjectStore,
) -> None:
    assert await create_or_match(store, "owner.json", b"mine")
    assert await create_or_match(store, "owner.json", b"mine")
    assert not await create_or_match(store, "owner.json", b"other")
    assert not await create_or_match(store, "owner.json", b"ine")
    assert not await create_or_match(store, "owner.json", b"mine, too")


async def test_what_is_not_there_is_missing(store: ObjectStore) -> None:
    await store.put("a/1", pieces(b"x"))
    for key in ("a/2", "a", "b/1"):
        with pytest.raises(ObjectMissingError):
            await store.tail(key, 1)
        with pytest.raises(ObjectMissingError):
            await store.tail(key, 0)
        with pytest.raises(ObjectMissingError):
            await store.get(key, 0, 1)
        with pytest.raises(ObjectMissingError):
            await store.get(key, 0, 0)


@pytest.mark.parametrize(("start", "end"), [(1, 5), (2, 4), (3, 5), (100, 101)])
async def test_an_object_that_ends_before_what_is_asked_for_is_damaged(
    store: ObjectStore, start: int, end: int
) -> None:
    await store.put("a", pieces(b"abc"))
    with pytest.raises(ObjectDamagedError):
        await store.get("a", start, end)


async def test_objects_are_listed_by_prefix_in_order(store: ObjectStore) -> None:
    for key in ("b/2", "a/1", "b/10", "bc/1", "c"):
        await store.put(key, pieces(key.encode()))
    assert await keys(store) == ["a/1", "b/10", "b/2", "bc/1", "c"]
    assert await keys(store, "b") == ["b/10", "b/2", "bc/1"]
    assert await keys(store, "b/") == ["b/10", "b/2"]
    assert await keys(store, "b/1") == ["b/10"]
    assert await keys(store, "b/3") == []
    assert await keys(store, "d/") == []
    (found,) = [each async for some in store.list("c") for each in some]
    assert found.size_bytes == 1
    assert found.written_ms > 1_600_000_000_000


async def test_more_keys_than_an_answer_holds_are_listed_and_deleted(store: ObjectStore) -> None:
    names = [f"some/{number:04}" for number in range(1_002)]
    await put_many(store, [*names, "other"])
    assert await keys(store, "some/") == names
    assert await keys(store, "some/100") == ["some/1000", "some/1001"]
    await store.delete(names)
    assert await keys(store) == ["other"]


async def test_a_folder_tells_the_folders_in_it_and_not_what_is_in_those(
    store: FolderStore,
) -> None:
    for key in ("p/a%2Fb%25C3/x/1", "p/a%2Fb%25C3/y/2", "p/b/1", "p/c.json", "pq/1"):
        assert await store.create(key, b"x")
    assert list(await store.folders("")) == ["p", "pq"]
    assert list(await store.folders("p/")) == ["a%2Fb%25C3", "b"]
    assert list(await store.folders("p/a%2Fb%25C3/")) == ["x", "y"]
    for without_any in ("p/b/", "nothing/"):
        assert list(await store.folders(without_any)) == []


async def test_more_folders_than_an_answer_holds_are_told(store: FolderStore) -> None:
    names = [f"{number:05d}" for number in range(1_100)]
    for at in range(0, len(names), 50):
        await asyncio.gather(*(store.create(f"many/{each}/x", b"") for each in names[at : at + 50]))
    assert list(await store.folders("many/")) == names


async def test_a_key_comes_back_as_it_was_given(store: ObjectStore) -> None:
    names = sorted(f"a%2Fb/{sign}1" for sign in "AZaz09!$%&'()+,-.:;=@_ ")
    for name in names:
        await store.put(name, pieces(name.encode()))
    assert await keys(store) == names
    assert await keys(store, "a%2Fb/%") == ["a%2Fb/%1"]
    for name in names:
        assert await store.get(name, 0, len(name)) == name.encode()
    await store.delete(names)
    assert await keys(store) == []


async def test_what_is_deleted_is_gone_and_may_be_deleted_again(store: ObjectStore) -> None:
    await put_many(store, ["a/b/1", "a/2"])
    await store.delete(["a/b/1", "a/b/1", "never"])
    await store.delete(["never"])
    await store.delete([])
    assert await keys(store) == ["a/2"]
    with pytest.raises(ObjectMissingError):
        await store.get("a/b/1", 0, 1)


@pytest.mark.parametrize(
    "key", ["", "/a", "a/", "a//b", "../a", "a/../b", "a/.", "ä", "a~b", "a" * (KEY_BYTES_MAX + 1)]
)
async def test_what_cannot_be_a_key_is_refused(store: ObjectStore, key: str) -> None:
    with pytest.raises(ObjectStoreRefusedError):
        await store.put(key, pieces(b"x"))
    with pytest.raises(ObjectStoreRefusedError):
        await store.create(key, b"x")
    with pytest.raises(ObjectStoreRefusedError):
        await store.get(key, 0, 1)
    with pytest.raises(ObjectStoreRefusedError):
        await store.tail(key, 1)
    with pytest.raises(ObjectStoreRefusedError):
        await store.delete([key])


async def test_a_store_that_works_passes_its_check_and_keeps_nothing_of_it(
    store: ObjectStore,
) -> None:
    await check_store(store, name="cold", random=random.Random(1))
    assert await keys(store) == []


async def test_a_missing_bucket_is_no_missing_object(s3: S3Server) -> None:
    store = open_object_store(s3_settings(s3, "s3://nowhere/prefix"))
    says = r"there is no bucket nowhere .*Create it"
    with pytest.raises(ObjectStoreRefusedError, match=says):
        await store.get("a", 0, 1)
    with pytest.raises(ObjectStoreRefusedError, match=r"nowhere"):
        await store.get("a", 0, 0)
    with pytest.raises(ObjectStoreRefusedError, match=says):
        await store.tail("a", 1)
    with pytest.raises(ObjectStoreRefusedError, match=says):
        await store.put("a", pieces(b"x"))
    with pytest.raises(ObjectStoreRefusedError, match=says):
        await store.put("a", pieces(bytes(6 * MIB)))
    with pytest.raises(ObjectStoreRefusedError, match=says):
        await store.create("a", b"x")
    with pytest.raises(ObjectStoreRefusedError, match=says):
        await store.delete(["a"])
    with pytest.raises(ObjectStoreRefusedError, match=says):
        await keys(store)
    with pytest.raises(ObjectStoreRefusedError, match=r"store cold: put .*nowhere"):
        await check_store(store, name="cold", random=random.Random(1))
    await store.close()


async def test_two_prefixes_of_a_bucket_are_two_stores(s3: S3Server) -> None:
    one = open_object_store(s3_settings(s3, f"s3://{BUCKET}/one"))
    two = open_object_store(s3_settings(s3, f"s3://{BUCKET}/one-more/deep"))
    await one.put("a", pieces(b"1"))
    await two.put("a", pieces(b"2"))
    assert await one.get("a", 0, 1) == b"1"
    assert await keys(one) == await keys(two) == ["a"]
    await one.delete(["a"])
    assert await keys(two) == ["a"]
