"""The four loops of an auditor's term: on asyncio's own time, with a clock that can jump.

Waiting is asyncio's, deciding is by the clock that is passed in: a process that was stopped finds
its timers overdue, and must look before it believes what it knew.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest

from magnetar.ledger.autorecovery.audits import Audits
from magnetar.ledger.autorecovery.controls import Check, Controls
from magnetar.ledger.autorecovery.metrics import AuditorMetrics
from magnetar.ledger.autorecovery.settings import AuditorSettings
from magnetar.ledger.autorecovery.status import Survey
from magnetar.ledger.autorecovery.term import AuditorTerm
from magnetar.ledger.errors import BadVersionError, MetadataUnavailableError, NoNodeError
from magnetar.ledger.metadata.store import Versioned, Watch, WatchCallback, WatchEvent
from tests.dictionary_store import DictionaryStore
from tests.waiting import until

WAIT_S = 10.0
NEVER_S = 0.0
"""Of a check's interval: it is not run."""
SETTINGS = AuditorSettings(
    gather_s=0.0,
    settle_s=0.0,
    audit_again_s=0.0,
    retry_delay_s=0.01,
    bookie_check_interval_s=NEVER_S,
    all_ledgers_check_interval_s=NEVER_S,
    replicas_check_interval_s=NEVER_S,
    first_check_delay_s=0.0,
    survey_interval_s=0.01,
)
BASE = "/ledgers/underreplication"
_WALL_START_S = 1_700_000_000


class JumpingClock:
    """The machine's time, and what a test adds to it."""

    def __init__(self) -> None:
        self.jumped_s = 0.0
        self.wall_jumped_s = 0.0
        self._stands_at_s: float | None = None

    def stand_still(self) -> None:
        """From now on only jumps move it."""
        self._stands_at_s = time.monotonic()

    def monotonic_s(self) -> float:
        now_s = time.monotonic() if self._stands_at_s is None else self._stands_at_s
        return now_s + self.jumped_s

    def boot_s(self) -> float:
        return self.monotonic_s()

    def wall_ms(self) -> int:
        return int((_WALL_START_S + self.monotonic_s() + self.wall_jumped_s) * 1000)


class Store(DictionaryStore):
    """Bookies that come and go, with or without a word to whoever watches; it may be away."""

    def __init__(self) -> None:
        super().__init__()
        self.watching: list[tuple[str, WatchCallback]] = []
        self.is_away = False
        self.looks = 0
        """How often somebody began to read everything."""
        self._versions: dict[str, int] = {}

    async def catch_up(self) -> None:
        self.looks += 1
        self._answer()

    async def get(self, path: str) -> Versioned:
        self._answer()
        found = await super().get(path)
        return Versioned(found.value, self._versions.get(path, 0))

    async def set(self, path: str, value: bytes, *, version: int) -> int:
        self._answer()
        if path not in self.nodes:
            raise NoNodeError(path)
        if version != self._versions.get(path, 0):
            raise BadVersionError(path)
        self.put(path, value)
        return version + 1

    def watch(self, path: str, callback: WatchCallback) -> Watch:
        store, entry = self, (path, callback)

        class Watching:
            def close(self) -> None:
                if entry in store.watching:
                    store.watching.remove(entry)

        self.watching.append(entry)
        return Watching()

    def put(self, path: str, value: bytes = b"") -> None:
        """Write a node; nobody is told."""
        if path in self.nodes:
            self._versions[path] = self._versions.get(path, 0) + 1
        self.nodes[path] = value

    def come(self, *bookies: str) -> None:
        for bookie in bookies:
            self.put(f"/ledgers/available/{bookie}")
            self.put(f"/ledgers/cookies/{bookie}")

    def go(self, *bookies: str) -> None:
        for bookie in bookies:
            del self.nodes[f"/ledgers/available/{bookie}"]

    def tell(self) -> None:
        """Something has changed."""
        for _, callback in list(self.watching):
            callback(WatchEvent.CHILDREN)

    def _answer(self) -> None:
        if self.is_away:
            raise MetadataUnavailableError("the store is away")


class Work:
    """In the place of `Audits`: notes what is done, and fails as often as it is told."""

    def __init__(self, clock: JumpingClock) -> None:
        self._clock = clock
        self.audits: list[tuple[float, set[str]]] = []
        """When each began, and whom of b1 to b9 it took for lost."""
        self.checks: list[str] = []
        self.failures = 0

    async def audit(
        self, is_lost: Callable[[str], bool], *, is_mass_loss: Callable[[], bool]
    ) -> int:
        begun_s = self._clock.monotonic_s()
        self._fail()
        names = {f"b{number}" for number in range(1, 10)}
        self.audits.append((begun_s, {name for name in names if is_lost(name)}))
        return 0

    async def check_all_ledgers(self) -> None:
        self.checks.append("all_ledgers")
        self._fail()

    async def check_replicas(self) -> None:
        self.checks.append("replicas")
        self._fail()

    def _fail(self) -> None:
        if self.failures > 0:
            self.failures -= 1
            raise MetadataUnavailableError("not now")


