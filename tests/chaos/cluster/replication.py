"""Whether every ledger has all its copies, looked up without anything that makes them."""

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError, NoNodeError, NoSuchLedgerError
from magnetar.ledger.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.ledger.metadata.store import MetadataStore
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.system import SystemClock, SystemNetwork
from tests.bookie_parts import BookieClient
from tests.chaos.cluster.stage import Stage
from tests.chaos.replicas import read_copies

_ITEMS = "/ledgers/underreplication/ledgers"
_RETRY_S = 0.3
_SHOWN_MAX = 5


@dataclass(slots=True)
class Replication:
    """What was found in the end."""

    ledgers: int = 0
    entries: int = 0
    short: int = 0
    """Entries of closed ledgers with fewer copies than their write quorum."""
    problems: list[str] = field(default_factory=list)


def wait_whole(stage: Stage, *, timeout_s: float) -> str:
    """Wait until no ledger names a lost bookie, and no work item is left.

    Returns:
        What is still missing when the time is over; "" when nothing is.
    """
    until_s = time.monotonic() + timeout_s
    while True:
        try:
            missing = stage.field.run(lambda: asyncio.run(_missing(stage)))
        except LedgerError as error:
            missing = f"{type(error).__name__}: {error}"
        if not missing or time.monotonic() > until_s:
            return missing
        threading.Event().wait(_RETRY_S)
        stage.check_nobody_ended()


def count_copies(stage: Stage) -> Replication:
    """Ask every bookie for every entry of every closed ledger that it should have."""
    return stage.field.run(lambda: asyncio.run(_count(stage)))


@asynccontextmanager
async def _client(stage: Stage) -> AsyncIterator[tuple[MetadataStore, LedgerClient]]:
    store = await open_store(stage.metadata_url)
    client = LedgerClient(
        store, network=SystemNetwork(), clock=SystemClock(), random=random.Random(0)
    )
    await client.start()
    try:
        yield store, client
    finally:
        await client.close()
        await store.close()


async def _ledgers(client: LedgerClient) -> AsyncIterator[tuple[int, LedgerMetadata]]:
    """Every ledger there is; one that is deleted meanwhile needs no copies."""
    async for ledger_id in client.manager.ledger_ids():
        try:
            yield ledger_id, (await client.manager.read(ledger_id)).metadata
        except NoSuchLedgerError:
            continue


async def _missing(stage: Stage) -> str:
    async with _client(stage) as (store, client):
        naming: list[int] = []
        lost = set(stage.lost)
        async for ledger_id, metadata in _ledgers(client):
            if any(lost & set(fragment.bookies) for fragment in metadata.ensembles):
                naming.append(ledger_id)
        items = await _items(store, _ITEMS)
    if not naming and not items:
        return ""
    return (
        f"{len(naming)} ledgers name lost bookies ({naming[:_SHOWN_MAX]}...), "
        f"{len(items)} work items are left ({items[:_SHOWN_MAX]}...)"
    )


async def _items(store: MetadataStore, path: str) -> list[str]:
    try:
        children = await store.children(path)
    except NoNodeError:
        return []
    found: list[str] = []
    for child in children:
        if child.startswith("urL"):
            found.append(child)
        else:
            found += await _items(store, f"{path}/{child}")
    return found


async def _count(stage: Stage) -> Replication:
    found = Replication()
    async with _client(stage) as (_, client):
        bookies: dict[str, BookieClient] = {}
        for name, bookie_id in stage.bookie_ids().items():
            host, port = stage.address(name)
            bookies[bookie_id] = await BookieClient.connect(port, host=host)
        async for ledger_id, metadata in _ledgers(client):
            if metadata.state is not LedgerState.CLOSED:
                continue
            unknown = {
                bookie_id for fragment in metadata.ensembles for bookie_id in fragment.bookies
            } - bookies.keys()
            if unknown:
                found.problems.append(f"ledger {ledger_id} names {sorted(unknown)}, long lost")
                continue
            copies = await read_copies(metadata, bookies, expected=None)
            found.ledgers += 1
            found.entries += len(copies.counts)
            found.problems += copies.wrong
            short = [at for at, count in enumerate(copies.counts) if count < metadata.write_quorum]
            found.short += len(short)
            if short:
                found.problems.append(
                    f"ledger {ledger_id}: {len(short)} entries have fewer copies than "
                    f"{metadata.write_quorum}, the first is {short[0]}: {copies.missing[:3]}"
                )
        for bookie in bookies.values():
            bookie.close()
    return found
