"""A bookie process for the tests that kill one: `... -m tests.integration.bookie.serve DIR
ENGINE DISKS`, with so many journals and ledger directories.

Prints `ready PORT`. Small files and caches, so that everything rolls over and flushes all the time.
"""

import asyncio
import os
import random
import sys
from pathlib import Path

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.indexes.index_mark import EngineKind
from magnetar.bookie.settings import BookieSettings
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.system import SystemClock, SystemDisk, SystemNetwork


def give_up(error: BaseException) -> None:
    sys.stderr.write(f"fatal: {error}\n")
    os._exit(70)


async def serve(directory: Path, engine: EngineKind, disks: int) -> None:
    store = await open_store(f"embedded:{directory / 'metadata.db'}")
    settings = BookieSettings(
        bookie_id="b1",
        port=0,
        data_directory=directory / "b1",
        journal_directories=tuple(directory / f"journal-{each}" for each in range(disks)),
        ledger_directories=tuple(directory / f"ledgers-{each}" for each in range(disks)),
        storage_engine=engine,
        index_page_bytes=256,
        index_cache_bytes_max=64 << 10,
        journal_file_bytes_max=256 << 10,
        journal_preallocate_bytes=64 << 10,
        write_cache_bytes_max=1 << 20,
        entry_log_bytes_max=4 << 20,
        flush_interval_s=0.05,
    )
    bookie = Bookie(
        settings,
        store,
        clock=SystemClock(),
        network=SystemNetwork(),
        disk=SystemDisk(),
        random=random.Random(),
        on_fatal=give_up,
    )
    await bookie.start()
    sys.stdout.write(f"ready {bookie.port}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    _, path, engine, disks = sys.argv
    is_interleaved = engine == "interleaved"
    asyncio.run(serve(Path(path), "interleaved" if is_interleaved else "db", int(disks)))
