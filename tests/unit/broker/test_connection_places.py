"""Connections that get a place when all are taken: probes of the host, and clients that speak."""

import pytest

from magnetar.broker.base.connection_places import SILENT_S, ConnectionPlaces

OTHER = "10.0.0.1"
ATTACKER = "10.0.0.2"


class Ports:
    """Places for connections that are numbers; even ones only hold theirs."""

    def __init__(self, total: int = 4, per_address: int = 0, kept: int = 2) -> None:
        self.cut: list[int] = []
        self.places: ConnectionPlaces[int] = ConnectionPlaces(
            connections_max=total,
            per_address_max=per_address,
            kept_for_loopback=kept,
            is_silent=lambda connection: connection % 2 == 0,
            cut=self.cut.append,
        )

    def take(self, *connections: int, host: str = ATTACKER, at_s: float = 0.0) -> list[bool]:
        return [self.places.take(each, host, at_s) for each in connections]


def test_connections_beyond_the_limit_are_refused_while_all_speak() -> None:
    ports = Ports()
    assert ports.take(1, 3, 5, 7, 9, at_s=0.0) == [True] * 4 + [False]
    assert ports.take(9, host=OTHER, at_s=100.0) == [False]
    assert ports.places.is_full
    assert ports.places.give_back(3)
    assert ports.take(9, host=OTHER) == [True]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("per_address", [0, 1])
def test_places_are_kept_for_loopback(host: str, per_address: int) -> None:
    ports = Ports(per_address=per_address)
    for number in range(4):
        assert ports.take(2 * number + 1, host=f"10.0.0.{number}") == [True]
    assert ports.take(11, 13, 15, host=host) == [True, True, False]
    assert ports.take(17, host=OTHER) == [False]


def test_the_oldest_silent_connection_gives_its_place_to_a_new_one() -> None:
    ports = Ports()
    ports.take(1, 2, 4, 3)
    assert ports.take(5, host=OTHER, at_s=SILENT_S / 2) == [False]
    assert ports.take(5, host=OTHER, at_s=SILENT_S) == [True]
    assert ports.cut == [2]
    assert ports.take(7, 9, host=OTHER, at_s=SILENT_S) == [True, False]
    assert ports.cut == [2, 4]
    assert len(ports.places) == 4


def test_an_answered_request_makes_a_connection_younger() -> None:
    ports = Ports()
    ports.take(2, 4, 6, 8)
    ports.places.spoke(2, SILENT_S)
    assert ports.take(1, host=OTHER, at_s=SILENT_S) == [True]
    assert ports.cut == [4]


def test_an_address_with_too_many_gives_up_one_of_its_own() -> None:
    ports = Ports(total=10, per_address=2)
    ports.take(2, host=OTHER)
    ports.take(4, 6)
    assert ports.take(1, at_s=SILENT_S) == [True]
    assert ports.cut == [4]


def test_a_silent_one_is_found_behind_many_that_speak() -> None:
    ports = Ports(total=201)
    ports.take(*range(1, 400, 2), 2)
    found = [ports.take(1001, host=OTHER, at_s=SILENT_S)[0] for _ in range(4)]
    assert found == [False, False, False, True]
