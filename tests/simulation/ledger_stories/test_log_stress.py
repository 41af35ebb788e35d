"""A log under random faults, judged by its history.

Bookies stop and start, answers get lost, owners take the log over from one another, rotate and
shrink it, and ledgers are tiny. Whatever happens: each batch hears its outcome once; what was
confirmed is in the log once, whole, at the confirmed place, in the order of the confirmations,
unless a shrink removed it; what is in the log without a confirmation was appended, and is there
once. A reader that follows the log all along sees every entry of it, in order, and none that is not
there in the end. The random runs of logs (`make sim`) know more faults, but no shrinking.
"""

import asyncio
import os
import random

import pytest

from magnetar.ledger.errors import LedgerError, LogError, LogTrimmedError
from magnetar.ledger.log_reader import LogReader
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.ledger.position import EARLIEST, Position
from magnetar.ledger.settings import LedgerSettings, LogConfig
from magnetar.ledger.wire import Op
from tests.simulation.clients import SimClient
from tests.simulation.frame_rules import Facts, Hold
from tests.simulation.history import Sent
from tests.simulation.logs import PATH, Batch, SimLog, open_log
from tests.simulation.simulation import Simulation, play

SETTINGS = LedgerSettings(
    request_timeout_s=0.3,
    connect_timeout_s=0.3,
    reconnect_delay_s=0.01,
    close_drain_timeout_s=0.2,
    explicit_lac_interval_ms=5,
)
STEPS = int(os.environ.get("STRESS_STEPS", "50"))
SEEDS = [int(seed) for seed in os.environ.get("STRESS_SEEDS", "1 2 3 4 5 6").split()]
QUORUMS = [(3, 3, 2), (3, 2, 2), (2, 2, 2)]


class LostAnswers:
    """A share of one bookie's answers to the adds and reads of one client."""

    def __init__(self, bookie: str, client: str, share: float, rng: random.Random) -> None:
        self._way = bookie, client
        self._share = share
        self._rng = rng

    def fits(self, facts: Facts) -> bool:
        return (
            isinstance(facts, Sent)
            and facts.is_reply
            and (facts.source, facts.target) == self._way
            and facts.op in (Op.ADD, Op.READ)
            and self._rng.random() < self._share
        )


class Owner:
    """Appends to one handle of the log until it is fenced."""

    def __init__(self, log: SimLog, number: int, confirmed: list[Batch]) -> None:
        self.log = log
        self.confirmed = confirmed
        self.batches: list[Batch] = []
        self.pending = 0
        self._number = number

    def append(self, size: int) -> None:
        count = len(self.batches)
        payloads = [b"%d/%d/%d" % (self._number, count, at) for at in range(size)]
        batch = OwnersBatch(self, payloads)
        self.batches.append(batch)
        self.pending += 1
        self.log.append_batch(batch)


class OwnersBatch(Batch):
    """A batch that insists on one outcome, and on none but a failure behind a fence."""

    def __init__(self, owner: Owner, payloads: list[bytes]) -> None:
        super().__init__(owner.log.client, payloads)
        self._owner = owner

    def on_appended(self, ledger_id: int, first_entry_id: int) -> None:
        super().on_appended(ledger_id, first_entry_id)  # raises if there was an outcome before
        assert not self._owner.log.fences, f"{self.payloads[0]!r} confirmed after the fence"
        self._owner.confirmed.append(self)
        self._owner.pending -= 1

    def on_failed(self, error: LogError) -> None:
        super().on_failed(error)
        self._owner.pending -= 1


