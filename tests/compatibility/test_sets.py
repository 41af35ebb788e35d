"""What earlier versions wrote is read by this one, byte for byte."""

import base64
import json
import random
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from magnetar.cursors import Cursor
from magnetar.deploy.errors import DataDirectoryError
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.position import EARLIEST, Position
from magnetar.ledger.system import SystemClock
from tests.archives import unpack
from tests.compatibility.kinds import KINDS
from tests.compatibility.write_set import (
    BOOKIES,
    CONFIG,
    CURSORS,
    ENDED_PATH,
    LOG_PATH,
    PASSWORD,
    SETS,
    bookie_settings,
)
from tests.integration.ledger.cluster import Cluster
from tests.integration.ledger.log_parts import append, read_all

NAMES = sorted(path.name for path in SETS.iterdir() if path.is_dir())
EVERY_SET = pytest.mark.parametrize("name", NAMES)
EVERY_STATE = pytest.mark.parametrize("state", ["stopped", "killed"])


def expected_of(name: str) -> Any:
    return json.loads((SETS / name / "expected.json").read_text())


def decoded(values: list[str]) -> list[bytes]:
    return [base64.b64decode(value) for value in values]


@asynccontextmanager
async def cluster_of(
    name: str, state: str, directory: Path, *bookies: str
) -> AsyncIterator[Cluster]:
    """Bookies of this version on the directories of the set."""
    with tarfile.open(SETS / name / f"{state}.tar.gz") as archive:
        unpack(archive, directory)
    store = await open_store(f"embedded:{directory / 'metadata.db'}")
    cluster = Cluster(store, directory)
    try:
        for bookie in bookies or BOOKIES:
            await cluster.start_bookie(bookie, bookie_settings(bookie, directory))
        yield cluster
    finally:
        for bookie in list(cluster.bookies):
            await cluster.stop_bookie(bookie)
        await store.close()


async def entries_of(client: LedgerClient, ledger: Any) -> list[bytes]:
    ledger_id = ledger["id"]
    if ledger["is_closed"]:
        reader = await client.open(ledger_id, password=PASSWORD)
    else:
        reader = await client.open_and_recover(ledger_id, password=PASSWORD)
    assert reader.metadata.digest_type.name == ledger["digest"]
    entries: list[bytes] = []
    while len(entries) <= reader.last_add_confirmed:
        entries += await reader.read(len(entries), reader.last_add_confirmed)
    return entries


@EVERY_SET
@EVERY_STATE
@pytest.mark.parametrize("bookie", BOOKIES)
async def test_each_engine_serves_every_entry_of_closed_ledgers(
    tmp_path: Path, name: str, state: str, bookie: str
) -> None:
    expected = expected_of(name)
    async with (
        cluster_of(name, state, tmp_path, bookie) as cluster,
        cluster.client() as client,
    ):
        for ledger in [*expected["flushed"], *expected["journalled"]]:
            if ledger["is_closed"]:
                assert await entries_of(client, ledger) == decoded(ledger["entries"])


@EVERY_SET
@EVERY_STATE
async def test_a_ledger_that_was_left_open_is_recovered_whole(
    tmp_path: Path, name: str, state: str
) -> None:
    expected = expected_of(name)
    async with cluster_of(name, state, tmp_path) as cluster, cluster.client() as client:
        left_open = [
            ledger
            for ledger in [*expected["flushed"], *expected["journalled"]]
            if not ledger["is_closed"]
        ]
        assert len(left_open) == 2
        for ledger in left_open:
            assert await entries_of(client, ledger) == decoded(ledger["entries"])


@EVERY_SET
@EVERY_STATE
async def test_logs_and_cursors_go_on_where_they_were(
    tmp_path: Path, name: str, state: str
) -> None:
    expected = expected_of(name)["log"]
    async with cluster_of(name, state, tmp_path) as cluster, cluster.client() as client:
        log = await open_log(client, cluster.store, LOG_PATH)
        payloads = decoded(expected["payloads"])
        assert await read_all(log) == payloads
        for subscription, unacked in expected["cursors"].items():
            cursor = await Cursor.open(
                log, client, cluster.store, subscription, settings=CURSORS, clock=SystemClock()
            )
            assert cursor.properties == {"why": "compatibility"}
            assert still_to_get(cursor, log) == [Position(*position) for position in unacked]
            await cursor.close()
        await append(log, [b"and more"]).outcome
        assert await read_all(log) == [*payloads, b"and more"]
        await log.close()
        ended = await open_log(client, cluster.store, ENDED_PATH)
        assert ended.terminated is not None
        assert await read_all(ended) == decoded(expected["ended"])
        await ended.close()


def still_to_get(cursor: Cursor, log: ManagedLog) -> list[Position]:
    found = []
    position = log.next_position(EARLIEST)
    while position <= log.last_confirmed:
        if not cursor.is_acked(position):
            found.append(position)
        position = log.next_position(position)
    return found


async def open_log(client: LedgerClient, store: MetadataStore, path: str) -> ManagedLog:
    return await ManagedLog.open(
        client, store, path, CONFIG, clock=SystemClock(), random=random.Random(1)
    )


# Values in the metadata store


@EVERY_SET
def test_a_set_has_a_sample_of_every_kind_there_was(name: str) -> None:
    samples = {path.stem for path in (SETS / name / "records").iterdir()}
    assert samples <= KINDS.keys(), "a kind was dropped: how are its values read now?"
    if name == NAMES[-1]:
        assert samples == KINDS.keys(), "a new kind: write a new set"


@pytest.mark.parametrize(
    "path",
    [path for name in NAMES for path in sorted((SETS / name / "records").iterdir())],
    ids=lambda path: f"{path.parent.parent.name}-{path.stem}",
)
def test_a_value_is_read_and_says_the_same_when_it_is_written_anew(path: Path) -> None:
    value = path.read_bytes()
    written = json.loads(KINDS[path.stem].rewrite(value))
    # A later version may add fields; what was there must still be.
    assert json.loads(value).items() <= written.items()


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_of_a_future_format_is_refused(kind: str) -> None:
    (sample,) = [
        path
        for name in NAMES[-1:]
        for path in (SETS / name / "records").iterdir()
        if path.stem == kind
    ]
    fields = json.loads(sample.read_bytes())
    name = "format_version" if kind == "ledger" else "format"
    assert type(fields[name]) is int, "every value carries its format"
    future = json.dumps({**fields, name: fields[name] + 1}).encode()
    with pytest.raises(Exception, match="format"):  # each component has its own error
        KINDS[kind].rewrite(future)


def test_the_sets_stay_small() -> None:
    size = sum(path.stat().st_size for path in SETS.rglob("*") if path.is_file())
    assert size < 1 << 20, "a set is kept for ever, in every clone"


def test_a_directory_of_a_future_release_is_refused(tmp_path: Path) -> None:
    from magnetar.deploy.cluster_files import ClusterFiles

    files = ClusterFiles(tmp_path)
    files.layout_path.write_text('{"format": 2}')
    with pytest.raises(DataDirectoryError, match="format"):
        files.read_layout()
