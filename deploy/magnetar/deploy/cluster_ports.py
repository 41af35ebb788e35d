"""Ports for the servers of a cluster on one host, chosen once and kept.

A port that must stay the same over restarts must not be one that the system gives to outgoing
connections: any client could hold it at the moment of a restart. Free ports are therefore taken
from below that range.

A chosen port stays free until its server listens on it, seconds later. Clusters that start at the
same time would choose the same default ports. A cluster therefore claims its ports until it ends.
"""

import random
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from magnetar.deploy.cluster_plan import FIRST_PORTS, PORTS, ClusterShape, Kind
from magnetar.deploy.errors import AddressUnavailableError

_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000
_USUAL_LOWEST_OUTGOING = 32_768
_ATTEMPTS_MAX = 1_000

ANY = 0
"""Value of a first port that means any free port."""


class PortClaims:
    """The ports that a cluster has claimed among the clusters of this host.

    A claim is a Unix socket with an abstract name. The system gives a name to one process only, and
    takes it back when that process ends in any way. Names have the scope of ports: each network
    namespace has its own. Other programs ignore claims. Systems other than Linux have no abstract
    names; nothing is claimed there.
    """

    def __init__(self) -> None:
        self._claims: list[socket.socket] = []

    def take(self, host: str, port: int) -> bool:
        """Claim a port that is free to listen on. Return False if it is in use or claimed."""
        if sys.platform != "linux":
            return is_free(host, port)
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0magnetar-port {host} {port}")
        except OSError:
            claim.close()
            return False
        if not is_free(host, port):
            claim.close()
            return False
        self._claims.append(claim)
        return True

    def close(self) -> None:
        """Release all claims."""
        for claim in self._claims:
            claim.close()
        self._claims.clear()


def choose_ports(
    shape: ClusterShape,
    *,
    host: str,
    kept: Mapping[str, Mapping[str, int]],
    first: Mapping[tuple[Kind, str], int],
    claims: PortClaims,
) -> dict[str, dict[str, int]]:
    """Choose the ports of all servers of the shape; ports in `kept` of servers that do not run
    stay.

    Args:
        kept: ports chosen at earlier starts.
        first: port of the first server of a kind, from the command line; further servers get
            the following ones. ANY: the kept port if it is free, else any free one. A port that is
            neither given nor kept is the default one if that is free, else any. If every given
            port is ANY, it is any: another cluster may be about to take the default ones.
        claims: claims the ports of the shape.

    Raises:
        AddressUnavailableError: a given port is in use or claimed, or a kept one that was not
            given as ANY.
    """
    chosen = {name: dict(ports) for name, ports in kept.items()}
    has_usual = not first or any(port != ANY for port in first.values())
    taken = {port for ports in chosen.values() for port in ports.values()}
    for name, kind in shape.names():
        number = int(name.rpartition("-")[2])
        mine = chosen.setdefault(name, {})
        for port_name in PORTS[kind]:
            key = (kind, port_name)
            asked = first.get(key)
            if asked:
                mine[port_name] = asked + number - 1
            if asked == ANY:
                kept_port = mine.get(port_name)
                if kept_port is None or not claims.take(host, kept_port):
                    mine[port_name] = _take_any(claims, host, taken)
            elif port_name in mine:
                _take(claims, host, mine[port_name], f"the {port_name} port of {name}")
            else:
                usual = FIRST_PORTS[key] + number - 1
                is_wanted = has_usual and usual not in taken
                mine[port_name] = (
                    usual
                    if is_wanted and claims.take(host, usual)
                    else _take_any(claims, host, taken)
                )
            taken.add(mine[port_name])
    return chosen


def _take_any(claims: PortClaims, host: str, taken: set[int]) -> int:
    """Claim a free port outside the range of outgoing connections.

    Raises:
        AddressUnavailableError: no port is free, or the address is not this machine's.
    """
    highest = _lowest_outgoing() - 1
    source = random.SystemRandom()
    for _ in range(_ATTEMPTS_MAX):
        port = source.randint(_LOWEST, highest)
        if port not in taken and claims.take(host, port):
            return port
    raise AddressUnavailableError(
        f"cannot find a free port between {_LOWEST} and {highest} on {host}; is that an address "
        f"of this machine?"
    )


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return True
    except OSError:
        return False


def _take(claims: PortClaims, host: str, port: int, what: str) -> None:
    if not claims.take(host, port):
        raise AddressUnavailableError(
            f"cannot listen on {host}:{port}, {what}; stop what uses it, or choose other ports: "
            f"`magnetar cluster --help` names the options"
        )


def _lowest_outgoing() -> int:
    try:
        lowest = int(_RANGE_FILE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _USUAL_LOWEST_OUTGOING
    # If the system's range covers nearly all ports, the usual lower bound applies.
    return lowest if lowest > _LOWEST + _ATTEMPTS_MAX else _USUAL_LOWEST_OUTGOING