class Chaos:
    """One run: the faults, and the owners that live with them."""

    def __init__(self, sim: Simulation, seed: int) -> None:
        self.sim = sim
        self.rng = random.Random(seed)
        self.confirmed: list[Batch] = []
        """In the order in which the owners heard it."""
        self.owners: list[Owner] = []
        self._takeovers = 0
        self._lost: list[Hold] = []
        ensemble_size, write_quorum, ack_quorum = QUORUMS[seed % len(QUORUMS)]
        self._config = LogConfig(
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            ledger_entries_max=25,
            ledger_age_min_s=0,
            repair_timeout_s=1,
            unavailable_retry_s=0.05,
            opens_without_ledger=seed % 2 == 0,
            unused_ledger_s=0.02,
        )

    async def step(self) -> None:
        for owner in self.owners[-2:]:
            for _ in range(self.rng.randrange(6)):
                owner.append(self.rng.randrange(1, 5))
            # How far it got before the next fault depends on the wait.
            most = self.rng.choice((0, 3, 20))
            await self.sim.until(lambda: owner.pending <= most)  # noqa: B023
        await self.rng.choice(
            (
                self.stop_bookie,
                self.start_bookies,
                self.lose_answers,
                self.heal,
                self.take_over,
                self.rotate,
                self.rotate,
                self.shrink,
                self.doubt,
            )
        )()

    async def stop_bookie(self) -> None:
        running = [name for name, bookie in self.sim.bookies.items() if bookie.is_running]
        if len(running) > 2:
            bookie = self.sim.bookie(self.rng.choice(running))
            if self.rng.random() < 0.5:
                await bookie.stop()
            else:
                bookie.crash()

    async def start_bookies(self) -> None:
        for bookie in self.sim.bookies.values():
            if bookie.process is None:
                await bookie.start()

    async def lose_answers(self) -> None:
        """Some answers to adds and reads of one bookie never arrive, or late."""
        owner = self.rng.choice(self.owners[-2:])
        rng = random.Random(self.rng.random())
        bookie = self.rng.choice(sorted(self.sim.bookies))
        rule = LostAnswers(bookie, owner.log.client.name, self.rng.random(), rng)
        holds = self.sim.net.holds
        holds.append(Hold(holds, rule, overtaken=True))
        self._lost.append(holds[-1])

    async def heal(self) -> None:
        lost, self._lost = self._lost, []
        for hold in lost:
            hold.release()

    async def rotate(self) -> None:
        """Of one owner, perhaps of one that is the owner no longer; it need not come to its end."""
        log = self.rng.choice(self.owners[-2:]).log
        rotating = log.rotate()
        try:
            async with asyncio.timeout(self.rng.choice((0.001, 0.5))):
                await rotating
        except (LogError, TimeoutError):
            pass

    async def doubt(self) -> None:
        """The outcome of the next change of the list stays unknown to one owner."""
        name = self.rng.choice(self.owners[-2:]).log.client.name
        store = self.sim.store
        self.rng.choice((store.lose_reply, store.lose_request))(client=name, path=PATH)

    async def shrink(self) -> None:
        """Remove up to about half of what there is."""
        log = self.rng.choice(self.owners[-2:]).log
        half = log.ledger_ids[: len(log.ledger_ids) // 2]
        if not half:
            return
        try:
            await log.shrink(Position(self.rng.choice(half) + 1, 0))
        except LedgerError:
            pass

    async def take_over(self) -> None:
        name = f"o{self._takeovers}"
        self._takeovers += 1
        await self.sim.client(name, SETTINGS)
        try:
            log = await open_log(self.sim, name, self._config)
        except LedgerError:
            return  # not enough bookies just now
        self.owners.append(Owner(log, len(self.owners), self.confirmed))
        if self._config.opens_without_ledger:
            # Before the first append, at most three times the time after which it is given back.
            log.log.prepare()
            await asyncio.sleep(self.rng.choice((0, 1, 3)) * self._config.unused_ledger_s)

    async def finish(self) -> list[tuple[Position, bytes]]:
        """Make everything well and read what a last owner finds."""
        await self.heal()
        await self.start_bookies()
        count = len(self.owners)
        while len(self.owners) == count:
            await self.take_over()
        for owner in self.owners[:-1]:
            owner.append(1)
            await self.sim.until(lambda: owner.pending == 0)  # noqa: B023
            assert owner.log.fences <= 1
            await owner.log.close()
        last = self.owners[-1].log
        log = last.log
        found: list[tuple[Position, bytes]] = []
        position = log.first_position()
        while entries := await last.client.run(
            log.read(position, entries_max=100, bytes_max=1 << 20)
        ):
            found += [(entry.position, entry.payload) for entry in entries]
            position = log.next_position(entries[-1].position)
        await last.close()
        return found


class Follower:
    """Reads the log from its beginning on, as long as the run lasts."""

    def __init__(self, client: SimClient, reader: LogReader) -> None:
        self.client = client
        self._rng = random.Random(client.name)
        self.seen: list[tuple[Position, bytes]] = []
        self.trimmed_before = EARLIEST
        """Entries before it may have been removed before they were read."""
        self._reader = reader

    @classmethod
    async def open(cls, sim: Simulation) -> "Follower":
        client = await sim.client("r", SETTINGS)
        opening = LogReader.open(client.ledgers, client.store, PATH, clock=client.clock)
        return cls(client, await client.run(opening))

    async def run(self) -> None:
        while True:
            try:
                entries = await self._reader.read(entries_max=7, wait_s=0.2)
            except LogTrimmedError as error:
                self.trimmed_before = Position(*error.first)
                await self._seek_trimmed()
            except LedgerError:
                await asyncio.sleep(0.02)  # too few bookies just now
            else:
                self.seen += [(entry.position, entry.payload) for entry in entries]
                if self._rng.random() < 0.3:
                    await asyncio.sleep(0.1 * self._rng.random())  # or nothing were ever trimmed

    async def _seek_trimmed(self) -> None:
        try:
            await self._reader.seek(self.trimmed_before)
        except LedgerError:
            pass  # trimmed again meanwhile, or not to be read just now: the next read tells


def judge_follower(
    follower: Follower, found: list[tuple[Position, bytes]], removed_through: int
) -> None:
    seen = follower.seen
    positions = [position for position, _ in seen]
    assert positions == sorted(set(positions)), "out of order, or twice"
    log = dict(found)
    for position, payload in seen:
        if position.ledger_id > removed_through:
            assert log.get(position) == payload, f"{position} vanished, or changed"
    missed = log.keys() - dict(seen).keys()
    assert all(position < follower.trimmed_before for position in missed)


def judge(chaos: Chaos, found: list[tuple[Position, bytes]], removed_through: int) -> None:
    at = {payload: index for index, (_, payload) in enumerate(found)}
    assert len(at) == len(found), "an entry is in the log twice"
    last = -1
    for batch in chaos.confirmed:
        ledger_id, entry_id = batch.outcome.result()
        if ledger_id <= removed_through:
            assert not any(payload in at for payload in batch.payloads)
            continue
        index = at.get(batch.payloads[0])
        assert index is not None, f"confirmed and lost: {batch.payloads[0]!r}"
        assert index > last, f"confirmed in another order: {batch.payloads[0]!r}"
        last = index + len(batch.payloads) - 1
        stretch = found[index : last + 1]
        assert [payload for _, payload in stretch] == list(batch.payloads)
        assert [position for position, _ in stretch] == [
            Position(ledger_id, entry_id + offset) for offset in range(len(batch.payloads))
        ]
    appended = {
        payload for owner in chaos.owners for batch in owner.batches for payload in batch.payloads
    }
    assert at.keys() <= appended


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_confirmed_is_in_the_log_once_and_in_order(seed: int) -> None:
    async def story(sim: Simulation) -> None:
        chaos = Chaos(sim, seed)
        await chaos.take_over()
        follower = await Follower.open(sim)
        follower.client.spawn(follower.run())
        for _ in range(STEPS):
            await chaos.step()
        found = await chaos.finish()
        metadata = LogMetadata.from_json(sim.store.tree.get(PATH).value, path=PATH)
        judge(chaos, found, metadata.removed_through)
        assert len(chaos.confirmed) > STEPS // 4, "too little happened to judge"
        if found:
            await sim.until(lambda: bool(follower.seen) and follower.seen[-1][0] >= found[-1][0])
        judge_follower(follower, found, metadata.removed_through)

    play(story, Simulation(bookies=4, seed=str(seed), steps_max=10_000_000))
