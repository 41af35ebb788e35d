"""The power goes at every step of a stamp: a new bookie, more directories, lost ones restored.

Whatever was written by then, the next start comes to the same end, or to the state from before; it
never refuses, and never gives a cookie to a directory whose data was lost (defect B24).
"""

import asyncio
import errno
import os
from random import Random

import pytest

from magnetar.bookie.cookie import Cookie, read_cookie
from magnetar.bookie.cookie_rules import Wanted
from magnetar.bookie.cookie_stamping import Identity, check_cookies, restamp_engine
from magnetar.bookie.disks.directories import BookieDirectories
from magnetar.bookie.errors import CookieError
from magnetar.bookie.indexes.index_mark import EngineKind
from magnetar.ledger.errors import BadVersionError
from magnetar.ledger.metadata.store import Versioned
from magnetar.ledger.registration import BookieRegistry
from tests.dictionary_store import DictionaryStore
from tests.simulation.disk import PowerLossError, SimDisk
from tests.simulation.inode import Survival

INSTANCE = "0" * 32
_STEPS_MAX = 400
ENGINES: tuple[EngineKind, ...] = ("db", "interleaved")


class Store(DictionaryStore):
    """With the versions that cookies are replaced by."""

    def __init__(self) -> None:
        super().__init__()
        self.versions: dict[str, int] = {}

    async def get(self, path: str) -> Versioned:
        found = await super().get(path)
        return Versioned(found.value, self.versions.get(path, 0))

    async def set(self, path: str, value: bytes, *, version: int) -> int:
        if self.versions.get(path, 0) != version:
            raise BadVersionError(path)
        self.nodes[path] = value
        self.versions[path] = version + 1
        return version + 1


class World:
    """The disk and the metadata store of one bookie."""

    def __init__(self, seed: str) -> None:
        self.disk = SimDisk(seed=seed, faithful=True)
        self.store = Store()
        self.random = Random(seed)

    def directories(self, journals: int, ledgers: int) -> BookieDirectories:
        found = BookieDirectories(
            "/data",
            tuple(f"/journal{i}" for i in range(journals)),
            tuple(f"/ledgers{i}" for i in range(ledgers)),
        )
        for directory in found:
            self.disk.make_directory(directory)
        return found

    async def check(
        self,
        journals: int = 1,
        ledgers: int = 2,
        *,
        engine: EngineKind = "db",
        is_restored: bool = False,
    ) -> Identity:
        return await check_cookies(
            BookieRegistry(self.store),
            self.disk,
            self.directories(journals, ledgers),
            Wanted(
                bookie_id="b1",
                instance_id=INSTANCE,
                engine=engine,
                journals=journals,
                ledgers=ledgers,
                may_expand=True,
                may_restore=True,
            ),
            random=self.random,
            is_restored=is_restored,
        )

    def put_data(self, directory: str, name: str) -> None:
        self.disk.replace_file(f"{directory}/{name}", b"data")
        self.disk.sync_directory(directory)

    def lose(self, directory: str) -> None:
        for name in self.disk.list(directory):
            self.disk.remove(f"{directory}/{name}")
        self.disk.sync_directory(directory)

    def cookies(self, directories: BookieDirectories) -> set[Cookie | None]:
        return {read_cookie(self.disk, each) for each in directories}

    def crash_at(self, steps: int) -> None:
        wanted = self.disk.steps + steps

        def on_step(kind: str, number: int) -> None:
            if number == wanted:
                raise PowerLossError(kind)

        self.disk.on_step = on_step

    def power_on(self, survival: Survival) -> None:
        self.disk.on_step = lambda kind, number: None
        self.disk.crash(survival)


async def _new(world: World) -> None:
    await world.check()


async def _expand(world: World) -> None:
    await world.check(2, 3)


async def _restore(world: World) -> None:
    identity = await world.check()
    if identity.lost:
        for directory in identity.lost:
            world.put_data(directory, "restored")
        await world.check(is_restored=True)


async def _convert(world: World) -> None:
    directories = world.directories(1, 2)
    cookie = read_cookie(world.disk, "/data")
    assert cookie is not None
    await restamp_engine(
        BookieRegistry(world.store),
        world.disk,
        directories,
        cookie.model_copy(update={"storage_engine": "interleaved"}),
    )


async def _prepare(world: World, *, lost: tuple[str, ...] = ()) -> None:
    await world.check()
    for directory in ("/journal0", "/ledgers0", "/ledgers1"):
        world.put_data(directory, "1.log")
    for directory in lost:
        world.lose(directory)


