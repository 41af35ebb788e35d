"""Restoring the metadata from a backup, as docs/operations/backup.md says, on a real cluster."""

import shutil
import tarfile
from pathlib import Path

from tests.archives import unpack
from tests.artifacts import DEPLOY
from tests.integration.deploy.commands import magnetar, run_command
from tests.real_cluster import RealCluster

MESSAGES = [f"message {number}" for number in range(50)]


def produce(cluster: RealCluster, topic: str, messages: list[str]) -> None:
    url = cluster.url("broker-1")
    sent = magnetar("produce", topic, "--url", url, stdin="\n".join(messages))
    assert sent.status == 0, sent.stderr


def read_all(cluster: RealCluster, topic: str) -> list[str]:
    read = magnetar("read", topic, "--start", "earliest", "--url", cluster.url("broker-1"))
    assert read.status == 0, read.stderr
    return read.stdout.splitlines()


def test_messages_are_read_again_after_the_metadata_was_lost_and_restored(tmp_path: Path) -> None:
    # Step 2 of the page: nothing is collected before somebody has looked.
    stopped = {"MAGNETAR_BOOKIE_GC_INTERVAL_S": "0"}
    with RealCluster(
        tmp_path / "cluster", bookies=1, brokers=1, quorum="1,1,1", environment=stopped
    ) as cluster:
        produce(cluster, "flights", MESSAGES)
        data = tmp_path / "cluster" / "zookeeper-1"
        data = next(path.parent for path in data.rglob("version-2"))
        archive = tmp_path / "backup.tar.gz"
        # The development server has one directory for both.
        port = cluster.server("zookeeper-1").ports["native"]
        saved = run_command(
            [
                *("sh", str(DEPLOY / "zookeeper" / "backup.sh"), "--server", f"127.0.0.1:{port}"),
                *(str(data), str(data), str(archive)),
            ]
        )
        assert saved.status == 0, saved.stderr
        # A ledger that the backup does not name: many entries of it stay on the bookie.
        produce(cluster, "forgotten", [f"forgotten {number}" for number in range(20_000)])

        for name in ("broker-1", "bookie-1", "zookeeper-1"):
            cluster.kill(name)
        shutil.rmtree(data / "version-2")
        with tarfile.open(archive) as packed:
            unpack(packed, tmp_path / "restore")
        (data / "version-2").mkdir()
        for part in ("data", "log"):
            for path in (tmp_path / "restore" / part / "version-2").iterdir():
                shutil.copy2(path, data / "version-2" / path.name)

        for name in ("zookeeper-1", "bookie-1", "broker-1"):
            cluster.start(name)
        assert read_all(cluster, "flights") == MESSAGES
        for topic in ("flights", "fresh"):
            produce(cluster, topic, ["published afterwards"])
        cluster.kill("broker-1")
        cluster.start("broker-1")  # Their ledgers are recovered.
        assert read_all(cluster, "flights") == [*MESSAGES, "published afterwards"]
        assert read_all(cluster, "fresh") == ["published afterwards"]
