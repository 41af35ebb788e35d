"""Client processes of a simulation: the real `LedgerClient`, with everything they hear recorded.

The wrappers here add nothing to the protocol. They give every operation a number, so that one that
never ends is noticed, and write down what the application was told.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from random import Random
from typing import TypeVar

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerClosedError, LedgerError, NoSuchLedgerError
from magnetar.ledger.ledger_metadata import DigestType, LedgerMetadata, LedgerState
from magnetar.ledger.placement import RandomPlacement
from magnetar.ledger.reader import LedgerReader
from magnetar.ledger.registration import BookieInfo
from magnetar.ledger.settings import LedgerSettings
from magnetar.ledger.writer import LedgerWriter
from tests.simulation.history import (
    Acked,
    AddFailed,
    Appended,
    Began,
    Ended,
    Event,
    Fault,
    History,
    ReadFailed,
    Said,
    SawBound,
    SawClosed,
    WasRead,
)
from tests.simulation.loop import ProcessState, SimLoop, SimProcess
from tests.simulation.network import Fabric, SimNetwork
from tests.simulation.store import MetadataServer
from tests.simulation.worker import SimClock

T = TypeVar("T")

_FOLLOW_WAIT_S = 0.3
_FOLLOW_RETRY_S = 0.03

FAST = LedgerSettings(
    connect_timeout_s=0.5,
    request_timeout_s=0.5,
    reconnect_delay_s=0.05,
    close_drain_timeout_s=2.0,
)
"""Timeouts short enough that a story stays short; virtual time costs nothing."""


class ScriptedPlacement:
    """As a test says; what it does not say is drawn."""

    def __init__(self, random: Random) -> None:
        self._others = RandomPlacement(random)
        self.ensembles: list[tuple[str, ...]] = []
        """For the next ledgers, in order."""
        self.replacements: list[str] = []
        """For the next replaced members, in order."""

    def choose_ensemble(
        self,
        bookies: Mapping[str, BookieInfo],
        *,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        excluded: Collection[str] = (),
        avoided: Collection[str] = (),
    ) -> tuple[str, ...]:
        if self.ensembles:
            return self.ensembles.pop(0)
        return self._others.choose_ensemble(
            bookies,
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            excluded=excluded,
            avoided=avoided,
        )

    def choose_replacement(
        self,
        bookies: Mapping[str, BookieInfo],
        *,
        ensemble: Sequence[str],
        index: int,
        write_quorum: int,
        ack_quorum: int,
        excluded: Collection[str] = (),
        avoided: Collection[str] = (),
    ) -> str:
        if self.replacements and self.replacements[0] not in ensemble:
            return self.replacements.pop(0)
        return self._others.choose_replacement(
            bookies,
            ensemble=ensemble,
            index=index,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            excluded=excluded,
            avoided=avoided,
        )


class SimClient:
    """One client process. `ledgers` is the real client in it."""

    def __init__(
        self,
        name: str,
        loop: SimLoop,
        fabric: Fabric,
        server: MetadataServer,
        history: History,
        *,
        seed: str,
        settings: LedgerSettings = FAST,
    ) -> None:
        self.name = name
        self.loop = loop
        self.fabric = fabric
        self._server = server
        self._history = history
        self.process = SimProcess(loop, name)
        self.store = server.open(self.process)
        self.random = Random(f"{seed}/client")
        self.placement = ScriptedPlacement(Random(f"{seed}/placement"))
        self.clock = SimClock(loop)
        self.ledgers = LedgerClient(
            self.store,
            network=SimNetwork(fabric, self.process),
            clock=self.clock,
            random=self.random,
            settings=settings,
            placement=self.placement,
        )
        self._readers_made = 0

    # The process

    async def run(self, coroutine: Coroutine[object, object, T]) -> T:
        """Run something in this process, and wait for it."""
        return await self.process.spawn(coroutine)

    def spawn(
        self, coroutine: Coroutine[object, object, T], name: str | None = None
    ) -> asyncio.Task[T]:
        """Run something in this process, without waiting."""
        return self.process.spawn(coroutine, name)

    def crash(self) -> None:
        """The process is gone; its sessions end later."""
        if self.process.is_alive:
            self.record(Fault("crashes"))
            self.process.kill()
            self.fabric.on_process_gone(self.process)
            self._server.forget(self.process)

    def pause(self) -> None:
        """The process gets no time."""
        self.record(Fault("is paused"))
        self.process.pause()

    def resume(self) -> None:
        self.record(Fault("goes on"))
        self.process.resume()

    # Ledgers

    async def create(
        self,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        *,
        ensemble: tuple[str, ...] | None = None,
        password: bytes | None = None,
        digest_type: DigestType = DigestType.CRC32C,
    ) -> "SimWriter":
        """Create a ledger, on these bookies in this order if `ensemble` is given."""
        if ensemble is not None:
            self.placement.ensembles.append(ensemble)
        writer = await self.run(
            self.operation(
                "create",
                -1,
                self.ledgers.create(
                    ensemble_size=ensemble_size,
                    write_quorum=write_quorum,
                    ack_quorum=ack_quorum,
                    password=password,
                    digest_type=digest_type,
                ),
            )
        )
        return SimWriter(self, writer)

    async def recover(self, ledger_id: int) -> "SimReader":
        """`open_and_recover`."""
        return await self.run(self.recover_here(ledger_id))

    async def recover_here(self, ledger_id: int) -> "SimReader":
        """Open and recover a ledger, for code that runs in this process."""
        reader = await self.operation(
            "recover", ledger_id, self.ledgers.open_and_recover(ledger_id)
        )
        self.saw_closed(reader.metadata, "recovered")
        return SimReader(self, reader)

    async def open(self, ledger_id: int) -> "SimReader":
        """`open`."""
        return await self.run(self.open_here(ledger_id))

    async def open_here(self, ledger_id: int) -> "SimReader":
        """Open a ledger, for code that runs in this process."""
        reader = await self.operation("open", ledger_id, self.ledgers.open(ledger_id))
        if reader.metadata.state is LedgerState.CLOSED:
            self.saw_closed(reader.metadata, "opened")
        return SimReader(self, reader)

    # Recording

    def record(self, event: Event) -> None:
        self._history.add(self.loop.time(), self.name, event)

    async def operation(self, what: str, ledger_id: int, call: Coroutine[object, object, T]) -> T:
        """Record begin and end of a call."""
        number = self.next_number()
        self.record(Began(number, what, ledger_id))
        try:
            result = await call
        except LedgerError as error:
            self.record(Ended(number, what, f"{type(error).__name__}: {error}"))
            raise
        except BaseException as error:
            self.record(Ended(number, what, type(error).__name__))
            raise
        self.record(Ended(number, what, ""))
        return result

    def next_number(self) -> int:
        """Tells operations of a run apart."""
        return self._server.next_number()

    def saw_closed(self, metadata: LedgerMetadata, how: str) -> None:
        self.record(SawClosed(metadata.ledger_id, metadata.last_entry_id, metadata.length, how))

    def next_reader_name(self) -> str:
        self._readers_made += 1
        return f"{self.name}/{self._readers_made}"


class SimWriter:
    """A `LedgerWriter` of a client process; what it acknowledges is recorded."""

    def __init__(self, client: SimClient, writer: LedgerWriter) -> None:
        self.client = client
        self.writer = writer
        self.ledger_id = writer.ledger_id
        self.acked: list[int] = []
        self.failed: list[int] = []
        self.error: LedgerError | None = None
        """Why the last add failed, or was refused."""

    @property
    def pending(self) -> int:
        """Entries appended whose outcome is not known yet."""
        return self.writer.entries_added - len(self.acked) - len(self.failed)

    def append(self, count: int = 1) -> None:
        """Append entries, in one call, without waiting. Payloads tell their entry.

        Raises:
            LedgerError: refused; nothing was appended.
        """
        assert self.client.process.state is ProcessState.RUNNING, "a process that does not run"
        self.client.process.context.copy().run(self._append, count)

    def _append(self, count: int) -> None:
        first = self.writer.entries_added
        payloads = [payload_of(self.client.name, first + at) for at in range(count)]

        def on_done(error: LedgerError | None) -> None:
            for entry_id in range(first, first + count):
                if error is None:
                    self.acked.append(entry_id)
                    self.client.record(Acked(self.ledger_id, entry_id))
                else:
                    self.failed.append(entry_id)
                    self.error = error
                    text = f"{type(error).__name__}: {error}"
                    self.client.record(AddFailed(self.ledger_id, entry_id, text))

        try:
            assert self.writer.append(payloads, on_done) == first
        except LedgerError as error:
            self.error = error
            self.client.record(Said(f"append refused: {type(error).__name__}: {error}"))
            raise
        for at, payload in enumerate(payloads):
            self.client.record(Appended(self.ledger_id, first + at, payload))

    async def add(self, count: int = 1) -> None:
        """Append entries in one call and wait until they are acknowledged.

        Raises:
            LedgerError: they may not be.
        """
        wanted = self.writer.entries_added + count
        self.append(count)
        await self.client.loop.until(lambda: len(self.acked) + len(self.failed) >= wanted)
        if self.failed:
            assert self.error is not None
            raise self.error

    async def close(self, *, force: bool = False) -> LedgerMetadata:
        """Close the ledger."""
        return await self.client.run(self.close_here(force=force))

    async def close_here(self, *, force: bool = False) -> LedgerMetadata:
        """Close the ledger, for code that runs in the client's process."""
        client = self.client
        metadata = await client.operation("close", self.ledger_id, self.writer.close(force=force))
        client.saw_closed(metadata, "closed")
        return metadata


