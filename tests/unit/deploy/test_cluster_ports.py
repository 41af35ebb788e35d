import os
import socket
from collections.abc import Mapping
from contextlib import closing

import pytest

from magnetar.deploy import cluster_ports
from magnetar.deploy.cluster_plan import FIRST_PORTS, PORTS, ClusterShape, Kind
from magnetar.deploy.cluster_ports import ANY, PortClaims, choose_ports
from magnetar.deploy.errors import AddressUnavailableError

SHAPE = ClusterShape(zookeepers=1, bookies=2, brokers=2, autorecovery=1)
ANYWHERE = {(kind, name): ANY for kind, names in PORTS.items() for name in names}
HOST = f"127.6.{os.getpid() // 250 % 250}.{1 + os.getpid() % 250}"
"""An address whose usual ports nobody else claims."""


def chosen_by(
    shape: ClusterShape,
    *,
    kept: Mapping[str, Mapping[str, int]],
    first: Mapping[tuple[Kind, str], int],
) -> dict[str, dict[str, int]]:
    """The ports of a cluster that ends at once."""
    with closing(PortClaims()) as claims:
        return choose_ports(shape, host=HOST, kept=kept, first=first, claims=claims)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The ports that are in use, as the code under test sees it; none at first."""
    used: set[int] = set()
    monkeypatch.setattr(cluster_ports, "is_free", lambda host, port: port not in used)
    return used


def test_the_usual_ports_are_taken_where_they_are_free(free: set[int]) -> None:
    free.add(6651)
    chosen = chosen_by(SHAPE, kept={}, first={})
    assert chosen["broker-1"] == {"native": 6650, "http": 8080}
    assert chosen["broker-2"]["http"] == 8081
    assert chosen["broker-2"]["native"] != 6651
    assert chosen["bookie-2"]["native"] == 3182


def test_no_port_is_given_twice(free: set[int]) -> None:
    for first in ({}, ANYWHERE):
        chosen = chosen_by(SHAPE, kept={}, first=first)
        ports = [port for each in chosen.values() for port in each.values()]
        assert len(ports) == len(set(ports))


def test_ports_are_kept_over_restarts_and_over_other_counts(free: set[int]) -> None:
    before = chosen_by(SHAPE, kept={}, first=ANYWHERE)
    smaller = ClusterShape(zookeepers=1, bookies=1, brokers=2, autorecovery=0)
    assert chosen_by(smaller, kept=before, first={}) == before
    assert chosen_by(SHAPE, kept=before, first=ANYWHERE) == before


def test_another_port_is_chosen_if_a_kept_one_is_in_use_and_any_will_do(free: set[int]) -> None:
    before = chosen_by(SHAPE, kept={}, first=ANYWHERE)
    used = before["broker-1"]["native"]
    free.add(used)
    with pytest.raises(AddressUnavailableError, match="the native port of broker-1"):
        chosen_by(SHAPE, kept=before, first={})
    chosen = chosen_by(SHAPE, kept=before, first={(Kind.BROKER, "native"): ANY})
    assert chosen["broker-1"]["native"] not in ports_of(before)
    chosen["broker-1"]["native"] = used
    assert chosen == before, "the others are kept"


def test_any_port_is_none_of_those_that_outgoing_connections_get(free: set[int]) -> None:
    chosen = chosen_by(SHAPE, kept={}, first=ANYWHERE)
    assert all(port < 32_768 for each in chosen.values() for port in each.values())


def test_a_port_that_was_asked_for_must_be_free(free: set[int]) -> None:
    free.add(7001)
    with pytest.raises(AddressUnavailableError, match="7001, the native port of broker-2"):
        chosen_by(SHAPE, kept={}, first={(Kind.BROKER, "native"): 7000})


def test_a_port_that_was_kept_must_be_free() -> None:
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        port = other.getsockname()[1]
        shape = ClusterShape(zookeepers=0, bookies=0, brokers=1, autorecovery=0)
        with pytest.raises(AddressUnavailableError, match=f"{port}, the http port of broker-1"):
            chosen_by(shape, kept={"broker-1": {"http": port}}, first={})


def ports_of(chosen: Mapping[str, Mapping[str, int]]) -> set[int]:
    return {port for each in chosen.values() for port in each.values()}


@pytest.mark.parametrize("first", [{}, ANYWHERE])
def test_clusters_that_start_together_get_ports_of_their_own(
    first: Mapping[tuple[Kind, str], int],
) -> None:
    """None of their servers listens yet."""
    with closing(PortClaims()) as mine, closing(PortClaims()) as others:
        here = choose_ports(SHAPE, host=HOST, kept={}, first=first, claims=mine)
        there = choose_ports(SHAPE, host=HOST, kept={}, first=first, claims=others)
        assert not ports_of(here) & ports_of(there)
        with pytest.raises(AddressUnavailableError, match="of zookeeper-1"):
            chosen_by(SHAPE, kept=here, first={})
    # A cluster that has ended claims nothing: the next one on its data gets what it had.
    assert chosen_by(SHAPE, kept=here, first={}) == here


def test_every_port_has_a_usual_number() -> None:
    assert set(FIRST_PORTS) == {(kind, name) for kind, names in PORTS.items() for name in names}
