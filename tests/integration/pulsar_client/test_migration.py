"""`magnetar migrate` between two standalones, as official clients see it."""

from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from tests.http_calls import admin, call, topic_path
from tests.integration.deploy.commands import magnetar
from tests.integration.pulsar_client.support import connect, receive
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
    topic,
)
from tests.migrating_many import Size, move_many
from tests.standalone import Standalone
from tests.waiting import wait_until


def _settings(entries: str) -> dict[str, str]:
    return {"LEDGER_ENTRIES_MAX": entries, "LEDGER_AGE_MIN_S": "0"}


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Standalone, Standalone]]:
    folder = tmp_path_factory.mktemp("migration")
    with (
        Standalone(folder / "old", settings=_settings("70")) as source,
        Standalone(folder / "new", settings=_settings("110")) as target,
    ):
        yield source, target
        for each in (source, target):
            assert each.terminate() == 0
            each.assert_log_clean()


@pytest.fixture
def clients(
    clusters: tuple[Standalone, Standalone],
) -> Iterator[tuple[pulsar.Client, pulsar.Client]]:
    found = connect(clusters[0].url), connect(clusters[1].url)
    yield found
    for each in found:
        each.close()


def _property_holders() -> tuple[str, ...]:
    """Paths of a namespace and of topics that have properties."""
    return (f"namespaces/{NAMESPACE}", topic_path(topic("plain")), topic_path(topic("parts")))


def add_passing_properties(source: Standalone) -> None:
    """Set a property that `drop_properties` removes."""
    for path in _property_holders():
        call(source, "PUT", f"{path}/properties", {"passing": "a/b"}, expect=204)


def drop_properties(source: Standalone) -> None:
    """Remove a property of the source that the migration has set at the target."""
    of_namespace, *of_topics = _property_holders()
    call(source, "DELETE", f"{of_namespace}/property/passing", expect=200)
    for path in of_topics:
        call(source, "DELETE", f"{path}/properties?key=passing", expect=204)


def test_a_standalone_moves_through_kills_and_nothing_differs(
    clusters: tuple[Standalone, Standalone],
    clients: tuple[pulsar.Client, pulsar.Client],
    tmp_path: Path,
) -> None:
    source, target = clusters
    content = Content(clients[0], source)
    fill(content)
    consume_batches(content)
    add_passing_properties(source)
    live = Live(clients[0])
    live.start()
    migration = Migration(tmp_path, source, target)
    migration.start()
    wait_until(lambda: migration.messages("bulk") > 0)
    migration.kill()
    drop_properties(source)
    live.advance()
    migration.start()
    wait_until(lambda: migration.messages("bulk") == BULK, within_s=60)
    live.advance()
    migration.kill()
    migration.start()
    before = migration.messages("live")
    wait_until(lambda: migration.messages("live") > before + 50)
    live.stop()
    ended = magnetar("migrate", "--state", str(migration.state), "--cut-over")
    assert (ended.status, "cuts over now" in ended.stdout) == (0, True)
    wait_until(lambda: "waiting for clients to leave the source: producer" in migration.log)
    migration.kill()
    migration.start()
    live.leave()
    assert migration.wait_exit() == 0, migration.log
    assert migration.report["differences"] == []
    removed = [each for each in migration.report["notes"] if "property passing = 'a/b'" in each]
    assert len(removed) == len(_property_holders())
    content.left["live", "all"] = [b"l%d" % n for n in range(live.sent)]
    content.ordered.add("live")
    judge(content, clients[1])
    judge_versions(source, target, clients[1])
    judge_policies(target)
    for server in clusters:
        for name in ("plain", "parts-partition-0"):
            shown = admin(server, "GET", f"{topic_path(topic(name))}/subscriptions")
            assert "magnetar.migrate" not in shown
    again = magnetar("migrate", "--state", str(migration.state))
    assert (again.status, "the cut-over is done" in again.stdout) == (0, True)


def test_topics_of_all_kinds_move_through_kills(
    clusters: tuple[Standalone, Standalone], tmp_path: Path
) -> None:
    """`make migration-proof` moves a million messages so, from an Apache Pulsar."""
    move_many(*clusters, tmp_path, Size(topics=5, messages=3_000, kills=2))


