"""Write a set of data with this version: `python -m tests.compatibility.write_set NAME`.

Two bookies, one per storage engine, hold every entry; the metadata are in an embedded store. The
set has the directories twice: as an orderly stop leaves them, and as kill -9 does, with entries
that only the journal has. What is in it, `expected.json` says in plain values.

A set is written once. It is never written again, whatever changes later: see README.md.
"""

import argparse
import asyncio
import base64
import json
import random
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from magnetar.bookie.settings import BookieSettings
from magnetar.broker.cluster.balance.layouts import LayoutRecord
from magnetar.broker.cluster.ownership.records import BrokerRecord, LeaseRecord
from magnetar.cursors import Cursor
from magnetar.cursors.settings import CursorSettings
from magnetar.deploy.cluster_files import ClusterRecord, RunningServer
from magnetar.deploy.cluster_files import Layout as ClusterLayout
from magnetar.deploy.cluster_plan import Kind
from magnetar.ledger.autorecovery import controls
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.ledger_metadata import DigestType
from magnetar.ledger.log import ManagedLog
from magnetar.ledger.metadata import election
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.position import EARLIEST, Position
from magnetar.ledger.settings import LogConfig
from magnetar.ledger.system import SystemClock
from magnetar.ledger.under_replication import encode_item
from magnetar.ledger.writer import LedgerWriter
from tests.integration.ledger.cluster import Cluster
from tests.integration.ledger.log_parts import append

SETS = Path(__file__).parent / "sets"
BOOKIES = {"b1": "db", "b2": "interleaved"}
LOG_PATH = "/managed-ledgers/public/default/persistent/kept"
ENDED_PATH = "/managed-ledgers/public/default/persistent/ended"
PASSWORD = b"a password"
CONFIG = LogConfig(ensemble_size=2, write_quorum=2, ack_quorum=2)
CURSORS = CursorSettings(ensemble_size=2, write_quorum=2, ack_quorum=2, ack_persist_interval_ms=0)


def bookie_settings(name: str, directory: Path) -> BookieSettings:
    """Small files: a set has to stay small."""
    return BookieSettings.model_validate(
        {
            "bookie_id": name,
            "data_directory": directory / name,
            "host": "127.0.0.1",
            "port": 0,
            "storage_engine": BOOKIES[name],
            "journal_preallocate_bytes": 0,
            "journal_spares": 0,
            "entry_log_bytes_max": 1 << 20,
            "flush_interval_s": 3600,
            "registration_wait_s": 5,
        }
    )


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def write_ledgers(client: LedgerClient, seed: int) -> list[dict[str, Any]]:
    """A closed ledger of each digest, entries of many sizes; and one that nobody closed."""
    source = random.Random(seed)
    written = []
    for digest in DigestType:
        writer = await client.create(
            ensemble_size=2,
            write_quorum=2,
            ack_quorum=2,
            digest_type=digest,
            password=PASSWORD,
            custom_metadata={"component": "compatibility", "digest": str(digest.value)},
        )
        entries = [source.randbytes(size) for size in (0, 1, 100, 3000)]
        for entry in entries:
            await writer.add(entry)
        await writer.close()
        written.append(_ledger(writer, digest, entries, is_closed=True))
    writer = await client.create(ensemble_size=2, write_quorum=2, ack_quorum=2, password=PASSWORD)
    entries = [source.randbytes(50) for _ in range(3)]
    for entry in entries:
        await writer.add(entry)
    written.append(_ledger(writer, DigestType.CRC32C, entries, is_closed=False))
    writer.abandon()
    return written


def _ledger(
    writer: LedgerWriter, digest: DigestType, entries: list[bytes], *, is_closed: bool
) -> dict[str, Any]:
    return {
        "id": writer.ledger_id,
        "digest": digest.name,
        "is_closed": is_closed,
        "entries": [text(entry) for entry in entries],
    }


async def write_log(client: LedgerClient, store: MetadataStore) -> dict[str, Any]:
    """A log of three ledgers with two cursors, and one that was ended."""
    payloads = [b"message %d" % number for number in range(12)]
    log = await open_log(client, store, LOG_PATH)
    positions: list[Position] = []
    for at, payload in enumerate(payloads):
        positions.append(await append(log, [payload]).outcome)
        if at % 4 == 3 and at < len(payloads) - 1:
            await log.rotate()
    in_node = await open_cursor(log, client, store, "in the node")
    in_node.ack_cumulative(positions[3])
    in_node.ack_many([positions[6], positions[9]])
    await in_node.close()
    in_ledger = await open_cursor(log, client, store, "in a ledger")
    in_ledger.ack_many([positions[0], positions[2], positions[11]])
    await in_ledger.persist()
    in_ledger.abandon()
    await log.close()
    ended = await open_log(client, store, ENDED_PATH)
    await append(ended, [b"the last"]).outcome
    await ended.terminate()
    await ended.close()
    return {
        "payloads": [text(payload) for payload in payloads],
        "cursors": {
            "in the node": unacked(positions, {*range(4), 6, 9}),
            "in a ledger": unacked(positions, {0, 2, 11}),
        },
        "ended": [text(b"the last")],
    }


def unacked(positions: list[Position], acked: set[int]) -> list[list[int]]:
    """What a subscription still has to get."""
    return [list(position) for at, position in enumerate(positions) if at not in acked]


