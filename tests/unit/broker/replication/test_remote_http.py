"""Requests to the REST interface of another cluster, over a network that answers from a script."""

import asyncio
from collections.abc import Callable

import pytest

from magnetar.broker.base.errors import BrokerMetadataError, NotAllowedError
from magnetar.broker.features.replication.remote_http import HOPS_MAX, RemoteHttp, addresses_in


class _Transport(asyncio.Transport):
    def __init__(self, protocol: asyncio.Protocol, answer: bytes) -> None:
        super().__init__()
        self._protocol, self._answer = protocol, answer
        self.sent = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += bytes(data)
        self._protocol.data_received(self._answer)

    def abort(self) -> None:
        pass


class Net:
    """Answers by host; other hosts do not answer."""

    def __init__(self, **answers: bytes) -> None:
        self._answers = answers
        self.connections: list[tuple[str, int]] = []
        self.transports: list[_Transport] = []

    async def connect(
        self, host: str, port: int, factory: Callable[[], asyncio.Protocol], *, timeout_s: float
    ) -> asyncio.Transport:
        self.connections.append((host, port))
        if host not in self._answers:
            raise ConnectionRefusedError(f"{host} is away")
        self.transports.append(_Transport(factory(), self._answers[host]))
        return self.transports[-1]


def remote(net: Net, url: str, token: Callable[[], bytes] | None = None) -> RemoteHttp:
    return RemoteHttp("west", "serviceUrl", url, net, token, timeout_ms=1000)


def answer(status: str, body: str = "", head: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\n{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


async def test_the_next_address_is_asked_when_one_does_not_answer() -> None:
    net = Net(b=answer("200 OK", "3"))
    assert (await remote(net, "http://a:8080,b:8081").ask("GET", "/x")).body == b"3"
    assert net.connections == [("a", 8080), ("b", 8081)]


async def test_the_token_goes_along_and_is_read_for_each_request() -> None:
    net, tokens = Net(a=answer("204 No Content")), iter([b"one", b"two"])
    there = remote(net, "http://a", lambda: next(tokens))
    await there.ask("PUT", "/x", b"3")
    await there.ask("PUT", "/x", b"3")
    sent = [each.sent for each in net.transports]
    assert b"Authorization: Bearer one\r\n" in sent[0]
    assert b"Authorization: Bearer two\r\n" in sent[1]


async def test_a_redirect_is_followed() -> None:
    net = Net(
        a=answer("307 Temporary Redirect", head="Location: http://b:1/y\r\n"),
        b=answer("200 OK", "ok"),
    )
    assert (await remote(net, "http://a").ask("POST", "/x")).body == b"ok"


async def test_brokers_that_redirect_in_circles_are_given_up() -> None:
    net = Net(a=answer("307 Temporary Redirect", head="Location: http://a/x\r\n"))
    with pytest.raises(BrokerMetadataError, match=f"redirected {HOPS_MAX} times"):
        await remote(net, "http://a").ask("GET", "/x")
    assert len(net.connections) == HOPS_MAX


async def test_a_cluster_of_which_nobody_answers_is_named_with_the_reason() -> None:
    with pytest.raises(BrokerMetadataError, match=r"cluster west do not answer.*b is away"):
        await remote(Net(), "http://a,b").ask("GET", "/x")


async def test_a_cluster_without_an_address_is_told_which_field_it_lacks() -> None:
    with pytest.raises(NotAllowedError, match=r"cluster west has no serviceUrl: .*clusters update"):
        await remote(Net(), "").ask("GET", "/x")


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("", []),
        ("http://a:1/", ["http://a:1"]),
        ("https://a:1, b:2", ["https://a:1", "https://b:2"]),
    ],
)
def test_addresses_of_a_service_url(url: str, found: list[str]) -> None:
    assert list(addresses_in(url)) == found
