"""Metadata URLs."""

import pytest

from magnetar.ledger.errors import InvalidPathError
from magnetar.ledger.metadata.url import open_store, parse_zookeeper_url


@pytest.mark.parametrize(
    ("url", "hosts", "chroot"),
    [
        ("zk://localhost:2181", "localhost:2181", "/"),
        ("zk://localhost:2181/", "localhost:2181", "/"),
        ("zk://localhost", "localhost:2181", "/"),
        ("zk://a:1,b:2,10.0.0.1:3/magnetar/x/", "a:1,b:2,10.0.0.1:3", "/magnetar/x"),
        ("zk://[::1]:2181/m", "[::1]:2181", "/m"),
    ],
)
def test_a_zookeeper_url_names_hosts_and_a_path(url: str, hosts: str, chroot: str) -> None:
    assert parse_zookeeper_url(url) == (hosts, chroot)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "embedded:",
        "embedded",
        "zk:localhost:2181",
        "zk://",
        "zk:///path",
        "zk://a:0",
        "zk://a:65536",
        "zk://a:b",
        "zk://a,,b",
        "zk://a/x//y",
        "zk://a/../x",
        "etcd://a:1",
        "/just/a/path",
    ],
)
async def test_any_other_url_is_refused_with_a_hint(url: str) -> None:
    with pytest.raises(InvalidPathError):
        await open_store(url)
