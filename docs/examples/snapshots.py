"""Snapshots of objects: each snapshot is a ledger, and a metadata node names the newest one.

usage: python docs/examples/snapshots.py METADATA_URL [--quorum E,QW,QA] COMMAND …

save NAME FILE | load NAME FILE | list | delete NAME

A closed ledger never changes, and its metadata records its end. This suits large data that is
written once and read as a whole. `save` writes the ledger, closes it, and only then makes the node
of that name point to it. A reader sees the old snapshot or the new one, never half of one. The
former ledger is deleted last. A crash before that leaves an orphaned ledger, which only costs disk
space; its custom metadata contains the name.
"""

import argparse
import asyncio
import hashlib
import json
import random
import sys
from pathlib import Path

import structlog

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import (
    BadVersionError,
    LedgerError,
    NodeExistsError,
    NoNodeError,
    NoSuchLedgerError,
)
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.system import SystemClock, SystemNetwork

ROOT = "/examples/snapshots"
CHUNK_BYTES = 256 << 10
"""Bytes of one entry."""
WINDOW = 8
"""Entries written in parallel."""


class SnapshotChangedError(Exception):
    """Another process saved or deleted a snapshot of that name meanwhile; nothing was changed."""


class SnapshotDamagedError(Exception):
    """The bytes that were read differ from those that were saved."""


class Snapshots:
    """Newest snapshots of objects, by name."""

    def __init__(
        self, client: LedgerClient, store: MetadataStore, quorum: tuple[int, int, int]
    ) -> None:
        self._client = client
        self._store = store
        self._ensemble, self._write_quorum, self._ack_quorum = quorum

    async def save(self, name: str, data: bytes) -> int:
        """Store a snapshot under a name; return its ledger id.

        Raises:
            SnapshotChangedError: another process was faster. The new ledger is deleted again.
        """
        path = f"{ROOT}/{name}"
        version = await self._store.exists(path)
        former = await self._named(path) if version is not None else None
        ledger_id = await self._write(name, data)
        record = {"ledger": ledger_id, "bytes": len(data), "sha256": _digest(data)}
        value = json.dumps(record).encode()
        try:
            if version is None:
                await self._store.create(path, value)
            else:
                await self._store.set(path, value, version=version)
        except (BadVersionError, NoNodeError, NodeExistsError) as error:
            await self._client.delete(ledger_id)
            raise SnapshotChangedError(
                f"{name} was changed meanwhile; look, and save again"
            ) from error
        if former is not None:
            await self._delete_ledger(former["ledger"])
        return ledger_id

    async def _write(self, name: str, data: bytes) -> int:
        writer = await self._client.create(
            ensemble_size=self._ensemble,
            write_quorum=self._write_quorum,
            ack_quorum=self._ack_quorum,
            custom_metadata={"application": "snapshots", "name": name},
        )
        chunks = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]
        for at in range(0, len(chunks), WINDOW):
            await asyncio.gather(*map(writer.add, chunks[at : at + WINDOW]))
        await writer.close()
        return writer.ledger_id

    async def load(self, name: str) -> bytes:
        """Return the newest snapshot of a name.

        Raises:
            NoNodeError: there is no such snapshot.
            SnapshotDamagedError
        """
        record = await self._named(f"{ROOT}/{name}")
        reader = await self._client.open(int(record["ledger"]))
        found: list[bytes] = []
        while len(found) <= reader.last_add_confirmed:
            found += await reader.read(len(found), reader.last_add_confirmed)
        data = b"".join(found)
        if _digest(data) != record["sha256"]:
            raise SnapshotDamagedError(f"{name}: ledger {record['ledger']} is not what was saved")
        return data

    async def names(self) -> list[str]:
        """Return all names, sorted."""
        try:
            return await self._store.children(ROOT)
        except NoNodeError:
            return []

    async def delete(self, name: str) -> None:
        """Delete a name, then its snapshot.

        Raises:
            NoNodeError: there is no such snapshot.
            BadVersionError: another process saved one meanwhile; nothing was changed.
        """
        path = f"{ROOT}/{name}"
        found = await self._store.get(path)
        await self._store.delete(path, version=found.version)
        await self._delete_ledger(json.loads(found.value)["ledger"])

    async def _named(self, path: str) -> dict[str, int | str]:
        found = await self._store.get(path)
        record: dict[str, int | str] = json.loads(found.value)
        return record

    async def _delete_ledger(self, ledger_id: int | str) -> None:
        try:
            await self._client.delete(int(ledger_id))
        except NoSuchLedgerError:
            pass  # another process has deleted it


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def run(snapshots: Snapshots, words: list[str]) -> str:
    """Execute one command."""
    match words:
        case ["save", name, file]:
            data = await asyncio.to_thread(Path(file).read_bytes)
            return f"saved {name} {len(data)} bytes in ledger {await snapshots.save(name, data)}"
        case ["load", name, file]:
            data = await snapshots.load(name)
            await asyncio.to_thread(Path(file).write_bytes, data)
            return f"loaded {name} {len(data)} bytes"
        case ["list"]:
            return " ".join(["names", *await snapshots.names()])
        case ["delete", name]:
            await snapshots.delete(name)
            return f"deleted {name}"
    raise SystemExit("save NAME FILE | load NAME FILE | list | delete NAME")


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("metadata", help="such as embedded:data/metadata.db")
    parser.add_argument("--quorum", default="3,3,2", help="E,QW,QA")
    parser.add_argument(
        "command", nargs="+", help="save NAME FILE, load NAME FILE, list, delete NAME"
    )
    arguments = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    ensemble, write_quorum, ack_quorum = map(int, arguments.quorum.split(","))
    metadata = await open_store(arguments.metadata)
    client = LedgerClient(
        metadata, network=SystemNetwork(), clock=SystemClock(), random=random.SystemRandom()
    )
    await client.start()
    try:
        snapshots = Snapshots(client, metadata, (ensemble, write_quorum, ack_quorum))
        print(await run(snapshots, arguments.command))
    except (LedgerError, SnapshotChangedError, SnapshotDamagedError) as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from error
    finally:
        await client.close()
        await metadata.close()


if __name__ == "__main__":
    asyncio.run(main())
