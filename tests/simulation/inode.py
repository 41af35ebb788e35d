"""A file of the simulated disk: what programs see, what is on the platters, what is in between.

`content` is the page cache. `durable` is what is surely there after the power was lost. `unsynced`
are the writes since the last sync, in order: how much of them is there is what a power loss decides
(`Survival`). Copies are cheap: `image` of a file that was not changed since is the same object.
"""

from enum import Enum, auto
from itertools import pairwise
from random import Random
from typing import NamedTuple

_PAGE_BYTES = 512


class Survival(Enum):
    """What a power loss leaves of what was not synced: bytes of files, and names in directories."""

    NOTHING = auto()
    """Nothing of either."""
    FIRST_PART = auto()
    """Of each file the writes up to some moment, the last one torn; of names nothing."""
    EVERYTHING = auto()
    """All of it: the disk was quick."""
    NAMES = auto()
    """The names and no bytes: files that were made are there, and empty."""
    BYTES = auto()
    """The bytes and no names."""
    KILLED = auto()
    """Nothing is lost yet: the process died and the machine did not. What was not synced is still
    in the page cache, and may be lost the next time."""
    ANY = auto()
    """Any subset of the bytes, torn anywhere, and any subset of the names."""


class InodeImage(NamedTuple):
    """A file at one moment."""

    content: bytes
    durable: bytes
    unsynced: tuple[tuple[int, bytes], ...]


class Inode:
    """One file's content."""

    __slots__ = ("_image", "content", "durable", "unsynced")

    def __init__(self, image: InodeImage | None = None) -> None:
        self._image = image
        if image is None:
            self.content = bytearray()
            self.durable = bytearray()
            self.unsynced: list[tuple[int, bytes]] = []
        else:
            self.content = bytearray(image.content)
            self.durable = bytearray(image.durable)
            self.unsynced = list(image.unsynced)

    def write(self, data: bytes, offset: int) -> None:
        self._image = None
        put(self.content, data, offset)
        self.unsynced.append((offset, data))

    def preallocate(self, size: int) -> None:
        self._image = None
        self.content.extend(bytes(size - len(self.content)))

    def sync(self) -> None:
        self._image = None
        for offset, data in self.unsynced:
            put(self.durable, data, offset)
        if len(self.durable) < len(self.content):
            self.durable.extend(bytes(len(self.content) - len(self.durable)))
        self.unsynced.clear()

    def lose_pages(self) -> None:
        """A sync failed: the kernel drops what it could not write. Programs still see it."""
        self._image = None
        self.unsynced.clear()

    def flip(self, offset: int, mask: int) -> None:
        self._image = None
        self.content[offset] ^= mask
        if offset < len(self.durable):
            self.durable[offset] ^= mask

    def image(self) -> InodeImage:
        if self._image is None:
            self._image = InodeImage(bytes(self.content), bytes(self.durable), tuple(self.unsynced))
        return self._image

    def lose_power(self, survival: Survival, random: Random) -> None:
        """Only what survives is there from now on."""
        if survival is Survival.KILLED:
            return
        if survival in (Survival.EVERYTHING, Survival.BYTES):
            self.durable = bytearray(self.content)
        elif survival is Survival.FIRST_PART and self.unsynced:
            self._keep_first_part(random)
        elif survival is Survival.ANY:
            self._keep_any(random)
        self._image = None
        self.unsynced.clear()
        self.content = bytearray(self.durable)

    def _keep_first_part(self, random: Random) -> None:
        kept = self.unsynced[: random.randint(0, len(self.unsynced))]
        if kept:
            offset, data = kept[-1]
            kept[-1] = (offset, data[: random.randint(0, len(data))])
        for offset, data in kept:
            put(self.durable, data, offset)

    def _keep_any(self, random: Random) -> None:
        share = random.choice((0.1, 0.5, 0.9))
        if random.random() < 0.25:  # the size was recorded, whatever became of the bytes
            self.durable.extend(bytes(max(0, len(self.content) - len(self.durable))))
        for offset, data in self.unsynced:
            for start, stop in _pieces(offset, len(data), random):
                if random.random() < share:
                    put(self.durable, data[start:stop], offset + start)


def _pieces(offset: int, size: int, random: Random) -> list[tuple[int, int]]:
    """Where a write may be torn: at pages, and at one place inside of one."""
    cuts = {0, size, random.randint(0, size)}
    cuts.update(range(_PAGE_BYTES - offset % _PAGE_BYTES, size, _PAGE_BYTES))
    bounds = sorted(cuts)
    return list(pairwise(bounds))


def put(target: bytearray, data: bytes, offset: int) -> None:
    if len(target) < offset:
        target.extend(bytes(offset - len(target)))
    target[offset : offset + len(data)] = data
