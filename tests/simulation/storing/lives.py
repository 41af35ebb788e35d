"""Random runs of one bookie: lives of its process, each ended by a crash, a failure or a stop.

A plan is drawn from a seed and is plain data, so that it can be kept. A life begins with a start on
what the one before has left, and with a look at everything. Then the client does its operations
while calls of the disk fail, or the disk is full, until the power is lost behind some step.
"""

import errno
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import NamedTuple

from magnetar.bookie.errors import BookieServiceError
from tests.simulation.disk import PowerLossError, ShortWriteError, SimDisk
from tests.simulation.inode import Survival
from tests.simulation.storing.client import Client
from tests.simulation.storing.inspect import Inspection
from tests.simulation.storing.machine import Machine, ProcessEndedError, Shape
from tests.simulation.storing.metadata import Metadata
from tests.simulation.storing.model import Event, Restarted, expectation
from tests.simulation.storing.workload import Do, Player


class Trouble(NamedTuple):
    """Calls of one kind fail, from the `after`-th on, so many times."""

    kind: str
    """Kind of call, by the names of `SimDisk.on_call`: write, sync, read, create, rename, remove,
    list, ..."""
    path: str
    """A part of the path."""
    after: int
    times: int
    error: int
    written: int
    """Of a write, so many bytes are done all the same; -1: none, and nothing is begun."""


@dataclass(frozen=True, slots=True)
class Life:
    """One process."""

    todo: tuple[Do, ...]
    cut: int
    """The power is lost behind so many steps; 0: at the end."""
    survival: str
    stops: bool
    """The life ends in order, if nothing ends it before."""
    trouble: Trouble | None


