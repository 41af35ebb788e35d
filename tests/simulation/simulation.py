"""A whole cluster in one process: machines, clients, network and metadata store, on virtual time.

`Simulation` is the cluster, for tests that write an interleaving step by step (`scenario`) and for
the runs that are drawn from a seed (`run.py`). How to use it: README.md in this folder.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from magnetar.ledger.ledger_metadata import LedgerMetadata
from magnetar.ledger.settings import LedgerSettings
from magnetar.ledger.under_replication import Missing, decode_item, item_path
from tests.simulation.bookie import SimBookie
from tests.simulation.checks import judge
from tests.simulation.clients import FAST, SimClient, SimReader, SimWriter
from tests.simulation.history import History, Said
from tests.simulation.loop import CURRENT_PROCESS, SimLoop
from tests.simulation.network import Fabric
from tests.simulation.record import FinalState, Record
from tests.simulation.store import MetadataServer


class Simulation:
    """A cluster. `bookies` bookies b1, b2, ... run after `start`."""

    def __init__(
        self,
        *,
        bookies: int = 4,
        quorum: tuple[int, int, int] = (3, 3, 2),
        seed: str = "0",
        seconds_max: float = 3600.0,
        steps_max: int = 500_000,
        flush_interval_s: float = 5.0,
        journal_file_bytes_max: int = 4096,
        prefix: str = "",
        beside: "Simulation | None" = None,
    ) -> None:
        """
        Args:
            prefix: what the ids of its bookies begin with.
            beside: another cluster of the same run: on its loop, and in its history.
        """
        self.quorum = quorum
        self.seed = seed
        self._flush_interval_s = flush_interval_s
        self._journal_file_bytes_max = journal_file_bytes_max
        self.prefix = prefix
        self.loop: SimLoop = (
            beside.loop
            if beside is not None
            else SimLoop(  # type: ignore[abstract]  # no sockets, signals, subprocesses
                seconds_max=seconds_max, steps_max=steps_max
            )
        )
        self.history: History = beside.history if beside is not None else History()
        self.net = Fabric(self.loop, self.history, seed=f"{seed}/net")
        self.store = MetadataServer(self.loop, self.history, seed=f"{seed}/store")
        self.bookies: dict[str, SimBookie] = {}
        """All machines that there ever were, by id."""
        self.clients: dict[str, SimClient] = {}
        self._bookies_wanted = bookies

    # The cluster

    async def start(self) -> None:
        """Start the bookies, together."""
        starting = [self.make_bookie().start_soon() for _ in range(self._bookies_wanted)]
        for each in starting:
            await each

    def bookie(self, bookie_id: str) -> SimBookie:
        return self.bookies[bookie_id]

    def make_bookie(self) -> SimBookie:
        """A new machine, under the next id; it does not run yet."""
        bookie_id = f"{self.prefix}b{len(self.bookies) + 1}"
        bookie = self.bookies[bookie_id] = SimBookie(
            bookie_id,
            self.loop,
            self.net,
            self.store,
            self.history,
            seed=f"{self.seed}/{bookie_id}",
            flush_interval_s=self._flush_interval_s,
            journal_file_bytes_max=self._journal_file_bytes_max,
        )
        return bookie

    def make_empty(self, bookie_id: str) -> SimBookie:
        """A machine with empty disks under an id that there was before; it does not run yet."""
        return SimBookie(
            bookie_id,
            self.loop,
            self.net,
            self.store,
            self.history,
            seed=f"{self.seed}/empty-{bookie_id}",
        )

    async def client(self, name: str, settings: LedgerSettings = FAST) -> SimClient:
        """Start a client process. Names are short: they are the actors of the history."""
        assert name not in self.clients, name
        assert name not in self.bookies, name
        client = self.clients[name] = SimClient(
            name,
            self.loop,
            self.net,
            self.store,
            self.history,
            seed=f"{self.seed}/{name}",
            settings=settings,
        )
        await client.run(client.ledgers.start())
        return client

    async def writer(
        self, name: str = "w", *, ensemble: tuple[str, ...] | None = None
    ) -> SimWriter:
        """A client `name` (made if there is none) with a new ledger.

        The ensemble is b1, b2, ... in this order, if nothing else is said.
        """
        client = self.clients.get(name) or await self.client(name)
        if ensemble is None:
            ensemble = tuple(f"b{number}" for number in range(1, self.quorum[0] + 1))
        return await client.create(*self.quorum, ensemble=ensemble)

    async def recover(self, name: str, ledger_id: int) -> SimReader:
        """A client `name` (made if there is none) recovers the ledger, once."""
        client = self.clients.get(name) or await self.client(name)
        return await client.recover(ledger_id)

    def metadata(self, ledger_id: int) -> LedgerMetadata:
        """As it is in the store now."""
        metadata = self.store.metadata(ledger_id)
        assert metadata is not None, f"there is no ledger {ledger_id}"
        return metadata

    def take_stock(self) -> FinalState:
        """What is stored now: all ledgers' metadata, and what the bookies hold."""
        final = FinalState()
        for ledger_id in sorted(set(self.store.ledger_ids.values())):
            metadata = self.store.metadata(ledger_id)
            if metadata is not None:
                final.metadata[ledger_id] = metadata
        for bookie_id, bookie in self.bookies.items():
            if not bookie.is_lost:
                final.packets[bookie_id] = bookie.storage.packets
                final.states[bookie_id] = bookie.storage.states
        return final

    def missing_copies(self) -> dict[int, Missing]:
        """What is published as missing now, per ledger."""
        found: dict[int, Missing] = {}
        for ledger_id in sorted(set(self.store.ledger_ids.values())):
            path = item_path("/ledgers", ledger_id)
            if self.store.tree.version(path) is not None:
                found[ledger_id] = decode_item(self.store.tree.get(path).value, path=path)[0]
        return found

    # Time

    async def until(
        self, condition: Callable[[], bool], *, timeout_s: float = 60.0, what: str = ""
    ) -> None:
        """Wait until the condition holds; it is looked at after every callback."""
        await self.loop.until(condition, timeout_s=timeout_s, what=what)

    async def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        await asyncio.sleep(seconds)

    async def settle(self) -> None:
        """Let everything that is on its way arrive, as far as it may: one second."""
        await asyncio.sleep(1.0)

    def say(self, text: str) -> None:
        """A line for the transcript."""
        self.history.add(self.loop.time(), "test", Said(text))

    # The run

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Run to the end; errors of tasks that nobody asked for count too.

        Raises:
            BaseException: whatever went wrong first.
        """
        with quiet_logs(self):
            try:
                self.loop.run(main)
                for error in self.loop.unretrieved():
                    raise error
            finally:
                self.loop.close()


@contextmanager
def quiet_logs(simulation: Simulation | None = None) -> Iterator[None]:
    """What the program logs becomes part of the history instead of the output."""

    def note(text: str) -> None:
        if simulation is not None and not simulation.loop.is_ending:
            process = CURRENT_PROCESS.get()
            actor = process.name if process is not None else "test"
            simulation.history.add(simulation.loop.time(), actor, Said(text))

    def keep(logger: object, method: str, event: Any) -> Any:
        fields = " ".join(f"{key}={value}" for key, value in event.items() if key != "event")
        note(f"{event['event']} {fields}".rstrip())
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[keep], wrapper_class=structlog.BoundLogger)
    client, noting = logging.getLogger("magnetar.sdk"), _Noting(note)
    client.addHandler(noting)
    was_propagating, client.propagate = client.propagate, False
    try:
        yield
    finally:
        client.propagate = was_propagating
        client.removeHandler(noting)
        structlog.configure(**before)


class _Noting(logging.Handler):
    """Hands on what the SDK logs, which does so by `logging`."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__()
        self._note = note

    def emit(self, record: logging.LogRecord) -> None:
        self._note(record.getMessage())


