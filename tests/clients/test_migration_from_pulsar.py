"""`magnetar migrate` from a real Apache Pulsar, as official clients see it: `make clients`."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.pulsar_server import PulsarServer, distribution
from tests.http_calls import call
from tests.integration.deploy.commands import magnetar
from tests.integration.pulsar_client.support import connect
from tests.migrating import (
    BULK,
    NAMESPACE,
    Content,
    Live,
    Migration,
    consume_batches,
    fill,
    judge,
    judge_policies,
    judge_versions,
)
from tests.migrating_many import Size, move_many
from tests.standalone import Standalone
from tests.waiting import wait_until

MESSAGES = int(os.environ.get("MAGNETAR_MIGRATION_MESSAGES", "20000"))
TOPICS = 50 if MESSAGES >= 100_000 else 10
"""`make migration-proof` moves a million messages in 50 topics."""


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarServer]:
    place = tmp_path_factory.mktemp("pulsar")
    server = PulsarServer(
        distribution(place / "server"),
        place / "data",
        cluster="java",
        settings={"acknowledgmentAtBatchIndexLevelEnabled": "true"},
    )
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("ours") / "data") as server:
        yield server
        server.assert_log_clean()


def test_an_apache_pulsar_moves_through_kills_and_nothing_differs(
    java: PulsarServer, ours: Standalone, tmp_path: Path
) -> None:
    at_java, at_ours = connect(java.url), connect(ours.url)
    content = Content(at_java, java)
    fill(content)
    live = Live(at_java)
    live.start()
    migration = Migration(tmp_path, java, ours)
    migration.start()
    wait_until(lambda: migration.messages("bulk") > 0, within_s=60)
    migration.kill()
    live.advance()
    migration.start()
    wait_until(lambda: migration.messages("bulk") == BULK, within_s=120)
    migration.kill()
    live.advance()
    # Pulsar stores acknowledgements every minute, and when a topic is unloaded.
    call(java, "PUT", f"namespaces/{NAMESPACE}/unload", expect=204)
    java.kill()
    java.start()
    # Those of single messages of a batch it forgets when a topic is unloaded.
    consume_batches(content)
    migration.start()
    before = migration.messages("live")
    wait_until(lambda: migration.messages("live") > before + 50, within_s=120)
    live.stop()
    ended = magnetar("migrate", "--state", str(migration.state), "--cut-over")
    assert ended.status == 0
    wait_until(lambda: "waiting for clients to leave the source" in migration.log)
    migration.kill()
    migration.start()
    live.leave()
    assert migration.wait_exit() == 0, migration.log
    assert migration.report["differences"] == []
    content.left["live", "all"] = [b"l%d" % n for n in range(live.sent)]
    content.ordered.add("live")
    judge(content, at_ours)
    judge_versions(java, ours, at_ours)
    judge_policies(ours)
    at_java.close()
    at_ours.close()


def test_topics_of_all_kinds_move_through_five_kills(
    java: PulsarServer, ours: Standalone, tmp_path: Path
) -> None:
    move_many(java, ours, tmp_path, Size(topics=TOPICS, messages=MESSAGES, kills=5))


def test_an_apache_pulsar_is_refused_as_a_target(
    java: PulsarServer, ours: Standalone, tmp_path: Path
) -> None:
    ended = magnetar(
        *("migrate", "--state", str(tmp_path / "state")),
        *("--from", ours.url, "--from-admin", ours.http_url),
        *("--to", java.url, "--to-admin", java.http_url),
    )
    assert ended.status == 2
    assert "is no Magnetar" in ended.stderr