class Counting:
    """In the place of `Survey`."""

    def __init__(self) -> None:
        self.runs = 0
        self.requests = 0
        self.failures = 0
        self.is_cancelled = False

    def request(self) -> None:
        self.requests += 1

    async def wait_request(self, timeout_s: float) -> None:
        await asyncio.sleep(timeout_s)

    async def run(self) -> None:
        self.runs += 1
        if self.is_cancelled:
            raise asyncio.CancelledError  # as if something that it waits for was cancelled
        if self.failures > 0:
            self.failures -= 1
            raise MetadataUnavailableError("not now")


class World:
    """A term, and everything around it."""

    def __init__(self) -> None:
        self.clock = JumpingClock()
        self.store = Store()
        self.controls = Controls(self.store)
        self.work = Work(self.clock)
        self.survey = Counting()
        self.placement_checks = 0
        self.metrics = AuditorMetrics()

    def make(self, **settings: float) -> AuditorTerm:
        return AuditorTerm(
            self.store,
            cast("Audits", self.work),
            self.controls,
            cast("Survey", self.survey),
            check_placement=self._check_placement,
            clock=self.clock,
            settings=SETTINGS.model_copy(update=settings),
            metrics=self.metrics,
            root="/ledgers",
        )

    @asynccontextmanager
    async def term(self, **settings: float) -> AsyncIterator["asyncio.Task[None]"]:
        """A term that runs, and is ended as by another election."""
        task = asyncio.create_task(self.make(**settings).run())
        try:
            yield task
            assert not task.done(), "it ends by cancellation alone"
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _check_placement(self) -> None:
        self.placement_checks += 1

    async def looked(self, times: int = 1) -> None:
        """Everything is read anew, after an event, so many times."""
        for _ in range(times):
            before = self.store.looks
            self.store.tell()
            await until(lambda before=before: self.store.looks > before)  # type: ignore[misc]
            await asyncio.sleep(0)


async def test_all_four_loops_run_and_end_with_the_term() -> None:
    world = World()
    world.store.come("b1", "b2", "b3")
    world.store.go("b3")
    before = asyncio.all_tasks()
    async with world.term(all_ledgers_check_interval_s=1000.0, placement_check_interval_s=1000.0):
        await until(lambda: bool(world.work.audits and world.work.checks and world.survey.runs > 2))
        await until(lambda: world.placement_checks == 1)
        assert world.work.audits[0][1] & {"b1", "b2", "b3"} == {"b3"}
        assert world.metrics.bookies_registered == 2
        assert world.metrics.bookies_lost == 1
        assert len(world.store.watching) == 5
    assert world.store.watching == []
    assert asyncio.all_tasks() == before


async def test_a_loop_whose_wait_is_cancelled_ends_the_term_so_that_another_begins() -> None:
    """A task group takes a cancelled task for a done one, and the others would go on."""
    world = World()
    world.survey.is_cancelled = True
    before = asyncio.all_tasks()
    term = asyncio.create_task(world.make().run())
    await until(term.done)
    assert isinstance(term.exception(), BaseExceptionGroup)
    assert world.store.watching == []
    assert asyncio.all_tasks() == before


async def test_nothing_is_believed_before_the_term_has_settled() -> None:
    world = World()
    world.store.come("b1", "b2", "b3")
    world.store.go("b3")
    begun_s = world.clock.monotonic_s()
    async with world.term(settle_s=0.1):
        await until(lambda: bool(world.work.audits))
    assert world.work.audits[0][0] >= begun_s + 0.1


async def test_a_jump_of_the_clock_ends_the_wait_with_the_next_news() -> None:
    world = World()
    world.store.come("b1", "b2", "b3")
    async with world.term(lost_bookie_recovery_delay_s=300.0):
        await until(lambda: world.metrics.bookies_registered == 3)
        world.store.go("b3")
        await world.looked(3)
        assert world.work.audits == []
        assert world.metrics.delayed_audits_scheduled == 1
        world.clock.jumped_s += 301.0
        await world.looked()
        await until(lambda: world.metrics.audits == {"delayed": 1})


async def test_a_process_that_was_stopped_looks_before_it_believes_an_overdue_timer() -> None:
    """The bookie is back, and the events of that are still on their way."""
    world = World()
    world.store.come("b1", "b2", "b3")
    async with world.term(lost_bookie_recovery_delay_s=0.05):
        await until(lambda: world.metrics.bookies_registered == 3)
        world.clock.stand_still()
        world.store.go("b3")
        await world.looked()
        world.clock.jumped_s += 3600.0
        world.store.come("b3")
        looks = world.store.looks
        await until(lambda: world.store.looks > looks)  # by its timer alone
        await world.looked()
        await until(lambda: world.metrics.bookies_lost == 0)
        assert world.work.audits == []
        assert world.metrics.delayed_audits_cancelled == 1