async def open_log(client: LedgerClient, store: MetadataStore, path: str) -> ManagedLog:
    return await ManagedLog.open(
        client, store, path, CONFIG, clock=SystemClock(), random=random.Random(path)
    )


async def open_cursor(
    log: ManagedLog, client: LedgerClient, store: MetadataStore, name: str
) -> Cursor:
    return await Cursor.open(
        log,
        client,
        store,
        name,
        initial=EARLIEST,
        properties={"why": "compatibility"},
        settings=CURSORS,
        clock=SystemClock(),
    )


def sample_records() -> dict[str, bytes]:
    """Values of the kinds that the cluster of this script does not leave behind."""
    addresses: dict[str, Any] = {
        "native_url": "pulsar://10.0.0.1:6650",
        "http_url": "http://10.0.0.1:8080",
        "listeners": {"external": "pulsar://broker.example:6650"},
        "session_token": "0123456789abcdef",
    }
    server = RunningServer(
        name="broker-1",
        kind=Kind.BROKER,
        pid=123,
        running=True,
        ports={"native": 6650, "http": 8080},
        log="/data/logs/broker-1.log",
    )
    return {
        "work-item": encode_item(7, {"b1": [(0, 9), (20, 29)], "b2": [(3, 3)]}, 1_767_225_600_000),
        "lease": LeaseRecord(broker="broker-1", destination="broker-2", **addresses).encode(),
        "broker": BrokerRecord(name="broker-1", version="0.1.0", **addresses).encode(),
        "bundles": LayoutRecord(
            format=1, boundaries=["0x00000000", "0x40000000", "0x80000000", "0xffffffff"]
        )
        .model_dump_json()
        .encode(),
        "vote": election._VoteRecord(candidate="broker-1", token="0123456789abcdef")
        .model_dump_json()
        .encode(),
        "recovery-layout": controls._LayoutRecord().model_dump_json().encode(),
        "recovery-disabled": controls._DisableRecord(since_ms=1_767_225_600_000)
        .model_dump_json()
        .encode(),
        "recovery-delay": controls._DelayRecord(delay_s=600.0).model_dump_json().encode(),
        "recovery-check": controls._CheckRecord(finished_ms=1_767_225_600_000)
        .model_dump_json()
        .encode(),
        "cluster": ClusterRecord(metadata="zk://127.0.0.1:2181/magnetar", pid=1, servers=[server])
        .model_dump_json()
        .encode(),
        "cluster-layout": ClusterLayout(
            zookeepers=1, bookies=3, brokers=2, autorecovery=1, ports={"broker-1": {"native": 6650}}
        )
        .model_dump_json()
        .encode(),
    }


async def stored_records(store: MetadataStore, ledger_id: int) -> dict[str, bytes]:
    """Values that the cluster of this script has left behind."""
    digits = f"{ledger_id:010d}"
    (cursor, *_) = await store.children(LOG_PATH)
    paths = {
        "ledger": f"/ledgers/{digits[:2]}/{digits[2:6]}/L{digits[6:]}",
        "log": LOG_PATH,
        "cursor-node": f"{LOG_PATH}/{cursor}",
        "cookie": "/ledgers/cookies/b1",
    }
    return {kind: (await store.get(path)).value for kind, path in paths.items()}


def write_set(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        expected, records = asyncio.run(_run_cluster(work))
        target.mkdir(parents=True)
        _pack(work / "killed", target / "killed.tar.gz")
        _pack(work / "stopped", target / "stopped.tar.gz")
    (target / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    (target / "records").mkdir()
    for kind, value in (sample_records() | records).items():
        (target / "records" / f"{kind}.json").write_bytes(value)


async def _run_cluster(work: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    live = work / "live"
    live.mkdir()
    store = await open_store(f"embedded:{live / 'metadata.db'}")
    cluster = Cluster(store, live)
    for name in BOOKIES:
        await cluster.start_bookie(name, bookie_settings(name, live))
    async with cluster.client() as client:
        expected: dict[str, Any] = {"flushed": await write_ledgers(client, 1)}
        for bookie in cluster.bookies.values():
            await bookie.parts.checkpointer.checkpoint()
        expected["log"] = await write_log(client, store)
        expected["journalled"] = await write_ledgers(client, 2)
    records = await stored_records(store, expected["flushed"][0]["id"])
    for bookie in cluster.bookies.values():
        await bookie.parts.journals.wait_drained()
    # Nothing is written now: this is what kill -9 would leave.
    _copy(live, work / "killed")
    for name in list(cluster.bookies):
        await cluster.stop_bookie(name)
    await store.close()
    _copy(live, work / "stopped")
    # The metadata of both are the same; of the first, they were copied while they were in use.
    shutil.copy(live / "metadata.db", work / "killed" / "metadata.db")
    return expected, records


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("metadata.db-*"))


def _pack(directory: Path, target: Path) -> None:
    with tarfile.open(target, "w:gz", compresslevel=9) as archive:
        for path in sorted(directory.rglob("*")):
            if path.is_file() or path.is_dir():
                archive.add(path, path.relative_to(directory).as_posix(), recursive=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="of the set, as the version: v0.1")
    target = SETS / parser.parse_args().name
    if target.exists():
        parser.error(f"{target} is there already; a set is never written again")
    write_set(target)


if __name__ == "__main__":
    main()
