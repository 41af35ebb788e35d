"""A recoverer of the drill: takes over every ledger that the driver names as an orphan.

Orphans are files named by ledger id in the folder `orphans`. All recoverers take all of them, so
several recover one ledger at once; and each that is started anew begins again with all, so closed
ledgers are looked at many times, and must never change.

usage: python -m tests.chaos.recover --metadata URL --directory DIR --name NAME --seed N
"""

import asyncio

from magnetar.ledger.errors import LedgerError
from tests.chaos.journals import RECOVERED
from tests.chaos.player import Player, play

ORPHANS = "orphans"
AT_ONCE = 4


async def recover(player: Player) -> None:
    done: set[int] = set()
    limit = asyncio.Semaphore(AT_ONCE)
    while not player.stop.is_set():
        names = sorted(int(path.name) for path in (player.directory / ORPHANS).iterdir())
        todo = [ledger_id for ledger_id in names if ledger_id not in done]
        player.random.shuffle(todo)
        async with asyncio.TaskGroup() as group:
            for ledger_id in todo:
                group.create_task(_recover(player, ledger_id, done, limit))
        await player.pause(0.1)


async def _recover(
    player: Player, ledger_id: int, done: set[int], limit: asyncio.Semaphore
) -> None:
    async with limit:
        try:
            reader = await player.client.open_and_recover(ledger_id)
        except LedgerError:
            return  # the next round tries again
    metadata = reader.metadata
    player.journal.note(RECOVERED, ledger_id, metadata.last_entry_id, metadata.length)
    done.add(ledger_id)


if __name__ == "__main__":
    play(recover)
