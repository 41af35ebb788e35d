"""A call of the disk fails, each in turn: EIO, no space, or a write of which a part is done.

The script goes on as well as it can, the power is lost at its end, and the next process must find
everything that was confirmed all the same.
"""

import errno
from collections import Counter
from collections.abc import Iterator

from tests.simulation.disk import SimDisk
from tests.simulation.inode import Survival
from tests.simulation.storing.client import Client
from tests.simulation.storing.lives import Life, LivesPlan, Trouble
from tests.simulation.storing.machine import Machine, Shape
from tests.simulation.storing.metadata import Metadata
from tests.simulation.storing.scripts import SCRIPTS
from tests.simulation.storing.workload import Do, Player

_WAYS = (
    (errno.EIO, -1),
    (errno.ENOSPC, -1),
    (errno.EIO, 7),
    (errno.ENOSPC, 100),
)
"""Error, and bytes of a write that are done."""


def calls_of(script: str, shape: Shape) -> Counter[str]:
    """How many calls of each kind a script makes, its start included."""
    disk = SimDisk(seed="0", faithful=True)
    calls: Counter[str] = Counter()

    def on_call(kind: str, path: str) -> None:
        calls[kind] += 1

    disk.on_call = on_call
    machine = Machine(disk, Metadata(), shape, seed="0")

    async def main() -> None:
        await machine.start()
        await Player(machine, Client(machine, [])).play(SCRIPTS[script])

    try:
        machine.run(main())
    finally:
        machine.close()
    return calls


def troubled(script: str, shape: Shape, *, every: int = 1, first: int = 0) -> Iterator[LivesPlan]:
    """Plans in each of which one call of the script fails."""
    number = 0
    for kind, count in sorted(calls_of(script, shape).items()):
        for after in range(count):
            number += 1
            if (number - first) % every:
                continue
            error, written = _WAYS[number % len(_WAYS)]
            life = Life(
                tuple(SCRIPTS[script]),
                cut=0,
                survival=(Survival.NOTHING if number % 3 else Survival.ANY).name,
                stops=False,
                trouble=Trouble(kind, "", after, 1, error, written),
            )
            rest = Life((Do("look"),), 0, "NOTHING", stops=True, trouble=None)
            yield LivesPlan(number, shape, (life, rest, rest))
