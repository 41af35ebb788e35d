"""Where the drill's servers live, and how the way between two of them is cut.

A place has an address of its own, on which whoever lives there uses the usual ports. Between two
places packets can be dropped without a word, in both directions, for connections that are open and
for new ones. `namespaces.py` does it with the kernel's network namespaces; `proxies.py` where those
are not to be had.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

T = TypeVar("T")

CLIENTS = "clients"
"""The place of the clients, and of the drill itself when it asks something."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one server, or all clients, live."""

    name: str
    host: str
    """The address that others use."""
    listen_host: str
    """The address to listen on."""
    command_prefix: list[str] = field(default_factory=list)
    """Runs a command there."""


class Field(Protocol):
    """All places."""

    kind: str

    def place(self, name: str) -> Place:
        """The place with this name, made when it is first asked for."""
        ...

    def serve(self, name: str, ports: Iterable[int]) -> None:
        """The server of that place listens on these ports."""
        ...

    def joined(self, name: str, pid: int) -> None:
        """The process with this id lives there now."""
        ...

    def cut(self, one: str, other: str) -> None:
        """From now on nothing passes between the two."""
        ...

    def mend(self, one: str, other: str) -> None: ...

    def slow_down(self, name: str) -> bool:
        """Make the way to a place slow; False if that cannot be done here."""
        ...

    def speed_up(self, name: str) -> None: ...

    def run(self, work: Callable[[], T]) -> T:
        """Call it where the clients live: sockets that it opens are theirs."""
        ...

    def close(self) -> None: ...


@contextmanager
def open_field(kind: str = "") -> Iterator[Field]:
    """A field of network namespaces; where the kernel allows none, one of proxies, and says so.

    Args:
        kind: "namespaces" or "proxies" to have no choice.
    """
    from tests.chaos.cluster.namespaces import Namespaces, NoNamespacesError
    from tests.chaos.cluster.proxies import Proxies

    field: Field
    try:
        if kind == "proxies":
            raise NoNamespacesError("proxies were asked for")
        field = Namespaces()
    except NoNamespacesError as error:
        if kind == "namespaces":
            raise
        sys.stderr.write(
            f"no network namespaces ({error}): the ways between servers go through TCP proxies\n"
        )
        field = Proxies()
    try:
        yield field
    finally:
        field.close()
