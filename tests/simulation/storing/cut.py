"""Crashes at every step: a workload is played once, and cut at each write, sync and rename of it.

The disk is copied at each step, together with the number of events that the client has written down
by then. Each copy loses its power in some way, a new process starts on it, and what it holds is
compared with what the client was told. The start is itself cut at its steps: replay must be
idempotent.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from magnetar.bookie.errors import JournalCorruptError, JournalFileMissingError
from magnetar.bookie.journaling.journal_format import FILE_HEADER_BYTES, file_ids, file_name
from magnetar.bookie.parts import BookieParts
from tests.simulation.disk import DiskImage, SimDisk
from tests.simulation.inode import Survival
from tests.simulation.storing.client import Client, ViolationError
from tests.simulation.storing.inspect import Inspection
from tests.simulation.storing.machine import Machine, Shape
from tests.simulation.storing.metadata import Metadata
from tests.simulation.storing.model import Event, Found, expectation
from tests.simulation.storing.workload import Do, Player

SURVIVALS = (
    Survival.NOTHING,
    Survival.EVERYTHING,
    Survival.ANY,
    Survival.NAMES,
    Survival.BYTES,
    Survival.ANY,
    Survival.FIRST_PART,
    Survival.KILLED,
    Survival.ANY,
)


class Cut(NamedTuple):
    """A moment at which the power is lost."""

    step: int
    kind: str
    path: str
    image: DiskImage
    metadata: Metadata
    events: int
    """Events that the client had written down."""


@dataclass(frozen=True, slots=True)
class Played:
    """A workload that was played, and its moments."""

    shape: Shape
    events: list[Event]
    cuts: list[Cut]

    def report(self, cut: Cut, survival: Survival, error: BaseException) -> str:
        return (
            f"{self.shape}, cut behind step {cut.step} ({cut.kind} {cut.path}), "
            f"{survival.name}, {cut.events} events: {type(error).__name__}: {error}"
        )


def recording(
    cuts: list[Cut], disk: SimDisk, metadata: Metadata, events: Sequence[Event]
) -> Callable[[str, int], None]:
    """An `on_step` that keeps every moment."""

    def on_step(kind: str, number: int) -> None:
        cuts.append(Cut(number, kind, disk.last_path, disk.image(), metadata.copy(), len(events)))

    return on_step


def play(todo: Sequence[Do], shape: Shape, *, seed: str = "0") -> Played:
    """Play a workload on an empty disk, to its end, and stop in order."""
    disk = SimDisk(seed=seed, faithful=True)
    metadata = Metadata()
    events: list[Event] = []
    cuts: list[Cut] = []
    disk.on_step = recording(cuts, disk, metadata, events)
    machine = Machine(disk, metadata, shape, seed=seed)

    async def main() -> None:
        await machine.start()
        client = Client(machine, events)
        await Player(machine, client).play(todo)
        await machine.bookie.stop()

    try:
        machine.run(main())
    finally:
        machine.close()
    return Played(shape, events, cuts)


@dataclass(slots=True)
class Restarted:
    """A start on a disk that was cut, and what the process found."""

    found: dict[int, Found]
    disk: SimDisk
    metadata: Metadata
    cuts: list[Cut]
    """The moments of the start."""


def restart(
    played: Played,
    cut: Cut,
    survival: Survival,
    *,
    seed: str,
    keeps_cuts: bool = False,
    spoil: Callable[[SimDisk], None] = lambda disk: None,
) -> Restarted:
    """Lose the power at a moment, start again, and judge what is there.

    `spoil` changes the disk before the start.

    Raises:
        ViolationError: something is not as it must be; the text says where the power was lost.
    """
    disk = SimDisk.of(cut.image, seed=seed, survival=survival)
    spoil(disk)
    metadata = cut.metadata.copy()
    cuts: list[Cut] = []
    if keeps_cuts:
        disk.on_step = recording(cuts, disk, metadata, played.events[: cut.events])
    machine = Machine(disk, metadata, played.shape, seed=seed)
    expected = expectation(played.events[: cut.events])

    async def main() -> dict[int, Found]:
        parts: BookieParts = await machine.start()
        disk.on_step = _nothing
        return await Inspection(parts).compare(expected)

    try:
        found = machine.run(main())
    except Exception as error:
        raise ViolationError(played.report(cut, survival, error)) from error
    finally:
        machine.close()
    return Restarted(found, disk, metadata, cuts)


def cut_everywhere(
    played: Played, survivals: Sequence[Survival] = SURVIVALS, *, every: int = 1, first: int = 0
) -> int:
    """Restart at each moment, in one way after the other; returns the number of restarts.

    With `every` and `first` only at some of them, each in the way it has among all.
    """
    numbers = range(first, len(played.cuts), every)
    for number in numbers:
        cut = played.cuts[number]
        restart(played, cut, survivals[number % len(survivals)], seed=f"{cut.step}")
    return len(numbers)


def cut_twice(played: Played, cuts: Iterable[Cut], survival: Survival = Survival.ANY) -> int:
    """Cut each start on these moments at all of its own moments; returns the number of restarts."""
    restarts = 0
    for cut in cuts:
        again = restart(played, cut, survival, seed=f"{cut.step}", keeps_cuts=True)
        for number, second in enumerate(again.cuts):
            restart(played, second, SURVIVALS[number % len(SURVIVALS)], seed=f"{number}")
            restarts += 1
    return restarts


def lose_after_kill(played: Played, cut: Cut) -> None:
    """Kill the process at a moment; a start; then the power is lost. What the start relied on must
    not have been in the page cache alone."""
    again = restart(played, cut, Survival.KILLED, seed=f"{cut.step}", keeps_cuts=True)
    if again.cuts:
        restart(played, again.cuts[-1], Survival.NOTHING, seed=f"{cut.step}")


def lose_newest(played: Played, cut: Cut) -> int:
    """Kill the process at a moment; the newest file of a journal is then gone, or cut to its
    header, of each journal in turn. Returns the number of starts that were refused.

    Raises:
        ViolationError: a start was not refused, or does not name the file, and something is
            missing that the client was told of.
    """
    refused = 0
    for number in range(played.shape.journals):
        directory = f"/j{number}"
        before = SimDisk.of(cut.image, seed="0", survival=Survival.KILLED)
        if not before.exists(directory) or not (ids := file_ids(before.list(directory))):
            continue
        newest = f"{directory}/{file_name(ids[-1])}"
        for spoil in (partial(_remove, newest), partial(_cut_to_its_header, newest)):
            try:
                restart(played, cut, Survival.KILLED, seed="0", spoil=spoil)
            except ViolationError as error:
                refusal = error.__cause__
                if not isinstance(refusal, JournalFileMissingError | JournalCorruptError):
                    raise
                if newest not in str(refusal):
                    raise
                refused += 1
    return refused


def _remove(path: str, disk: SimDisk) -> None:
    disk.remove(path)


def _cut_to_its_header(path: str, disk: SimDisk) -> None:
    disk.replace_file(path, disk.read_file(path)[:FILE_HEADER_BYTES])


def _nothing(kind: str, number: int) -> None:
    return None
