"""`magnetar ledger` as a person runs it, beside a broker that is at work."""

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.deploy import ledger_tools
from magnetar.deploy.errors import SettingsError
from magnetar.ledger.ledger_manager import LedgerManager
from magnetar.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.system import SystemClock
from tests.integration.deploy.commands import Ended, magnetar
from tests.standalone import Standalone
from tests.zookeeper_fixture import ZooKeeper


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ledger-tools") / "data"


@pytest.fixture(scope="module")
def server(data: Path) -> Iterator[Standalone]:
    # Its topic has neither a subscription nor a producer, and shall stay.
    with Standalone(data, settings={"INACTIVE_TOPIC_DELETION": "false"}) as started:
        ended = magnetar("produce", "t", "-m", "one", "-m", "two", "--url", started.url)
        assert ended.status == 0, ended.stderr
        yield started


def url_of(data: Path) -> str:
    return f"embedded:{data / 'metadata.db'}"


def run(data: Path, *arguments: str) -> Ended:
    return magnetar("ledger", *arguments, "--metadata", url_of(data))


def lines(ended: Ended) -> list[dict[str, object]]:
    assert ended.status == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


def leave_behind(metadata_url: str, state: LedgerState, log: str) -> int:
    """Create a ledger of long ago whose log was deleted."""

    def make(ledger_id: int, creation_token: int) -> LedgerMetadata:
        return LedgerMetadata(
            ledger_id=ledger_id,
            ensemble_size=1,
            write_quorum=1,
            ack_quorum=1,
            state=state,
            last_entry_id=-1,
            length=0,
            ensembles=(Fragment(0, ("b1",)),),
            password=b"hidden",
            created_ms=1,
            custom_metadata={"component": "managed-log", "log": log},
            creation_token=creation_token,
        )

    async def create() -> int:
        store = await open_store(metadata_url)
        manager = LedgerManager(store, random=random.Random(1), clock=SystemClock())
        try:
            await store.delete(await store.create(log))
            return (await manager.create(make)).metadata.ledger_id
        finally:
            await store.close()

    return asyncio.run(create())


def test_ledgers_are_listed_and_shown(server: Standalone, data: Path) -> None:
    listed = lines(run(data, "list", "--json"))
    assert [each["state"] for each in listed] == ["OPEN"]
    ledger_id = str(listed[0]["ledger_id"])
    assert lines(run(data, "show", ledger_id, "--json")) == listed
    shown = run(data, "show", ledger_id).stdout
    assert "fragment from" in shown
    assert "managed-log" in shown
    assert run(data, "list").stdout.startswith(f"{ledger_id}  OPEN")


def test_orphans_are_listed_and_deleted_only_when_told_to(server: Standalone, data: Path) -> None:
    (in_use,) = [each["ledger_id"] for each in lines(run(data, "list", "--json"))]
    closed = leave_behind(url_of(data), LedgerState.CLOSED, "/managed-ledgers/nobody")
    still_open = leave_behind(url_of(data), LedgerState.OPEN, "/managed-ledgers/nobody")
    assert "hidden" not in run(data, "show", str(closed), "--json").stdout
    for _ in range(2):
        *found, last = lines(run(data, "orphans", "--json"))
        assert [each["verdict"] for each in found] == ["orphan", "orphan"]
    counts = {"in_use": 0, "too_young": 1, "undecided": 0, "orphan": 2, "sealed": 0, "deleted": 0}
    assert last == {"counts": counts}
    assert "nothing was deleted; --delete deletes the orphans" in run(data, "orphans").stdout
    deleted = run(data, "orphans", "--delete")
    assert f"{closed}  deleted" in deleted.stdout
    assert f"{still_open}  sealed" in deleted.stdout
    assert "run the command again later" in deleted.stdout
    assert f"{still_open}  deleted" in run(data, "orphans", "--delete").stdout
    assert [each["ledger_id"] for each in lines(run(data, "list", "--json"))] == [in_use]


def test_nothing_is_deleted_on_a_machine_whose_clock_is_ahead(
    zookeeper: ZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ahead(SystemClock):
        def wall_ms(self) -> int:
            return super().wall_ms() + 4 * 24 * 3_600_000

    url = f"{zookeeper.url}/clocks"
    left = leave_behind(url, LedgerState.CLOSED, "/managed-ledgers/nobody")
    monkeypatch.setattr(ledger_tools, "SystemClock", Ahead)
    with pytest.raises(SettingsError, match="Set the clock"):
        ledger_tools.run(
            url, lambda tools: tools.sweep_orphans(delete=True, grace_ms=3_600_000, as_json=False)
        )
    listed = lines(magnetar("ledger", "list", "--json", "--metadata", url))
    assert [each["ledger_id"] for each in listed] == [left]


def test_misuse_ends_with_a_line_that_says_what_to_do(
    server: Standalone, data: Path, tmp_path: Path
) -> None:
    ended = run(data, "show", "123456")
    assert (ended.status, len(ended.messages())) == (2, 1)
    assert "ledger 123456 has no metadata" in ended.messages()[0]
    ended = run(data, "orphans", "--grace-hours", "0.5")
    assert ended.status == 2
    empty = magnetar("ledger", "list", "--metadata", f"embedded:{tmp_path / 'empty.db'}")
    assert empty.status == 2
    assert "holds no cluster" in empty.stderr
