"""The broker fences itself by its own clock: on virtual time, with a session that a test drives."""

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from magnetar.broker.base.errors import BrokerMetadataError
from magnetar.broker.cluster.ownership.session_guard import SessionGuard
from magnetar.ledger.errors import MetadataUnavailableError
from tests.simulation.loop import SimLoop

TIMEOUT_S = 12.0
SHARE = 0.5
"""So that a proof is good for six seconds."""
ROUND_TRIP_S = 0.01


class Session:
    """A session with a store that answers, says nothing, or has forgotten it."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.timeout_s = TIMEOUT_S
        self.is_silent = False
        self.is_over = False
        self.refusal: Exception | None = None
        self.round_trip_s = ROUND_TRIP_S
        self.renewed = 0
        self.sent_at: list[float] = []

    async def prove(self) -> bool:
        self.sent_at.append(self._loop.time())
        is_over = self.is_over
        if self.refusal is not None:
            raise self.refusal
        await self._answer()
        return not is_over

    async def renew(self) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.renewed += 1
        self.is_over = False

    async def _answer(self) -> None:
        if self.is_silent:
            await self._loop.create_future()
        await asyncio.sleep(self.round_trip_s)


class Clock:
    """The loop's time, and the time that the machine was suspended."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.suspended_s = 0.0

    def monotonic_s(self) -> float:
        return self._loop.time()

    def boot_s(self) -> float:
        return self._loop.time() + self.suspended_s

    def wall_ms(self) -> int:
        raise AssertionError("leases are no matter of the wall clock")