@pytest.mark.parametrize("survival", Survival)
@pytest.mark.parametrize("kind", ["new", "expand", "restore one", "restore all"])
def test_a_stamp_that_a_crash_cuts_at_any_step_comes_to_its_end(
    kind: str, survival: Survival
) -> None:
    async def story() -> int:
        for steps in range(1, _STEPS_MAX):
            world = World(f"{kind}/{steps}")
            if kind == "expand":
                await _prepare(world)
            elif kind == "restore one":
                await _prepare(world, lost=("/ledgers1",))
            elif kind == "restore all":
                await _prepare(world, lost=("/data", "/journal0", "/ledgers0", "/ledgers1"))
            action = {"new": _new, "expand": _expand}.get(kind, _restore)
            counts = (2, 3) if kind == "expand" else (1, 2)
            world.crash_at(steps)
            try:
                await action(world)
            except PowerLossError:
                world.power_on(survival)
                await action(world)
                is_cut = True
            else:
                is_cut = False
            (cookie,) = world.cookies(world.directories(*counts))
            assert cookie is not None
            stored = await BookieRegistry(world.store).read_cookie("b1")
            assert stored is not None
            assert Cookie.model_validate_json(stored.value) == cookie
            assert (await world.check(*counts)).lost == ()
            if not is_cut:
                return steps
        raise AssertionError("the stamp has no end")

    assert asyncio.run(story()) > 5


@pytest.mark.parametrize("survival", Survival)
def test_another_engine_is_recorded_whatever_step_a_crash_cuts(survival: Survival) -> None:
    """Until it is, or when it is done again, a start knows which engine it needs."""

    async def story() -> int:
        for steps in range(1, _STEPS_MAX):
            world = World(f"engine/{steps}")
            await _prepare(world)
            world.crash_at(steps)
            try:
                await _convert(world)
            except PowerLossError:
                world.power_on(survival)
            else:
                assert (await world.check(engine="interleaved")).lost == ()
                return steps
            starts: list[EngineKind] = []
            for engine in ENGINES:
                try:
                    await world.check(engine=engine)
                except CookieError:
                    continue
                starts.append(engine)
            assert len(starts) == 1
            await _convert(world)
            assert (await world.check(engine="interleaved")).lost == ()
        raise AssertionError("it has no end")

    assert asyncio.run(story()) > 5


@pytest.mark.parametrize("steps", range(1, 60, 3))
def test_b24_data_that_is_lost_during_an_expansion_is_noticed(steps: int) -> None:
    """Wherever the expansion was cut, a known directory that is empty gets no cookie."""

    async def story() -> None:
        world = World(f"lost/{steps}")
        await _prepare(world)
        world.crash_at(steps)
        try:
            await world.check(2, 3)
        except PowerLossError:
            pass
        world.power_on(Survival.ANY)
        world.lose("/ledgers0")
        try:
            identity = await world.check(2, 3)
        except CookieError:
            return
        assert identity.lost == ("/ledgers0",)

    asyncio.run(story())


@pytest.mark.parametrize("lost", [("/ledgers0",), ("/journal0", "/ledgers0", "/ledgers1")])
def test_b24_data_that_is_lost_again_is_restored_again_wherever_the_restore_was_cut(
    lost: tuple[str, ...],
) -> None:
    """No empty directory gets a cookie before what it held is asked for, and it ends well."""

    async def story() -> int:
        for steps in range(1, _STEPS_MAX):
            world = World(f"lost again/{steps}")
            await _prepare(world, lost=lost)
            world.crash_at(steps)
            try:
                await _restore(world)
            except PowerLossError:
                world.power_on(Survival.ANY)
            else:
                return steps
            world.lose("/ledgers0")
            assert "/ledgers0" in (await world.check()).lost
            await _restore(world)
            (cookie,) = world.cookies(world.directories(1, 2))
            assert cookie is not None
            assert (await world.check()).lost == ()
        raise AssertionError("it has no end")

    assert asyncio.run(story()) > 5


@pytest.mark.parametrize("survival", list(Survival))
async def test_a_stamp_whose_sync_failed_is_durable_before_the_store_has_its_cookie(
    survival: Survival,
) -> None:
    for steps in range(1, _STEPS_MAX):
        world = World(f"unsynced-{steps}")

        def fail_sync(kind: str, path: str) -> None:
            if (kind, path) == ("sync", "/data"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

        world.disk.on_call = fail_sync
        with pytest.raises(OSError, match="No space"):
            await world.check()
        world.disk.on_call = lambda kind, path: None
        world.crash_at(steps)
        try:
            await world.check()
        except PowerLossError:
            world.power_on(survival)
            identity = await world.check()
            assert world.cookies(world.directories(1, 2)) == {identity.cookie}
        else:
            return
    raise AssertionError("the steps did not end")