class SimReader:
    """A `LedgerReader` of a client process; what it returns is recorded."""

    def __init__(self, client: SimClient, reader: LedgerReader) -> None:
        self.client = client
        self.reader = reader
        self.name = client.next_reader_name()
        self.ledger_id = reader.metadata.ledger_id
        self.is_final = False
        """Reads after everything was healed."""
        self.note_bound()

    @property
    def last_add_confirmed(self) -> int:
        return self.reader.last_add_confirmed

    def note_bound(self) -> None:
        """Record up to where may be read now."""
        self.client.record(SawBound(self.name, self.ledger_id, self.reader.last_add_confirmed))

    async def read(self, first: int, last: int) -> list[bytes]:
        """Payloads of the entries from `first` to `last`, all of them.

        Raises:
            LedgerError
        """
        return await self.client.run(self.read_here(first, last))

    async def read_here(self, first: int, last: int) -> list[bytes]:
        """Read entries, for code that runs in the client's process."""
        found: list[bytes] = []
        while first <= last:
            bound = self.reader.last_add_confirmed
            try:
                payloads = await self.client.operation(
                    "read", self.ledger_id, self.reader.read(first, last)
                )
            except LedgerError as error:
                text = f"{type(error).__name__}: {error}"
                self.client.record(
                    ReadFailed(self.name, self.ledger_id, first, text, self.is_final)
                )
                raise
            assert payloads, "a read returns at least one entry"
            for payload in payloads:
                self.client.record(WasRead(self.name, self.ledger_id, first, payload, bound))
                first += 1
            found += payloads
        return found

    async def follow(self, is_over: Callable[[], bool], *, polls: bool = True) -> None:
        """Read entry after entry as the writer goes on, until the ledger is closed.

        With long polls, or by asking all members again and again. What does not work just now is
        tried again. For code that runs in the client's process.
        """
        next_id = 0
        try:
            while not is_over():
                try:
                    if next_id <= self.reader.last_add_confirmed:
                        bound = self.reader.last_add_confirmed
                        await self.read_here(next_id, bound)
                        next_id = bound + 1
                    elif self.reader.is_ledger_closed:
                        self.client.saw_closed(self.reader.metadata, "followed")
                        return
                    else:
                        await self._wait_news(next_id - 1, polls)
                except (NoSuchLedgerError, LedgerClosedError):
                    return
                except LedgerError:
                    await asyncio.sleep(_FOLLOW_RETRY_S)
                self.note_bound()
        finally:
            await self.reader.close()

    async def _wait_news(self, entry_id: int, polls: bool) -> None:
        if polls:
            wait = self.reader.wait_beyond(entry_id, timeout_s=_FOLLOW_WAIT_S)
            await self.client.operation("wait_beyond", self.ledger_id, wait)
        else:
            asked = self.reader.read_last_add_confirmed()
            await self.client.operation("read_lac", self.ledger_id, asked)
            self.note_bound()
            await asyncio.sleep(_FOLLOW_RETRY_S)

    async def read_behind_the_bound(self) -> None:
        """Ask for more than may be read, which must be refused (rule 9.3)."""
        wanted = self.reader.last_add_confirmed + 1
        try:
            await self.read_here(wanted, wanted)
        except LedgerError:
            pass  # recorded

    async def read_all(self) -> list[bytes]:
        """Everything up to the bound."""
        return await self.read(0, self.reader.last_add_confirmed)


def payload_of(client: str, entry_id: int) -> bytes:
    """What a client writes as an entry: tells both, and has a length of its own."""
    return f"{client}:{entry_id}{'+' * (entry_id % 4)}".encode()
