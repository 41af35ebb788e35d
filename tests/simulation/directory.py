"""A directory of the simulated disk: names now, names for sure, and the changes in between.

A name that was made, changed or removed since the last sync of the directory may or may not be so
after a power loss. Changes that have to do with one another, by a name or by the file, survive in
their order; others in any subset.
"""

from random import Random
from typing import NamedTuple, Union

from tests.simulation.inode import Inode, InodeImage, Survival

Node = Union[Inode, "Directory"]


class Change(NamedTuple):
    """A name was given to a node, taken from it, or both: a rename."""

    gone: str
    """The name that is no more; empty if none is."""
    made: str
    node: Node


class DirectoryImage(NamedTuple):
    """A directory at one moment, all below it included. Files are numbered: names share them."""

    entries: dict[str, int]
    durable: dict[str, int]
    pending: tuple[tuple[str, str, int], ...]


class Directory:
    """Names of files and of further directories."""

    __slots__ = ("durable", "entries", "pending")

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.pending: list[Change] = []

    def link(self, name: str, node: Node) -> None:
        self.entries[name] = node
        self.pending.append(Change("", name, node))

    def unlink(self, name: str) -> None:
        self.pending.append(Change(name, "", self.entries.pop(name)))

    def rename(self, source: str, target: str) -> None:
        node = self.entries.pop(source)
        self.entries[target] = node
        self.pending.append(Change(source, target, node))

    def sync(self) -> None:
        self.durable = dict(self.entries)
        self.pending.clear()

    def lose_power(self, survival: Survival, random: Random, done: set[int]) -> None:
        """Only what survives is there from now on; files below, and what `done` lacks, included."""
        if survival is Survival.KILLED:
            return
        if survival in (Survival.EVERYTHING, Survival.NAMES):
            self.durable = self.entries
        elif survival is Survival.ANY and self.pending:
            for change in _surviving(self.pending, random):
                if change.gone:
                    self.durable.pop(change.gone, None)
                if change.made:
                    self.durable[change.made] = change.node
        self.pending.clear()
        self.entries = dict(self.durable)
        for name in sorted(self.entries):
            node = self.entries[name]
            if id(node) in done:
                continue
            done.add(id(node))
            if isinstance(node, Directory):
                node.lose_power(survival, random, done)
            else:
                node.lose_power(survival, random)


def _surviving(pending: list[Change], random: Random) -> list[Change]:
    """Of each group of changes that have to do with one another a first part."""
    groups: list[tuple[set[object], list[int]]] = []
    for at, change in enumerate(pending):
        touched: set[object] = {id(change.node), change.gone, change.made} - {""}
        members = [at]
        apart = []
        for names, others in groups:
            if names & touched:
                touched |= names
                members = others + members
            else:
                apart.append((names, others))
        groups = [*apart, (touched, sorted(members))]
    kept: list[int] = []
    for _, members in groups:
        kept += members[: random.randint(0, len(members))]
    return [pending[at] for at in sorted(kept)]


class TreeImage(NamedTuple):
    """A whole tree at one moment. The root has number 0."""

    directories: dict[int, DirectoryImage]
    files: dict[int, InodeImage]


def image_of(root: Directory) -> TreeImage:
    """The tree below a directory, nodes that have no name for sure or no name any more included."""
    numbers: dict[int, int] = {}
    directories: dict[int, DirectoryImage] = {}
    files: dict[int, InodeImage] = {}
    waiting: list[tuple[int, Node]] = []

    def number_of(node: Node) -> int:
        number = numbers.get(id(node))
        if number is None:
            number = numbers[id(node)] = len(numbers)
            waiting.append((number, node))
        return number

    number_of(root)
    while waiting:
        number, node = waiting.pop()
        if isinstance(node, Inode):
            files[number] = node.image()
            continue
        directories[number] = DirectoryImage(
            {name: number_of(each) for name, each in node.entries.items()},
            {name: number_of(each) for name, each in node.durable.items()},
            tuple((gone, made, number_of(each)) for gone, made, each in node.pending),
        )
    return TreeImage(directories, files)


def tree_of(image: TreeImage) -> Directory:
    """A tree of its own, as it was when the image was taken."""
    nodes: dict[int, Node] = {number: Inode(file) for number, file in image.files.items()}
    made = {number: Directory() for number in image.directories}
    nodes.update(made)
    for number, directory in image.directories.items():
        node = made[number]
        node.entries = {name: nodes[each] for name, each in directory.entries.items()}
        node.durable = {name: nodes[each] for name, each in directory.durable.items()}
        node.pending = [Change(gone, name, nodes[each]) for gone, name, each in directory.pending]
    return made[0]
