"""Cutting the way between two places: silence for both, on open connections and on new ones."""

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.chaos.cluster.field import CLIENTS, Field, open_field
from tests.chaos.cluster.namespaces import NoNamespacesError
from tests.processes import free_ports

_ECHO = """
import socket, sys, threading
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
def echo(peer):
    while data := peer.recv(4096):
        peer.sendall(data)
while True:
    threading.Thread(target=echo, args=server.accept()[:1], daemon=True).start()
"""
_SILENCE_S = 0.4
_ANSWER_S = 15.0


@pytest.fixture(params=["namespaces", "proxies"])
def ground(request: pytest.FixtureRequest) -> Iterator[Field]:
    try:
        with open_field(request.param) as opened:
            yield opened
    except NoNamespacesError as error:
        # Nothing is left out: the drill itself goes through the proxies then, which are tested.
        assert request.param == "namespaces"
        sys.stderr.write(f"no network namespaces here: {error}\n")
        with open_field("proxies") as opened:
            yield opened


@pytest.fixture
def port(ground: Field) -> Iterator[int]:
    """Of an echo server at each of two places."""
    (chosen,) = free_ports(1)
    servers = []
    for name in ("one", "two"):
        place = ground.place(name)
        server = subprocess.Popen(
            [*place.command_prefix, sys.executable, "-c", _ECHO, place.listen_host, str(chosen)],
            stdout=subprocess.PIPE,
        )
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        ground.serve(name, [chosen])
        ground.joined(name, server.pid)
        servers.append(server)
    yield chosen
    for server in servers:
        server.kill()
        server.communicate()


def _connect(ground: Field, name: str, port: int) -> socket.socket:
    host = ground.place(name).host
    return ground.run(lambda: socket.create_connection((host, port), _ANSWER_S))


def _answers(peer: socket.socket, within_s: float) -> bool:
    peer.sendall(b"?")
    peer.settimeout(within_s)
    try:
        return peer.recv(100) != b""
    except TimeoutError:
        return False


def test_a_cut_silences_one_place_and_leaves_the_other(ground: Field, port: int) -> None:
    one, two = _connect(ground, "one", port), _connect(ground, "two", port)
    assert _answers(one, _ANSWER_S)
    assert _answers(two, _ANSWER_S)
    ground.cut(CLIENTS, "one")
    assert not _answers(one, _SILENCE_S)
    assert _answers(two, _ANSWER_S)
    ground.mend(CLIENTS, "one")
    one.settimeout(_ANSWER_S)
    assert one.recv(100) == b"?", "what was sent meanwhile comes through when the cut is mended"
    one.close()
    two.close()


def test_a_new_connection_does_not_get_through_a_cut(ground: Field, port: int) -> None:
    ground.cut("one", CLIENTS)
    host = ground.place("one").host

    def is_reached(within_s: float) -> bool:
        try:
            with socket.create_connection((host, port), within_s) as peer:
                return _answers(peer, within_s)
        except TimeoutError:
            return False

    assert not ground.run(lambda: is_reached(_SILENCE_S))
    ground.mend("one", CLIENTS)
    assert ground.run(lambda: is_reached(_ANSWER_S))


def test_a_cut_between_two_servers_is_not_noticed_by_clients(ground: Field, port: int) -> None:
    ground.cut("one", "two")
    for name in ("one", "two"):
        peer = _connect(ground, name, port)
        assert _answers(peer, _ANSWER_S)
        peer.close()
    ground.mend("one", "two")