Story = Callable[[Simulation], Awaitable[None]]


def play(story: Story, simulation: Simulation) -> Simulation:
    """Start the cluster and play a story on it; the invariants are judged at the end.

    Raises:
        AssertionError: of the story, or with the invariants that do not hold and the transcript.
    """

    async def main() -> None:
        await simulation.start()
        await story(simulation)

    try:
        simulation.run(main())
    except BaseException as error:
        error.add_note("the transcript of the story:\n" + simulation.history.text())
        raise
    record = Record(simulation.history, simulation.take_stock(), is_complete=False)
    violations = judge(record)
    if violations:
        text = "\n".join(map(str, violations))
        raise AssertionError(f"{text}\nthe transcript of the story:\n{simulation.history.text()}")
    return simulation


def scenario(
    *,
    bookies: int = 4,
    quorum: tuple[int, int, int] = (3, 3, 2),
    seed: str = "0",
    flush_interval_s: float = 5.0,
) -> Callable[[Story], Callable[[], None]]:
    """Make a test of a story: `async def test_...(sim: Simulation)`."""

    def decorate(story: Story) -> Callable[[], None]:
        def test() -> None:
            play(
                story,
                Simulation(
                    bookies=bookies, quorum=quorum, seed=seed, flush_interval_s=flush_interval_s
                ),
            )

        # Not functools.wraps: pytest would look through it, and ask for a fixture named `sim`.
        test.__name__ = story.__name__
        test.__doc__ = story.__doc__
        test.__module__ = story.__module__
        return test

    return decorate
