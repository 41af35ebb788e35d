"""How another cluster's record becomes connections to it, and what of it is refused in words."""

import asyncio
from asyncio import Protocol, Transport
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.base.errors import NotAllowedError
from magnetar.broker.features.replication.remotes import RemoteClusters
from magnetar.sdk.connection import ConnectionPool
from magnetar.sdk.errors import BrokerUnavailableError

URLS = {"brokerServiceUrl": "pulsar://west:6650", "serviceUrl": "http://west:8080"}


class _Records:
    def __init__(self, **data: Any) -> None:
        self.data: Mapping[str, Any] = data

    async def read(self, name: str) -> Mapping[str, Any]:
        assert name == "west"
        return self.data


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({}, "cluster west has no brokerServiceUrl: .*clusters update west"),
        ({"brokerServiceUrl": "http://west"}, "cluster west: brokerServiceUrl 'http://west'"),
        (URLS | {"brokerClientTlsEnabled": True}, "has no brokerServiceUrlTls"),
        (URLS | {"brokerClientTlsEnabledWithKeyStore": True}, "key stores of Java are not read"),
        (URLS | {"authenticationPlugin": "AuthenticationBasic"}, "AuthenticationBasic"),
        (
            URLS | {"authenticationPlugin": "token", "authenticationParameters": "secret"},
            "must be token:..., file:... or env:...",
        ),
    ],
)
async def test_what_a_record_lacks_is_said_with_what_to_do(
    data: Mapping[str, Any], reason: str
) -> None:
    remote = RemoteClusters(_Records(**data).read, timeout_ms=1000).cluster("west")
    with pytest.raises(NotAllowedError, match=reason):
        await remote.lookup()


async def test_a_record_that_changes_counts_from_the_next_lookup_on() -> None:
    records = _Records(**URLS)
    remote = RemoteClusters(records.read, timeout_ms=1000).cluster("west")
    first = await remote.lookup()
    assert await remote.lookup() is first
    records.data = URLS | {"listenerName": "outside"}
    assert await remote.lookup() is not first
    await remote.close()


async def test_partitions_need_the_address_of_the_rest_interface() -> None:
    records = _Records(brokerServiceUrl="pulsar://west:6650")
    remote = RemoteClusters(records.read, timeout_ms=1000).cluster("west")
    with pytest.raises(NotAllowedError, match="cluster west has no serviceUrl"):
        await remote.ask("PUT", "/x")
    records.data = {
        "brokerServiceUrlTls": "pulsar+ssl://west:6651",
        "brokerClientTlsEnabled": True,
        "serviceUrl": "http://west:8080",
    }
    with pytest.raises(NotAllowedError, match="cluster west has no serviceUrlTls"):
        await remote.ask("PUT", "/x")
    await remote.close()


async def test_connections_are_begun_anew_with_another_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    records = _Records(
        **URLS, authenticationPlugin="token", authenticationParameters=f"file://{file}"
    )
    remote = RemoteClusters(records.read, timeout_ms=1000).cluster("west")
    first = await remote.lookup()
    assert await remote.lookup() is first
    file.write_text("two")
    assert await remote.lookup() is not first
    await remote.close()


async def test_a_token_that_cannot_be_read_is_named_with_its_file(tmp_path: Path) -> None:
    file = tmp_path / "missing"
    records = _Records(
        **URLS, authenticationPlugin="token", authenticationParameters=f"file://{file}"
    )
    remote = RemoteClusters(records.read, timeout_ms=1000).cluster("west")
    with pytest.raises(NotAllowedError, match=f"cluster west: its token: .*{file}"):
        await remote.lookup()


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("env:MAGNETAR_TEST_NO_TOKEN", "the environment variable MAGNETAR_TEST_NO_TOKEN is not"),
        ("env:MAGNETAR_TEST_EMPTY_TOKEN", "env:MAGNETAR_TEST_EMPTY_TOKEN is empty"),
        ("file:/dev/null", "file:/dev/null is empty"),
        ("token:", "token: is empty"),
    ],
)
async def test_a_token_that_is_not_there_is_named_with_its_place(
    monkeypatch: pytest.MonkeyPatch, place: str, reason: str
) -> None:
    monkeypatch.delenv("MAGNETAR_TEST_NO_TOKEN", raising=False)
    monkeypatch.setenv("MAGNETAR_TEST_EMPTY_TOKEN", "")
    records = _Records(**URLS, authenticationPlugin="token", authenticationParameters=place)
    remote = RemoteClusters(records.read, timeout_ms=1000).cluster("west")
    with pytest.raises(NotAllowedError, match=f"cluster west: its token: {reason}"):
        await remote.lookup()


async def test_connections_go_through_the_network_that_is_given() -> None:
    tried: list[tuple[str, int]] = []

    class Refusing:
        async def connect(
            self, host: str, port: int, factory: Callable[[], Protocol], *, timeout_s: float
        ) -> Transport:
            tried.append((host, port))
            raise ConnectionRefusedError("nobody is there")

    clusters = RemoteClusters(_Records(**URLS).read, timeout_ms=1000)
    clusters.network = Refusing()
    with pytest.raises(BrokerUnavailableError):
        await clusters.cluster("west").find("persistent://public/default/t")
    assert tried == [("west", 6650)]
    await clusters.close()


class _Pools:
    """The pools that were opened; a pool takes a turn of the event loop to close."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open: list[ConnectionPool] = []
        init, close = ConnectionPool.__init__, ConnectionPool.close

        def opened(pool: ConnectionPool, *args: Any, **more: Any) -> None:
            init(pool, *args, **more)
            self.open.append(pool)

        async def closed(pool: ConnectionPool) -> None:
            await asyncio.sleep(0)
            await close(pool)
            self.open.remove(pool)

        monkeypatch.setattr(ConnectionPool, "__init__", opened)
        monkeypatch.setattr(ConnectionPool, "close", closed)


async def test_topics_that_see_a_changed_record_at_once_open_one_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pools, records = _Pools(monkeypatch), _Records(**URLS)
    clusters = RemoteClusters(records.read, timeout_ms=1000)
    remote = clusters.cluster("west")
    await remote.lookup()
    records.data = URLS | {"listenerName": "outside"}
    first, second = await asyncio.gather(remote.lookup(), remote.lookup())
    assert first is second
    assert len(pools.open) == 1
    await clusters.close()
    assert pools.open == []


async def test_a_changed_record_that_is_not_usable_closes_the_old_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pools, records = _Pools(monkeypatch), _Records(**URLS)
    remote = RemoteClusters(records.read, timeout_ms=1000).cluster("west")
    await remote.lookup()
    records.data = {}
    with pytest.raises(NotAllowedError):
        await remote.lookup()
    assert pools.open == []
    records.data = URLS
    await remote.lookup()
    await remote.close()


async def test_a_cluster_that_is_new_while_all_are_closed_disturbs_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pools = _Pools(monkeypatch)
    clusters = RemoteClusters(_Records(**URLS).read, timeout_ms=1000)
    await clusters.cluster("west").lookup()
    closing = asyncio.ensure_future(clusters.close())
    await asyncio.sleep(0)
    clusters.cluster("north")
    await closing
    assert pools.open == []
