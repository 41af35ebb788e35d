"""A real ZooKeeper that serves TLS alone, and nodes that are for one user alone."""

import os
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from magnetar.deploy.zookeeper import die_with_parent, find_jars, find_java
from magnetar.ledger.errors import MetadataAccessError, MetadataUnavailableError
from magnetar.ledger.metadata.settings import MetadataSettings
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.metadata.url import open_store
from tests.certificates import Authority
from tests.processes import HOST, free_ports
from tests.waiting import wait_until

USER = "magnetar:a password for the metadata"
READY_TIMEOUT_S = 60.0


class SecuredZooKeeper:
    """One server, which asks for a certificate of its authority and has no plain port."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory, "cluster")
        self.stranger = Authority(directory, "stranger")
        (self.port,) = free_ports(1)
        certificate, key = self.authority.issue("zookeeper")
        # The server takes key and certificate from one file.
        store = directory / "zookeeper.pem"
        store.write_bytes(key.read_bytes() + certificate.read_bytes())
        configuration = directory / "zoo.cfg"
        configuration.write_text(
            f"dataDir={directory / 'data'}\ntickTime=500\nadmin.enableServer=false\n"
            f"secureClientPort={self.port}\nsecureClientPortAddress={HOST}\n"
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
            f"ssl.keyStore.location={store}\nssl.keyStore.type=PEM\n"
            f"ssl.trustStore.location={self.authority.path}\nssl.trustStore.type=PEM\n"
            "ssl.clientAuth=need\n"
        )
        folder = find_jars()[0].parent
        self._process = subprocess.Popen(
            [
                *(find_java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                *("-Dzookeeper.jmx.log4j.disable=true", "-cp", f"{folder}{os.sep}*"),
                *("org.apache.zookeeper.server.ZooKeeperServerMain", str(configuration)),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
        )

    @property
    def url(self) -> str:
        return f"zk://{HOST}:{self.port}/secured"

    def settings(self, *, user: str = USER, trusted: Authority | None = None) -> MetadataSettings:
        certificate, key = self.authority.issue("client")
        return MetadataSettings(
            zookeeper_user=user,  # type: ignore[arg-type]  # pydantic makes a secret of it
            zookeeper_tls_ca_file=str((trusted or self.authority).path),
            zookeeper_tls_certificate_file=str(certificate),
            zookeeper_tls_key_file=str(key),
            connect_timeout_s=READY_TIMEOUT_S if trusted is None else 3,
        )

    def is_listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self.port)) == 0

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(30)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredZooKeeper]:
    server = SecuredZooKeeper(tmp_path_factory.mktemp("secured-zookeeper"))
    wait_until(server.is_listening, "ZooKeeper listens", within_s=READY_TIMEOUT_S)
    yield server
    server.kill()


@pytest.fixture
async def store(secured: SecuredZooKeeper) -> AsyncIterator[MetadataStore]:
    store = await open_store(secured.url, settings=secured.settings())
    yield store
    await store.close()


async def test_the_user_with_a_certificate_reads_and_writes(store: MetadataStore) -> None:
    await store.create("/a/b", b"value")
    assert (await store.get("/a/b")).value == b"value"
    await store.set("/a/b", b"other", version=0)
    await store.delete("/a/b")


async def test_another_user_gets_an_error_and_changes_nothing(
    store: MetadataStore, secured: SecuredZooKeeper
) -> None:
    await store.create("/mine", b"value")
    other = await open_store(secured.url, settings=secured.settings(user="other:wrong"))
    try:
        for refused in (
            other.get("/mine"),
            other.set("/mine", b"theirs", version=0),
            other.create("/mine/below", b""),
            other.delete("/mine"),
        ):
            with pytest.raises(MetadataAccessError, match="another user's: check zookeeper_user"):
                await refused
    finally:
        await other.close()
    assert (await store.get("/mine")).value == b"value"


async def test_every_node_is_for_the_user_alone(
    store: MetadataStore, secured: SecuredZooKeeper
) -> None:
    """Nodes made on the way to another one, and below the root of the URL, are for the user alone,
    too."""
    await store.create("/x/y/z", b"")
    settings = secured.settings()
    client = KazooClient(
        hosts=f"{HOST}:{secured.port}",
        use_ssl=True,
        ca=settings.zookeeper_tls_ca_file,
        certfile=settings.zookeeper_tls_certificate_file,
        keyfile=settings.zookeeper_tls_key_file,
        auth_data=[("digest", USER)],
    )
    client.start(READY_TIMEOUT_S)
    try:
        for path in ("/secured", "/secured/x", "/secured/x/y", "/secured/x/y/z"):
            acls, _ = client.get_acls(path)
            assert [acl.id.scheme for acl in acls] == ["digest"], path
            assert acls[0].id.id.startswith("magnetar:")
    finally:
        client.stop()
        client.close()


async def test_a_server_that_nobody_vouches_for_is_not_talked_to(
    store: MetadataStore, secured: SecuredZooKeeper
) -> None:
    with pytest.raises(MetadataUnavailableError):
        await open_store(secured.url, settings=secured.settings(trusted=secured.stranger))
