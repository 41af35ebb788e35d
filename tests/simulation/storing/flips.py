"""One flipped bit anywhere in any file: the right packet, an error, or a start that is refused.

Never a wrong packet, and never the denial of an entry, also after the logs were compacted. One
place is different, and cannot be told from the torn end of a crash: the last group of a journal.
What is there alone may be gone; it must not be wrong either.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from magnetar.bookie.entry_logs.damage import Damage
from magnetar.bookie.errors import BookieServiceError, StorageError
from magnetar.bookie.journaling.journal_format import (
    FILE_HEADER_BYTES,
    decode_record,
    file_ids,
    file_name,
)
from magnetar.bookie.parts import BookieParts
from tests.simulation.disk import SimDisk
from tests.simulation.inode import Survival
from tests.simulation.storing.client import ViolationError
from tests.simulation.storing.collecting import Collecting
from tests.simulation.storing.cut import Cut, Played
from tests.simulation.storing.inspect import Inspection
from tests.simulation.storing.machine import Machine
from tests.simulation.storing.model import Expected, expectation


class Flip(NamedTuple):
    """A bit of a file. `is_late`: it flips when the process is running already."""

    path: str
    offset: int
    mask: int
    is_late: bool


@dataclass(slots=True)
class FlipReport:
    """What became of the flips."""

    flips: int = 0
    refused: int = 0
    """Starts that were refused."""
    noticed: int = 0
    """Processes that answered something with an error."""
    kinds: set[str] = field(default_factory=set)
    """The files in which a flip was noticed, by their suffix or name."""


def flips_of(disk: SimDisk, random: Random, *, per_file: int) -> Iterator[Flip]:
    """Some bits of each file; of small files all of their bytes."""
    for path in disk.files():
        size = len(disk.read_file(path))
        offsets: Iterable[int] = range(size)
        if size > per_file:
            offsets = sorted(random.sample(range(size), per_file))
        for offset in offsets:
            yield Flip(path, offset, 1 << random.randrange(8), random.random() < 0.3)


def flip_some(played: Played, cut: Cut, *, per_file: int, seed: str = "0") -> FlipReport:
    """Restart on what is surely there at a moment, with a bit flipped; again and again.

    Raises:
        ViolationError: a wrong packet, or the denial of an entry.
    """
    report = FlipReport()
    before = SimDisk.of(cut.image, seed=seed, survival=Survival.NOTHING)
    tails = _journal_tails(before)
    for flip in flips_of(before, Random(seed), per_file=per_file):
        expected = expectation(played.events[: cut.events])
        if flip.offset >= tails.get(flip.path, 1 << 62):
            _forget(expected)
        report.flips += 1
        try:
            _restart(played, cut, flip, expected, report, seed=seed)
        except ViolationError as error:
            raise ViolationError(
                f"{played.report(cut, Survival.NOTHING, error)}; {flip}"
            ) from error
    return report


def _restart(
    played: Played,
    cut: Cut,
    flip: Flip,
    expected: dict[int, Expected],
    report: FlipReport,
    *,
    seed: str,
) -> None:
    disk = SimDisk.of(cut.image, seed=seed, survival=Survival.NOTHING)
    if not flip.is_late:
        disk.flip(flip.path, flip.offset, flip.mask)
    machine = Machine(disk, cut.metadata.copy(), played.shape, seed=seed)
    damages: list[Damage] = []

    async def main() -> None:
        parts = await machine.start()
        if flip.is_late and flip.offset < _size(disk, flip.path):
            disk.flip(flip.path, flip.offset, flip.mask)
        for shard in parts.shards:
            shard.on_damage = damages.append
        inspection = Inspection(parts, lambda: True)
        await inspection.compare(expected)
        if inspection.errors:
            report.noticed += 1
            report.kinds.add(_kind(flip.path))
            if ".log" in flip.path and "entry-logs" in flip.path and not damages:
                raise ViolationError("answers are errors, and no damage is reported")
            if not all(flip.path in (each.path + each.reason) for each in damages):
                raise ViolationError(f"the damage is reported elsewhere: {damages}")
        if "entry-logs" in flip.path or "index" in flip.path:
            await _collect(machine, parts)
            await Inspection(parts, lambda: True).compare(expected)

    try:
        machine.run(main())
    except BookieServiceError:
        report.refused += 1
        report.kinds.add(_kind(flip.path))
    finally:
        machine.close()


async def _collect(machine: Machine, parts: BookieParts) -> None:
    """Compact what can be read: it must make nothing good, or lost, that is damaged."""
    collecting = Collecting(machine, parts)
    for _ in range(2):
        try:
            await collecting.collect()
        except StorageError:
            continue  # damage may stop a round


def _size(disk: SimDisk, path: str) -> int:
    """-1 if there is no such file any more."""
    return len(disk.read_file(path)) if path in disk.files() else -1


def _kind(path: str) -> str:
    directory, _, name = path.rpartition("/")
    stem, dot, suffix = name.partition(".")
    parent = directory.rpartition("/")[2]
    return f"{parent}/*.{suffix}" if dot and parent in ("entry-logs", "index") else suffix or stem


def _journal_tails(disk: SimDisk) -> dict[str, int]:
    """Where the last group of the last file of each journal begins."""
    tails = {}
    for directory in {
        path.rpartition("/")[0] for path in disk.files() if path.endswith(".journal")
    }:
        file_id = file_ids(disk.list(directory))[-1]
        path = f"{directory}/{file_name(file_id)}"
        data = disk.read_file(path)
        at = start = FILE_HEADER_BYTES
        while (record := decode_record(data, at, file_id=file_id, offset=at)) is not None:
            at, start = record.end, record.group_start
        # A file without any record may be one that was only being made: its header counts too.
        tails[path] = start if at > FILE_HEADER_BYTES else 0
    return tails


def _forget(expected: dict[int, Expected]) -> None:
    for ledger in expected.values():
        ledger.forget_certainty()
