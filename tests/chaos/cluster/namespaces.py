"""A field of network namespaces: each place has an address of its own on one virtual switch.

No interface, route or rule of the host is touched: the switch is in a namespace of its own as well.
A namespace lives as long as the process that holds it, which ends with the drill, whatever happens
to that. Needs root and iproute2, or users' namespaces (`python -m tests.chaos.cluster` gets itself
one).

A cut tells each of the two a wrong hardware address of the other, for good. Packets leave, and
nobody takes them: silence, as from a machine that is gone, and no error at the sender.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tests.chaos.cluster.field import CLIENTS, Place

T = TypeVar("T")

_NETWORK = "10.117.0"
_NOBODY = "02:00:00:00:00:01"
_DEVICE = "eth0"
_CLONE_NEWNET = 0x40000000
_TOOLS = ("ip", "unshare", "nsenter")
_SLOW = (
    ("netem", "delay", "300ms", "100ms"),
    # Without netem: so little passes that everything queues up.
    ("tbf", "rate", "200kbit", "burst", "4kb", "latency", "2s"),
)


class NoNamespacesError(Exception):
    """The kernel, or what is installed, does not let us have network namespaces."""


class Namespace:
    """A network namespace, and the process that holds it."""

    def __init__(self) -> None:
        self._holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "ip link set lo up && echo held && read line"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "held\n":
            _, said = self._holder.communicate()
            raise NoNamespacesError(said.strip())

    @property
    def pid(self) -> int:
        return self._holder.pid

    @property
    def path(self) -> str:
        return f"/proc/{self.pid}/ns/net"

    @property
    def command_prefix(self) -> list[str]:
        return ["nsenter", f"--net={self.path}", "--"]

    def ip(self, *commands: str) -> None:
        """Commands of the `ip` tool."""
        done = subprocess.run(
            [*self.command_prefix, "ip", "-batch", "-"],
            input="".join(f"{command}\n" for command in commands),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise NoNamespacesError(f"ip: {commands}: {done.stderr.strip()}")

    def tc(self, *arguments: str) -> bool:
        command = [*self.command_prefix, "tc", *arguments]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def close(self) -> None:
        self._holder.communicate("\n")


class Namespaces:
    """The field (field.py)."""

    kind = "namespaces"

    def __init__(self) -> None:
        """Raises NoNamespacesError."""
        missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
        if missing:
            raise NoNamespacesError(f"not installed: {', '.join(missing)}")
        self._spaces: dict[str, Namespace] = {}
        self._places: dict[str, Place] = {}
        self._switch = Namespace()
        try:
            self._switch.ip("link add switch type bridge", "link set switch up")
            self.place(CLIENTS)
        except BaseException:
            self._close_spaces()
            raise
        path = self._spaces[CLIENTS].path
        self._thread = ThreadPoolExecutor(1, initializer=_enter, initargs=(path,))

    def place(self, name: str) -> Place:
        place = self._places.get(name)
        if place is None:
            number = len(self._places) + 1
            host = f"{_NETWORK}.{number}"
            space = self._spaces[name] = Namespace()
            self._switch.ip(
                f"link add port{number} type veth peer name {_DEVICE} netns {space.pid}",
                f"link set port{number} master switch up",
            )
            space.ip(f"addr add {host}/24 dev {_DEVICE}", f"link set {_DEVICE} up")
            place = Place(name, host, host, space.command_prefix)
            self._places[name] = place
        return place

    def serve(self, name: str, ports: Iterable[int]) -> None:
        """Nothing to do: all ports of a place are its server's."""

    def joined(self, name: str, pid: int) -> None:
        """Nothing to do: who was started there is there."""

    def cut(self, one: str, other: str) -> None:
        for here, there in ((one, other), (other, one)):
            host = self._places[there].host
            self._spaces[here].ip(
                f"neigh replace {host} lladdr {_NOBODY} dev {_DEVICE} nud permanent"
            )

    def mend(self, one: str, other: str) -> None:
        for here, there in ((one, other), (other, one)):
            self._spaces[here].ip(f"neigh del {self._places[there].host} dev {_DEVICE}")

    def slow_down(self, name: str) -> bool:
        space = self._spaces[name]
        return any(space.tc("qdisc", "add", "dev", _DEVICE, "root", *how) for how in _SLOW)

    def speed_up(self, name: str) -> None:
        self._spaces[name].tc("qdisc", "del", "dev", _DEVICE, "root")

    def run(self, work: Callable[[], T]) -> T:
        return self._thread.submit(work).result()

    def close(self) -> None:
        self._thread.shutdown()
        self._close_spaces()

    def _close_spaces(self) -> None:
        for space in (*self._spaces.values(), self._switch):
            space.close()


def _enter(path: str) -> None:
    """Move the calling thread, and every thread that it will start, into a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.open(path, os.O_RDONLY)
    try:
        if libc.setns(handle, _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"setns: {os.strerror(number)}")
    finally:
        os.close(handle)
