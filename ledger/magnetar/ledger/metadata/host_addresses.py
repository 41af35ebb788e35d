"""The addresses of ZooKeeper's servers, also while nobody answers who has which name.

kazoo resolves all names of an ensemble, one after the other, before it tries the first of them: a
resolver that is slow for one name then costs the session, though the servers answer and have the
addresses that they had before.
"""

import socket
import threading
from collections.abc import Callable, Sequence

_NO_SUCH_NAME = (socket.EAI_NONAME, socket.EAI_NODATA)

Host = tuple[str, int]
Addresses = list[tuple[str, int]]
Resolve = Callable[[str, int], Addresses]
"""Addresses and ports of a name. Raises OSError."""


def resolve(host: str, port: int) -> Addresses:
    """
    Raises:
        OSError: the name has no address, or nobody says.
    """
    found = socket.getaddrinfo(host, port, 0, 0, socket.IPPROTO_TCP)
    return [(str(address[0]), int(address[1])) for *_, address in found]


class HostAddresses:
    """What is known of some hosts. For one thread; it asks with another one."""

    def __init__(self, resolve: Resolve = resolve) -> None:
        self._resolve = resolve
        self._known: dict[Host, Addresses] = {}
        self._asking: threading.Thread | None = None

    def of(self, hosts: Sequence[Host], *, wait_s: float) -> list[tuple[str, str, int]]:
        """Name, address and port of each; what is not answered within `wait_s` is as it was.

        As long as nothing at all is known this waits for all answers.
        """
        asking = self._begin(hosts)
        if asking is not None:
            asking.join(wait_s)
            if not self._known:
                asking.join()
        known = dict(self._known)
        return [(host, *each) for host, port in hosts for each in known.get((host, port), [])]

    def _begin(self, hosts: Sequence[Host]) -> threading.Thread | None:
        """The thread that asks; None: the system has none to give, and what is known must do."""
        if self._asking is None or not self._asking.is_alive():
            asking = threading.Thread(
                target=self._ask, args=(list(hosts),), name="zookeeper-names", daemon=True
            )
            try:
                asking.start()
            except RuntimeError:
                return None
            self._asking = asking
        return self._asking

    def _ask(self, hosts: list[Host]) -> None:
        gone: list[Host] = []
        found = False
        for host, port in hosts:
            try:
                self._known[host, port] = self._resolve(host.strip(), port)
                found = True
            except OSError as error:
                if error.errno in _NO_SUCH_NAME:
                    gone.append((host, port))
        # One that fails in another way keeps the addresses that it had, and so do all if a resolver
        # denies all. But an address whose name is gone may be somebody else's by now.
        for each in gone if found else []:
            self._known.pop(each, None)
