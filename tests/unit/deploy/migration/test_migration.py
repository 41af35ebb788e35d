import errno
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from magnetar.deploy.admin_client import RequestRefusedError
from magnetar.deploy.errors import DataDirectoryError, MigrationDiffersError
from magnetar.deploy.migration import migration, running
from magnetar.deploy.migration.migration import Migration
from magnetar.deploy.migration.sides import Side, subscription_path
from magnetar.deploy.migration.state_directory import Asked, StateDirectory
from magnetar.deploy.migration.subscriptions import HOLD
from magnetar.ledger.system import SystemDisk
from magnetar.sdk.wire import TopicName

ASKED = Asked(source="a", source_admin="a", target="b", target_admin="b")
TOPIC = TopicName.parse("persistent://public/default/t")
LONG = TopicName.parse(f"persistent://public/default/{'long' * 60}")
GONE = TopicName.parse("persistent://public/default/gone%2F or not-partition-0")


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "TICK_S", 0.0)
    monkeypatch.setattr(migration, "SCAN_PAUSE_S", 0.0)


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
        self.refusals: list[RequestRefusedError] = []
        """Answers to the next requests for the list of tenants."""

    async def check(self) -> None:
        pass

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        if path == "tenants" and self.refusals:
            raise self.refusals.pop()
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

    async def close(self) -> None:
        pass


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


@pytest.mark.parametrize("is_done", [False, True])
async def test_a_passing_refusal_of_the_source_does_not_end_the_command_at_its_start(
    directory: StateDirectory, is_done: bool
) -> None:
    """Pulsar refuses to tell the properties of a topic while no broker owns it."""
    source, target = Cluster("east"), Cluster("west")
    found = migration_of(directory, source, target)
    start = found.let_go if is_done else partial(found.run, is_cut_over=True)
    source.refusals = [RequestRefusedError("Can't find owner for topic t", 412)] * 2
    await start()
    assert not source.refusals


@pytest.mark.parametrize(("status", "tries"), [(412, migration.SCAN_TRIES), (401, 1), (403, 1)])
async def test_a_lasting_refusal_of_the_source_ends_the_command_at_its_start(
    directory: StateDirectory, status: int, tries: int
) -> None:
    source = Cluster("east")
    source.refusals = [RequestRefusedError("no", status)] * tries
    with pytest.raises(RequestRefusedError):
        await migration_of(directory, source, Cluster("west")).run(is_cut_over=True)
    assert not source.refusals


class _KilledError(BaseException):
    """The process is gone."""


def _kill(*_: object, **__: object) -> None:
    raise _KilledError


@pytest.mark.parametrize(
    "step",
    ["prepare_report", "remove_report", "remember", "show_report", "cut_over_ended", "topics"],
)
@pytest.mark.parametrize("is_repeated", [False, True])
async def test_a_kill_after_a_good_report_never_has_the_cut_over_begin_anew(
    directory: StateDirectory, monkeypatch: pytest.MonkeyPatch, step: str, is_repeated: bool
) -> None:
    """Clients use the target by then. `step`: the first of the last steps that does not happen."""
    directory.remember(ASKED)
    if is_repeated:  # An earlier comparison found differences.
        directory.prepare_report(text="1 difference\n", json_text='{"different": {"messages": 1}}')
        directory.show_report()
    source, target = Cluster("east"), Cluster("west")
    target.answers["tenants/public"] = {"allowedClusters": ["west"]}
    with monkeypatch.context() as patched:
        patched.setattr(directory, step, _kill)
        with pytest.raises(_KilledError):
            await migration_of(directory, source, target).run(is_cut_over=True)
    asked = directory.asked()
    assert asked is not None
    if step in ("prepare_report", "remove_report", "remember"):
        is_old = is_repeated and step != "remember"
        assert (asked.is_done, directory.has_report) == (False, is_old), "it may begin anew"
        assert directory.is_cut_over_asked, "and does so by itself"
        return
    assert asked.is_done
    assert directory.has_report == (step != "show_report")
    sides = iter((Cluster("east"), Cluster("west", TOPIC)))
    monkeypatch.setattr(running, "Side", lambda *_: next(sides))
    assert await running._migrate(asked, directory, is_cut_over=False) is None
    assert not directory.is_cut_over_asked
    assert (directory.path / "report.txt").read_text().endswith("source and target do not differ\n")
    assert json.loads((directory.path / "report.json").read_bytes())["different"] == {}


class _CutDisk(SystemDisk):
    """Ends at one of its steps, by a kill or because it is full."""

    def __init__(self, steps: int, error: BaseException) -> None:
        self._left = steps
        self._error = error

    def _step(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise self._error

    def replace_file(self, path: str, data: bytes) -> None:
        self._step()
        super().replace_file(path, data)

    def rename(self, source: str, target: str) -> None:
        self._step()
        super().rename(source, target)

    def sync_directory(self, path: str) -> None:
        self._step()
        super().sync_directory(path)


@pytest.mark.parametrize("error", [_KilledError(), OSError(errno.ENOSPC, "full")])
async def test_differences_are_told_by_the_next_start_wherever_the_last_one_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """A policy differs, which does not keep a cut-over from being done. A cut-over that is not done
    compares again."""
    done = 0
    for steps in range(2, 12):  # The first step stores the request.
        directory = StateDirectory(tmp_path / f"{steps}", _CutDisk(steps, error))
        source, target = Cluster("east"), Cluster("west")
        source.answers["tenants/public"] = {"adminRoles": ["only-here"]}
        target.answers["tenants/public"] = {"allowedClusters": ["west"]}
        found = Migration(ASKED, directory, cast(Side, source), cast(Side, target), lambda _: None)
        (directory.path / "topics").mkdir(parents=True)
        StateDirectory(directory.path).remember(ASKED)
        with suppress(_KilledError, DataDirectoryError):
            await found.run(is_cut_over=True)
        directory = StateDirectory(directory.path)
        asked = directory.asked()
        assert asked is not None
        if not asked.is_done:
            assert not directory.has_report
            assert directory.is_cut_over_asked
            continue
        done += 1
        sides = iter((Cluster("east"), Cluster("west")))
        monkeypatch.setattr(running, "Side", lambda *_, sides=sides: next(sides))
        with pytest.raises(MigrationDiffersError, match="1 differences"):
            await running._migrate(asked, directory, is_cut_over=False)
        assert "only-here" in (directory.path / "report.txt").read_text()
        assert not list(directory.path.glob("next-*"))
    assert 3 < done < 9


async def test_the_copies_end_after_the_cut_over_is_recorded_as_done(
    directory: StateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That takes as long as the clusters need to answer."""
    found = migration_of(directory, Cluster("east"), Cluster("west"))
    done: list[bool] = []
    end_copies = found._end_copies

    async def noted() -> None:
        asked = directory.asked()
        done.append(asked is not None and asked.is_done)
        await end_copies()

    monkeypatch.setattr(found, "_end_copies", noted)
    await found.run(is_cut_over=True)
    assert done[0]
    assert not directory.is_cut_over_asked
