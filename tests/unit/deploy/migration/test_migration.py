from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from magnetar.deploy.migration import migration
from magnetar.deploy.migration.migration import Migration
from magnetar.deploy.migration.sides import Side, subscription_path
from magnetar.deploy.migration.state_directory import Asked, StateDirectory
from magnetar.deploy.migration.subscriptions import HOLD
from magnetar.sdk.wire import TopicName

ASKED = Asked(source="a", source_admin="a", target="b", target_admin="b")
TOPIC = TopicName.parse("persistent://public/default/t")
LONG = TopicName.parse(f"persistent://public/default/{'long' * 60}")
GONE = TopicName.parse("persistent://public/default/gone%2F or not-partition-0")


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "TICK_S", 0.0)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[StateDirectory]:
    found = StateDirectory(tmp_path / "state")
    assert found.lock()
    yield found
    found.unlock()


class Cluster:
    """A cluster with one namespace, over HTTP."""

    server_version = "Magnetar"

    def __init__(self, cluster: str, *topics: TopicName) -> None:
        self.cluster = self.url = cluster
        self.answers: dict[str, Any] = {
            "clusters": [cluster],
            "tenants": ["public"],
            "tenants/public": {"allowedClusters": [cluster, "north"]},
            "namespaces/public": ["public/default"],
            "persistent/public/default": [str(each) for each in topics],
        }
        self.deleted: list[str] = []

    async def check(self) -> None:
        pass

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        return self.answers.get(path)

    async def create(
        self, path: str, body: Any = None, query: Mapping[str, str] | None = None
    ) -> bool:
        return True

    async def ask(
        self, method: str, path: str, body: Any = None, query: Mapping[str, str] | None = None
    ) -> None:
        if method == "DELETE":
            self.deleted.append(path)

    async def settings(self) -> Mapping[str, str]:
        return {}


def migration_of(directory: StateDirectory, source: Cluster, target: Cluster) -> Migration:
    return Migration(ASKED, directory, cast(Side, source), cast(Side, target), lambda _: None)


async def test_what_was_left_out_at_the_start_is_in_the_report_of_the_cut_over(
    directory: StateDirectory,
) -> None:
    found = migration_of(directory, Cluster("east"), Cluster("west"))
    report = await found.run(is_cut_over=True)
    line = "tenant public: cluster north is left out: the target does not know it"
    assert report.notes.count(line) == 1


async def test_messages_of_topics_that_are_gone_at_the_source_are_let_go_at_the_target(
    directory: StateDirectory,
) -> None:
    for topic in (TOPIC, GONE):
        directory.append(topic, "", anew=True)
    source, target = Cluster("east", TOPIC, LONG), Cluster("west")
    await migration_of(directory, source, target).let_go()
    assert sorted(target.deleted) == sorted(
        subscription_path(each, HOLD) for each in (TOPIC, LONG, GONE)
    )
    assert source.deleted == [subscription_path(each, HOLD) for each in (LONG, TOPIC)]
