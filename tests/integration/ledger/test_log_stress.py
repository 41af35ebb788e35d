"""A log under random faults, judged by its history.

Bookies stop and start, answers get lost, connections break, owners take the log over from one
another, rotate and shrink it, and ledgers are tiny. Whatever happens: each batch hears its outcome
once; what was confirmed is in the log once, whole, at the confirmed place, in the order of the
confirmations, unless a shrink removed it; what is in the log without a confirmation was appended,
and is there once. A reader that follows the log all along sees every entry of it, in order, and
none that is not there in the end.
"""

import asyncio
import os
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from magnetar.ledger.errors import LedgerError, LogError, LogTrimmedError
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.log_reader import LogReader
from magnetar.ledger.managed_log.log_metadata import LogMetadata
from magnetar.ledger.position import EARLIEST, Position
from magnetar.ledger.settings import LedgerSettings, LogConfig
from magnetar.ledger.system import SystemClock
from magnetar.ledger.wire import Frame, Op
from tests.integration.ledger.cluster import Cluster, cluster_of
from tests.integration.ledger.filtered_network import FilteredNetwork
from tests.waiting import until

PATH = "/managed-ledgers/public/default/persistent/under-stress"
SETTINGS = LedgerSettings(
    request_timeout_s=0.3,
    connect_timeout_s=0.3,
    reconnect_delay_s=0.01,
    close_drain_timeout_s=0.2,
    explicit_lac_interval_ms=5,
)
BOOKIES = ("b1", "b2", "b3", "b4")
STEPS = int(os.environ.get("STRESS_STEPS", "50"))
SEEDS = [int(seed) for seed in os.environ.get("STRESS_SEEDS", "1 2 3").split()]
QUORUMS = [(3, 3, 2), (3, 2, 2), (2, 2, 2)]


@dataclass
class History:
    """What the owners were told, in the order in which they heard it."""

    appended: dict[bytes, "Batch"] = field(default_factory=dict)
    confirmed: list["Batch"] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    """Noted, since an exception in a callback would only be logged."""


class Batch:
    """A batch that insists on one outcome."""

    def __init__(self, history: History, payloads: Sequence[bytes], owner: "Owner") -> None:
        self.payloads = payloads
        self.position: Position | None = None
        self._history = history
        self._owner = owner
        self._outcomes = 0

    def on_appended(self, ledger_id: int, first_entry_id: int) -> None:
        self._end()
        if self._owner.fences:
            self._history.violations.append(f"{self.payloads[0]!r} confirmed after the fence")
        self.position = Position(ledger_id, first_entry_id)
        self._history.confirmed.append(self)

    def on_failed(self, error: LogError) -> None:
        self._end()

    def _end(self) -> None:
        self._outcomes += 1
        if self._outcomes > 1:
            self._history.violations.append(f"{self.payloads[0]!r} has two outcomes")
        self._owner.on_batch_done()


class Owner:
    """Appends to one handle of the log until it is fenced."""

    def __init__(self, log: ManagedLog, number: int, history: History) -> None:
        self.log = log
        self.fences = 0
        self.pending = 0
        self._number = number
        self._count = 0
        self._history = history
        self._done = asyncio.Event()
        log.on_fenced(self._on_fenced)

    def _on_fenced(self) -> None:
        self.fences += 1

    def append(self, size: int) -> None:
        payloads = [b"%d/%d/%d" % (self._number, self._count, at) for at in range(size)]
        self._count += 1
        batch = Batch(self._history, payloads, self)
        self._history.appended[payloads[0]] = batch
        self.pending += 1
        self.log.append(batch)

    def on_batch_done(self) -> None:
        self.pending -= 1
        self._done.set()

    async def wait_pending(self, most: int) -> None:
        while self.pending > most:
            self._done.clear()
            await self._done.wait()