@dataclass(frozen=True, slots=True)
class LivesPlan:
    """Everything about a run."""

    seed: int
    shape: Shape
    lives: tuple[Life, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "LivesPlan":
        value = json.loads(text)
        lives = [
            Life(
                todo=tuple(Do(*each) for each in life["todo"]),
                cut=life["cut"],
                survival=life["survival"],
                stops=life["stops"],
                trouble=Trouble(*life["trouble"]) if life["trouble"] else None,
            )
            for life in value["lives"]
        ]
        return cls(value["seed"], Shape(**value["shape"]), tuple(lives))

    def __str__(self) -> str:
        lines = [f"storage seed {self.seed}: {self.shape}"]
        for number, life in enumerate(self.lives):
            lines.append(
                f"  life {number}: cut {life.cut or '-'} {life.survival}"
                f"{' stops' if life.stops else ''} {life.trouble or ''}"
            )
            lines += [f"    {' '.join(map(str, do))}" for do in life.todo]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class LivesOutcome:
    """What became of a plan."""

    plan: LivesPlan
    error: str
    events: int
    restarts: int

    @property
    def has_failed(self) -> bool:
        return bool(self.error)

    def report(self) -> str:
        return f"{self.plan}\nVIOLATED {self.error}" if self.error else str(self.plan)


# Drawing

_TROUBLES: dict[str, tuple[str, ...]] = {
    "write": ("", ".journal", ".log", "index", "last-mark", ".compact"),
    "sync": ("", ".journal", ".journal", ".journal", ".log", "index", "/j0", "/l0"),
    "read": ("", ".log", "index", "entry-logs"),
    "create": ("", ".journal", ".log", "index"),
    "rename": ("", "last-mark", "/j0", ".compact"),
    "remove": ("", "/j0", "entry-logs"),
}
"""Calls that fail, and parts of the paths for which they do."""


def draw_lives(seed: int, shapes: Sequence[Shape] = ()) -> LivesPlan:
    """The plan of a seed."""
    random = Random(f"lives/{seed}")
    shape = random.choice(shapes) if shapes else draw_shape(random)
    drawing = _Drawing(random)
    lives = [drawing.life() for _ in range(random.randint(2, 5))]
    # The last one sees only what is left.
    lives.append(Life((Do("look"),), 0, "NOTHING", stops=True, trouble=None))
    return LivesPlan(seed, shape, tuple(lives))


def draw_shape(random: Random) -> Shape:
    return random.choice(ALL_SHAPES)


ALL_SHAPES = (
    Shape(),
    Shape(journals=2, shards=3),
    Shape(engine="interleaved"),
    Shape(engine="interleaved", journals=2, shards=2),
)


_CHANCES = {
    "add": 30,
    "again": 6,
    "sparse": 3,
    "fence": 3,
    "lac": 3,
    "read": 8,
    "settle": 5,
    "wait": 8,
    "checkpoint": 4,
    "checkpoint_soon": 8,
    "flush": 3,
    "delete": 2,
    "remake": 2,
    "collect": 2,
    "collect_soon": 2,
    "look": 1,
}


class _Drawing:
    def __init__(self, random: Random) -> None:
        self._random = random
        self._next: dict[int, int] = {}
        """The next entry of each ledger."""
        self._deleted: list[int] = []
        self._ledgers = 0

    def life(self) -> Life:
        random = self._random
        todo = [self._do() for _ in range(random.choice((3, 15, 40, 40)))]
        if random.random() < 0.15:
            at = random.randint(0, len(todo))
            todo.insert(at, Do("full", size=random.choice((0, 100, 1000, 5000))))
            todo += [Do("room"), self._add(), Do("checkpoint"), Do("settle")]
        trouble = None
        if random.random() < 0.3:
            kind = random.choices(list(_TROUBLES), (3, 4, 1, 1, 1, 1))[0]
            trouble = Trouble(
                kind,
                random.choice(_TROUBLES[kind]),
                random.choice((0, 1, 2, 3, 6, 10, 30)),
                random.choice((1, 1, 1, 3, 1000)),
                random.choice((errno.EIO, errno.ENOSPC)),
                random.choice((-1, 0, 7, 100)),
            )
        return Life(
            tuple(todo),
            cut=random.choice((0, random.randint(1, 40), random.randint(30, 250))),
            survival=random.choice([each.name for each in Survival]),
            stops=random.random() < 0.3,
            trouble=trouble,
        )

    def _do(self) -> Do:
        random = self._random
        what = random.choices(list(_CHANCES), list(_CHANCES.values()))[0]
        if what == "add" or not self._next:
            return self._add()
        if what in ("settle", "checkpoint", "checkpoint_soon", "flush", "look") or what.startswith(
            "collect"
        ):
            return Do(what)
        if what == "wait":
            return Do("wait", entries=random.choice((1, 1, 3, 20)))
        if what == "remake":
            return self._remake()
        ledger = random.choice(list(self._next))
        top = self._next[ledger]
        if what == "delete":
            del self._next[ledger]
            self._deleted.append(ledger)
            return Do("delete", ledger)
        if what == "again":
            return Do("recover", ledger, random.randint(0, top), random.randint(1, 6), 50)
        if what == "lac":
            return Do("lac", ledger, random.randint(0, top))
        if what == "read":
            first = random.randint(0, top)
            return Do("read", ledger, first, random.randint(1, 20), random.choice((1, 300, 3000)))
        if what == "sparse":
            return Do("sparse", ledger, random.randint(0, top), random.randint(2, 5), 40)
        return Do(what, ledger)

    def _remake(self) -> Do:
        """A ledger that was deleted comes back, as one that is replicated to here again does."""
        random = self._random
        if not self._deleted:
            return self._add()
        ledger = self._deleted.pop(random.randrange(len(self._deleted)))
        first, count = random.choice((0, 0, 3)), random.choice((1, 2, 5))
        self._next[ledger] = first + count
        return Do("recover", ledger, first, count, random.choice((5, 60, 200)))

    def _add(self) -> Do:
        random = self._random
        if not self._next or random.random() < 0.1:
            self._ledgers += 1
            self._next[self._ledgers] = random.choice((0, 0, 5))
        ledger = random.choice(list(self._next))
        first, count = self._next[ledger], random.choice((1, 1, 2, 5, 12))
        self._next[ledger] = first + count + random.choice((0, 0, 0, 0, 1))
        return Do("add", ledger, first, count, random.choice((5, 60, 60, 200, 700)))


# Carrying out


def live(plan: LivesPlan) -> LivesOutcome:
    """Carry a plan out and judge what was heard and found."""
    runner = _Runner(plan)
    error = ""
    try:
        for number, life in enumerate(plan.lives):
            runner.live(number, life)
    except Exception as failure:  # noqa: BLE001  # whatever it is, it is the result of the run
        error = f"{type(failure).__name__}: {failure}"
    return LivesOutcome(plan, error, len(runner.events), runner.restarts)


def shorten(plan: LivesPlan) -> LivesPlan:
    """The plan without what it does not need to fail in the same way."""
    wanted = _kind(live(plan).error)
    assert wanted, "a plan that does not fail"
    is_shorter = True
    while is_shorter:
        is_shorter = False
        for shorter in _shorter(plan):
            if _kind(live(shorter).error) == wanted:
                plan, is_shorter = shorter, True
                break
    return plan


def _kind(error: str) -> str:
    return re.sub(r"\d+", "#", error)[:60]


def _shorter(plan: LivesPlan) -> Iterator[LivesPlan]:
    """Plans with one life, one operation or one trouble less."""
    lives = plan.lives
    for at, life in enumerate(lives):
        before, behind = lives[:at], lives[at + 1 :]
        yield replace(plan, lives=(*before, *behind))
        for size in (16, 4, 1):
            for first in range(0, len(life.todo), size):
                todo = life.todo[:first] + life.todo[first + size :]
                yield replace(plan, lives=(*before, replace(life, todo=todo), *behind))
        if life.trouble is not None:
            yield replace(plan, lives=(*before, replace(life, trouble=None), *behind))


class _Runner:
    def __init__(self, plan: LivesPlan) -> None:
        self._plan = plan
        self._disk = SimDisk(seed=f"lives/{plan.seed}", faithful=True)
        self._metadata = Metadata()
        self.events: list[Event] = []
        self.restarts = 0

    def live(self, number: int, life: Life) -> None:
        plan, disk = self._plan, self._disk
        machine = Machine(disk, self._metadata, plan.shape, seed=f"{plan.seed}/{number}")
        trouble = _Troubling(life.trouble)
        disk.on_call = trouble.on_call
        if life.cut:
            disk.on_step = _cutting(life.cut + disk.steps)
        stops = False
        try:
            machine.run(self._main(machine, life, trouble))
            stops = life.stops
        except PowerLossError:
            pass
        except ProcessEndedError:
            if not trouble.has_come:
                raise
        except (BookieServiceError, OSError):
            # A start that meets a disk that fails may refuse; the next one must not.
            if not trouble.has_come:
                raise
        finally:
            machine.close()
        survival = Survival.KILLED if stops else Survival[life.survival]
        if disk.bytes_left is not None:
            disk.bytes_left = None
        self._disk = SimDisk.of(disk.image(), seed=f"{plan.seed}/{number}", survival=survival)
        self._metadata = self._metadata.copy()

    async def _main(self, machine: Machine, life: Life, trouble: "_Troubling") -> None:
        parts = await machine.start()
        self.restarts += 1
        inspection = Inspection(parts, lambda: trouble.has_come)
        found = await inspection.compare(expectation(self.events))
        if inspection.errors:
            return  # nothing is known for sure; the next life looks again
        self.events.append(Restarted(found, was_troubled=trouble.has_come))
        client = Client(machine, self.events, trouble)
        await Player(machine, client).play(life.todo)
        if life.stops:
            await machine.bookie.stop()


class _Troubling:
    """Makes calls of the disk fail, as a life's trouble says."""

    def __init__(self, trouble: Trouble | None) -> None:
        self._trouble = trouble
        self._calls = 0
        self.has_come = False
        """Something has failed: errors may be answered from now on."""

    def on_call(self, kind: str, path: str) -> None:
        trouble = self._trouble
        if trouble is None or kind != trouble.kind or trouble.path not in path:
            return
        self._calls += 1
        if trouble.after < self._calls <= trouble.after + trouble.times:
            self.has_come = True
            if kind == "write" and trouble.written >= 0:
                raise ShortWriteError(trouble.error, trouble.written)
            raise OSError(trouble.error, os.strerror(trouble.error), path)


def _cutting(last: int) -> Callable[[str, int], None]:
    def on_step(kind: str, number: int) -> None:
        if number == last:
            raise PowerLossError(kind)

    return on_step
