"""What the drill's client processes have in common: a ledger client, a journal, an orderly end."""

import argparse
import asyncio
import random
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import uvloop

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.metadata.url import open_store
from magnetar.ledger.settings import LedgerSettings
from magnetar.ledger.system import SystemClock, SystemNetwork
from tests.chaos.journals import ENDED, Journal

SETTINGS = LedgerSettings(
    request_timeout_s=2,  # shorter than many of the pauses
    connect_timeout_s=2,
    close_drain_timeout_s=5,
)
RETRY_S = 0.2
READY = "ready"


@dataclass(frozen=True, slots=True)
class Player:
    """What a process of the drill works with."""

    client: LedgerClient
    journal: Journal
    random: random.Random
    directory: Path
    bookie: str
    """Host and port of the only bookie that it has to do with; empty: with all."""
    bytes_per_s_max: float
    """What it may write; 0: as fast as it can."""
    stop: asyncio.Event
    """Set by SIGTERM: come to an orderly end."""

    async def pace(self, size: int) -> None:
        """Let the time pass that so many bytes may take."""
        if self.bytes_per_s_max:
            await self.pause(size / self.bytes_per_s_max)
        else:
            await asyncio.sleep(0)

    async def pause(self, seconds: float = RETRY_S) -> None:
        """Let some time pass before the next attempt, but not the wish to stop."""
        try:
            async with asyncio.timeout(seconds):
                await self.stop.wait()
        except TimeoutError:
            pass


def play(part: Callable[[Player], Awaitable[None]]) -> None:
    """Run `part` with what the command line says: metadata URL, directory, name, seed, bookie."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--metadata", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--bookie", default="")
    parser.add_argument("--bytes-per-s", type=float, default=0.0)
    arguments = parser.parse_args()

    async def run() -> None:
        store = await open_store(arguments.metadata)
        source = random.Random(arguments.seed)
        client = LedgerClient(
            store,
            network=SystemNetwork(),
            clock=SystemClock(),
            random=source,
            settings=SETTINGS,
        )
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        await client.start()
        sys.stdout.write(f"{READY}\n")
        sys.stdout.flush()
        journal = Journal(arguments.directory, arguments.name)
        try:
            await part(
                Player(
                    client,
                    journal,
                    source,
                    directory=arguments.directory,
                    bookie=arguments.bookie,
                    bytes_per_s_max=arguments.bytes_per_s,
                    stop=stop,
                )
            )
        finally:
            await client.close()
            await store.close()
        journal.note(ENDED)

    uvloop.run(run())
