"""Requests over HTTP (`sdk/http_client.py`), to servers that misbehave."""

import socket
import threading
from collections.abc import Iterator

import pytest

from magnetar.sdk.http_client import (
    AnswerTooLargeError,
    HttpAnswer,
    HttpClient,
    NoAnswerError,
    NotConnectedError,
)
from tests.http_answers import answering
from tests.processes import HOST, free_ports


@pytest.fixture
def client() -> Iterator[HttpClient]:
    client = HttpClient()
    yield client
    client.close()


def ask(
    client: HttpClient, port: int, *, bytes_max: int = 100, timeout_s: float = 20
) -> HttpAnswer:
    url = f"http://{HOST}:{port}/x"
    return client.ask("GET", url, headers={}, timeout_s=timeout_s, answer_bytes_max=bytes_max)


def test_a_server_that_takes_no_connection_has_seen_nothing(client: HttpClient) -> None:
    (port,) = free_ports(1)
    with pytest.raises(NotConnectedError, match="Connection refused"):
        ask(client, port)


def test_an_answer_that_does_not_come_leaves_the_outcome_unknown(client: HttpClient) -> None:
    (port,) = free_ports(1)
    awake = threading.Event()
    with answering(port, waits_for=awake):
        with pytest.raises(NoAnswerError, match="timed out"):
            ask(client, port, timeout_s=0.1)
        awake.set()
        assert ask(client, port).data == b"{}"  # not what the first one was to get
        client.close()


def test_a_connection_that_breaks_leaves_the_outcome_unknown(client: HttpClient) -> None:
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]

        def hang_up() -> None:
            connection, _ = server.accept()
            connection.recv(1)
            connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(NoAnswerError):
            ask(client, port)
        thread.join()


@pytest.mark.parametrize(("size", "is_taken"), [(100, True), (101, False)])
def test_an_answer_is_read_up_to_its_bound(client: HttpClient, size: int, is_taken: bool) -> None:
    (port,) = free_ports(1)
    with answering(port, body=b"x" * size):
        if is_taken:
            assert ask(client, port).data == b"x" * size
        else:
            with pytest.raises(AnswerTooLargeError):
                ask(client, port)
        client.close()


def test_redirects_and_refusals_are_answers_like_others(client: HttpClient) -> None:
    first, second = free_ports(2)
    with answering(first, location=f"http://{HOST}:{second}/y"):
        answer = ask(client, first)
        assert (answer.status, answer.headers["location"]) == (307, f"http://{HOST}:{second}/y")
        client.close()
    with answering(second, status=503):
        assert ask(client, second).status == 503
        client.close()


@pytest.mark.parametrize("uses_proxies", [False, True])
def test_proxies_of_the_environment_are_for_servers_outside(
    uses_proxies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, proxy = free_ports(2)
    monkeypatch.setenv("http_proxy", f"http://{HOST}:{proxy}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    client = HttpClient(uses_proxies=uses_proxies)
    with answering(port) as asked, answering(proxy) as asked_proxy:
        ask(client, port)
        assert (asked, asked_proxy) == (
            ([], [f"http://{HOST}:{port}/x"]) if uses_proxies else (["/x"], [])
        )
        client.close()