def test_a_lost_state_directory_is_read_from_the_target(
    clusters: tuple[Standalone, Standalone],
    clients: tuple[pulsar.Client, pulsar.Client],
    tmp_path: Path,
) -> None:
    source, target = clusters
    namespace = "public/lost"
    call(source, "PUT", f"namespaces/{namespace}", {}, expect=204)
    name = f"persistent://{namespace}/t"
    producer = clients[0].create_producer(name, batching_enabled=False)
    consumer = clients[0].subscribe(
        name,
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
    )
    for n in range(200):
        producer.send(b"%d" % n)
    for n in range(200):
        message = receive(consumer)
        if n % 10:
            consumer.acknowledge(message)
    producer.close()
    consumer.close()
    urls = _urls(source, target)
    migrating = Migration(tmp_path / "first", source, target, namespaces=namespace)
    migrating.start()
    wait_until(lambda: migrating.messages("lost") == 200)
    migrating.kill()
    ended = magnetar(
        *("migrate", *urls, "--namespaces", namespace),
        *("--state", str(tmp_path / "second"), "--cut-over"),
    )
    assert ended.status == 0, ended
    assert "source and target do not differ" in ended.stdout
    moved = clients[1].subscribe(name, "s", consumer_type=pulsar.ConsumerType.Shared)
    assert [receive(moved).data() for _ in range(20)] == [b"%d" % n for n in range(0, 200, 10)]
    with pytest.raises(pulsar.Timeout):
        moved.receive(timeout_millis=500)


def _urls(source: Standalone, target: Standalone) -> list[str]:
    return [
        *("--from", source.url, "--from-admin", source.http_url),
        *("--to", target.url, "--to-admin", target.http_url),
    ]


def test_more_ranges_than_statistics_show_are_moved_and_compared(
    clusters: tuple[Standalone, Standalone],
    clients: tuple[pulsar.Client, pulsar.Client],
    tmp_path: Path,
) -> None:
    source, target = clusters
    namespace = "public/holes"
    call(source, "PUT", f"namespaces/{namespace}", {}, expect=204)
    name = f"persistent://{namespace}/t"
    producer = clients[0].create_producer(name, batching_enabled=False, block_if_queue_full=True)
    consumer = clients[0].subscribe(
        name,
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        receiver_queue_size=5_000,
    )
    for n in range(2_500):
        producer.send_async(b"%d" % n, None)
    producer.flush()
    for n in range(2_500):
        message = receive(consumer)
        if n % 2:
            consumer.acknowledge(message)
    producer.close()
    consumer.close()
    ended = magnetar(
        *("migrate", *_urls(source, target), "--namespaces", namespace),
        *("--state", str(tmp_path / "state"), "--cut-over"),
    )
    assert ended.status == 0, ended
    moved = clients[1].subscribe(name, "s", consumer_type=pulsar.ConsumerType.Shared)
    assert [receive(moved).data() for _ in range(1_250)] == [b"%d" % n for n in range(0, 2_500, 2)]


def test_a_target_that_has_messages_of_its_own_is_refused(
    clusters: tuple[Standalone, Standalone],
    clients: tuple[pulsar.Client, pulsar.Client],
    tmp_path: Path,
) -> None:
    source, target = clusters
    namespace = "public/taken"
    name = f"persistent://{namespace}/t"
    for server, client in zip(clusters, clients, strict=True):
        call(server, "PUT", f"namespaces/{namespace}", {}, expect=204)
        retention = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        call(server, "POST", f"namespaces/{namespace}/retention", retention, expect=204)
        client.create_producer(name).send(b"own")
    ended = magnetar(
        *("migrate", *_urls(source, target), "--namespaces", namespace),
        *("--state", str(tmp_path / "state")),
    )
    assert ended.status == 12
    (line,) = ended.messages()
    assert f"{name} has messages at the target that do not come from this source" in line


def test_every_wrong_address_ends_with_one_line(
    clusters: tuple[Standalone, Standalone], tmp_path: Path
) -> None:
    source, target = clusters
    right = {
        "--from": source.url,
        "--from-admin": source.http_url,
        "--to": target.url,
        "--to-admin": target.http_url,
    }
    for option, value, status, words in (
        ("--from", "pulsar://127.0.0.1:1", 8, "the source pulsar://127.0.0.1:1 cannot be used"),
        ("--to", "pulsar://127.0.0.1:1", 8, "the target pulsar://127.0.0.1:1 cannot be used"),
        ("--from", "http://127.0.0.1:1", 2, "not of the form pulsar://host:port"),
        ("--to-admin", "http://127.0.0.1:1", 8, "the HTTP interface of the target cannot be used"),
        ("--namespaces", "public/nowhere", 2, "the source has no namespace public/nowhere"),
    ):
        given = {**right, option: value}
        ended = magnetar(
            "migrate",
            *(part for pair in given.items() for part in pair),
            *("--state", str(tmp_path / option.strip("-") / str(status))),
        )
        assert ended.status == status, ended
        (line,) = ended.messages()
        assert words in line
    ended = magnetar("migrate", "--state", str(tmp_path / "none"), "--from", source.url)
    assert ended.status == 2
    assert "--from-admin, --to, --to-admin missing" in ended.stderr
