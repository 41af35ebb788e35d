"""The addresses of ZooKeeper's servers, also while name resolution fails.

kazoo resolves all names of an ensemble, one after the other, before it tries the first server. A
resolver that is slow for one name would then cost the session, although the servers answer and
still have their earlier addresses.
"""

import socket
import threading
from collections.abc import Callable, Sequence

_NO_SUCH_NAME = (socket.EAI_NONAME, socket.EAI_NODATA)

Host = tuple[str, int]
Addresses = list[tuple[str, int]]
Resolve = Callable[[str, int], Addresses]
"""Function that returns the addresses and ports of a name. Raises OSError."""


def resolve(host: str, port: int) -> Addresses:
    """Resolve a host name to its addresses, each with the port.

    Raises:
        OSError: the name has no address, or no resolver answers.
    """
    found = socket.getaddrinfo(host, port, 0, 0, socket.IPPROTO_TCP)
    return [(str(address[0]), int(address[1])) for *_, address in found]


class HostAddresses:
    """Known addresses of some hosts. For use by one thread; another thread resolves the names."""

    def __init__(self, resolve: Resolve = resolve) -> None:
        self._resolve = resolve
        self._known: dict[Host, Addresses] = {}
        self._asking: threading.Thread | None = None

    def of(self, hosts: Sequence[Host], *, wait_s: float) -> list[tuple[str, str, int]]:
        """Return name, address and port of each host; a name that is not resolved within `wait_s`
        keeps its earlier addresses.

        While no address at all is known, this waits for all answers.
        """
        asking = self._begin(hosts)
        if asking is not None:
            asking.join(wait_s)
            if not self._known:
                asking.join()
        known = dict(self._known)
        return [(host, *each) for host, port in hosts for each in known.get((host, port), [])]

    def _begin(self, hosts: Sequence[Host]) -> threading.Thread | None:
        """Return the resolving thread, or None if the system cannot start one and the known
        addresses must do."""
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
        # A name that fails in another way keeps its earlier addresses; all names do if the resolver
        # denies every one. But an address whose name is gone may belong to another host by now.
        for each in gone if found else []:
            self._known.pop(each, None)