class Chaos:
    """One run: the faults, and the owners that live with them."""

    def __init__(self, cluster: Cluster, seed: int, opened: AsyncExitStack) -> None:
        self.rng = random.Random(seed)
        self.history = History()
        self.owners: list[Owner] = []
        self._cluster = cluster
        self._opened = opened
        self._networks: list[FilteredNetwork] = []
        ensemble_size, write_quorum, ack_quorum = QUORUMS[seed % len(QUORUMS)]
        self._config = LogConfig(
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            ledger_entries_max=25,
            ledger_age_min_s=0,
            repair_timeout_s=1,
            unavailable_retry_s=0.05,
        )

    async def step(self) -> None:
        for owner in self.owners[-2:]:
            for _ in range(self.rng.randrange(6)):
                owner.append(self.rng.randrange(1, 5))
            # How far it got before the next fault depends on the wait.
            await owner.wait_pending(self.rng.choice((0, 3, 20)))
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
            )
        )()

    async def stop_bookie(self) -> None:
        running = sorted(self._cluster.bookies)
        if len(running) > 2:
            await self._cluster.stop_bookie(self.rng.choice(running))

    async def start_bookies(self) -> None:
        for name in BOOKIES:
            if name not in self._cluster.bookies:
                await self._cluster.start_bookie(name)

    async def lose_answers(self) -> None:
        """Some answers to adds and reads of one bookie never arrive."""
        if not self._networks or not self._cluster.bookies:
            return
        ports = sorted(bookie.port for bookie in self._cluster.bookies.values())
        chosen, share = self.rng.choice(ports), self.rng.random()
        rng = random.Random(self.rng.random())

        def lose_some(port: int, frame: Frame) -> Frame | None:
            is_lost = port == chosen and frame.op in (Op.ADD, Op.READ) and rng.random() < share
            return None if is_lost else frame

        self.rng.choice(self._networks[-2:]).filter = lose_some

    async def heal(self) -> None:
        for network in self._networks:
            network.filter = lambda port, frame: frame

    async def rotate(self) -> None:
        """Of one owner, perhaps of one that is the owner no longer; it need not come to its end."""
        log = self.rng.choice(self.owners[-2:]).log
        try:
            async with asyncio.timeout(self.rng.choice((0.001, 0.5))):
                await log.rotate()
        except (LogError, TimeoutError):
            pass

    async def shrink(self) -> None:
        """Remove up to about half of what there is."""
        log = self.rng.choice(self.owners[-2:]).log
        half = list(log.ledgers)[: len(log.ledgers) // 2]
        if not half:
            return
        before = Position(self.rng.choice(half).ledger_id + 1, 0)
        try:
            await log.shrink(before)
        except LedgerError:
            pass

    async def take_over(self) -> None:
        network = FilteredNetwork()
        client = await self._opened.enter_async_context(self._cluster.client(network, SETTINGS))
        try:
            log = await ManagedLog.open(
                client,
                self._cluster.store,
                PATH,
                self._config,
                clock=SystemClock(),
                random=self.rng,
            )
        except LedgerError:
            return  # not enough bookies just now
        self._networks.append(network)
        self.owners.append(Owner(log, len(self.owners), self.history))

    async def finish(self) -> list[tuple[Position, bytes]]:
        """Make everything well and read what a last owner finds."""
        await self.heal()
        await self.start_bookies()
        count = len(self.owners)
        while len(self.owners) == count:
            await self.take_over()
        for owner in self.owners[:-1]:
            owner.append(1)
            await owner.wait_pending(0)
            assert owner.fences <= 1
            await owner.log.close()
        log = self.owners[-1].log
        found: list[tuple[Position, bytes]] = []
        position = log.first_position()
        while entries := await log.read(position, entries_max=100, bytes_max=1 << 20):
            found += [(entry.position, entry.payload) for entry in entries]
            position = log.next_position(entries[-1].position)
        await log.close()
        return found


class Follower:
    """Reads the log from its beginning on, as long as the run lasts."""

    def __init__(self, reader: LogReader) -> None:
        self.seen: list[tuple[Position, bytes]] = []
        self.trimmed_before = EARLIEST
        """Entries before it may have been removed before they were read."""
        self._reader = reader

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

    async def _seek_trimmed(self) -> None:
        try:
            await self._reader.seek(self.trimmed_before)
        except LedgerError:
            pass  # trimmed again meanwhile, or not to be read just now: the next read tells

    async def wait_seen(self, last: Position) -> None:
        await until(lambda: bool(self.seen) and self.seen[-1][0] >= last, f"{last} is followed")


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


def judge(history: History, found: list[tuple[Position, bytes]], removed_through: int) -> None:
    assert history.violations == []
    at = {payload: index for index, (_, payload) in enumerate(found)}
    assert len(at) == len(found), "an entry is in the log twice"
    last = -1
    for batch in history.confirmed:
        assert batch.position is not None
        ledger_id, entry_id = batch.position
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
    known = {payload for batch in history.appended.values() for payload in batch.payloads}
    assert at.keys() <= known


@pytest.mark.parametrize("seed", SEEDS)
async def test_what_was_confirmed_is_in_the_log_once_and_in_order(
    tmp_path: Path, seed: int
) -> None:
    async with cluster_of(len(BOOKIES), tmp_path) as cluster, AsyncExitStack() as opened:
        chaos = Chaos(cluster, seed, opened)
        await chaos.take_over()
        client = await opened.enter_async_context(cluster.client(settings=SETTINGS))
        reader = await LogReader.open(client, cluster.store, PATH, clock=SystemClock())
        follower = Follower(reader)
        following = asyncio.ensure_future(follower.run())
        for _ in range(STEPS):
            await chaos.step()
        found = await chaos.finish()
        node = await cluster.store.get(PATH)
        removed_through = LogMetadata.from_json(node.value, path=PATH).removed_through
        judge(chaos.history, found, removed_through)
        assert len(chaos.history.confirmed) > STEPS // 4, "too little happened to judge"
        if found:
            await follower.wait_seen(found[-1][0])
        following.cancel()
        await reader.close()
        judge_follower(follower, found, removed_through)
