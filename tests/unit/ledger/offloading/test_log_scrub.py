"""The scrub of a log: what it reads, heals, passes over, and remembers."""

from pathlib import Path
from typing import cast

import pytest

from magnetar.ledger.errors import (
    BookieUnavailableError,
    LogFencedError,
    ObjectStoreUnavailableError,
)
from magnetar.ledger.managed_log.log_objects import ObjectState
from magnetar.ledger.offloading.log_offload import LogOffload
from magnetar.ledger.offloading.log_scrub import TURN_S, UNREACHABLE_IN_A_ROW_MAX, LogScrub
from magnetar.ledger.offloading.object_scrubber import ObjectScrubber
from magnetar.ledger.offloading.scrub_plan import PROPERTY, Verdict, mark_in
from tests.unit.ledger.offloading.scrubbed_log import HandClock, ScrubbedLog

PERIOD_S = 100.0
COPIED, ONLY = ObjectState.COPIED, ObjectState.ONLY
AWAY = ObjectStoreUnavailableError("503")


class World:
    """A log with a scrub; it is what heals, too."""

    def __init__(self, root: Path) -> None:
        self.log = ScrubbedLog(root)
        self.clock = HandClock()
        self.scrubber = ObjectScrubber(self.log, bytes_per_s_max=0, clock=self.clock)
        self.healed: list[int] = []
        self.heal_error: Exception | None = None
        self.scrub = self.open()

    def open(self) -> LogScrub:
        """As another owner does, with what the log's node says."""
        return LogScrub(
            self.log,
            self.scrubber,
            cast(LogOffload, self),
            period_s=PERIOD_S,
            clock=self.clock,
        )

    async def heal(self, ledger_id: int, attempt: str) -> bool:
        if self.heal_error is not None:
            raise self.heal_error
        self.healed.append(ledger_id)
        await self.log.add(ledger_id, COPIED, attempt="cd" * 16)
        return True

    def found(self) -> dict[int, Verdict]:
        return {each: finding.verdict for each, finding in self.scrub.findings.items()}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_pass_reads_every_object_once_in_a_period(world: World) -> None:
    for each in (1, 2, 3):
        await world.log.add(each)
    assert world.scrub.is_due
    await world.scrub.run()
    assert world.scrubber.counts.whole == 3
    assert not world.scrub.is_due
    world.clock.now_s += PERIOD_S
    assert world.scrub.is_due
    await world.scrub.run()
    assert world.scrubber.counts.whole == 6


async def test_the_next_owner_goes_on_where_the_last_one_got_to(world: World) -> None:
    await world.log.add(1)
    await world.scrub.run()
    assert world.log.updates == 1
    world.scrub = world.open()
    assert not world.scrub.is_due


@pytest.mark.parametrize("is_gone", [False, True])
async def test_what_bookies_have_is_healed(world: World, is_gone: bool) -> None:
    ledger = await world.log.add(1, COPIED)
    if is_gone:
        world.log.file(ledger).unlink()
    else:
        world.log.rot(ledger, 500)
    await world.scrub.run()
    assert world.healed == [1]
    assert world.found() == {}
    assert world.scrubber.lost == {}


@pytest.mark.parametrize("is_gone", [False, True])
async def test_what_is_in_an_object_only_stays_and_is_an_alarm_until_the_log_closes(
    world: World, is_gone: bool
) -> None:
    ledger, other = await world.log.add(1), await world.log.add(2)
    if is_gone:
        world.log.file(ledger).unlink()
    else:
        world.log.rot(ledger, 500)
    await world.scrub.run()
    assert world.healed == []
    assert world.found() == {1: Verdict.GONE if is_gone else Verdict.DAMAGED}
    assert world.log.ledgers == (ledger, other)
    assert world.scrubber.lost == {"/log": 1}
    assert not world.scrub.is_due
    world.scrub.close()
    assert world.scrubber.lost == {}
    world.open()  # the next owner knows, without reading
    assert world.scrubber.lost == {"/log": 1}


async def test_an_object_that_was_brought_back_ends_the_alarm_with_the_next_pass(
    world: World,
) -> None:
    ledger = await world.log.add(1)
    world.log.rot(ledger, 500)
    await world.scrub.run()
    world.log.rot(ledger, 500)
    world.clock.now_s += PERIOD_S
    await world.scrub.run()
    assert world.found() == {}
    assert world.scrubber.lost == {}
    assert mark_in(world.log.properties).findings == {}


async def test_what_cannot_be_healed_now_is_tried_again_and_holds_nothing_back(
    world: World,
) -> None:
    world.log.rot(await world.log.add(1, COPIED), 500)
    await world.log.add(2)
    world.heal_error = BookieUnavailableError("away")
    with pytest.raises(BookieUnavailableError):
        await world.scrub.run()
    assert world.scrubber.counts.whole == 1
    assert world.found() == {1: Verdict.DAMAGED}
    assert world.scrubber.lost == {}  # the bookies have it
    world.heal_error = None
    assert world.scrub.is_due
    await world.scrub.run()
    assert world.healed == [1]
    assert not world.scrub.is_due


async def test_one_object_that_cannot_be_reached_is_passed_over_and_read_again(
    world: World,
) -> None:
    ledger = await world.log.add(1)
    await world.log.add(2)
    world.log.fail(ledger, AWAY)
    with pytest.raises(ObjectStoreUnavailableError):
        await world.scrub.run()
    assert world.found() == {1: Verdict.UNREACHABLE}
    assert world.scrubber.lost == {}
    assert world.scrubber.counts.whole == 1
    await world.scrub.run()
    assert world.found() == {}
    assert world.scrubber.counts.whole == 2


@pytest.mark.parametrize(
    ("failing", "is_away"),
    [(UNREACHABLE_IN_A_ROW_MAX - 1, False), (UNREACHABLE_IN_A_ROW_MAX, True)],
)
async def test_a_pass_stops_in_front_of_a_store_that_is_away(
    world: World, failing: int, is_away: bool
) -> None:
    ledgers = [await world.log.add(each) for each in range(1, failing + 2)]
    for ledger in ledgers[:failing]:
        world.log.fail(ledger, AWAY)
    with pytest.raises(ObjectStoreUnavailableError):
        await world.scrub.run()
    assert world.scrubber.counts.whole == (0 if is_away else 1)
    assert bool(world.found()) is not is_away
    await world.scrub.run()
    assert world.scrubber.counts.whole == failing + 1
    assert world.found() == {}


async def test_a_turn_ends_after_its_time_and_the_next_one_goes_on(world: World) -> None:
    for each in (1, 2, 3):
        await world.log.add(each)
    world.clock.step_s = TURN_S
    await world.scrub.run()
    assert 0 < world.scrubber.counts.whole < 3
    assert PROPERTY in world.log.properties
    world.clock.step_s = 0.0
    world.scrub = world.open()
    await world.scrub.run()
    assert world.scrubber.counts.whole == 3


async def test_another_owner_ends_it(world: World) -> None:
    world.log.rot(await world.log.add(1, COPIED), 500)
    world.heal_error = LogFencedError("another owner")
    with pytest.raises(LogFencedError):
        await world.scrub.run()
    assert world.log.properties == {}