class World:
    """A guard, and everything around it."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.session = Session(loop)
        self.clock = Clock(loop)
        self.guard = SessionGuard(self.session, clock=self.clock, share=SHARE, proof_share=0.125)
        self.ends: list[tuple[float, str]] = []
        self.restored: list[float] = []
        self.guard.on_run_out(lambda reason: self.ends.append((loop.time(), reason)))
        self.guard.on_restored(lambda: self.restored.append(loop.time()))

    async def begin(self) -> None:
        self.guard.start()
        await self.loop.until(lambda: self.guard.is_valid)

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


Story = Callable[[World], Coroutine[object, object, None]]


def play(story: Story) -> None:
    loop = SimLoop()  # type: ignore[abstract]  # what a simulation needs of a loop
    try:

        async def main() -> None:
            await story(World(loop))

        loop.run(main())
    finally:
        loop.close()


def test_nothing_holds_before_the_first_proof() -> None:
    async def story(world: World) -> None:
        assert not world.guard.is_valid
        assert world.guard.left_s == 0
        await world.begin()
        assert world.restored == [world.loop.time()]
        assert not world.ends

    play(story)


def test_a_term_goes_on_as_long_as_the_store_answers() -> None:
    async def story(world: World) -> None:
        await world.begin()
        term = world.guard.term
        await world.wait(100)
        assert world.guard.holds(term)
        assert not world.ends

    play(story)


def test_m13_an_outage_ends_the_term_a_share_of_the_timeout_after_the_last_proof_was_sent() -> None:
    async def story(world: World) -> None:
        await world.begin()
        term = world.guard.term
        await world.wait(10)
        world.session.is_silent = True
        answered = [at for at in world.session.sent_at if at <= world.loop.time()]
        await world.loop.until(lambda: bool(world.ends), timeout_s=30)
        assert world.loop.time() == pytest.approx(answered[-1] + TIMEOUT_S * SHARE, abs=0.01)
        assert "no contact" in world.ends[0][1]
        assert not world.guard.holds(term)
        assert world.guard.term == term + 1

    play(story)


def test_the_time_counts_from_the_request_not_from_the_answer() -> None:
    async def story(world: World) -> None:
        world.session.round_trip_s = 1.4
        await world.begin()
        assert world.guard.left_s == pytest.approx(TIMEOUT_S * SHARE - 1.4)

    play(story)


def test_a_pause_is_noticed_by_whoever_asks_first_without_a_timer() -> None:
    async def story(world: World) -> None:
        await world.begin()
        term = world.guard.term
        world.clock.suspended_s += TIMEOUT_S * SHARE  # nothing else has run
        assert not world.guard.holds(term)
        assert not world.ends, "those who must act hear of it soon, not within the question"
        await world.loop.until(lambda: bool(world.ends))

    play(story)


def test_a_term_that_ended_never_holds_again() -> None:
    async def story(world: World) -> None:
        await world.begin()
        term = world.guard.term
        world.clock.suspended_s += TIMEOUT_S
        assert not world.guard.holds(term)
        await world.loop.until(lambda: world.guard.is_valid, timeout_s=30)
        assert not world.guard.holds(term)
        assert world.guard.holds(world.guard.term)
        assert len(world.restored) == 2

    play(story)


def test_an_answer_to_a_question_from_before_the_pause_proves_nothing() -> None:
    async def story(world: World) -> None:
        await world.begin()
        world.session.round_trip_s = 1.0
        asked = len(world.session.sent_at)
        await world.loop.until(lambda: len(world.session.sent_at) > asked)
        world.clock.suspended_s += TIMEOUT_S * SHARE
        await world.wait(1.0)  # the answer has come
        assert not world.guard.is_valid
        await world.loop.until(lambda: world.guard.is_valid)
        assert world.session.sent_at[-1] >= world.ends[0][0]

    play(story)


def test_m13_a_session_that_is_over_ends_the_term_at_once_and_is_renewed() -> None:
    async def story(world: World) -> None:
        await world.begin()
        term = world.guard.term
        world.session.is_over = True
        await world.loop.until(lambda: bool(world.ends))
        assert not world.guard.holds(term)
        await world.loop.until(lambda: world.guard.is_valid)
        assert world.session.renewed == 1

    play(story)


def test_a_session_that_cannot_be_renewed_yet_is_tried_again() -> None:
    async def story(world: World) -> None:
        await world.begin()
        world.session.is_over = True
        await world.loop.until(lambda: bool(world.ends))
        world.session.refusal = BrokerMetadataError("the name is taken")
        await world.wait(20)
        assert not world.guard.is_valid
        assert world.guard.trouble == "the name is taken"
        world.session.refusal = None
        await world.loop.until(lambda: world.guard.is_valid)

    play(story)


def test_a_store_that_fails_is_asked_again_and_a_short_failure_harms_nobody() -> None:
    async def story(world: World) -> None:
        await world.begin()
        world.session.refusal = MetadataUnavailableError("away")
        await world.wait(3)
        world.session.refusal = None
        await world.wait(10)
        assert not world.ends

    play(story)


def test_a_shorter_timeout_that_the_server_grants_counts_from_the_next_proof_on() -> None:
    async def story(world: World) -> None:
        await world.begin()
        world.session.timeout_s = 2.0
        await world.wait(5)
        assert 0 < world.guard.left_s <= 2.0 * SHARE

    play(story)


def test_after_close_nothing_holds() -> None:
    async def story(world: World) -> None:
        await world.begin()
        await world.guard.close()
        assert not world.guard.is_valid
        await world.wait(20)
        assert not world.ends

    play(story)


def test_an_unexpected_error_of_a_proof_or_a_callback_does_not_end_the_proofs() -> None:
    async def story(world: World) -> None:
        def broken() -> None:
            raise KeyError("a defect")

        restored: list[float] = []
        world.guard.on_restored(broken)
        world.guard.on_restored(lambda: restored.append(world.loop.time()))
        await world.begin()
        term = world.guard.term
        assert restored, "the callback after the broken one is called"
        await world.wait(20)
        assert world.guard.holds(term)
        world.session.refusal = KeyError("another defect")
        await world.wait(3)
        assert world.guard.trouble == "KeyError('another defect')"
        world.session.refusal = None
        await world.wait(20)
        assert world.guard.holds(term)

    play(story)


def test_an_unexpected_error_of_a_renewal_does_not_end_the_proofs() -> None:
    async def story(world: World) -> None:
        await world.begin()
        world.session.is_over = True
        await world.loop.until(lambda: bool(world.ends))
        world.session.refusal = KeyError("a defect")
        await world.wait(20)
        world.session.refusal = None
        await world.loop.until(lambda: world.guard.is_valid, timeout_s=30)

    play(story)
