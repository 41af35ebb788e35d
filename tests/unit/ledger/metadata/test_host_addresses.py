"""Servers are found at the addresses they had, however slowly names are resolved."""

import socket
import threading
import time

import pytest

from magnetar.ledger.metadata.host_addresses import Addresses, HostAddresses, resolve

HOSTS = [("a", 1), ("b", 2)]
WAIT_S = 10.0


class Names:
    """A resolver whose answers change, wait and fail."""

    def __init__(self) -> None:
        self.answers: dict[str, Addresses] = {"a": [("10.0.0.1", 1)], "b": [("10.0.0.2", 2)]}
        self.error = socket.EAI_AGAIN
        self.may_answer = threading.Event()
        self.may_answer.set()

    def __call__(self, host: str, _port: int) -> Addresses:
        assert self.may_answer.wait(WAIT_S)
        if host not in self.answers:
            raise socket.gaierror(self.error, "not now, or never")
        return self.answers[host]


def test_names_are_resolved_anew_each_time() -> None:
    names = Names()
    addresses = HostAddresses(names)
    assert addresses.of(HOSTS, wait_s=WAIT_S) == [("a", "10.0.0.1", 1), ("b", "10.0.0.2", 2)]
    names.answers["b"] = [("10.0.0.3", 2), ("fe80::3", 2)]
    assert addresses.of(HOSTS, wait_s=WAIT_S) == [
        ("a", "10.0.0.1", 1),
        ("b", "10.0.0.3", 2),
        ("b", "fe80::3", 2),
    ]


def test_a_name_of_which_nobody_says_anything_keeps_its_address() -> None:
    names = Names()
    addresses = HostAddresses(names)
    before = addresses.of(HOSTS, wait_s=WAIT_S)
    del names.answers["a"]
    assert addresses.of(HOSTS, wait_s=WAIT_S) == before


def test_a_name_that_is_gone_takes_its_address_along_unless_all_are() -> None:
    """The address may be somebody else's by now; a resolver that denies everything is broken."""
    names = Names()
    names.error = socket.EAI_NONAME
    addresses = HostAddresses(names)
    before = addresses.of(HOSTS, wait_s=WAIT_S)
    answers = dict(names.answers)
    names.answers.clear()
    assert addresses.of(HOSTS, wait_s=WAIT_S) == before
    names.answers["b"] = answers["b"]
    assert addresses.of(HOSTS, wait_s=WAIT_S) == before[1:]


def test_what_is_known_is_used_when_there_is_no_thread_to_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    addresses = HostAddresses(Names())
    before = addresses.of(HOSTS, wait_s=WAIT_S)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert addresses.of(HOSTS, wait_s=WAIT_S) == before
    assert HostAddresses(Names()).of(HOSTS, wait_s=WAIT_S) == []


def test_a_resolver_that_is_slow_is_not_waited_for_and_not_asked_twice() -> None:
    names = Names()
    addresses = HostAddresses(names)
    before = addresses.of(HOSTS, wait_s=WAIT_S)
    names.answers["a"] = [("10.0.0.9", 1)]
    names.may_answer.clear()
    started_s = time.monotonic()
    threads = threading.active_count()
    assert addresses.of(HOSTS, wait_s=0.01) == before
    assert addresses.of(HOSTS, wait_s=0.01) == before
    assert time.monotonic() - started_s < WAIT_S / 2
    assert threading.active_count() == threads + 1
    names.may_answer.set()
    assert addresses.of(HOSTS, wait_s=WAIT_S)[0] in [before[0], ("a", "10.0.0.9", 1)]
    assert addresses.of(HOSTS, wait_s=WAIT_S)[0] == ("a", "10.0.0.9", 1)


def test_nothing_known_at_first_is_waited_for() -> None:
    names = Names()
    names.may_answer.clear()
    threading.Timer(0.05, names.may_answer.set).start()
    assert len(HostAddresses(names).of(HOSTS, wait_s=0.0)) == 2


def test_addresses_and_names_of_this_machine_are_resolved() -> None:
    assert resolve("127.0.0.1", 2181) == [("127.0.0.1", 2181)]
    assert ("127.0.0.1", 2181) in resolve("localhost", 2181)
