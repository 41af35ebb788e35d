"""A tailing reader of the drill: follows ledgers while they are written, checks what it gets.

It logs up to where it has read, so that the verdict can tell whether something vanished later.

usage: python -m tests.chaos.tail --metadata URL --directory DIR --name NAME --seed N
"""

import asyncio

from magnetar.ledger.errors import LedgerError, NoSuchEntryError
from magnetar.ledger.ledger_metadata import LedgerState
from magnetar.ledger.reader import LedgerReader
from tests.chaos.content import payload_of
from tests.chaos.journals import READ, WRONG
from tests.chaos.player import Player, play

FOLLOWED_MAX = 3
WAIT_S = 1.0


async def tail(player: Player) -> None:
    seen: set[int] = set()
    async with asyncio.TaskGroup() as group:
        following: list[asyncio.Task[None]] = []
        while not player.stop.is_set():
            following = [task for task in following if not task.done()]
            try:
                ids = [each async for each in player.client.manager.ledger_ids()]
            except LedgerError:
                ids = []
            fresh = [each for each in ids if each not in seen]
            seen.update(ids)
            player.random.shuffle(fresh)
            for ledger_id in fresh[: FOLLOWED_MAX - len(following)]:
                following.append(group.create_task(_follow(player, ledger_id)))
            await player.pause()


async def _follow(player: Player, ledger_id: int) -> None:
    reader: LedgerReader | None = None
    following = _Following(player, ledger_id)
    try:
        while not player.stop.is_set():
            try:
                reader = reader or await player.client.open(ledger_id)
                if await following.read_on(reader):
                    return
            except NoSuchEntryError as error:
                player.journal.note(WRONG, ledger_id, text=f"a reader was told: {error}")
                return
            except LedgerError:
                await player.pause()
    finally:
        if reader is not None:
            await reader.close()


class _Following:
    """How far one ledger has been read."""

    def __init__(self, player: Player, ledger_id: int) -> None:
        self._player = player
        self._ledger_id = ledger_id
        self._next = 0
        self._bound = -1

    async def read_on(self, reader: LedgerReader) -> bool:
        """Read to the bound, then wait for a higher one; True at the end of a closed ledger."""
        is_closed = reader.metadata.state is LedgerState.CLOSED
        bound = reader.last_add_confirmed
        if bound < self._bound:
            self._wrong(bound, f"the bound went back from {self._bound}")
        self._bound = bound
        while self._next <= bound:
            payloads = await reader.read(self._next, bound)
            for at, payload in enumerate(payloads, start=self._next):
                if payload != payload_of(self._ledger_id, at):
                    self._wrong(at, f"read as {payload[:40]!r}")
            self._next += len(payloads)
            self._player.journal.note(READ, self._ledger_id, self._next - 1)
        if is_closed:
            return True
        await reader.wait_beyond(bound, timeout_s=WAIT_S)
        return False

    def _wrong(self, entry_id: int, text: str) -> None:
        self._player.journal.note(WRONG, self._ledger_id, entry_id, text=text)


if __name__ == "__main__":
    play(tail)
