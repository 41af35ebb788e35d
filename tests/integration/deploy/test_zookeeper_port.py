"""A ZooKeeper that may have any port starts although the first one is taken meanwhile."""

import socket
from pathlib import Path

import pytest

from magnetar.deploy import zookeeper
from magnetar.deploy.errors import DeployError
from magnetar.deploy.zookeeper import ZooKeeperServer
from magnetar.ledger.metadata.url import open_store

HOST = "127.0.0.1"


async def test_a_zookeeper_listens_on_an_ipv6_address(tmp_path: Path) -> None:
    server = ZooKeeperServer(data=tmp_path, host="::1", port=0)
    await server.start()
    (address,) = server.addresses()
    assert address.startswith("zk://[::1]:")
    store = await open_store(f"{address}magnetar")
    await store.close()
    await server.stop()


async def test_another_port_is_chosen_when_the_first_is_taken_just_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = zookeeper._claim_port
    with socket.create_server((HOST, 0)) as taken:
        port: int = taken.getsockname()[1]
        claimed = iter([port])
        monkeypatch.setattr(
            zookeeper, "_claim_port", lambda host, wanted: next(claimed, None) or claim(host, 0)
        )
        server = ZooKeeperServer(data=tmp_path, host=HOST, port=0)
        await server.start()
        assert server.addresses() != [f"zk://{HOST}:{port}/"]
        await server.stop()


async def test_a_port_that_was_asked_for_is_not_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port: int = taken.getsockname()[1]
        monkeypatch.setattr(zookeeper, "_claim_port", lambda _, wanted: wanted)
        server = ZooKeeperServer(data=tmp_path, host=HOST, port=port)
        with pytest.raises(DeployError, match=f"another program port {port}"):
            await server.start()