async def test_a_timer_that_fires_before_the_clock_says_so_waits_on() -> None:
    """Of two clocks one is always ahead: what counts is the one that is passed in."""
    world = World()
    world.store.come("b1", "b2", "b3")
    async with world.term(lost_bookie_recovery_delay_s=0.05):
        await until(lambda: world.metrics.bookies_registered == 3)
        gone_s = world.clock.monotonic_s()
        world.store.go("b3")
        await world.looked()
        world.clock.jumped_s -= 0.1
        await until(lambda: bool(world.work.audits))
    assert world.work.audits[0][0] >= gone_s + 0.05


async def test_an_audit_that_fails_is_tried_again_also_one_that_was_asked_for() -> None:
    world = World()
    world.store.come("b1", "b2", "b3")
    async with world.term():
        await until(lambda: world.metrics.bookies_registered == 3)
        world.work.failures = 3
        await world.controls.ask_for_audit()
        await world.looked()
        await until(lambda: world.metrics.audits == {"asked": 1})
        assert world.metrics.audit_failures == 3
        assert world.survey.requests == 1


async def test_a_store_that_is_away_ends_no_loop_and_nothing_is_concluded_from_it() -> None:
    world = World()
    world.store.come("b1", "b2", "b3")
    async with world.term(all_ledgers_check_interval_s=0.02):
        await until(lambda: bool(world.work.checks))
        world.store.is_away = True
        world.survey.failures = 3
        await world.looked(5)
        assert world.metrics.bookies_registered == 3
        assert world.work.audits == []
        world.store.go("b3")
        checks, surveys = len(world.work.checks), world.survey.runs
        world.store.is_away = False  # nobody tells: what failed is tried again
        await until(lambda: bool(world.work.audits))
        await until(lambda: len(world.work.checks) > checks and world.survey.runs > surveys)


async def test_a_check_is_noted_when_it_came_to_its_end_and_tried_again_if_not() -> None:
    world = World()
    world.work.failures = 2
    async with world.term(all_ledgers_check_interval_s=1000.0, replicas_check_interval_s=1000.0):
        await until(lambda: world.metrics.checks == {"all_ledgers": 1, "replicas": 1})
        assert sum(world.metrics.check_failures.values()) == 2
        assert len(world.work.checks) == 4
        for check in (Check.ALL_LEDGERS, Check.REPLICAS):
            assert await world.controls.last_run_ms(check) is not None
    async with world.term(all_ledgers_check_interval_s=1000.0, replicas_check_interval_s=1000.0):
        await world.looked(5)  # the next term knows: none is due
        assert len(world.work.checks) == 4


@pytest.mark.parametrize(
    ("jump_s", "interval_s"), [(-1e6, 0.1), (1e6, 1000.0)], ids=["back", "ahead"]
)
async def test_a_wall_clock_that_jumps_delays_a_check_by_its_interval_at_most(
    jump_s: float, interval_s: float
) -> None:
    world = World()
    await world.controls.note_run(Check.ALL_LEDGERS, now_ms=world.clock.wall_ms())
    world.clock.wall_jumped_s = jump_s
    begun_s = world.clock.monotonic_s()
    async with world.term(all_ledgers_check_interval_s=interval_s):
        await until(lambda: bool(world.work.checks))
    if jump_s < 0:
        assert world.clock.monotonic_s() - begun_s >= interval_s


async def _switched_off(world: World) -> None:
    await world.controls.disable(now_ms=1)


async def _switched_on(world: World) -> None:
    await world.controls.enable()


async def _one_goes(world: World) -> None:
    world.store.come("b1", "b2", "b3")
    world.store.go("b3")


async def _it_comes_back(world: World) -> None:
    world.store.come("b3")


@pytest.mark.parametrize(
    ("hinder", "help_on"),
    [(_switched_off, _switched_on), (_one_goes, _it_comes_back)],
    ids=["switched off", "a bookie is waited for"],
)
async def test_checks_wait_until_nothing_is_in_their_way(
    hinder: Callable[[World], Awaitable[None]], help_on: Callable[[World], Awaitable[None]]
) -> None:
    world = World()
    await hinder(world)
    async with world.term(all_ledgers_check_interval_s=0.01, lost_bookie_recovery_delay_s=300.0):
        await world.looked(5)
        await until(lambda: world.survey.runs > 3)
        assert world.work.checks == []
        await help_on(world)
        await world.looked()
        await until(lambda: len(world.work.checks) > 1)
        assert world.work.audits == []


async def test_items_kept_in_a_way_that_is_not_known_are_not_touched_until_they_are() -> None:
    world = World()
    world.store.come("b1", "b2")
    world.store.go("b2")
    world.store.put(f"{BASE}/LAYOUT", b'{"format":2}')
    reads: list[str] = []
    read = world.store.get

    async def get(path: str) -> Versioned:
        reads.append(path)
        return await read(path)

    world.store.get = get  # type: ignore[method-assign]
    async with world.term(all_ledgers_check_interval_s=0.01):
        await until(lambda: len(reads) > 3)
        assert set(reads) == {f"{BASE}/LAYOUT"}
        assert (world.work.audits, world.work.checks, world.survey.runs) == ([], [], 0)
        del world.store.nodes[f"{BASE}/LAYOUT"]
        await until(lambda: bool(world.work.audits and world.work.checks and world.survey.runs))
